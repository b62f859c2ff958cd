"""Offsets as they stand in checkpoints, and what lies between two cuts, part by part."""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pyspark_txnstore.shared.offset_codec import MAX_CUT_BYTES
from pyspark_txnstore.shared.offsets import (
    EntryRange,
    Isolation,
    beginning,
    check_isolation,
    decode_offset,
    encode_offset,
    ranges,
    settle,
    split,
    topics_left,
)
from tests.txnwire.strategies import hash_ranges, positions, topics, txn_ids
from txnclient import EntryHead, Snapshot
from txnclient.reading.entries import PieceHead
from txnclient.reading.snapshot import SegmentBounds, Span, TopicBounds
from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST, MAX_COUNTER, MAX_TCID, Position, TxnId
from txnwire.names import SegmentName, TopicName

OTHER, ELSEWHERE = "topic://t/n/other", "t/n/other/0000-ffff-0"
TOPIC, PATH, LEFT, RIGHT = "topic://t/n/name", "t/n/name/0000-ffff-0", "t/n/name/0000-7fff-1", "t/n/name/8000-ffff-2"
ONE, TWO = TxnId(3, 1), TxnId(3, 2)
writers = st.integers(0, 2**64 - 1)
KIB = 1024


def at(entry: int) -> Position:
    return Position(1, entry)


CUT = Snapshot(
    revision=77,
    topics={
        TOPIC: TopicBounds(
            4, {PATH: SegmentBounds(Position(1, 4), Position(2, 9)), LEFT: SegmentBounds(at(0), at(0), True)}
        )
    },
    pending=(ONE,),
    aborted=(TWO,),
    losers=((TxnId(3, 3), 5),),
    counted={TxnId(3, 4): (1, 2)},
    store="a1",
)
TEXT = (
    '{"v": 1, "revision": 77, "segments": 2, "pending": 1, '
    '"cut": "c-r%2N;G8TDACW;&r8frWno}q`2U}ofsvJwivh@D1Of&iW(H#>AZBJ{Wq<%6lZA;9%3*@i0QXb~5d"}'
)


# ---- the codec ------------------------------------------------------------------------------------------------------


@st.composite
def bounds(draw: st.DrawFn) -> SegmentBounds:
    resolved, end = sorted((draw(positions), draw(positions)))
    return SegmentBounds(resolved, end, draw(st.booleans()))


@st.composite
def cuts(draw: st.DrawFn) -> Snapshot:
    def of_topic(topic: TopicName) -> TopicBounds:
        ids = draw(st.lists(st.integers(0, 10**18), unique=True, max_size=4))
        names = [SegmentName(topic, *draw(hash_ranges), segment_id) for segment_id in sorted(ids)]
        return TopicBounds(
            draw(st.integers(0, 2**40)), {one.path: draw(bounds()) for one in names}, draw(st.integers(-1, 99))
        )

    def ids() -> list[TxnId]:
        return sorted(draw(st.sets(txn_ids, max_size=6)))

    return Snapshot(
        revision=draw(st.integers(1, 2**63 - 1)),
        topics={str(topic): of_topic(topic) for topic in draw(st.lists(topics, unique=True, max_size=3))},
        pending=tuple(ids()),
        aborted=tuple(ids()),
        losers=tuple(
            (txn_id, writer) for txn_id in ids() for writer in sorted(draw(st.sets(writers, min_size=1, max_size=2)))
        ),
        counted={txn_id: tuple(sorted(draw(st.sets(writers, max_size=2)))) for txn_id in ids()},
        store=draw(st.text(max_size=5)),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cut=cuts())
@example(cut=CUT)
def test_an_offset_is_the_cut_again(cut: Snapshot) -> None:
    text = json.dumps(encode_offset(cut))
    assert decode_offset(json.loads(text)) == cut
    again = decode_offset(json.loads(text))
    assert json.dumps(encode_offset(again)) == text, "Spark compares offsets as text"
    assert decode_offset(json.loads(cut.to_json())) == cut, "a snapshot's own document is one, too"
    assert all(isinstance(value, (int, str)) for value in encode_offset(cut).values())


def test_equal_cuts_make_equal_offsets_in_whatever_order_they_were_made() -> None:
    turned = replace(
        CUT,
        topics={TOPIC: CUT.topics[TOPIC]._replace(segments=dict(reversed(CUT.topics[TOPIC].segments.items())))},
        pending=(ONE, ONE),
    )
    assert encode_offset(turned) == encode_offset(CUT)


