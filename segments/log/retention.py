"""Which ledgers of a segment have had their time: rolling by age, trimming by time and size (DESIGN §8). Pure.

Whole ledgers go, oldest first; never the open one, never past the watermark, nor past what a subscription has not
drained, unless the policy says so. A topic without a retention keeps everything.
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
"""A ledger is closed after this part of the retention time, or of its bytes: what it holds outlives either by a quarter
at most, or by what `Least` says."""


class Least(NamedTuple):
    """However short the retention, no ledger is closed before it has this age, or by its size below so many bytes."""

    age_ms: int
    ledger_bytes: int


class Retention(NamedTuple):
    """Of one segment. `bytes_kept`: its share of the topic's, by the width of its hash range. None: no limit."""

    ms: int | None = None
    bytes_kept: int | None = None
    undrained: bool = False

    @property
    def limited(self) -> bool:
        return self.ms is not None or self.bytes_kept is not None


def retention_of(policies: Mapping[str, Any], *, lo: int, hi: int) -> Retention:
    """`lo`, `hi`: the segment's hash range, inclusive. Of a sealed segment see `share_left`, too."""
    total = policies.get(RETENTION_BYTES)
    share = None if total is None else total * (hi - lo + 1) // HASH_SPACE
    return Retention(policies.get(RETENTION_MS), share, bool(policies.get(TRIM_UNDRAINED)))


def overlap_of(segment: SegmentName, other: SegmentName) -> int:
    """How many hashes of a sealed segment's range `other` has taken over, 0 if it did not come after it."""
    if other.segment_id <= segment.segment_id:
        return 0
    return max(0, min(segment.hi, other.hi) - max(segment.lo, other.lo) + 1)


def share_left(share: int, segment: SegmentName, others: Iterable[tuple[SegmentName, LedgerRecord]]) -> int:
    """What of `share` bytes is left to a sealed segment by those that came after it in its hash range.

    They have one share between them, or every split would give the topic its retention once more; and the newest keep
    of it what they have, as within one segment. `others`: segments of the topic with their ledger lists; whatever has a
    higher id and overlaps came from this one. Each counts with the part of its range that lies in this one's. The heads
    of their lists will do. Of their open ledgers nobody but their owners knows the size, so as much may be kept beyond
    the share.
    """
    for other, record in others:
        if (overlap := overlap_of(segment, other)) > 0:
            kept = record.paged_bytes + sum(info.bytes for info in kept_ledgers(record))
            share -= kept * overlap // (other.hi - other.lo + 1)
    return max(0, share)


def roll_due(record: LedgerRecord, retention: Retention, *, open_bytes: int, now_ms: int, least: Least) -> bool:
    """Whether the open ledger, of so many `open_bytes`, is to be closed: what is never closed is never trimmed."""
    if not open_bytes or not record.ledgers or record.ledgers[-1].closed_length is not None:
        return False
    age_ms = now_ms - record.ledgers[-1].opened_ms
    by_age = retention.ms is not None and age_ms >= max(retention.ms // ROLLS_PER_RETENTION, least.age_ms)
    share = retention.bytes_kept
    return by_age or (share is not None and open_bytes >= max(share // ROLLS_PER_RETENTION, least.ledger_bytes))


def kept_ledgers(record: LedgerRecord) -> list[LedgerInfo]:
    """Those that may still be read."""
    if record.trimmed_below is None:
        return list(record.ledgers)
    return record.ledgers[bisect_left(record.ledgers, record.trimmed_below[0], key=_id) :]


def _id(info: LedgerInfo) -> int:
    return info.ledger_id


class StampsAhead:
    """Closed ledgers of a segment whose stamp lay in the future, and since when they are known here.

    ▲ By this process's own running: whoever believes the stamp of a clock that ran ahead keeps what is behind it for as
    long as that says; whoever takes it for old deletes too early.
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
    """How long ago each closed ledger was closed, as far as clocks tell, by its id. `known_ms`: for how long, by no
    clock but this process's own, it has been known here as closed.

    A stamp that lies in the future is of a clock that ran ahead, and says nothing: the ledger was closed before what
    follows it was, and before it was seen here. ▲ Only then: of two stamps in the past the one of a late clock would
    take what is young.
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
    """The closed ledgers, oldest first, that time or size let go, whoever may still want them. By size only what leaves
    as much as is to be kept. `known_ms`: see `ages_ms`.

    ▲ The last ledger of a sealed segment stays for `last_sealed_ms`, however short the retention: beside it stands what
    is known of producers, who may still ask what of theirs was stored.
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
        found.pop()  # empty ones go along with others, not by themselves
    return found


def first_kept(record: LedgerRecord, going: Sequence[LedgerInfo], *, bound: Position) -> int | None:
    """The ledger that is the first to be kept once what may go of `going` has gone; None if nothing may. `bound`: the
    last position that may go (▲ the watermark, and what subscriptions have drained)."""
    allowed = 0
    for number, info in enumerate(going, start=1):
        if Position(info.ledger_id, (info.closed_length or 0) - 1) > bound:
            break
        allowed = number
    if not allowed:
        return None
    last = going[allowed - 1].ledger_id
    return min((info.ledger_id for info in record.ledgers if info.ledger_id > last), default=last + 1)
