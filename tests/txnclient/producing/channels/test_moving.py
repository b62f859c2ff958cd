"""Where messages go over layouts that change: the pure rules, by tables and at random against what they promise."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from segments.layout.topology import Topology, create_record
from txnclient.connection.topic_layout import SegmentInfo, TopicLayout
from txnclient.producing.channels.moving import Routes
from txnwire.ids import hash_key
from txnwire.names import TopicName
from txnwire.proto import txn_pb2 as pb

TOPIC = TopicName.parse("topic://public/default/t")
KEYS = [b"k%d" % number for number in range(8)]


def first(segments: int = 1) -> Topology:
    return Topology(TOPIC, create_record(segments, policies={}, created_ms=0))


def shown(topology: Topology) -> TopicLayout:
    """As a client sees it."""
    wire = pb.Layout(topic=str(TOPIC), exists=True, epoch=topology.epoch, revision=topology.epoch)
    for one in topology.segments.values():
        wire.segments.add(
            segment_id=one.id,
            lo=one.lo,
            hi=one.hi,
            state=one.state,
            parents=one.parents,
            children=one.children,
            path=topology.paths[one.id],
        )
    return TopicLayout.from_wire(wire)


def routes_over(topology: Topology, *used: int, then: Topology) -> Routes:
    """Of a producer that has channels to `used`, after it has seen another layout."""
    layout = shown(topology)
    routes = Routes(layout)
    routes.follow(shown(then), [layout.segments[number] for number in used])
    return routes


def test_what_belongs_to_a_sealed_segment_queues_behind_it_until_it_has_answered() -> None:
    routes = routes_over(first(), 0, then=first().split(0))
    assert list(routes.leaving) == [0]
    assert [routes.segment_of_hash(one).segment_id for one in (0, 0x7FFF, 0x8000, 0xFFFF)] == [0, 0, 0, 0]
    version = routes.version
    routes.left(routes.leaving[0])
    assert [routes.segment_of_hash(one).segment_id for one in (0, 0x7FFF, 0x8000, 0xFFFF)] == [1, 1, 2, 2]
    assert routes.version > version


def test_what_was_never_used_is_not_asked() -> None:
    routes = routes_over(first(2), 1, then=first(2).split(0))
    assert not routes.leaving
    assert routes.segment_of_hash(0).segment_id == 2


def test_s11_a_merged_child_waits_for_both_and_a_grandchild_for_all() -> None:
    before = first(2)
    merged = before.merge(0, 1)
    routes = routes_over(before, 0, 1, then=merged)
    child = routes.layout.segments[2]
    assert routes.held_back(child)
    routes.left(routes.leaving[0])
    assert routes.held_back(child), "the other has still to answer"
    assert routes.segment_of_hash(0).segment_id == 2
    assert routes.segment_of_hash(0x8000).segment_id == 1
    routes.follow(shown(merged.split(2)), [])
    assert all(routes.held_back(one) for one in routes.layout.active)
    routes.left(routes.leaving[1])
    assert not any(routes.held_back(one) for one in routes.layout.active)


def test_messages_are_grouped_by_where_they_go_and_those_without_a_key_stay_together() -> None:
    routes = Routes(shown(first(2)))
    keys = [b"k0", None, b"k1", b"k2", None, b"k0"]
    groups = routes.groups(keys)
    assert sorted(index for _, indexes in groups for index in indexes or ()) == list(range(6))
    for segment, indexes in groups:
        assert indexes is not None
        if segment is None:
            assert indexes == [1, 4]
        for index in indexes:
            key = keys[index]
            assert key is None or routes.segment_of_hash(hash_key(key)) == segment
    assert routes.groups(None) == [(None, None)]
    assert Routes(shown(first())).groups([b"a", b"b"]) == [(shown(first()).segments[0], None)]


@settings(deadline=None)
@given(st.lists(st.none() | st.sampled_from(KEYS), min_size=1, max_size=20), st.booleans(), st.booleans())
def test_s11_messages_sent_together_queue_behind_a_sealed_segment_as_each_alone_would(
    keys: list[bytes | None], merged: bool, answered: bool
) -> None:
    """▲ Grouped by the new layout, they would overtake what is in doubt."""
    routes = routes_over(first(2), 0, then=first(2).merge(0, 1) if merged else first(2).split(0))
    if answered:
        routes.left(routes.leaving[0])
    found: dict[int, SegmentInfo | None] = {}
    for segment, indexes in routes.groups(keys):
        found.update(dict.fromkeys(range(len(keys)) if indexes is None else indexes, segment))
    assert sorted(found) == [*range(len(keys))]
    for index, key in enumerate(keys):
        assert found[index] == (None if key is None else routes.segment_of_hash(hash_key(key)))


def test_a_segment_that_the_layout_has_forgotten_is_gone_and_leaving() -> None:
    before = first()
    routes = routes_over(before, 0, then=before.split(0))
    other = TopicLayout.from_wire(_without(shown(before.split(0)), 0))
    routes.follow(other, [])
    assert routes.is_gone(routes.leaving[0])
    assert not routes.held_back(routes.layout.segments[1]) or 0 in routes.leaving


def _without(layout: TopicLayout, segment_id: int) -> pb.Layout:
    wire = pb.Layout(topic=layout.topic, exists=True, epoch=layout.epoch, revision=layout.revision[1] + 1)
    for one in layout.segments.values():
        if one.segment_id != segment_id:
            parents = [parent for parent in one.parents if parent != segment_id]
            wire.segments.add(
                segment_id=one.segment_id,
                lo=one.range[0],
                hi=one.range[1],
                state=one.state,
                parents=parents,
                children=one.children,
                path=one.path,
            )
    return wire


@dataclass
class Queue:
    """What a producer has for one segment and has no answer for. Of the messages at its front `written` were written,
    once at least, and `stored` are in the segment, which takes them in order, though nobody knows."""

    segment: SegmentInfo
    messages: list[tuple[bytes, int]] = field(default_factory=list)
    written: int = 0
    stored: int = 0


class Model:
    """A producer reduced to its queues, and segments to what they hold."""

    def __init__(self) -> None:
        self.topology = first()
        self.routes = Routes(shown(self.topology))
        self.logs: dict[int, list[tuple[bytes, int]]] = {}
        self.queues: dict[int, Queue] = {}
        self.sent = 0

    def send(self, key: bytes) -> None:
        self.put((key, self.sent))
        self.sent += 1

    def put(self, message: tuple[bytes, int]) -> None:
        segment = self.routes.segment_of_hash(hash_key(message[0]))
        self.queues.setdefault(segment.segment_id, Queue(segment)).messages.append(message)

    def write(self, queue: Queue) -> None:
        if queue.written < len(queue.messages) and not self.routes.held_back(queue.segment):
            queue.written += 1

    def store(self, queue: Queue) -> None:
        """Only while the segment is active, whatever the producer knows of that."""
        number = queue.segment.segment_id
        if queue.stored < queue.written and self.topology.segments[number].state == "ACTIVE":
            for ancestor in self.topology.ancestors(number):
                known = self.queues.get(ancestor)
                assert known is None or not known.written, "S11: an ancestor has still to answer"
            self.logs.setdefault(number, []).append(queue.messages[queue.stored])
            queue.stored += 1

    def ack(self, queue: Queue) -> None:
        if queue.stored:
            del queue.messages[0]
            queue.stored -= 1
            queue.written -= 1
        self.leave()

    def answer(self, queue: Queue) -> None:
        """A sealed segment says what it holds: the rest was never written."""
        if self.topology.segments[queue.segment.segment_id].state != "ACTIVE":
            del queue.messages[: queue.stored]
            queue.stored = queue.written = 0
            self.leave()

    def see(self) -> None:
        self.routes.follow(shown(self.topology), [queue.segment for queue in self.queues.values()])
        self.leave()

    def leave(self) -> None:
        for number, segment in list(self.routes.leaving.items()):
            if not self.queues[number].written:
                left = self.queues.pop(number)
                self.routes.left(segment)
                for message in left.messages:
                    self.put(message)

    def drain(self) -> None:
        self.see()
        for number in list(self.routes.leaving):
            self.answer(self.queues[number])
        assert not self.routes.leaving
        for queue in self.queues.values():
            while queue.messages:
                self.write(queue)
                self.store(queue)
                self.ack(queue)


NUMBERS = st.integers(0, 60)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(KEYS)),
        st.tuples(st.sampled_from(["write", "write", "store", "ack", "answer", "split", "merge", "see"]), NUMBERS),
    ),
    min_size=30,
    max_size=120,
)


@settings(deadline=None, max_examples=200)
@given(STEPS)
def test_s5_s11_each_message_ends_in_one_place_and_in_order_per_key(steps: list[tuple[str, bytes | int]]) -> None:
    model = Model()
    for kind, argument in steps:
        if isinstance(argument, bytes):
            model.send(argument)
        elif kind in ("split", "merge"):
            model.topology = changed(model.topology, kind, argument)
        elif kind == "see":
            model.see()
        elif model.queues:
            queue = list(model.queues.values())[argument % len(model.queues)]
            getattr(model, kind)(queue)
    model.drain()
    found: dict[bytes, list[int]] = {}
    for number in sorted(model.logs):
        for key, message in model.logs[number]:
            found.setdefault(key, []).append(message)
    assert sorted(message for messages in found.values() for message in messages) == list(range(model.sent))
    for messages in found.values():
        assert messages == sorted(messages)


def changed(topology: Topology, kind: str, number: int) -> Topology:
    active = topology.active
    if kind == "split" and len(active) < 8:
        return topology.split(active[number % len(active)].id)
    if kind == "merge" and len(active) > 1:
        lower = number % (len(active) - 1)
        return topology.merge(active[lower].id, active[lower + 1].id)
    return topology
