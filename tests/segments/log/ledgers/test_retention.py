"""Which ledgers go: tables over the pure core, and a property that holds whatever the lists look like."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segments.ledger.sidecars import decode_sidecar, encode_sidecar
from segments.log.ledgers.retention import (
    Least,
    Retention,
    StampsAhead,
    expired,
    first_kept,
    kept_ledgers,
    retention_of,
    roll_due,
    share_left,
)
from txnstore.records import LedgerInfo, LedgerRecord
from txnwire.errors import DataCorrupt
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.names import SegmentName, TopicName

NOW_MS = 1_000_000
WEEK_MS = 7 * 24 * 3600 * 1000


def closed(ledger_id: int, *, entries: int = 10, bytes: int = 100, age_ms: int = 0) -> LedgerInfo:
    return LedgerInfo(ledger_id=ledger_id, closed_length=entries, bytes=bytes, closed_ms=NOW_MS - age_ms)


def opened(ledger_id: int, age_ms: int = 0) -> LedgerInfo:
    return LedgerInfo(ledger_id=ledger_id, opened_ms=NOW_MS - age_ms)


THREE = [closed(1, age_ms=300), closed(2, age_ms=200), closed(4, age_ms=100)]


@pytest.mark.parametrize(
    ("ledgers", "retention", "open_bytes", "going"),
    [
        ([*THREE, opened(5)], Retention(), 0, []),
        ([*THREE, opened(5)], Retention(ms=250), 0, [1]),
        ([*THREE, opened(5)], Retention(ms=150), 0, [1, 2]),
        ([*THREE, opened(5)], Retention(ms=1), 0, [1, 2, 4]),
        ([*THREE, opened(5)], Retention(bytes_kept=300), 0, []),
        ([*THREE, opened(5)], Retention(bytes_kept=299), 0, []),
        ([*THREE, opened(5)], Retention(bytes_kept=200), 0, [1]),
        ([*THREE, opened(5)], Retention(bytes_kept=200), 100, [1, 2]),
        ([*THREE, opened(5)], Retention(bytes_kept=100), 0, [1, 2]),
        ([*THREE, opened(5)], Retention(bytes_kept=1), 0, [1, 2]),
        ([*THREE, opened(5)], Retention(bytes_kept=1), 1, [1, 2, 4]),
        ([*THREE, opened(5)], Retention(ms=250, bytes_kept=100), 0, [1, 2]),
        ([*THREE], Retention(ms=1), 0, [1, 2]),
        ([*THREE[:2], closed(4, age_ms=WEEK_MS + 1)], Retention(ms=1), 0, [1, 2, 4]),
        ([closed(1, age_ms=9), closed(2, entries=0), closed(3)], Retention(ms=5), 0, [1]),
        ([closed(1, age_ms=9), closed(2, entries=0), closed(3, age_ms=9), opened(4)], Retention(ms=5), 0, [1, 2, 3]),
        ([opened(5, age_ms=900)], Retention(ms=1, bytes_kept=1), 500, []),
    ],
)
def test_what_time_and_size_let_go(
    ledgers: list[LedgerInfo], retention: Retention, open_bytes: int, going: list[int]
) -> None:
    record = LedgerRecord(ledgers=ledgers)
    found = expired(record, retention, open_bytes=open_bytes, now_ms=NOW_MS, last_sealed_ms=WEEK_MS)
    assert [info.ledger_id for info in found] == going


@pytest.mark.parametrize(
    ("ledgers", "known", "going"),
    [
        # Ahead, with what follows it: as old as the oldest of that, not as the first.
        ([closed(1, age_ms=-5000), closed(2, age_ms=300), closed(3, age_ms=200), opened(4, 100)], {}, [1, 2]),
        ([closed(1, age_ms=-5000), closed(2, age_ms=300), opened(4, 100)], {}, [1, 2]),
        ([closed(1, age_ms=-5000), opened(2, 260)], {}, [1]),
        ([closed(1, age_ms=-5000), opened(2, 240)], {}, []),
        ([closed(1, age_ms=-5000), closed(2, age_ms=-6000), opened(3, -7000)], {}, []),
        # Nothing tells but how long it is known here.
        ([closed(1, age_ms=-5000), opened(3, -7000)], {1: 250}, []),
        ([closed(1, age_ms=-5000), opened(3, -7000)], {1: 251}, [1]),
        ([closed(1, age_ms=-5000), closed(2, age_ms=300), opened(3)], {1: 251}, [1, 2]),
        # Nothing is behind it: the segment is sealed.
        ([closed(1, age_ms=300), closed(2, age_ms=-5000)], {}, [1]),
        # What is young by a stamp in the past is not taken for a late clock's stamp behind it.
        ([closed(1, age_ms=100), closed(2, age_ms=900), opened(3, 900)], {}, []),
        ([closed(1, age_ms=100), closed(2, age_ms=100), opened(3, 900)], {1: 0, 2: 0}, []),
    ],
)
def test_a_stamp_in_the_future_holds_back_nothing_and_takes_nothing_early(
    ledgers: list[LedgerInfo], known: dict[int, int], going: list[int]
) -> None:
    record = LedgerRecord(ledgers=ledgers)
    found = expired(record, Retention(ms=250), open_bytes=0, now_ms=NOW_MS, last_sealed_ms=WEEK_MS, known_ms=known)
    assert [info.ledger_id for info in found] == going


@pytest.mark.parametrize(
    ("bound", "kept"),
    [
        (EARLIEST, None),
        (Position(1, 8), None),
        (Position(1, 9), 2),
        (Position(2, 8), 2),
        (Position(2, 9), 4),
        (Position(4, 9), 5),
        (Position(9, 0), 5),
    ],
)
def test_nothing_goes_past_the_watermark_or_what_is_drained(bound: Position, kept: int | None) -> None:
    assert first_kept(LedgerRecord(ledgers=[*THREE, opened(5)]), THREE, bound=bound) == kept


def test_of_a_sealed_segment_all_may_go() -> None:
    assert first_kept(LedgerRecord(ledgers=THREE, sealed=(4, 9)), THREE, bound=Position(4, 9)) == 5


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50), st.integers(0, 400)), max_size=8),
    st.one_of(st.none(), st.integers(1, 400)),
    st.one_of(st.none(), st.integers(1, 200)),
    st.integers(0, 60),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_what_must_stay_stays(
    shape: list[tuple[int, int, int]], ms: int | None, size: int | None, open_bytes: int, at: int, trimmed: int
) -> None:
    """A prefix goes; nothing of it is open, young and within the size, beyond the bound, or gone already."""
    infos = [closed(n, entries=e, bytes=b if e else 0, age_ms=age) for n, (e, b, age) in enumerate(shape, start=1)]
    record = LedgerRecord(ledgers=[*infos, opened(len(infos) + 1)], trimmed_below=(trimmed, 0) if trimmed else None)
    retention = Retention(ms, size)
    going = expired(record, retention, open_bytes=open_bytes, now_ms=NOW_MS, last_sealed_ms=WEEK_MS)
    kept = kept_ledgers(record)
    assert going == kept[: len(going)]
    assert all(info.closed_length is not None for info in going)
    left = open_bytes + sum(info.bytes for info in kept[len(going) :])
    if going and going[-1].closed_length and (ms is None or NOW_MS - going[-1].closed_ms <= ms):
        assert size is not None
        assert left >= size
    bound = Position(at, 2)
    first = first_kept(record, going, bound=bound)
    if first is not None:
        assert all(
            Position(one.ledger_id, (one.closed_length or 0) - 1) <= bound for one in going if one.ledger_id < first
        )
        assert first > (trimmed or 0)


def test_a_ledger_closed_in_the_future_is_known_from_when_it_was_seen_closed() -> None:
    ahead = StampsAhead()
    first, second = closed(1, age_ms=-500), closed(2, age_ms=10)
    assert ahead.known_ms([first, second, opened(3, -900)], now_ms=NOW_MS, now_s=5.0) == {1: 0}
    assert ahead.known_ms([first, second, closed(3, age_ms=-900)], now_ms=NOW_MS, now_s=5.25) == {1: 250, 3: 0}
    assert ahead.known_ms([first, closed(3, age_ms=-900)], now_ms=NOW_MS + 600, now_s=6.0) == {1: 1000, 3: 750}
    assert ahead.known_ms([closed(3, age_ms=-900)], now_ms=NOW_MS, now_s=7.0) == {3: 1750}


LEAST = Least(age_ms=60, ledger_bytes=50)


@pytest.mark.parametrize(
    ("retention", "age_ms", "open_bytes", "due"),
    [
        (Retention(), 10_000, 500, False),
        (Retention(ms=400), 99, 500, False),
        (Retention(ms=400), 100, 500, True),
        (Retention(ms=400), 100, 0, False),
        (Retention(ms=8), 59, 500, False),
        (Retention(ms=8), 60, 500, True),
        (Retention(bytes_kept=400), 0, 99, False),
        (Retention(bytes_kept=400), 0, 100, True),
        (Retention(bytes_kept=4), 0, 49, False),
        (Retention(bytes_kept=4), 0, 50, True),
    ],
)
def test_an_open_ledger_is_closed_by_age_or_share(
    retention: Retention, age_ms: int, open_bytes: int, due: bool
) -> None:
    record = LedgerRecord(ledgers=[closed(1), opened(2, age_ms)])
    assert roll_due(record, retention, open_bytes=open_bytes, now_ms=NOW_MS, least=LEAST) is due


def test_a_sealed_segment_rolls_nothing() -> None:
    record = LedgerRecord(ledgers=[closed(1)], sealed=(1, 9))
    assert not roll_due(record, Retention(ms=1), open_bytes=9, now_ms=NOW_MS, least=LEAST)


def test_a_segment_s_share_goes_by_its_hash_range() -> None:
    policies = {"retention_ms": 5, "retention_bytes": 1000, "trim_undrained": True}
    assert retention_of(policies, lo=0, hi=0x7FFF) == Retention(5, 500, True)
    assert retention_of(policies, lo=0, hi=0xFFFF) == Retention(5, 1000, True)
    assert not retention_of({}, lo=0, hi=0xFFFF).limited


def test_sidecars_round_trip_and_name_what_is_wrong() -> None:
    aborted = {(TxnId(1, 5), None): Position(3, 9), (TxnId(2, 1 << 60), (1 << 64) - 1): Position(2, -1)}
    data = encode_sidecar(3, aborted)
    assert decode_sidecar(data, 3, "s") == aborted
    with pytest.raises(DataCorrupt, match="s: version 1 of ledger 3, expected version 1 of ledger 4"):
        decode_sidecar(data, 4, "s")
    with pytest.raises(DataCorrupt, match="s: not a sidecar"):
        decode_sidecar(data[:-1], 3, "s")


def named(lo: int, hi: int, segment_id: int, *kept: int) -> tuple[SegmentName, LedgerRecord]:
    ledgers = [closed(number, bytes=size) for number, size in enumerate(kept, start=1)]
    return SegmentName(TopicName("public", "nyc", "flights"), lo, hi, segment_id), LedgerRecord(ledgers=ledgers)


@pytest.mark.parametrize(
    ("others", "left"),
    [
        ([], 1000),
        ([named(0, 0x7FFF, 1, 100), named(0x8000, 0xFFFF, 2, 50, 50)], 800),
        ([named(0, 0xFFFF, 1, 400), named(0, 0xFFFF, 2, 900)], 0),
        ([named(0x8000, 0xFFFF, 0, 900)], 1000),
        ([named(0x8000, 0xFFFF, 4, 900)], 1000),
    ],
    ids=["nothing came after", "children", "grandchildren", "an older one", "another range"],
)
def test_a_sealed_segment_has_what_those_behind_it_leave(
    others: list[tuple[SegmentName, LedgerRecord]], left: int
) -> None:
    segment, _ = named(0, 0x7FFF, 0) if others and others[0][0].segment_id == 4 else named(0, 0xFFFF, 0)
    if others and others[0][0].segment_id == 0:
        segment, _ = named(0x8000, 0xFFFF, 1)
    assert share_left(1000, segment, others) == left


def test_a_merged_child_counts_by_the_part_of_its_range() -> None:
    segment, _ = named(0, 0x3FFF, 0)
    assert share_left(1000, segment, [named(0, 0xFFFF, 7, 400)]) == 900


def test_what_is_trimmed_counts_no_more() -> None:
    segment, _ = named(0, 0xFFFF, 0)
    child, record = named(0, 0xFFFF, 1, 300, 300)
    trimmed = LedgerRecord(ledgers=record.ledgers, trimmed_below=(2, 0))
    assert share_left(1000, segment, [(child, trimmed)]) == 700


def test_ledgers_that_stand_in_pages_count_as_those_of_the_head() -> None:
    """▲ Of a long list the head alone is read: an ancestor would keep what its descendants have used up."""
    segment, _ = named(0, 0xFFFF, 0)
    child, record = named(0, 0x7FFF, 1, 100)
    paged = LedgerRecord(ledgers=record.ledgers, paged=3, paged_bytes=300)
    assert share_left(1000, segment, [(child, paged)]) == 600
