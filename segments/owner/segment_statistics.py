"""The statistics of a segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from segments.log.housekeeping import KeepingStatistics
from segments.log.ledgers.segment_log import SegmentLog
from segments.subscription.lag import LagAge
from segments.subscription.subscriptions import SubscriptionStatistics
from txnwire.ids import Position, TxnId
from watchers.visibility import BufferStatistics

PINNING_SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentStatistics:
    """`recovery_s`: time of its take-over. `pinning`: the transactions that hold readers back, earliest first, with
    their first positions here, at most 100; `entries_behind`: for each of them, the entries behind that position.
    `lags`: the last counts by subscription, including subscriptions without a consumer here.
    `kept_bytes`: bytes of entries in all its ledgers. `aborted_in_store`: aborted records in etcd, not in a sidecar."""

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
    open_transactions: int
    lags: Mapping[str, LagAge]


def entries_behind(ledgers: SegmentLog, pinning: Sequence[tuple[TxnId, Position]], last: Position) -> tuple[int, ...]:
    """For each pinning transaction, the entries behind its first position, up to `last`."""
    # An op record precedes its data: a transaction may pin at a position without an entry so far.
    return tuple(max(0, ledgers.entries_between(position, last)) for _, position in pinning)