@pytest.mark.parametrize("text", [TEXT, TEXT.replace('"v": 1', '"v": 2, "isolation": "read_committed"')])
def test_what_stands_in_a_checkpoint_stays_readable(text: str) -> None:
    """▲ Written by the first version and by the second: what is changed in the codec needs another "v"."""
    assert decode_offset(json.loads(text)) == CUT


def test_an_offset_before_everything_is_none_in_each_version() -> None:
    assert decode_offset(json.loads('{"v":1,"earliest":true}')) is None
    assert decode_offset(encode_offset(None)) is None
    assert encode_offset(None) == {"v": 2, "isolation": "read_committed", "earliest": True}


OPEN = CUT
CLEAN = Snapshot(77, {TOPIC: TopicBounds(4, {PATH: SegmentBounds(at(4), at(4))})})


def of_first_version(cut: Snapshot | None) -> dict[str, Any]:
    return {**{key: value for key, value in encode_offset(cut).items() if key != "isolation"}, "v": 1}


@pytest.mark.parametrize("cut", [OPEN, CLEAN])
@pytest.mark.parametrize(
    ("written", "read"), [("read_committed", "read_uncommitted"), ("read_uncommitted", "read_committed")]
)
def test_an_offset_of_the_other_isolation_is_refused(cut: Snapshot, written: Isolation, read: Isolation) -> None:
    check_isolation(encode_offset(cut, written), cut, written)
    with pytest.raises(InvalidArgument, match=f"with isolationLevel {written}, and this one has {read}"):
        check_isolation(encode_offset(cut, written), cut, read)
    check_isolation(encode_offset(None, written), None, read)  # nothing lies before it, in either way
    check_isolation(json.loads(cut.to_json()), cut, read)  # a snapshot is of no query


def test_of_an_offset_without_isolation_it_is_known_where_something_is_pending() -> None:
    first = of_first_version(OPEN)
    assert decode_offset(first) == OPEN
    check_isolation(first, OPEN, "read_committed")
    with pytest.raises(InvalidArgument, match="with isolationLevel read_committed"):
        check_isolation(first, OPEN, "read_uncommitted")
    for isolation in ("read_committed", "read_uncommitted"):
        check_isolation(of_first_version(CLEAN), CLEAN, isolation)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [(PATH, LEFT), (LEFT, PATH)])
