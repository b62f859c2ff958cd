"""A broker: the segments this process owns, the one decision watch and the one clean-up they share (DESIGN §6, §7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from segments.ledger import LedgerStore
from segments.settings import BrokerSettings
from txnstore.store import MetadataStore
from txnwire.ports import Clock, Random

if TYPE_CHECKING:
    from segments.directory import Directory
    from segments.segment import Segment, SegmentStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatistics:
    """Counters since the start of this process; the rest is of this moment."""

    broker_id: str
    segments: dict[str, SegmentStatistics]
    recovering: tuple[str, ...]
    failed: dict[str, str] = field(default_factory=dict)
    """Segments whose recovery failed for good (corrupt data), with the error's text."""
    followed_revision: int = 0
    clean_up_backlog: int = 0
    inflight_bytes: int = 0


class Broker:
    """Registers on a lease, claims segments, serves them until the lease or the ownership of one is lost.

    `start` returns once the broker is registered and follows decisions; segments are claimed in the background as the
    directory shows them unowned. `close` hands every segment over gracefully (bounded by `settings.hand_over_s`).
    """

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerStore,
        clock: Clock,
        random: Random,
        settings: BrokerSettings | None = None,
        *,
        broker_id: str,
        address: str,
        directory: Directory,
    ) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Raises `StoreUnavailable`."""
        raise NotImplementedError

    async def close(self, *, graceful: bool = True) -> None:
        """Idempotent, bounded. Ungraceful: leave everything as a crash would, but end tasks and watches."""
        raise NotImplementedError

    async def segment(self, path: str) -> Segment:
        """The segment, waiting while it is being taken over (at most `recover_wait_s`).

        Raises `NotOwner`; `DataCorrupt` where its recovery ended in one."""
        raise NotImplementedError

    def statistics(self) -> BrokerStatistics:
        raise NotImplementedError
