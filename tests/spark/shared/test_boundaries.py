"""Cuts at a time and at positions: what lies before and what lies behind, over a model of logs, and in cases."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pyspark_txnstore.shared.boundaries import (
    ByPosition,
    ByTime,
    Crossing,
    Place,
    behind,
    is_by_position,
    parse_positions,
    parse_time,
    parse_times,
    window,
)
from pyspark_txnstore.shared.offsets import EntryRange, decode_offset, encode_offset
from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.source.boundary_cuts import BoundaryCuts, bounded
from tests.spark import log_world
from tests.spark.log_world import Entry, World
from tests.spark.source.test_limits import Stream, judge
from txnclient import EntryHead, Snapshot
from txnclient.reading.snapshot import SegmentBounds, TopicBounds
from txnwire.errors import DataTrimmed, InvalidArgument
from txnwire.ids import EARLIEST, Position
from txnwire.names import SegmentName

TOPIC, OTHER = "topic://t/n/name", "topic://t/n/other"
LEFT, RIGHT = "t/n/name/0000-7fff-1", "t/n/name/8000-ffff-2"
URL = {"service.url": "txn://h:1", "topic": TOPIC}
OPTIONS = SourceOptions.parse(URL, use="read")


class WorldCuts:
    """As `Cuts` asks the service; some owners are of an older version."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def client(self) -> WorldCuts:
        return self

    def positions_before(self, topic: str, time_ms: int) -> dict[str, Position | None]:
        found: dict[str, Position | None] = {}
        for segment in self._world.topics[topic].segments.values():
            kept = [entry for entry in segment.entries if entry.position > segment.trimmed]
            at = EARLIEST
            for entry in kept:
                if entry.time_ms >= time_ms:
                    break
                at = entry.position
            found[segment.name.path] = None if self._world.draw(6) == 5 else at
        return found

    def heads(
        self, segment: str, after: Position, end: Position, revision: int, *, trimmed: str | None = None
    ) -> Iterator[list[EntryHead]]:
        part = EntryRange(str(SegmentName.from_path(segment).topic), segment, after, end)
        heads = list(self._world.heads(part, self._world.revision, skip=trimmed == "skip"))
        yield from (heads[at : at + 3] for at in range(0, len(heads), 3))

    def first_head(self, segment: str, after: Position, end: Position, revision: int) -> EntryHead | None:
        return next((page[0] for page in self.heads(segment, after, end, revision, trimmed="skip")), None)


def first_kept(world: World, cut: Snapshot) -> dict[str, Position]:
    first: dict[str, Position] = {}
    for entry in world.kept():
        if entry.segment in cut.segments and entry.position <= cut.segments[entry.segment].end:
            first.setdefault(entry.segment, entry.position)
    return first


def some_boundary(world: World, base: Snapshot, first: dict[str, Position]) -> ByTime | ByPosition:
    if world.draw(2):
        if world.draw(2):
            return ByTime(1 + world.draw(world.time_ms + 50))
        return ByTime(topics={topic: 1 + world.draw(world.time_ms + 50) for topic in base.topics})
    topics: dict[str, dict[str, Place]] = {topic: {} for topic in base.topics}
    for path, one in base.segments.items():
        name = SegmentName.from_path(path)
        places = [
            entry.position
            for entry in world.segment(path).entries
            if path in first and first[path] <= entry.position <= one.end
        ]
        choices: list[Place] = ["earliest", "latest", *places]
        topics[str(name.topic)][name.descriptor] = choices[world.draw(len(choices))]
    return ByPosition(topics)


