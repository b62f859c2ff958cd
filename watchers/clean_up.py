"""Durable clean-up behind decisions: aborted records, cursor blocks and watermarks in, op records out (DESIGN §5, §6).

Two planners (pure) say what one participant has to write next, `CleanUp` (the shell) writes it: batched over
transactions, one unanswered commit per participant ▲, coalesced over participants by the store's group commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from txnstore.store import Commit, CommitResult, KeyValue, MetadataStore
from txnwire.errors import TxnError
from txnwire.ids import Position
from txnwire.ports import Clock
from watchers.pending_acks import AppliedAcks, BlockWrite, PendingAcks
from watchers.visibility import Applied, TransactionBuffer


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanUpSettings:
    """`linger_s`: how long a first item waits for company. `flush_interval_s`: a watermark or a cursor without clean-up is
    written at most this often. `retry_s`: pause after the store was unavailable."""

    linger_s: float = 0.02
    flush_interval_s: float = 1.0
    retry_s: float = 0.5
    max_in_flight: int = 8


@dataclass(frozen=True, slots=True)
class CleanUpStatistics:
    """`backlog`: transactions decided but not cleaned, summed over participants."""

    backlog: int
    in_flight: int
    commits: int
    cleaned: int
    lost_compares: int


class CleanUpPlan(NamedTuple):
    commit: Commit
    writes: Sequence[Applied] = ()
    acks: Sequence[AppliedAcks] = ()
    watermark: Position | None = None
    blocks: Sequence[BlockWrite] = ()


class CleanUpTarget(Protocol):
    """One participant's durable side. Pure: told the time, does no I/O."""

    @property
    def name(self) -> str: ...

    @property
    def backlog(self) -> int: ...

    def plan(self, now_s: float, *, everything: bool = False) -> CleanUpPlan | None:
        """What to write next, None if nothing is due. `everything`: do not wait for the flush interval."""

    def settle(self, plan: CleanUpPlan, result: CommitResult, now_s: float) -> bool:
        """Take the verdict; False: a compare was lost, and what is there now has been taken over: plan again.
        Raises `NotOwner`."""

    def next_flush_s(self) -> float | None:
        """When something that has no clean-up to travel with is due, None if nothing is."""

    def lost(self, error: TxnError) -> None:
        """The owner epoch is lost, or the records are corrupt: stop. Called once."""


class WriteCleanUp:
    """`CleanUpTarget` of a segment's writes: op and index deletes, aborted records, the watermark."""

    def __init__(
        self,
        segment: str,
        owner_epoch: int,
        buffer: TransactionBuffer,
        *,
        watermark: KeyValue | None,
        on_lost: Callable[[TxnError], None],
        flush_interval_s: float = 1.0,
    ) -> None:
        """`watermark`: its record as recovery found it."""
        raise NotImplementedError


class AckCleanUp:
    """`CleanUpTarget` of one (segment, subscription): ack op and index deletes together with the cursor's dirty blocks.
    It writes the cursor's plain acks too, so a cursor has one writer ▲."""

    def __init__(
        self,
        segment: str,
        subscription: str,
        owner_epoch: int,
        pending: PendingAcks,
        *,
        on_lost: Callable[[TxnError], None],
        flush_interval_s: float = 1.0,
    ) -> None:
        raise NotImplementedError


class CleanUp:
    """The shell: one per process."""

    def __init__(self, store: MetadataStore, clock: Clock, settings: CleanUpSettings | None = None) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Stop; what is in flight may still land, which is harmless. Bounded."""
        raise NotImplementedError

    def add(self, target: CleanUpTarget) -> None:
        raise NotImplementedError

    def wake(self, target: CleanUpTarget) -> None:
        """It has something to write: clean-up was queued, a cursor was acked on, the read position moved. O(1), may be
        called as often as one likes."""
        raise NotImplementedError

    async def drain(self, target: CleanUpTarget, *, timeout_s: float) -> None:
        """Write all it has, watermark and cursor included (graceful hand-over). Raises `Timeout`, `NotOwner`."""
        raise NotImplementedError

    def remove(self, target: CleanUpTarget) -> None:
        """No more writes or calls for it. Idempotent. A commit in flight is not withdrawn."""
        raise NotImplementedError

    def statistics(self) -> CleanUpStatistics:
        raise NotImplementedError