def test_of_an_offset_without_isolation_it_is_known_where_any_segment_is_not_resolved(order: tuple[str, str]) -> None:
    bounds = {PATH: SegmentBounds(at(4), at(4)), LEFT: SegmentBounds(at(2), at(4))}
    held_back = Snapshot(77, {TOPIC: TopicBounds(4, {path: bounds[path] for path in order})})
    check_isolation(of_first_version(held_back), held_back, "read_committed")
    with pytest.raises(InvalidArgument, match="with isolationLevel read_committed"):
        check_isolation(of_first_version(held_back), held_back, "read_uncommitted")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"v": 3}, "begin with a new one"),
        ({"isolation": "committed"}, '"isolation" to be one of read_committed, read_uncommitted, found .committed'),
        ({"v": None}, "begin with a new one"),
        ({"cut": 7}, '"cut" to be text, found 7'),
        ({"cut": "é"}, "its cut is damaged"),
        ({"cut": encode_offset(CUT)["cut"][:-5]}, "its cut is damaged"),  # type: ignore[index]
        ({"cut": "00000"}, "its cut is damaged"),
        (
            {"cut": base64.b85encode(base64.b85decode(str(encode_offset(CUT)["cut"])) + b"behind").decode()},
            "does not end",
        ),
        ({"revision": 78}, '"revision" is 78, its cut has 77'),
        ({"pending": 0}, '"pending" is 0, its cut has 1'),
        ({"segments": True}, '"segments" is True, its cut has 2'),
    ],
)
def test_a_damaged_offset_says_what_is_wrong(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        decode_offset({**encode_offset(CUT), **change})


@pytest.mark.parametrize(
    ("cut", "complaint"),
    [
        (replace(CLEAN, topics={TOPIC: TopicBounds(4, {PATH: SegmentBounds(at(5), at(4))})}), "after its end 1:4"),
        (replace(CLEAN, pending=(TxnId(3, 0),)), "transaction 0 of coordinator 3 was never given out"),
        (replace(CLEAN, pending=(TxnId(3, MAX_COUNTER), TxnId(3, MAX_COUNTER + 1))), "was never given out"),
        (replace(CLEAN, pending=(TxnId(MAX_TCID + 1, 1),)), f"where at most {MAX_TCID} can be"),
        (replace(CLEAN, revision=2**64), f"where at most {MAX_COUNTER} can be"),
        (replace(CLEAN, revision=2**70), "a number of more than 64 bits"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(cut: Snapshot, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        decode_offset(encode_offset(cut))


def test_fields_of_a_cut_are_neither_too_many_nor_too_few() -> None:
    fields = zlib.decompress(base64.b85decode(str(encode_offset(CUT)["cut"])))
    for some, complaint in ((fields + bytes(2), "2 bytes after its end"), (fields[:-1], "7 bytes from byte")):
        packed = base64.b85encode(zlib.compress(some)).decode()
        with pytest.raises(InvalidArgument, match=f"its cut is damaged: {complaint}"):
            decode_offset({**encode_offset(CUT), "cut": packed})


@pytest.mark.parametrize("offset", [None, [], "text", 7])
def test_what_is_no_object_is_no_offset(offset: Any) -> None:
    with pytest.raises(InvalidArgument, match="not an offset of txnstore: expected an object"):
        decode_offset(offset)


@settings(max_examples=200, deadline=None)
@given(fields=st.binary(max_size=60), cut_at=st.integers(0, 200), flip=st.integers(0, 10**6))
def test_damage_is_an_error_and_nothing_else(fields: bytes, cut_at: int, flip: int) -> None:
    """Whatever the fields are: neither another exception nor memory without end."""
    good = zlib.decompress(base64.b85decode(str(encode_offset(CUT)["cut"])))
    flipped = bytearray(good)
    flipped[flip % len(good)] ^= 1 << flip % 8
    for damaged in (fields, good[:cut_at] + fields, bytes(flipped)):
        packed = base64.b85encode(zlib.compress(damaged)).decode()
        try:
            found = decode_offset({"v": 1, "revision": 77, "segments": 2, "pending": 1, "cut": packed})
        except InvalidArgument:
            continue
        assert isinstance(found, Snapshot)


def test_a_cut_that_unpacks_without_end_is_refused() -> None:
    bomb = base64.b85encode(zlib.compress(bytes(MAX_CUT_BYTES + 1), 9)).decode()
    with pytest.raises(InvalidArgument, match="its cut is damaged"):
        decode_offset({**encode_offset(CUT), "cut": bomb})


@pytest.mark.parametrize("bits", [16, 24, 32, 36])
def test_ten_thousand_open_transactions_take_less_than_64_kib(bits: int) -> None:
    """Over 64 segments, and of 16 coordinators that have given out up to 2^bits ids; ids at random, the worst case."""
    chance = random.Random(bits)
    pending: dict[TxnId, None] = {}
    while len(pending) < 10_000:
        pending[TxnId(chance.randrange(16), chance.randrange(1, 2**bits))] = None
    segments = {
        SegmentName(TopicName.parse(TOPIC), n * KIB, n * KIB + KIB - 1, 1_000 + n).path: SegmentBounds(
            Position(1_000 + chance.randrange(99), chance.randrange(10**6)),
            Position(2_000 + chance.randrange(99), chance.randrange(10**6)),
        )
        for n in range(64)
    }
    cut = Snapshot(10**9, {TOPIC: TopicBounds(128, segments, 900)}, tuple(sorted(pending)), store="0123456789abcdef")
    text = json.dumps(encode_offset(cut))
    assert len(text) < 64 * KIB
    assert decode_offset(json.loads(text)) == cut


# ---- ranges ---------------------------------------------------------------------------------------------------------


def cut_of(
    segments: Mapping[str, tuple[Position, Position]],
    *,
    revision: int = 50,
    pending: tuple[TxnId, ...] = (),
    **more: Any,
) -> Snapshot:
    bounds = {path: SegmentBounds(*one) for path, one in segments.items()}
    return replace(Snapshot(revision, {TOPIC: TopicBounds(1, bounds)}, pending), **more)


OLD = cut_of({PATH: (at(4), at(10))}, pending=(ONE,))


@pytest.mark.parametrize(
    ("pending", "aborted", "after"),
    [
        ((), (), 4),  # it may have committed
        ((ONE,), (), 10),
        ((), (ONE,), 10),
        ((TWO,), (), 4),
    ],
)
def test_what_was_pending_is_read_again_where_it_may_have_committed(
    pending: tuple[TxnId, ...], aborted: tuple[TxnId, ...], after: int
) -> None:
    new = cut_of({PATH: (at(12), at(20))}, revision=60, pending=pending, aborted=aborted)
    assert ranges(OLD, new) == [EntryRange(TOPIC, PATH, at(after), at(20))]


def test_parents_come_first_and_what_is_new_is_read_from_its_beginning() -> None:
    new = cut_of({RIGHT: (at(0), at(3)), LEFT: (at(0), at(5)), PATH: (at(12), at(20))}, revision=60)
    assert ranges(None, new) == [
        EntryRange(TOPIC, path, EARLIEST, at(end)) for path, end in ((PATH, 20), (LEFT, 5), (RIGHT, 3))
    ]
    assert [(one.segment, one.after) for one in ranges(OLD, new)] == [
        (PATH, at(4)),
        (LEFT, EARLIEST),
        (RIGHT, EARLIEST),
    ]


def test_nothing_lies_between_two_equal_cuts() -> None:
    assert ranges(OLD, OLD) == []
    assert ranges(cut_of({PATH: (at(4), at(4))}), cut_of({PATH: (at(4), at(4))}, revision=60)) == []


def test_a_cut_that_goes_back_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="newer"):
        ranges(OLD, cut_of({PATH: (at(4), at(10))}, revision=40))


def of_two_topics(first: Snapshot, second: Snapshot) -> Snapshot:
    """The topic of both is another one in the second; all else is as in the first."""
    elsewhere = TopicBounds(1, {ELSEWHERE: next(iter(second.segments.values()))})
    return replace(first, topics={**first.topics, OTHER: elsewhere})


def test_topics_that_are_no_more_are_told() -> None:
    assert topics_left(None, OLD) == topics_left(OLD, OLD) == []
    assert topics_left(OLD, replace(OLD, topics={})) == [TOPIC]
    both = of_two_topics(OLD, OLD)
    assert topics_left(both, OLD) == [OTHER]
    assert topics_left(both, replace(OLD, topics={})) == [TOPIC, OTHER]


def test_a_batch_reads_each_of_its_topics() -> None:
    old, new = cut_of({PATH: (at(4), at(4))}), cut_of({PATH: (at(9), at(9))}, revision=60)
    read = [EntryRange(TOPIC, PATH, at(4), at(9)), EntryRange(OTHER, ELSEWHERE, at(4), at(9))]
    assert ranges(of_two_topics(old, old), of_two_topics(new, new)) == read
    assert ranges(of_two_topics(old, old), of_two_topics(old, replace(new, revision=50))) == read[1:]


def test_each_topic_begins_before_its_first_entry_and_is_settled() -> None:
    cut = cut_of({PATH: (at(4), at(10))}, pending=(ONE, TWO))
    both = of_two_topics(cut, cut)
    start = beginning(both, {PATH: at(3), ELSEWHERE: at(6)})
    assert {path: one.end for path, one in start.segments.items()} == {PATH: at(2), ELSEWHERE: at(5)}
    later = cut_of({PATH: (at(12), at(20))}, revision=60, pending=(TWO,))
    settled = settle(both, of_two_topics(later, later), (ONE,))
    assert settled is not None
    assert settled[0].segments == dict.fromkeys((PATH, ELSEWHERE), SegmentBounds(at(10), at(10)))
    assert (settled[0].pending, settled[1].aborted) == ((TWO,), (ONE,))


def test_a_cut_is_settled_only_where_all_that_was_decided_has_aborted() -> None:
    """▲ In whatever order they are named: of one that may have committed the entries are read again."""
    for pending in ((ONE, TWO), (TWO, ONE)):
        old = cut_of({PATH: (at(4), at(10))}, pending=pending)
        new = cut_of({PATH: (at(12), at(20))}, revision=60)
        assert settle(old, new, (ONE,)) is None
        assert settle(old, replace(new, aborted=(TWO,)), ()) is None
        assert settle(old, replace(new, aborted=(TWO,)), (ONE,)) is not None
        assert settle(old, old, ()) is None, "it is so already"


def test_the_beginning_holds_nothing_and_misses_what_is_trimmed_since() -> None:
    cut = cut_of({PATH: (at(4), at(10)), LEFT: (at(2), at(2))}, pending=(ONE,), aborted=(TWO,))
    start = beginning(cut, {PATH: at(3)})
    assert start.precedes(cut)
    assert start.segments == {PATH: SegmentBounds(at(2), at(2)), LEFT: SegmentBounds(at(2), at(2))}
    assert (start.pending, start.aborted) == ((), ())
    assert ranges(start, cut) == [EntryRange(TOPIC, PATH, at(2), at(10))]
    assert Span(start, cut).continues(TOPIC)
    assert Span(start, replace(cut, pending=())).shows(PATH, at(5), ONE, 0)
    late = beginning(cut, {PATH: at(11)})
    assert late.segments[PATH].end == at(10), "what came behind the cut says nothing of what was kept before"


def test_the_beginning_is_before_the_only_entry_that_is_kept() -> None:
    cut = cut_of({PATH: (at(0), at(0)), LEFT: (at(7), at(7))})
    start = beginning(cut, {PATH: at(0), LEFT: at(7)})
    assert ranges(start, cut) == [EntryRange(TOPIC, PATH, at(-1), at(0)), EntryRange(TOPIC, LEFT, at(6), at(7))]


def test_a_start_is_settled_no_further_than_its_own_ends() -> None:
    """▲ What came behind them would be left out by the batch that reads from there on."""
    old = cut_of({PATH: (at(4), at(10)), LEFT: (at(1), at(9))}, pending=(ONE, TWO))
    new = cut_of({PATH: (at(15), at(20)), LEFT: (at(3), at(12))}, revision=60, pending=(TWO,), aborted=(ONE,))
    settled = settle(old, new, ())
    assert settled is not None
    start, end = settled
    assert start.segments == {PATH: SegmentBounds(at(10), at(10)), LEFT: SegmentBounds(at(3), at(9))}
    later = replace(cut_of({PATH: (at(20), at(20)), LEFT: (at(12), at(12))}), revision=70)
    assert end.pending == (TWO,)
    assert ranges(start, later) == [EntryRange(TOPIC, PATH, at(10), at(20)), EntryRange(TOPIC, LEFT, at(3), at(12))]


# ---- parts ----------------------------------------------------------------------------------------------------------


def head(entry: int, size: int = 10, piece: PieceHead | None = None) -> EntryHead:
    return EntryHead(at(entry), None, 0, 1, size, 0, False, piece)


def part(after: int, end: int, path: str = PATH) -> EntryRange:
    return EntryRange(TOPIC, path, at(after), at(end))


@pytest.mark.parametrize(
    ("wanted", "ends"),
    [(1, [99]), (2, [49, 99]), (3, [33, 66, 99]), (4, [24, 49, 74, 99])],
)
def test_a_range_is_parted_by_size(wanted: int, ends: list[int]) -> None:
    found = split([part(-1, 99)], {PATH: [head(n) for n in range(100)]}, wanted)
    assert [one.end.entry_id for one in found] == ends


def test_the_largest_is_parted_most() -> None:
    heads = {PATH: [head(n) for n in range(90)], LEFT: [head(n) for n in range(30)], RIGHT: []}
    found = split([part(-1, 89), part(-1, 29, LEFT), part(-1, 9, RIGHT)], heads, 6)
    assert [one.segment for one in found] == [PATH] * 4 + [LEFT, RIGHT]


def test_a_large_value_stays_whole() -> None:
    pieces = [head(n, piece=PieceHead("p", 1, 7, n - 2, 6)) for n in range(2, 8)]
    heads = {
        PATH: [
            head(0),
            head(1),
            *pieces[:3],
            head(20),
            *(one._replace(position=at(21 + n)) for n, one in enumerate(pieces[3:])),
            head(30),
        ]
    }
    found = split([part(-1, 30)], heads, 100)
    assert [one.end for one in found] == [at(0), at(1), at(23), at(30)]


def test_a_value_that_was_given_up_keeps_nothing_together() -> None:
    given_up = [head(n, piece=PieceHead("p", 1, 7, n, 6)) for n in range(2)]
    whole = [head(2 + n, piece=PieceHead("p", 1, 9, n, 2)) for n in range(2)]
    found = split([part(-1, 5)], {PATH: [*given_up, *whole, head(4), head(5)]}, 100)
    assert [one.end for one in found] == [at(3), at(4), at(5)]


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 50), max_size=12), min_size=1, max_size=4),
    first=st.integers(-1, 5),
    wanted=st.integers(1, 30),
)
def test_parts_make_the_ranges_again(sizes: list[list[int]], first: int, wanted: int) -> None:
    """Each entry in exactly one part, no part without an entry, and as many as wanted where there are entries."""
    paths = [f"t/n/name/0000-ffff-{number}" for number in range(len(sizes))]
    heads = {path: [head(n, size) for n, size in enumerate(row)] for path, row in zip(paths, sizes, strict=True)}
    whole = [part(first, 20, path) for path in paths]
    found = split(whole, heads, wanted)
    for one in whole:
        parts = [other for other in found if other.segment == one.segment]
        assert [parts[0].after, parts[-1].end] == [one.after, one.end]
        assert [before.end for before in parts[:-1]] == [after.after for after in parts[1:]]
        for other in parts if len(parts) > 1 else []:
            assert any(other.after < entry.position <= other.end for entry in heads[one.segment])
    entries = [max(1, len([n for n in range(len(row)) if n > first])) for row in sizes]
    assert len(found) == max(len(whole), min(wanted, sum(entries)))