def run(draw: Callable[[int], int], *, trims: bool) -> None:
    world = World(draw)
    for _ in range(20 + draw(60)):
        world.step()
    if trims:
        world.trim(lambda _: Position(10**6, 0), lambda _: True)
    stream = Stream(world)
    base = stream.cut()
    first = first_kept(world, base)
    boundary = some_boundary(world, base, first)
    for _ in range(draw(3)):
        world.append_plain()  # it goes on while the boundary is looked for
    cut = BoundaryCuts(WorldCuts(world), OPTIONS, base, first).at(boundary)
    assert decode_offset(json.loads(json.dumps(encode_offset(cut)))) == cut
    assert cut.precedes(base)
    passed = world.read(None, cut)
    judge_boundary(world, boundary, base, cut, passed)
    between = world.read(cut, base)
    assert not set(passed) & set(between), "what meets there has nothing twice"
    assert {*passed, *between} == set(world.read(None, base)), "and everything"
    ids = [{entry.txn_id for entry in some if entry.txn_id is not None} for some in (passed, between)]
    assert not ids[0] & ids[1], "each transaction is whole on one side"
    # A stream that begins there: every batch as of any stream, until there is nothing left.
    stream.start, stream.passed, stream.batches = cut, passed, []
    stream.joined = {topic: stream.joined[topic] for topic in base.topics}
    stream.takes_all = False
    for _ in range(3):
        for _ in range(draw(15)):
            world.step()
        stream.trigger(stream.cut())
    target = stream.cut()
    stream.catch_up(target)
    judge(stream, target)


def judge_boundary(
    world: World, boundary: ByTime | ByPosition, base: Snapshot, cut: Snapshot, passed: Sequence[Entry]
) -> None:
    """Nothing that is asked for lies before it, and what lies before has all been asked to."""
    for entry in passed:
        name = SegmentName.from_path(entry.segment)
        if isinstance(boundary, ByTime):
            assert entry.time_ms < boundary.of(str(name.topic))
            continue
        place = boundary.topics[str(name.topic)][name.descriptor]
        assert place == "latest" or (place != "earliest" and entry.position < place)
    if isinstance(boundary, ByPosition):
        shown = set(passed)
        for entry in world.read(None, base):
            name = SegmentName.from_path(entry.segment)
            place = boundary.topics[str(name.topic)][name.descriptor]
            if entry.txn_id is None and (place == "latest" or (place != "earliest" and entry.position < place)):
                assert entry in shown


@pytest.mark.parametrize("seed", range(3))
def test_what_a_boundary_parts_is_whole_transactions_on_both_sides(seed: int) -> None:
    for number in range(80):
        try:
            run(random.Random(f"{seed}/{number}").randrange, trims=bool(number % 2))
        except BaseException as error:
            error.add_note(f"seed {seed}/{number}")
            raise


# ---- cases ----------------------------------------------------------------------------------------------------------


def test_times_are_milliseconds_or_iso_8601() -> None:
    assert parse_time("1795500000123") == 1795500000123
    assert parse_time("2026-11-24T06:00:00Z") == parse_time("2026-11-24T07:00:00+01:00") == 1795500000000
    for text, message in {
        "yesterday": "expected milliseconds since 1970, or a time as",
        "2026-11-24T06:00:00": "has no time zone",
        "0": "between 1970 and",
        "1" + "0" * 17: "between 1970 and",
        "1960-01-01T00:00:00Z": "between 1970 and",
        "²": "expected milliseconds",
    }.items():
        with pytest.raises(InvalidArgument, match=message):
            parse_time(text)


def test_a_message_lies_before_any_later_time_of_its_millisecond() -> None:
    """▲ Rounded down, a read up to a microsecond behind a row's `publish_time` would not have the row."""
    assert [parse_time(f"2026-11-24T06:00:00.{fraction}Z") % 1000 for fraction in ("123", "123001", "123999")] == [
        123,
        124,
        124,
    ]


def test_times_by_topic_name_every_topic_that_is_read_and_no_other() -> None:
    times = parse_times(json.dumps({TOPIC: 5, OTHER: "1970-01-01T00:00:00.007Z"}))
    assert (times.of(TOPIC), times.of(OTHER)) == (5, 7)
    times.check([TOPIC, OTHER])
    with pytest.raises(InvalidArgument, match=f"{OTHER} is named, and not read"):
        times.check([TOPIC])
    with pytest.raises(InvalidArgument, match="no time is named for topic://t/n/third"):
        times.of("topic://t/n/third")
    for wrong, message in {
        "[]": "expected a JSON object",
        "{}": "expected a JSON object",
        '{"orders": 5}': "expected topic://",
        json.dumps({TOPIC: {"0": 5}}): "has times by segment",
        json.dumps({TOPIC: True}): "is no time",
        json.dumps({TOPIC: 1.5}): "is no time",
    }.items():
        with pytest.raises(InvalidArgument, match=message):
            parse_times(wrong)


