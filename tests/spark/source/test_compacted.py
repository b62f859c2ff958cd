"""Which segments a compaction takes, what its manifest says, and which reads may use it: cases and a model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspark_txnstore.source.compacted import DataFile, Manifest, is_complete, next_step, qualifying, without
from txnwire.errors import DataCorrupt, InvalidArgument
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.names import SegmentName, TopicName
from txnwire.snapshot import SegmentBounds, Snapshot, TopicBounds

TOPIC = "topic://public/default/prices"
STORE = "store-1"


def path(descriptor: str) -> str:
    return f"public/default/prices/{descriptor}"


def complete(entry: int = 9) -> SegmentBounds:
    return SegmentBounds(Position(1, entry), Position(1, entry), sealed=True)


def undecided(entry: int = 9) -> SegmentBounds:
    return SegmentBounds(Position(1, 2), Position(1, entry), sealed=True)


def active(entry: int = 9) -> SegmentBounds:
    return SegmentBounds(Position(1, entry), Position(1, entry))


def cut(revision: int, segments: Mapping[str, SegmentBounds], *, lost: int = -1, epoch: int = 5) -> Snapshot:
    bounds = TopicBounds(epoch, {path(one): where for one, where in segments.items()}, lost)
    return Snapshot(revision, {TOPIC: bounds}, store=STORE)


def compaction(snapshot: Snapshot, previous: Manifest | None = None, *, accept_gaps: bool = False) -> Manifest:
    number = 1 if previous is None else previous.generation + 1
    step = next_step(snapshot, TOPIC, previous, generation=number, accept_gaps=accept_gaps)
    assert step is not None
    return step.published([DataFile("part-0.parquet", 10, 1)])


SPLIT = {"0000-ffff-0": complete(), "0000-7fff-1": active(), "8000-ffff-2": active()}
"""A topic after its first split."""


# Which segments


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ({"0000-ffff-0": active()}, []),
        (SPLIT, ["0000-ffff-0"]),
        ({**SPLIT, "0000-ffff-0": undecided()}, []),
        # Decided itself, but not what it came from: what is left to the ledgers would be older than what is compacted.
        (
            {
                "0000-ffff-0": undecided(),
                "0000-7fff-1": complete(),
                "8000-ffff-2": active(),
                "0000-3fff-3": active(),
                "4000-7fff-4": active(),
            },
            [],
        ),
        # Only the half that comes from the undecided one waits.
        (
            {
                "0000-7fff-0": undecided(),
                "8000-ffff-1": complete(),
                "0000-3fff-2": complete(),
                "4000-7fff-3": active(),
                "8000-ffff-4": active(),
                "0000-3fff-5": active(),
            },
            ["8000-ffff-1"],
        ),
        # A merge waits for both of what it came from.
        ({"0000-7fff-0": complete(), "8000-ffff-1": undecided(), "0000-ffff-2": complete()}, ["0000-7fff-0"]),
        # So does the child of the second that is not decided.
        (
            {
                "0000-7fff-0": undecided(),
                "8000-ffff-1": undecided(),
                "8000-bfff-2": complete(),
                "c000-ffff-3": active(),
            },
            [],
        ),
        # The parent is gone: retention took it.
        ({"0000-7fff-1": complete(), "8000-ffff-2": active(), "0000-7fff-3": active()}, ["0000-7fff-1"]),
        # Ten comes after nine.
        ({"0000-ffff-9": undecided(), "0000-ffff-10": complete(), "0000-ffff-11": active()}, []),
    ],
)
def test_segments_qualify_when_they_and_all_that_they_came_from_are_decided(
    segments: Mapping[str, SegmentBounds], expected: list[str]
) -> None:
    bounds = cut(7, segments).topics[TOPIC]
    assert list(qualifying(bounds)) == [path(one) for one in expected]


def test_the_next_generation_reads_only_what_has_qualified_since() -> None:
    first = compaction(cut(10, SPLIT))
    later = {**SPLIT, "0000-7fff-1": complete(20), "0000-3fff-3": active(), "4000-7fff-4": active()}
    step = next_step(cut(30, later), TOPIC, first, generation=2)
    assert step is not None
    assert step.new == (path("0000-7fff-1"),)
    assert step.end.segments == {path("0000-7fff-1"): complete(20)}
    assert step.start is not None
    # ▲ Known to the start, at its earliest: it is read whole, or refused if retention took some of it.
    assert step.start.segments == {path("0000-7fff-1"): SegmentBounds(EARLIEST, EARLIEST)}
    assert step.start.precedes(step.end)
    assert step.manifest.compacted == {path("0000-ffff-0"): 10, path("0000-7fff-1"): 30}


def test_all_that_have_qualified_since_are_read_from_their_beginning() -> None:
    first = compaction(cut(10, SPLIT))
    later = {**SPLIT, "0000-7fff-1": complete(20), "8000-ffff-2": complete(30), "0000-ffff-3": active()}
    step = next_step(cut(30, later), TOPIC, first, generation=2)
    assert step is not None
    new = (path("0000-7fff-1"), path("8000-ffff-2"))
    assert step.new == new
    assert step.start is not None
    assert step.start.segments == dict.fromkeys(new, SegmentBounds(EARLIEST, EARLIEST))
    assert step.end.segments == {new[0]: complete(20), new[1]: complete(30)}
    assert step.manifest.compacted == {path("0000-ffff-0"): 10, **dict.fromkeys(new, 30)}
    assert step.manifest.cut.segments == {
        path("0000-ffff-3"): SegmentBounds(EARLIEST, EARLIEST), path("0000-ffff-0"): complete(), **step.end.segments
    }  # fmt: skip


def test_the_first_generation_reads_what_is_kept() -> None:
    step = next_step(cut(10, SPLIT), TOPIC, None, generation=1)
    assert step is not None
    assert step.start is None


def test_nothing_to_do_makes_no_generation() -> None:
    first = compaction(cut(10, SPLIT))
    assert next_step(cut(11, SPLIT), TOPIC, first, generation=2) is None
    assert next_step(cut(11, {"0000-ffff-0": active()}), TOPIC, None, generation=1) is None


# Gaps, and what does not follow


GAPS = {
    "uncompacted then, gone now": cut(
        30,
        {"8000-ffff-2": active(), "0000-3fff-3": complete(), "4000-7fff-4": active(), "0000-3fff-5": active()},
        lost=1,
    ),
    "came and went since": cut(
        30, {"8000-ffff-2": complete(), "0000-7fff-1": active(), "8000-ffff-4": active()}, lost=3
    ),
}


@pytest.mark.parametrize("snapshot", GAPS.values(), ids=list(GAPS))
def test_what_retention_took_before_it_was_compacted_is_refused_unless_accepted(snapshot: Snapshot) -> None:
    first = compaction(cut(10, SPLIT))
    with pytest.raises(InvalidArgument, match=r"retention took something.*--accept-gaps.*--afresh"):
        next_step(snapshot, TOPIC, first, generation=2)
    step = next_step(snapshot, TOPIC, first, generation=2, accept_gaps=True)
    assert step is not None
    assert step.start is None


def test_what_was_compacted_may_go() -> None:
    first = compaction(cut(10, SPLIT))
    gone = {"0000-7fff-1": complete(), "8000-ffff-2": active(), "0000-7fff-3": active()}
    second = compaction(cut(30, gone, lost=0), first)
    assert second.compacted == {path("0000-ffff-0"): 10, path("0000-7fff-1"): 30}
    assert second.cut.bounds(path("0000-ffff-0")) == complete()


def test_a_segment_that_held_nothing_may_go_uncompacted() -> None:
    first = compaction(cut(10, SPLIT))
    gone = {"0000-ffff-0": complete(), "8000-ffff-2": complete(), "0000-7fff-3": active(), "8000-ffff-4": active()}
    assert compaction(cut(30, gone, lost=-1), first).generation == 2


@pytest.mark.parametrize(
    ("snapshot", "message"),
    [
        (replace(cut(30, SPLIT), store="store-2"), "another cluster"),
        (cut(30, {"0000-ffff-7": complete(), "0000-7fff-8": active(), "8000-ffff-9": active()}, lost=6), "made again"),
        (cut(9, SPLIT), "already to 10: take a newer one"),
        (replace(cut(30, SPLIT), store=""), "does not name its store"),
    ],
)
def test_a_snapshot_that_does_not_follow_the_generation_is_refused(snapshot: Snapshot, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        next_step(snapshot, TOPIC, compaction(cut(10, SPLIT)), generation=2)


# Which reads


@pytest.mark.parametrize(
    ("snapshot", "obstacle"),
    [
        (cut(10, SPLIT), None),
        (cut(9, SPLIT), None),  # older than the compaction, but complete all the same
        (cut(8, {**SPLIT, "0000-ffff-0": undecided()}), "was not complete"),
        (cut(5, {"0000-ffff-0": active(4)}, epoch=1), "was not complete"),
        # A limited offset that ends before the segment does.
        (cut(10, {**SPLIT, "0000-ffff-0": complete(5)}), "was not complete"),
        # Trimmed since: by id, or because the snapshot came later.
        (cut(50, {"0000-7fff-1": active(), "8000-ffff-2": active()}, lost=0), None),
        (cut(50, {"0000-7fff-1": active(), "8000-ffff-2": active()}), None),
        (replace(cut(50, SPLIT), store="restored"), "another cluster"),
        (replace(cut(50, SPLIT), store=""), "another cluster"),
        (cut(50, {"0000-ffff-7": active()}, lost=6), "made again"),
        (Snapshot(50, {"topic://public/default/other": TopicBounds(1, {})}, store=STORE), "not in the snapshot"),
    ],
)
def test_a_read_uses_a_generation_only_where_its_snapshot_holds_all_of_it(
    snapshot: Snapshot, obstacle: str | None
) -> None:
    found = compaction(cut(10, SPLIT)).obstacle(snapshot)
    if obstacle is None:
        assert found is None
    else:
        assert found is not None
        assert obstacle in found


def test_a_read_up_to_a_time_uses_no_generation_with_what_retention_has_taken() -> None:
    """▲ All of it may have been published later than that."""
    made = compaction(cut(10, SPLIT))
    gone = cut(50, {"0000-7fff-1": active(), "8000-ffff-2": active()}, lost=0)
    assert made.obstacle(gone) is None
    assert "not known" in str(made.obstacle(gone, drawn_back=True))
    assert made.obstacle(cut(50, SPLIT), drawn_back=True) is None


def test_a_snapshot_from_between_two_generations_gets_the_older_one() -> None:
    """▲ A value in the parent may have made room for one in the child that the snapshot does not hold."""
    then = cut(20, {**SPLIT, "0000-7fff-1": active(15)})
    first = compaction(cut(10, SPLIT))
    later = {**SPLIT, "0000-7fff-1": complete(20), "0000-3fff-3": active(), "4000-7fff-4": active()}
    second = compaction(cut(30, later), first)
    assert first.obstacle(then) is None
    assert second.obstacle(then) is not None
    # Nor one from before the child was made.
    before = cut(4, {"0000-ffff-0": complete(), "0000-7fff-1": active(-1), "8000-ffff-2": active(-1)})
    assert second.obstacle(before) is not None
    missing = cut(4, {"0000-ffff-0": complete(), "8000-ffff-2": active()})
    found = second.obstacle(missing)
    assert found is not None
    assert "had not been made" in found


def test_the_rest_is_left_to_the_ledgers() -> None:
    snapshot = replace(cut(10, SPLIT), pending=(TxnId(0, 1),))
    rest = without(snapshot, [compaction(snapshot)])
    assert set(rest.segments) == {path("0000-7fff-1"), path("8000-ffff-2")}
    assert (rest.pending, rest.revision, rest.store) == (snapshot.pending, 10, STORE)
    assert set(snapshot.segments) == {path(one) for one in SPLIT}


# The manifest


def test_a_manifest_is_the_same_after_a_round_trip() -> None:
    manifest = compaction(cut(30, SPLIT), None)
    assert Manifest.from_json(manifest.to_json(), where="here") == manifest
    assert manifest.topic == TOPIC
    assert manifest.rows == 1
    two = replace(manifest, files=(DataFile("part-0.parquet", 10, 4), DataFile("part-1.parquet", 20, 5)))
    assert Manifest.from_json(two.to_json(), where="here") == two
    assert two.rows == 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v": 2}, "version 2: this version of txnstore reads 1"),
        ({"cut": {}}, "not a snapshot"),
        ({"compacted": {}}, "differ in public/default/prices/0000-ffff-0"),
        ({"files": [{"name": "../x.parquet", "bytes": 1, "rows": 1}]}, "not in the generation's own folder"),
        ({"files": [{"name": ".x.parquet", "bytes": 1, "rows": 1}]}, "'.x.parquet' is not in the generation's own"),
        (
            {"files": [{"name": name, "bytes": 1, "rows": 1} for name in ("x.parquet", "7/y.parquet")]},
            "'7/y.parquet' is not in the generation's own folder",
        ),
        ({"files": [{"name": "x.parquet"}]}, "KeyError"),
        ({"files": None}, "TypeError"),
        ({"compacted": []}, "AttributeError"),
        ({"generation": "seven"}, "ValueError"),
        (
            {"cut": json.loads(replace(cut(30, SPLIT), topics={}).to_json())},
            "it belongs to 0 topics, expected one",
        ),
    ],
)
def test_a_manifest_that_is_not_one_is_told_with_its_place(change: Mapping[str, object], message: str) -> None:
    document = json.loads(compaction(cut(30, SPLIT)).to_json())
    with pytest.raises(DataCorrupt, match=message) as raised:
        Manifest.from_json(json.dumps({**document, **change}), where="/data/7/manifest.json")
    assert "/data/7/manifest.json" in str(raised.value)


def test_half_a_manifest_is_told() -> None:
    text = compaction(cut(30, SPLIT)).to_json()
    with pytest.raises(DataCorrupt, match="not the manifest of a compaction"):
        Manifest.from_json(text[: len(text) // 2], where="here")


# Against a model: a topic that is split, merged and trimmed while transactions write to it


class Row(NamedTuple):
    segment: str
    position: Position
    txn: int | None
    key: int
    value: int
    """How many messages had been written before; 0 deletes the key."""


@dataclass
class Topic:
    """A plain model. Keys are hashes; a segment holds a range of them."""

    revision: int = 1
    active: list[SegmentName] = field(default_factory=list)
    sealed: list[SegmentName] = field(default_factory=list)
    log: list[Row] = field(default_factory=list)
    decided: dict[int, tuple[bool, int]] = field(default_factory=dict)
    txns: int = 0
    next_id: int = 1
    lost: int = -1
    epoch: int = 1

    def __post_init__(self) -> None:
        self.active = [SegmentName(TopicName.parse(TOPIC), 0, 0xFFFF, 0)]

    def open(self) -> list[int]:
        return [txn for txn in range(1, self.txns + 1) if txn not in self.decided]

    def write(self, key: int, txn: int | None, *, deletes: bool) -> None:
        segment = next(one for one in self.active if one.lo <= key <= one.hi).path
        position = Position(1, sum(row.segment == segment for row in self.log))
        self.log.append(Row(segment, position, txn, key, 0 if deletes else len(self.log) + 1))

    def decide(self, txn: int, *, commits: bool) -> None:
        self.revision += 1
        self.decided[txn] = (commits, self.revision)

    def relayout(self, parents: list[SegmentName], ranges: list[tuple[int, int]]) -> None:
        self.revision += 1
        self.epoch += 1
        for parent in parents:
            self.active.remove(parent)
            self.sealed.append(parent)
        for lo, hi in ranges:
            self.active.append(SegmentName(parents[0].topic, lo, hi, self.next_id))
            self.next_id += 1
        self.active.sort(key=lambda one: one.lo)

    def trim(self, segment: SegmentName) -> None:
        self.revision += 1
        self.sealed.remove(segment)
        if any(row.segment == segment.path for row in self.log):
            self.lost = max(self.lost, segment.segment_id)

    def snapshot(self) -> Snapshot:
        self.revision += 1
        open_txns = set(self.open())
        bounds = {}
        for segment in self.active + self.sealed:
            rows = [row for row in self.log if row.segment == segment.path]
            end = rows[-1].position if rows else EARLIEST
            held = next((row.position for row in rows if row.txn in open_txns), None)
            resolved = end if held is None else (Position(1, held.entry_id - 1) if held.entry_id else EARLIEST)
            bounds[segment.path] = SegmentBounds(resolved, end, segment in self.sealed)
        pending = tuple(TxnId(0, txn) for txn in sorted(open_txns) if any(row.txn == txn for row in self.log))
        return Snapshot(self.revision, {TOPIC: TopicBounds(self.epoch, bounds, self.lost)}, pending, store=STORE)

    def committed(self, snapshot: Snapshot, segments: Iterable[str]) -> list[Row]:
        """Of these segments up to the snapshot's ends, in the order of writing."""
        ends = {one: snapshot.segments[one].end for one in segments}
        return [
            row
            for row in self.log
            if row.segment in ends and row.position <= ends[row.segment] and self._counts(row.txn, snapshot.revision)
        ]

    def _counts(self, txn: int | None, revision: int) -> bool:
        committed, when = (True, 0) if txn is None else self.decided.get(txn, (False, 0))
        return committed and when <= revision


