"""What a task reads of its part: the same rows whichever way it takes, and what it leaves unread. Without Spark."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_txnstore.shared.condition import EVERYTHING, Condition, parse
from pyspark_txnstore.source.columns import MORE, SCHEMA, schema_of
from pyspark_txnstore.source.part_reading import SegmentPart, batches
from pyspark_txnstore.source.stretches import Stretches
from txnclient import EntryHead, Snapshot, WholeEntry
from txnclient.reading.entry_heads import PieceHead
from txnclient.reading.snapshot import SegmentBounds, Span, TopicBounds
from txnwire.block import OutgoingMessage, decode_block, encode_block
from txnwire.errors import DataTrimmed, NotOwner
from txnwire.ids import EARLIEST, Position, TxnId

SEGMENT = "public/default/prices/0000-ffff-0"
TOPIC = "topic://public/default/prices"
END = Position(3, 0)
COMMITTED, ABORTED, OPEN = (TxnId(0, number) for number in (1, 2, 3))
ALL = schema_of([field.name for field in (*SCHEMA, *MORE)])


@dataclass
class Log:
    """The entries of a segment, read as `txnclient` does, that counts what leaves it. `trimmed_through`: what is not
    kept; `grows_trimmed`: after the first page more is not."""

    entries: list[tuple[EntryHead, Sequence[OutgoingMessage]]]
    page: int = 2
    trimmed_through: Position = EARLIEST
    trimmed_later: Position = EARLIEST
    heads: int = 0
    read: list[Position] = field(default_factory=list)

    def _kept(self, after: Position, end: Position, trimmed: str) -> Iterator[tuple[EntryHead, Any]]:
        if trimmed == "fail" and after < self.trimmed_through:
            raise DataTrimmed(f"behind {after}, kept from {self.trimmed_through} on")
        return (one for one in self.entries if max(after, self.trimmed_through) < one[0].position <= end)

    def scan_entries(
        self, segment: str, *, after: Position, end: Position, min_revision: int, trimmed: str
    ) -> Generator[list[EntryHead], None, None]:
        assert segment == SEGMENT
        while page := [head for head, _ in self._kept(after, end, trimmed)][: self.page]:
            self.heads += len(page)
            yield page
            after = page[-1].position
            self.trimmed_through = max(self.trimmed_through, self.trimmed_later)

    def read_entries(
        self, segment: str, *, after: Position, end: Position, span: Span | None, isolation: str, trimmed: str
    ) -> Generator[list[WholeEntry], None, None]:
        """Two at a time."""
        entries = self._entries(segment, after=after, end=end, span=span, isolation=isolation, trimmed=trimmed)
        while some := list(islice(entries, 2)):
            yield some

    def _entries(
        self, segment: str, *, after: Position, end: Position, span: Span | None, isolation: str, trimmed: str
    ) -> Iterator[WholeEntry]:
        assert (segment, isolation) == (SEGMENT, "read_uncommitted" if span is None else "read_committed")
        anywhere = after == EARLIEST and span is not None and not span.continues(TOPIC)
        begun: dict[str, list[tuple[EntryHead, Any]]] = {}
        for head, messages in self._kept(after, end, "skip" if anywhere else trimmed):
            if span is not None and (head.aborted or not span.shows(segment, head.position, head.txn_id, head.writer)):
                continue
            self.read.append(head.position)
            if head.piece is None:
                yield whole(head, messages)
                continue
            pieces = begun.setdefault(head.piece.producer, [])
            if head.piece.number == 0:
                pieces.clear()
            elif not pieces or (pieces[-1][0].piece or head.piece).chunk_id != head.piece.chunk_id:
                pieces.clear()
                continue
            pieces.append((head, messages))
            if len(pieces) == head.piece.pieces:
                yield whole(*pieces[0])
                pieces.clear()


def whole(head: EntryHead, messages: Sequence[OutgoingMessage]) -> WholeEntry:
    return WholeEntry(
        head.position,
        head.txn_id,
        head.writer,
        head.producer,
        head.sequence_id,
        head.publish_time_ms,
        decode_block(encode_block(messages)),
        head.incarnation,
    )


KEYS = (None, b"a", b"b")


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[EntryHead, list[OutgoingMessage]]]:
    """Of three transactions and of none, some of them pieces of values of two in a row, in any order of time."""
    found: list[tuple[EntryHead, list[OutgoingMessage]]] = []
    begun: dict[str, tuple[TxnId | None, int]] = {}
    ledger = entry = 0
    for number in range(draw(st.integers(0, 12))):
        if ledger < 2 and draw(st.integers(0, 4)) == 0:
            ledger, entry = ledger + 1, 0
        producer = draw(st.sampled_from(["p", "q"]))
        txn_id = draw(st.sampled_from([None, COMMITTED, ABORTED, OPEN]))
        piece = None
        if producer in begun:
            txn_id, chunk_id = begun.pop(producer)
            piece = PieceHead(producer, 1, chunk_id, 1, 2)
        elif draw(st.integers(0, 3)) == 0:
            begun[producer] = txn_id, number
            piece = PieceHead(producer, 1, number, 0, 2)
        keys = [draw(st.sampled_from(KEYS))] if piece else draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3))
        head = EntryHead(
            Position(ledger, entry),
            txn_id,
            0,
            len(keys),
            draw(st.integers(1, 9)),
            draw(st.integers(0, 5)),
            txn_id == ABORTED,
            piece,
            producer,
            1,
            number * 10,
        )
        found.append((head, [OutgoingMessage(b"%d" % number, key) for key in keys]))
        entry += 1
    return found


def snapshot() -> Snapshot:
    bounds = TopicBounds(1, {SEGMENT: SegmentBounds(EARLIEST, END, sealed=False)})
    return Snapshot(7, {TOPIC: bounds}, pending=(OPEN,))


SPAN = Span(None, snapshot())
PART = SegmentPart(SEGMENT, EARLIEST, END, SPAN, "fail")
CONDITIONS = st.builds(
    Condition,
    keys=st.none() | st.sets(st.sampled_from([b"a", b"b"])).map(frozenset),
    txn_ids=st.none() | st.sets(st.sampled_from([COMMITTED, ABORTED, OPEN])).map(frozenset),
    from_us=st.none() | st.integers(0, 5000),
    through_us=st.none() | st.integers(0, 5000),
)


def rows(log: Log, part: SegmentPart, names: Sequence[str], where: Condition) -> list[dict[str, Any]]:
    return [row for batch in batches(log, part, schema_of(names), where) for row in batch.to_pylist()]


def holds(where: Condition, row: dict[str, Any]) -> bool:
    """As SQL would say of the row."""
    micros = round(row["publish_time"].timestamp() * 1_000_000)
    return (
        (where.keys is None or row["key"] in where.keys)
        and (where.txn_ids is None or row["txn_id"] in map(str, where.txn_ids))
        and (where.from_us is None or micros >= where.from_us)
        and (where.through_us is None or micros <= where.through_us)
    )


@given(logs(), CONDITIONS, st.lists(st.sampled_from(ALL.names), unique=True, max_size=4), st.booleans())
def test_a_read_has_the_rows_that_the_condition_holds_of_whichever_columns_are_asked_for(
    entries: list[tuple[EntryHead, list[OutgoingMessage]]], where: Condition, names: list[str], committed: bool
) -> None:
    part = PART if committed else replace(PART, span=None)
    everything = rows(Log(entries), part, ALL.names, EVERYTHING)
    found = rows(Log(entries), part, names, where)
    expected = [row for row in everything if holds(where, row)]
    if names:
        assert found == [{name: row[name] for name in names} for row in expected]
    assert sum(batch.num_rows for batch in batches(Log(entries), part, schema_of(names), where)) == len(expected)


def head(number: int, *, size: int = 1, **told: Any) -> tuple[EntryHead, list[OutgoingMessage]]:
    known: dict[str, Any] = {"txn_id": None, "publish_time_ms": number, "producer": "p", "piece": None}
    known |= told
    return (
        EntryHead(
            Position(1, number), known["txn_id"], 0, 2, size, known["publish_time_ms"], False, known["piece"],
            known["producer"], 1, 2 * number,
        ),
        [OutgoingMessage(b"x", b"a")] * 2,
    )  # fmt: skip


@pytest.mark.parametrize("names", [[], ["position"], ["Ledger_Id", "index"], ["producer", "sequence_id", "txn_id"]])
def test_columns_that_heads_tell_ship_no_message(names: list[str]) -> None:
    log = Log([head(number) for number in range(5)])
    assert sum(batch.num_rows for batch in batches(log, PART, schema_of(names), EVERYTHING)) == 10
    assert (log.heads, log.read) == (5, [])


def test_a_condition_on_entries_reads_what_it_may_hold_of() -> None:
    log = Log([head(number, size=1 << 20, txn_id=COMMITTED if number in (3, 4, 17) else None) for number in range(30)])
    found = rows(log, PART, ["key", "entry_id"], Condition(txn_ids=frozenset([COMMITTED])))
    assert [row["entry_id"] for row in found] == [3, 3, 4, 4, 17, 17]
    assert [position.entry_id for position in log.read] == [3, 4, 17]


def test_a_condition_on_publish_times_passes_over_nothing_that_came_late() -> None:
    times = [9, 1, 2, 1, 8, 1]
    log = Log([head(number, size=1 << 20, publish_time_ms=time) for number, time in enumerate(times)])
    where = parse("publish_time >= '1970-01-01T00:00:00.008Z'")
    assert {row["entry_id"] for row in rows(log, PART, ["value", "entry_id"], where)} == {0, 4}
    assert [position.entry_id for position in log.read] == [0, 4]


def test_an_owner_that_does_not_tell_producers_is_read_in_full() -> None:
    log = Log([head(number, producer="") for number in range(3)])
    assert len(rows(log, PART, ["sequence_id"], EVERYTHING)) == 6
    assert len(log.read) == 3
    assert len(rows(log, PART, ["position"], EVERYTHING)) == 6
    assert len(log.read) == 3
    partly = Log([head(0), head(1, producer="")])
    assert len(rows(partly, PART, ["sequence_id"], EVERYTHING)) == 4
    assert len(partly.read) == 2, "also where only some of a page are told"


@pytest.mark.parametrize("told", [2, 3])
def test_an_owner_that_does_not_tell_producers_any_more_fails_the_task(told: int) -> None:
    log = Log([head(number, producer="p" if number < told else "") for number in range(4)])
    with pytest.raises(NotOwner, match="older version"):
        rows(log, PART, ["producer"], EVERYTHING)


def test_without_a_start_what_is_kept_is_read_and_what_goes_meanwhile_is_missed() -> None:
    entries = [head(number) for number in range(6)]
    log = Log(entries, trimmed_through=Position(1, 1))
    assert {row["position"] for row in rows(log, PART, ["position"], EVERYTHING)} == {"1:2", "1:3", "1:4", "1:5"}
    assert rows(Log(entries, trimmed_through=Position(1, 9)), PART, ["position"], EVERYTHING) == []
    with pytest.raises(DataTrimmed):
        rows(Log(entries, trimmed_later=Position(1, 3)), PART, ["position"], EVERYTHING)
    trimmed = Log(entries, trimmed_through=Position(1, 1), trimmed_later=Position(1, 4))
    with pytest.raises(DataTrimmed):
        rows(trimmed, PART, ["position"], EVERYTHING)


def test_behind_a_start_everything_is_read_or_refused() -> None:
    start = Snapshot(5, {TOPIC: TopicBounds(1, {})})
    log = Log([head(number) for number in range(3)], trimmed_through=Position(1, 0))
    part = replace(PART, span=Span(start, snapshot()))
    for names, where in ((["position"], EVERYTHING), (["value"], Condition(from_us=0))):
        with pytest.raises(DataTrimmed):
            rows(log, part, names, where)
    assert len(rows(log, replace(part, trimmed="skip"), ["position"], EVERYTHING)) == 4


# Stretches


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=40), st.integers(1, 4), st.integers(1, 8))
def test_stretches_hold_all_that_is_wanted_and_are_few(
    entries: list[tuple[bool, int]], most: int, gap_bytes: int
) -> None:
    found = Stretches(most=most, gap_bytes=gap_bytes)
    for number, (wanted, size) in enumerate(entries):
        found.add(head(number, size=size)[0], wanted=wanted)
    stretches = found.all()
    assert len(stretches) <= most
    for number, (wanted, _) in enumerate(entries):
        holding = [one for one in stretches if one.after < Position(1, number) <= one.end]
        assert len(holding) <= 1
        assert holding or not wanted
    ends = [one.end.entry_id for one in stretches]
    assert all(entries[end][0] for end in ends)
    assert [one.after for one in stretches] == sorted(one.after for one in stretches)


def test_of_too_many_stretches_the_nearest_are_joined_and_none_is_lost() -> None:
    found = Stretches(most=3, gap_bytes=1)
    for number, (size, wanted) in enumerate([(1, True), (8, False), (1, True), (8, False), (1, True), (64, False)]):
        found.add(head(number, size=size)[0], wanted=wanted)
    assert len(found.all()) == 3
    found.add(head(6)[0], wanted=True)
    assert [(one.after.entry_id, one.end.entry_id) for one in found.all()] == [(-1, 4), (5, 6)]
    found.add(head(7, size=15)[0], wanted=False)
    found.add(head(8)[0], wanted=True)
    assert [(one.after.entry_id, one.end.entry_id) for one in found.all()] == [(-1, 4), (5, 8)], "as near as the others"


def test_the_pieces_of_a_large_value_are_in_one_stretch() -> None:
    """The second piece says another time: the condition holds of the value by its first."""
    pieces = [(0, True), (1, False), (2, False)]
    found = Stretches(gap_bytes=0)
    for number, wanted in pieces:
        piece = PieceHead("p", 1, 5, number, 3)
        found.add(head(2 * number, piece=piece)[0], wanted=wanted)
        found.add(head(2 * number + 1)[0], wanted=False)
    (only,) = found.all()
    assert (only.after, only.end) == (Position(1, -1), Position(1, 4))


def test_a_large_value_that_ends_within_another_one_does_not_end_it() -> None:
    """▲ The last piece of the other one would not be read, and the value not be shown."""
    found = Stretches(gap_bytes=0)
    for number, (producer, piece) in enumerate([("p", 0), ("q", 0), ("q", 1), ("p", 1)]):
        one, _ = head(number, producer=producer, piece=PieceHead(producer, 1, 5, piece, 2))
        found.add(one, wanted=piece == 0)
    found.add(head(4)[0], wanted=False)
    (only,) = found.all()
    assert (only.after, only.end) == (Position(1, -1), Position(1, 3))
