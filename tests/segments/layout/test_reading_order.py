"""S7 as a model: whatever splits, merges, seeks and lag there are, each key is read in the order it was written."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from segments.layout.assignment import assignable, undrained
from segments.layout.topology import SEALED, Topology, create_record
from txnclient.connection.topic_layout import SegmentInfo, TopicLayout
from txnclient.consuming.places.seeking import unsought
from txnwire.names import TopicName

KEYS = [0, 0x3FFF, 0x4000, 0x7FFF, 0x8000, 0xBFFF, 0xFFFF]


class Reading(RuleBasedStateMachine):
    """A subscription whose controller knows any layout and any state of what is drained that there ever was."""

    def __init__(self) -> None:
        super().__init__()
        topology = Topology(TopicName("t", "n", "x"), create_record(2, policies={}, created_ms=1))
        self.layouts = [topology]
        self.drained: dict[int, None] = {}
        self.known_drained: list[frozenset[int]] = [frozenset()]
        self.logs: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.at: dict[int, int] = defaultdict(int)
        self.sent: dict[int, int] = defaultdict(int)
        self.read: dict[int, int] = {}
        """By key, since the last seek."""

    @property
    def layout(self) -> Topology:
        return self.layouts[-1]

    @rule(key=st.sampled_from(KEYS), count=st.integers(1, 3))
    def write(self, key: int, count: int) -> None:
        for _ in range(count):
            self.logs[self.layout.lookup(key).id].append((key, self.sent[key]))
            self.sent[key] += 1

    @precondition(lambda self: len(self.layout.active) < 6)
    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        wide = [entry for entry in self.layout.active if entry.hi > entry.lo]
        self.layouts.append(self.layout.split(data.draw(st.sampled_from(wide)).id))

    @precondition(lambda self: len(self.layout.active) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.layout.active) - 2))
        self.layouts.append(self.layout.merge(self.layout.active[at].id, self.layout.active[at + 1].id))

    @rule(data=st.data(), count=st.integers(1, 4))
    def consume(self, data: st.DataObject, count: int) -> None:
        known = data.draw(st.sampled_from(self.layouts))
        assigned = assignable(known, data.draw(st.sampled_from(self.known_drained)))
        assert assigned  # somebody can always go on
        path = data.draw(st.sampled_from(assigned))
        [segment_id] = [one for one, found in known.paths.items() if found == path]
        if all(one in self.drained for one in self.layout.ancestors(segment_id)):  # asked of the store
            self._read(segment_id, count)

    def _read(self, segment_id: int, count: int) -> None:
        log = self.logs[segment_id]
        for key, number in log[self.at[segment_id] :][:count]:
            assert number == self.read.get(key, -1) + 1, f"{number} of {key:04x} behind {self.read.get(key, -1)}"
            self.read[key] = number
            self.at[segment_id] += 1
        if self.layout.entry(segment_id).state == SEALED and self.at[segment_id] == len(log):
            self.drained[segment_id] = None
            self.known_drained.append(frozenset(self.drained))

    @rule()
    def read_all(self) -> None:
        while assigned := [path for path in assignable(self.layout, self.drained) if self._left(path)]:
            for path in assigned:
                self._read(int(path.rpartition("-")[2]), 1_000)

    @precondition(lambda self: self.drained)
    @rule()
    def seek_to_the_beginning(self) -> None:
        self.drained.clear()
        self.known_drained.append(frozenset())
        self.at.clear()
        self.read.clear()

    @invariant()
    def whoever_knows_all_there_is_can_read_all_there_is(self) -> None:
        at, read, drained, known = dict(self.at), dict(self.read), dict(self.drained), list(self.known_drained)
        self.read_all()
        assert self.read == {key: count - 1 for key, count in self.sent.items()}
        assert set(undrained(self.layout, self.drained)) == set(self.layout.active_paths)
        self.at, self.read, self.drained, self.known_drained = defaultdict(int, at), read, drained, known

    def _left(self, path: str) -> bool:
        segment_id = int(path.rpartition("-")[2])
        sealed = self.layout.entry(segment_id).state == SEALED
        return sealed or self.at[segment_id] < len(self.logs[segment_id])

    @invariant()
    def a_seek_comes_to_parents_before_their_children_and_to_all_of_them(self) -> None:
        waves = unsought(as_seen(self.layout), ())
        order = {path: at for at, wave in enumerate(waves) for path in wave}
        assert set(order) == set(self.layout.paths.values())
        for entry in self.layout.segments.values():
            for parent in entry.parents:
                assert order[self.layout.paths[parent]] < order[self.layout.paths[entry.id]]
        if len(self.layouts) > 1:
            left = unsought(as_seen(self.layout), self.layouts[-2].paths.values())
            assert left == [[p for p in self.layout.paths.values() if p not in self.layouts[-2].paths.values()]]


def as_seen(topology: Topology) -> TopicLayout:
    """By a client."""
    segments = {
        entry.id: SegmentInfo(
            entry.id,
            f"segment://{topology.paths[entry.id]}",
            topology.paths[entry.id],
            entry.state,
            (entry.lo, entry.hi),
            tuple(entry.parents),
            tuple(entry.children),
            "",
            "",
        )
        for entry in topology.segments.values()
    }
    return TopicLayout(str(topology.topic), topology.epoch, segments, 1, -1, 0, (), (), {})


TestReading = Reading.TestCase
TestReading.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
