"""Chooses which ledgers of a segment to roll by age or size, and to trim by time or size (DESIGN §8). Pure.

Trims whole ledgers, oldest first; never the open one, never past the watermark, and never past undrained messages
unless the policy allows it. A topic without a retention keeps everything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from segments.layout.topics import RETENTION_BYTES, RETENTION_MS, TRIM_UNDRAINED
from txnstore.records import LedgerInfo, LedgerRecord
from txnwire.ids import HASH_SPACE, Position
from txnwire.names import SegmentName

ROLLS_PER_RETENTION: Final = 4
"""A ledger is closed after this part of the retention time or bytes: its entries exceed either by at most a quarter, or
by the bounds of `Least`."""


class Least(NamedTuple):
    """Lower bounds: whatever the retention, no ledger is closed by age before `age_ms`, or by size below
    `ledger_bytes`."""

    age_ms: int
    ledger_bytes: int


class Retention(NamedTuple):
    """Limits of one segment. `bytes_kept`: its share of the topic's bytes, by its hash range. None: no limit."""

    ms: int | None = None
    bytes_kept: int | None = None
    undrained: bool = False

    @property
    def limited(self) -> bool:
        return self.ms is not None or self.bytes_kept is not None


def retention_of(policies: Mapping[str, Any], *, lo: int, hi: int) -> Retention:
    """`lo`, `hi`: the segment's hash range, inclusive. For a sealed segment see also `share_left`."""
    total = policies.get(RETENTION_BYTES)
    share = None if total is None else total * (hi - lo + 1) // HASH_SPACE
    return Retention(policies.get(RETENTION_MS), share, bool(policies.get(TRIM_UNDRAINED)))


def overlap_of(segment: SegmentName, other: SegmentName) -> int:
    """How many hashes of a sealed segment's range `other` has taken over, 0 if it did not come after it."""
    if other.segment_id <= segment.segment_id:
        return 0
    return max(0, min(segment.hi, other.hi) - max(segment.lo, other.lo) + 1)


def share_left(share: int, segment: SegmentName, others: Iterable[tuple[SegmentName, LedgerRecord]]) -> int:
    """The part of `share` bytes that later segments of its hash range leave to a sealed segment.

    They share one limit, or every split would give the topic its full retention again; the newest ledgers use it
    first, as within one segment. `others`: segments of the topic with their ledger lists; the head of each list is
    enough. An overlapping segment with a higher id came from this one; it counts with the part of its range inside
    this one's. Only their owners know the size of their open ledgers, so that much may be kept beyond the share.
    """
    for other, record in others:
        if (overlap := overlap_of(segment, other)) > 0:
            kept = record.paged_bytes + sum(info.bytes for info in kept_ledgers(record))
            share -= kept * overlap // (other.hi - other.lo + 1)
    return max(0, share)