def test_positions_are_told_by_topic_and_segment() -> None:
    text = json.dumps({TOPIC: {"0000-7fff-1": "12:0", RIGHT: "latest"}})
    assert is_by_position(text)
    assert parse_positions(text) == ByPosition({TOPIC: {"0000-7fff-1": Position(12, 0), "8000-ffff-2": "latest"}})
    two = {TOPIC: {RIGHT: "latest"}, OTHER: {"0000-ffff-0": "earliest"}}
    assert parse_positions(json.dumps(two)).topics == {TOPIC: {"8000-ffff-2": "latest"}, OTHER: two[OTHER]}
    assert is_by_position(json.dumps({"orders": {}, **two})), "so that what is wrong with the first is told"
    for no in ("latest", "{", '{"v":1}', "[]", "[" * 100_000):
        assert not is_by_position(no)
    wrong: dict[str, Any] = {
        "expected a position such as": {"0000-7fff-1": 12},
        "expected <ledger id>:<entry id>": {"0000-7fff-1": "12"},
        "is before the first entry": {"0000-7fff-1": "12:-1"},
        "is not <lo>-<hi>-<id>": {"0": "12:0"},
        "is no segment of": {"t/n/other/0000-7fff-1": "12:0"},
        "expected {": {},
    }
    for message, places in wrong.items():
        with pytest.raises(InvalidArgument, match=message):
            parse_positions(json.dumps({TOPIC: places}))


@pytest.mark.parametrize("late", [TOPIC, OTHER])
def test_times_of_any_topic_are_in_order(late: str) -> None:
    """▲ With the two exchanged, what lies between them would look lost."""
    start = ByTime(topics={TOPIC: 5, OTHER: 5} | {late: 7})
    for end in (ByTime(6), ByTime(topics={TOPIC: 6, OTHER: 6})):
        assert start.is_behind(end)
    assert not start.is_behind(ByTime(7))
    assert not start.is_behind(ByTime(topics={TOPIC if late == OTHER else OTHER: 6})), "the other is not named"
    assert ByTime(8).is_behind(start)


BASE = Snapshot(
    9, {TOPIC: TopicBounds(3, {path: SegmentBounds(Position(4, 9), Position(4, 9)) for path in (LEFT, RIGHT)}, 0)}
)


def test_positions_name_every_segment_and_no_other() -> None:
    both: dict[str, Place] = {"0000-7fff-1": "latest", "8000-ffff-2": "latest"}
    ByPosition({TOPIC: both}).check(BASE, may_be_lost=False)
    with pytest.raises(InvalidArgument, match="no position is named for segment 8000-ffff-2"):
        ByPosition({TOPIC: {"0000-7fff-1": "latest"}}).of(RIGHT)
    with pytest.raises(InvalidArgument, match=r"0000-ffff-7 is no segment of .*; there are: 0000-7fff-1, 8000-ffff-2"):
        ByPosition({TOPIC: {**both, "0000-ffff-7": "latest"}}).check(BASE, may_be_lost=True)
    lost = ByPosition({TOPIC: {**both, "0000-ffff-0": Position(1, 0)}})
    with pytest.raises(InvalidArgument, match="any more: retention has taken all of it"):
        lost.check(BASE, may_be_lost=False)
    lost.check(BASE, may_be_lost=True)
    with pytest.raises(InvalidArgument, match="is named, and not read"):
        ByPosition({OTHER: both}).check(BASE, may_be_lost=True)
    two = replace(BASE, topics={OTHER: TopicBounds(1, {}), **BASE.topics})
    with pytest.raises(InvalidArgument, match=f"0000-ffff-7 is no segment of {TOPIC}; there are"):
        ByPosition({OTHER: {}, TOPIC: {**both, "0000-ffff-7": "latest"}}).check(two, may_be_lost=True)


