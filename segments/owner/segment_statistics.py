"""The statistics of a segment."""

from __future__ import annotations

from dataclasses import dataclass

from segments.log.housekeeping import KeepingStatistics
from segments.subscription.subscriptions import SubscriptionStatistics
from txnwire.ids import Position, TxnId
from watchers.visibility import BufferStatistics

PINNING_SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentStatistics:
    """`recovery_s`: time of its take-over. `pinning`: the transactions that hold readers back, earliest first, with
    their first positions here, at most 100; `entries_behind`: for each of them, the entries behind that position.
    `kept_bytes`: of entries, in all its ledgers. `aborted_in_store`: aborted records in etcd, not in a sidecar."""

    path: str
    epoch: int
    sealed: bool
    ledgers: int
    entries: int
    last_confirmed: Position
    max_read_position: Position
    buffer: BufferStatistics
    pinning: tuple[tuple[TxnId, Position], ...]
    entries_behind: tuple[int, ...]
    open_transactions: int
    inflight: int
    inflight_bytes: int
    cached_bytes: int
    producers: int
    readers: int
    clean_up_backlog: int
    stored_entries: int
    subscriptions: tuple[SubscriptionStatistics, ...]
    recovery_s: float
    trimmed_below: Position | None
    kept_bytes: int
    aborted_in_store: int
    keeping: KeepingStatistics