def newest(rows: Iterable[Row]) -> dict[int, Row]:
    """By what rows tell of themselves, as the job does."""
    found: dict[int, Row] = {}
    for row in sorted(rows, key=lambda row: (SegmentName.from_path(row.segment).segment_id, row.position)):
        found[row.key] = row
    return found


def values(rows: Mapping[int, Row]) -> dict[int, int]:
    return {key: row.value for key, row in rows.items() if row.value}


class Generation(NamedTuple):
    manifest: Manifest
    rows: list[Row]


def compact(topic: Topic, generations: list[Generation]) -> None:
    snapshot = topic.snapshot()
    previous = generations[-1] if generations else None
    step = next_step(snapshot, TOPIC, previous and previous.manifest, generation=len(generations) + 1)
    if step is None:
        return
    rows = [*(previous.rows if previous else ()), *topic.committed(step.end, step.new)]
    kept = [row for row in newest(rows).values() if row.value]
    generations.append(Generation(step.published([]), kept))


def read_compacted(topic: Topic, generations: list[Generation], snapshot: Snapshot) -> tuple[list[Row], int]:
    usable = [one for one in generations if one.manifest.obstacle(snapshot) is None]
    rest = without(snapshot, [one.manifest for one in usable[-1:]])
    live = topic.committed(snapshot, rest.segments)
    return [*(usable[-1].rows if usable else ()), *live], len(usable)