def roll_due(record: LedgerRecord, retention: Retention, *, open_bytes: int, now_ms: int, least: Least) -> bool:
    """Whether to close the open ledger, which holds `open_bytes`: an open ledger is never trimmed."""
    if not open_bytes or not record.ledgers or record.ledgers[-1].closed_length is not None:
        return False
    age_ms = now_ms - record.ledgers[-1].opened_ms
    by_age = retention.ms is not None and age_ms >= max(retention.ms // ROLLS_PER_RETENTION, least.age_ms)
    share = retention.bytes_kept
    return by_age or (share is not None and open_bytes >= max(share // ROLLS_PER_RETENTION, least.ledger_bytes))


def kept_ledgers(record: LedgerRecord) -> list[LedgerInfo]:
    """The ledgers that may still be read."""
    if record.trimmed_below is None:
        return list(record.ledgers)
    return record.ledgers[bisect_left(record.ledgers, record.trimmed_below[0], key=_id) :]


def _id(info: LedgerInfo) -> int:
    return info.ledger_id


class StampsAhead:
    """Remembers closed ledgers of a segment whose stamp lay in the future, and since when this process knows them.

    ▲ By this process's monotonic clock: trusting the stamp of a clock that ran ahead would keep later ledgers for that
    long; treating it as old would delete too early.
    """

    def __init__(self) -> None:
        self._seen_s: dict[int, float] = {}

    def known_ms(self, ledgers: Iterable[LedgerInfo], *, now_ms: int, now_s: float) -> dict[int, int]:
        """`now_s`: by the monotonic clock."""
        self._seen_s = {
            info.ledger_id: self._seen_s.get(info.ledger_id, now_s)
            for info in ledgers
            if info.closed_length is not None and (info.ledger_id in self._seen_s or info.closed_ms > now_ms)
        }
        return {ledger_id: int((now_s - seen_s) * 1000) for ledger_id, seen_s in self._seen_s.items()}


def ages_ms(ledgers: Sequence[LedgerInfo], *, now_ms: int, known_ms: Mapping[int, int]) -> dict[int, int]:
    """Closed ledger's id → how long ago it was closed, as far as clocks tell. `known_ms`: for how long this process has
    known it as closed, by its own clock.

    A stamp in the future comes from a clock that ran ahead, and is not used: the ledger was closed before the next one
    was stamped, and before this process saw it. ▲ Only then: between two stamps in the past, that of a slow clock would
    expire a young ledger.
    """
    found: dict[int, int] = {}
    later_ms: int | None = None
    for info in reversed(ledgers):
        stamp_ms = info.opened_ms
        if info.closed_length is not None:
            stamp_ms = info.closed_ms
            closed_ms = stamp_ms
            if closed_ms > now_ms and later_ms is not None:
                closed_ms = min(closed_ms, later_ms)
            found[info.ledger_id] = max(now_ms - closed_ms, known_ms.get(info.ledger_id, now_ms - closed_ms))
        if stamp_ms:
            later_ms = stamp_ms if later_ms is None else min(later_ms, stamp_ms)
    return found


def expired(
    record: LedgerRecord,
    retention: Retention,
    *,
    open_bytes: int,
    now_ms: int,
    last_sealed_ms: int,
    known_ms: Mapping[int, int] | None = None,
) -> list[LedgerInfo]:
    """The closed ledgers, oldest first, that time or size expire, even if a subscription still needs them. Size expires
    one only if the others still hold the bytes to keep. `known_ms`: see `ages_ms`.

    ▲ The last ledger of a sealed segment stays for `last_sealed_ms`, however short the retention: its footer holds the
    dedup state, and producers may still ask which of their entries were stored.
    """
    kept = kept_ledgers(record)
    ages = ages_ms(kept, now_ms=now_ms, known_ms=known_ms or {})
    total = open_bytes + sum(info.bytes for info in kept)
    found: list[LedgerInfo] = []
    for info in kept:
        if info.closed_length is None:
            break
        age_ms = ages[info.ledger_id]
        too_old = retention.ms is not None and age_ms > retention.ms
        too_much = retention.bytes_kept is not None and total - info.bytes >= retention.bytes_kept
        if not too_old and not too_much and info.closed_length:
            break
        if info is kept[-1] and age_ms <= last_sealed_ms:
            break
        found.append(info)
        total -= info.bytes
    while found and not found[-1].closed_length:
        found.pop()  # empty ones expire with others, not alone
    return found


def first_kept(record: LedgerRecord, going: Sequence[LedgerInfo], *, bound: Position) -> int | None:
    """The first ledger to keep after trimming `going` as far as allowed; None if nothing may be trimmed. `bound`: the
    last position that may be trimmed (▲ the watermark, and what subscriptions have drained)."""
    allowed = 0
    for number, info in enumerate(going, start=1):
        if Position(info.ledger_id, (info.closed_length or 0) - 1) > bound:
            break
        allowed = number
    if not allowed:
        return None
    last = going[allowed - 1].ledger_id
    return min((info.ledger_id for info in record.ledgers if info.ledger_id > last), default=last + 1)