@pytest.mark.parametrize(
    ("place", "first", "found"),
    [
        ("latest", Position(4, 3), Position(4, 9)),
        ("earliest", Position(4, 3), Position(4, 2)),
        ("earliest", None, Position(4, 9)),
        (Position(4, 3), Position(4, 3), Position(4, 2)),
        (Position(4, 7), Position(4, 3), Position(4, 6)),
        (Position(4, 10), Position(4, 3), Position(4, 9)),
        (Position(4, 10), None, Position(4, 9)),
    ],
)
def test_a_position_is_the_first_behind_the_boundary(place: Place, first: Position | None, found: Position) -> None:
    assert behind(place, BASE.segments[LEFT], first, LEFT, may_be_lost=False) == found


def test_a_position_that_is_not_stored_is_refused() -> None:
    bounds, first = BASE.segments[LEFT], Position(4, 3)
    for place in (Position(4, 11), Position(5, 0)):
        with pytest.raises(InvalidArgument, match=r"is after the end of .*, 4:9: name one .* \(4:10\)"):
            behind(place, bounds, first, LEFT, may_be_lost=True)
    for kept in (first, None):
        with pytest.raises(DataTrimmed, match="is not kept any more"):
            behind(Position(4, 2), bounds, kept, LEFT, may_be_lost=False)
    assert behind(Position(4, 1), bounds, first, LEFT, may_be_lost=True) == Position(4, 2)


def test_a_sealed_segment_goes_on_behind_an_end_that_is_drawn_back() -> None:
    """▲ Else what retention takes of it would look like read."""
    sealed = replace(BASE, topics={TOPIC: TopicBounds(3, {LEFT: BASE.segments[LEFT]._replace(sealed=True)}, 0)})
    for end, still in ((Position(4, 8), False), (Position(4, 9), True)):
        assert Crossing(sealed).drawn_back({LEFT: end}).segments[LEFT] == SegmentBounds(end, end, still)


def test_the_window_reaches_over_the_longest_transaction_on_both_sides() -> None:
    since, until = window([10**10, 2 * 10**10])
    assert (10**10 - since, until - 2 * 10**10) == (70 * 60_000, 70 * 60_000)
    assert window([5])[0] == 0


def test_a_time_that_an_older_owner_does_not_place_is_found_behind_any_number_of_heads() -> None:
    world = World(lambda _: 0)
    for time_ms in range(100, 900, 100):
        world.time_ms = time_ms
        world.append_plain()
    base = world.cut(world.topics)
    cuts: Any = WorldCuts(world)
    (segment,) = world.segments()
    for draw in (lambda _: 0, lambda choices: choices - 1):  # its owner tells where, and does not
        world.draw = draw
        found = BoundaryCuts(cuts, OPTIONS, base, first_kept(world, base)).at(ByTime(750))
        assert found.segments[segment.name.path].end == segment.entries[6].position


def test_a_transaction_of_long_after_one_position_and_before_the_latest_of_another_segment_is_whole() -> None:
    world = World(lambda _: 0)
    world.split()
    world.time_ms = 10**9
    world.append_plain()
    world.time_ms *= 2
    world.begin()
    world.append_in_transaction()
    world.draw = lambda choices: choices - 1
    world.append_in_transaction()
    world.draw = lambda _: 0
    world.decide()
    parent, left, right = world.segments()
    assert [len(one.entries) for one in (parent, left, right)] == [0, 2, 1]
    base = world.cut(world.topics)
    places: dict[str, Place] = {one.name.descriptor: "latest" for one in (parent, right)}
    boundary = ByPosition({str(left.name.topic): {left.name.descriptor: Position(1, 0), **places}})
    cuts: Any = WorldCuts(world)
    found = BoundaryCuts(cuts, OPTIONS, base, first_kept(world, base)).at(boundary)
    assert found.pending == tuple(world.txns)
    assert found.segments[right.name.path].resolved < right.entries[0].position


