"""One watch on `/txn/` per process: every decision reaches the segments that hold its transaction (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from txnstore.store import MetadataStore
from txnwire.ids import TxnId
from txnwire.ports import Clock
from watchers.outcomes import Decision, Participant

__all__ = ["Decision", "DecisionSettings", "DecisionStatistics", "DecisionWatch", "Membership", "Participant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSettings:
    """`reconcile_interval_s`: pause between passes over transactions held open longer than `held_long_s`; a pass reads
    `reconcile_page` headers at a time, with `reconcile_pause_s` between pages. `nudge_s`: how long `wait_followed` waits
    for the watch before it reads the headers of what is held instead."""

    reconcile_interval_s: float = 10.0
    held_long_s: float = 30.0
    reconcile_page: int = 500
    reconcile_pause_s: float = 0.2
    nudge_s: float = 1.0


@dataclass(frozen=True, slots=True)
class DecisionStatistics:
    followed_revision: int
    held: int
    decisions: int
    events: int
    resyncs: int
    reconciled: int
    absent_headers: int


class Membership:
    """One participant's interest. From `DecisionWatch.join` until `loaded` every decision is kept for it; afterwards it is
    told those of transactions it has added. All methods are synchronous."""

    def add(self, txn_id: TxnId) -> None:
        """▲ Before the transaction's first op is sent from here. Idempotent."""
        raise NotImplementedError

    def drop(self, txn_id: TxnId) -> None:
        """Nothing of the transaction is held any more and no decision was delivered (its only op was refused)."""
        raise NotImplementedError

    def loaded(self, held: Iterable[TxnId]) -> None:
        """Recovery is over: `held` are the transactions found open. Decisions that came since `join` are delivered now,
        within this call, to those of them that are held."""
        raise NotImplementedError

    def leave(self) -> None:
        """No more calls. Idempotent. O(transactions held in the process)."""
        raise NotImplementedError


class DecisionWatch:
    def __init__(self, store: MetadataStore, clock: Clock, settings: DecisionSettings | None = None) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Follow from the store's current revision on. Raises `StoreUnavailable`."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def join(self, participant: Participant) -> Membership:
        """▲ Before the participant reads anything of its state from the store."""
        raise NotImplementedError

    @property
    def followed_revision(self) -> int:
        """Every decision at or before this revision has been delivered."""
        raise NotImplementedError

    async def wait_followed(self, revision: int, *, timeout_s: float) -> None:
        """Return once every decision up to `revision` has been delivered. Raises `Timeout`."""
        raise NotImplementedError

    def statistics(self) -> DecisionStatistics:
        raise NotImplementedError