KEYS = [0x0100, 0x3000, 0x6000, 0x9000, 0xF000]
STEPS = st.lists(st.tuples(st.sampled_from("wwwwwbbcasmmtksr"), st.integers(0, 59)), max_size=60)


# A deletion in a child that is decided before its parent: it must not be forgotten, or what it deletes comes back.
OPEN_IN_THE_PARENT = [("b", 0), ("w", 5), ("s", 0), ("w", 10), ("s", 0), ("k", 0), ("c", 0)]


@settings(max_examples=300, deadline=None)
@given(STEPS)
@example(OPEN_IN_THE_PARENT)
def test_a_compacted_read_has_the_newest_value_of_every_key_at_any_snapshot(steps: list[tuple[str, int]]) -> None:
    topic, generations = Topic(), list[Generation]()
    snapshots: list[tuple[Snapshot, dict[int, int], set[str]]] = []
    gone: set[str] = set()
    for step, number in [*steps, ("k", 0), ("r", 0)]:
        open_txns = topic.open()
        if step == "w":
            txn = ([None, *open_txns])[number % (len(open_txns) + 1)]
            topic.write(KEYS[number % 5], txn, deletes=number % 7 == 3)
        elif step == "b":
            topic.txns += 1
        elif step in "ca" and open_txns:
            topic.decide(open_txns[number % len(open_txns)], commits=step == "c")
        elif step == "s":
            one = topic.active[number % len(topic.active)]
            if one.lo < one.hi:
                middle = (one.lo + one.hi) // 2
                topic.relayout([one], [(one.lo, middle), (middle + 1, one.hi)])
        elif step == "m" and len(topic.active) > 1:
            at = number % (len(topic.active) - 1)
            one, other = topic.active[at : at + 2]
            topic.relayout([one, other], [(one.lo, other.hi)])
        elif step == "t" and generations:
            done = [one for one in topic.sealed if one.path in generations[-1].manifest.compacted]
            if done:
                topic.trim(done[number % len(done)])
                gone.add(done[number % len(done)].path)
        elif step == "k":
            compact(topic, generations)
        elif step == "r":
            snapshot = topic.snapshot()
            # The truth: the last committed message of each key in the order of writing, trimmed or not.
            every = {row.segment: None for row in topic.log}
            ends = {one: SegmentBounds(Position(9, 9), Position(9, 9)) for one in every}
            whole = replace(snapshot, topics={TOPIC: TopicBounds(1, ends)})
            truth = {row.key: row for row in topic.committed(whole, every)}
            snapshots.append((snapshot, values(truth), set(gone)))
    for snapshot, truth_then, gone_then in snapshots:
        rows, usable = read_compacted(topic, generations, snapshot)
        if usable or not gone_then:
            assert values(newest(rows)) == truth_then
    for generation in generations:
        bounds = generation.manifest.cut.topics[TOPIC].segments
        assert all(is_complete(bounds[one]) for one in generation.manifest.compacted)
        assert len({row.key for row in generation.rows}) == len(generation.rows)
        assert Manifest.from_json(generation.manifest.to_json(), where="here") == generation.manifest