class Counted(WorldCuts):
    """How often heads are asked for."""

    asked = 0

    def heads(self, *args: Any, **options: Any) -> Iterator[list[EntryHead]]:
        self.asked += 1
        return super().heads(*args, **options)


def test_where_nothing_can_cross_a_boundary_nothing_before_it_is_looked_at() -> None:
    world = World(lambda _: 0)
    for time_ms in range(100, 900, 100):
        world.time_ms = time_ms
        world.append_plain()
    base, cuts = world.cut(world.topics), Counted(world)
    asking: Any = cuts
    boundaries = BoundaryCuts(asking, OPTIONS, base, first_kept(world, base))
    asked = []
    for time_ms in (50, 450):
        boundaries.at(ByTime(time_ms))
        asked.append(cuts.asked)
    assert asked == [0, 1], "nothing lies before the first, no transaction behind the second"
    assert BoundaryCuts(asking, OPTIONS, Snapshot(5, {}), {}).at(ByTime(450)) == Snapshot(5, {})
    uncommitted = replace(OPTIONS, uncommitted=True)
    BoundaryCuts(asking, uncommitted, base, first_kept(world, base)).at(ByTime(450))
    assert cuts.asked == 1, "an entry stands for itself"


def test_a_read_that_begins_behind_its_end_in_any_segment_is_refused() -> None:
    world = World(lambda _: 0)
    world.split()
    world.append_plain()
    world.draw = lambda choices: choices - 1
    world.append_plain()
    world.append_plain()
    world.draw = lambda _: 0
    base, cuts = world.cut(world.topics), log_world.WorldCuts(world)
    parent, left, right = world.segments()
    assert [len(one.entries) for one in (parent, left, right)] == [0, 1, 2]
    assert cuts.first_kept(base) == first_kept(world, base)
    places: dict[str, Place] = {one.name.descriptor: "latest" for one in (parent, left)}
    end = ByPosition({str(left.name.topic): {**places, right.name.descriptor: right.entries[1].position}})
    with pytest.raises(InvalidArgument, match=f"begins after 1:1 of {right.name.path}, and is to end at 1:0 already"):
        bounded(cuts, replace(OPTIONS, start=base, end=end), base)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingTimestamp": "5", "startingOffsets": "latest"}, "both say where to begin: leave one out"),
        ({"startingTimestamp": "5", "startingOffsetsByTimestamp": "{}"}, "both say where to begin"),
        ({"endingTimestamp": "5", "endingOffsets": "latest"}, "both say where to end"),
        ({"endingTimestamp": "5", "snapshot": "{}"}, "both say where to end"),
        ({"startingTimestamp": "soon"}, "'startingTimestamp': 'soon': expected milliseconds"),
        ({"startingOffsetsByTimestamp": "{"}, "'startingOffsetsByTimestamp'"),
        ({"startingTimestamp": "6", "endingTimestamp": "5"}, "a later time than the end: exchange the two"),
        ({"startingTimestamp": "6", "endingOffsetsByTimestamp": json.dumps({TOPIC: 5})}, "exchange the two"),
        ({"startingOffsets": json.dumps({TOPIC: {"0": 5}})}, "'startingOffsets': .*is not <lo>-<hi>-<id>"),
    ],
)
def test_a_boundary_that_makes_no_sense_is_refused_by_its_option(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        SourceOptions.parse(URL | options, use="read")


def test_a_stream_begins_at_a_boundary_and_ends_at_none() -> None:
    options = {"startingTimestamp": "5"}
    assert SourceOptions.parse(URL | options, use="stream read").start == ByTime(5)
    with pytest.raises(InvalidArgument, match="'endingTimestamp' is not for this"):
        SourceOptions.parse(URL | {"endingTimestamp": "5"}, use="stream read")
