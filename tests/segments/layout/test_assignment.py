"""Assignment of segments to consumers, and the membership that calls for it: pure cores."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from segments.controller.membership import MAX_CONSUMERS, GroupMembership
from segments.layout.assignment import assign, assignable, consumer_id, consumer_name
from segments.layout.topology import Topology, create_record
from txnstore.records import AssignmentRecord
from txnwire.errors import NotAllowed, Overloaded
from txnwire.names import TopicName

NAMES = st.sampled_from([f"c{index}" for index in range(8)])
SEGMENTS = [f"s{index:02}" for index in range(12)]


def moves(before: dict[str, list[str]], after: dict[str, list[str]]) -> int:
    held = {segment: consumer for consumer, segments in before.items() for segment in segments}
    now = {segment: consumer for consumer, segments in after.items() for segment in segments}
    return sum(now[segment] != held.get(segment) for segment in now)


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[str], list[str], dict[str, list[str]]]:
    segments = draw(st.lists(st.sampled_from(SEGMENTS), unique=True))
    owners = draw(st.lists(st.none() | NAMES, min_size=len(SEGMENTS), max_size=len(SEGMENTS)))
    previous: dict[str, list[str]] = {}
    for segment, owner in zip(SEGMENTS, owners, strict=True):
        if owner is not None:
            previous.setdefault(owner, []).append(segment)
    return draw(st.lists(NAMES, unique=True)), segments, previous


@given(situations())
def test_every_segment_has_one_consumer_and_counts_differ_by_at_most_one(
    situation: tuple[list[str], list[str], dict[str, list[str]]],
) -> None:
    consumers, segments, previous = situation
    result = assign(consumers, segments, previous)
    assert list(result) == sorted(consumers)
    if consumers:
        assert sorted(s for held in result.values() for s in held) == sorted(segments)
        counts = [len(held) for held in result.values()]
        assert max(counts) - min(counts) <= 1


@given(situations(), st.randoms(use_true_random=False))
def test_the_assignment_depends_on_nothing_but_the_situation(
    situation: tuple[list[str], list[str], dict[str, list[str]]], random: object
) -> None:
    consumers, segments, previous = situation
    result = assign(consumers, segments, previous)
    random.shuffle(consumers)  # type: ignore[attr-defined]
    shuffled = list(previous.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert assign(consumers, segments, {c: list(reversed(held)) for c, held in shuffled}) == result
    assert assign(consumers, segments, result) == result  # nothing moves without a reason


@given(
    consumers=st.integers(1, 4),
    segments=st.integers(0, 5),
    owners=st.lists(st.integers(0, 4), min_size=5, max_size=5),
)
def test_as_few_segments_move_as_balance_allows(consumers: int, segments: int, owners: list[int]) -> None:
    """Against a search through every balanced assignment."""
    names, wanted = [f"c{i}" for i in range(consumers)], SEGMENTS[:segments]
    previous: dict[str, list[str]] = {}
    for segment, owner in zip(wanted, owners, strict=False):
        previous.setdefault(f"c{owner}", []).append(segment)
    best = segments
    for choice in product(names, repeat=segments):
        counts = [choice.count(name) for name in names]
        if max(counts) - min(counts) <= 1:
            held = {name: [s for s, c in zip(wanted, choice, strict=True) if c == name] for name in names}
            best = min(best, moves(previous, held))
    assert moves(previous, assign(names, wanted, previous)) == best


def test_segments_come_in_layout_order_and_spare_consumers_get_none() -> None:
    assert assign(["b", "a", "c"], ["x", "w"], {}) == {"a": ["x"], "b": ["w"], "c": []}


def test_children_are_assignable_only_after_all_their_ancestors_are_drained() -> None:
    first = Topology(TopicName("t", "n", "x"), create_record(2, policies={}, created_ms=1))
    topology = first.split(0).merge(3, 1)  # 0 → 2, 3; 3 and 1 → 4
    by_id = topology.paths
    assert assignable(first) == first.active_paths
    assert assignable(topology) == (by_id[0], by_id[1])
    assert assignable(topology, {0}) == (by_id[1], by_id[2], by_id[3])
    assert assignable(topology, {0, 3}) == (by_id[1], by_id[2])
    assert assignable(topology, {0, 1, 3}) == (by_id[2], by_id[4])


def test_a_segment_waits_for_an_ancestor_that_was_sought_back_into_behind_a_parent_that_is_drained() -> None:
    """▲ The marks of those between still stand: what comes from it would be mixed with what its ancestor has again."""
    chain = Topology(TopicName("t", "n", "x"), create_record(1, policies={}, created_ms=1)).split(0).split(1)
    assert assignable(chain, {0, 1}) == tuple(chain.paths[one] for one in (2, 3, 4))
    assert assignable(chain, {1}) == (chain.paths[0],)


def test_a_consumer_id_tells_name_and_incarnation() -> None:
    assert consumer_id("worker-1", 0xAB) == "worker-1@00000000000000ab"
    assert consumer_name("worker-1@00000000000000ab") == "worker-1"


# ---- membership -----------------------------------------------------------------------------------------------------


def settle(membership: GroupMembership, segments: list[str]) -> dict[str, list[str]]:
    if (record := membership.plan(segments)) is not None:
        membership.confirm(record, membership.mod_revision + 1)
        assert membership.plan(segments) is None
    return {consumer: list(held) for consumer, held in membership.assigned.items()}


def test_a_new_incarnation_takes_over_its_predecessors_segments_at_once() -> None:
    membership = GroupMembership(None, 0, gone_at=10.0)
    for name in ("a", "b"):
        membership.join(consumer_id(name, 1))
    before = settle(membership, SEGMENTS)
    assert membership.join("a@0000000000000002") == ("a@0000000000000001",)
    after = settle(membership, SEGMENTS)
    assert after == {
        "a@0000000000000002": before["a@0000000000000001"],
        "b@0000000000000001": before[consumer_id("b", 1)],
    }
    with pytest.raises(NotAllowed, match="replaced"):
        membership.join("a@0000000000000001")


def test_k6_one_that_was_a_member_before_never_takes_its_name_back_from_a_newer_one() -> None:
    """Under a new controller, too, which knows only whom the record names."""
    first = GroupMembership(None, 0, gone_at=0.0)
    first.join("worker@1")
    record = first.plan(["a", "b"])
    assert record is not None
    first.confirm(record, 1)
    again = GroupMembership(record, 1, gone_at=10.0)
    assert again.join("worker@1", again=True) == ()
    assert again.join("worker@2") == ("worker@1",)
    newer = again.plan(["a", "b"])
    assert newer is not None
    elected = GroupMembership(newer, 2, gone_at=20.0)
    with pytest.raises(NotAllowed, match="replaced by worker@2"):
        elected.join("worker@1", again=True)
    assert not elected.is_member("worker@1")
    assert elected.join("worker@2", again=True) == ()
    assert elected.join("worker@3") == ("worker@2",), "a new process of that name still does"


def test_joining_again_with_the_same_incarnation_changes_nothing() -> None:
    membership = GroupMembership(None, 0, gone_at=10.0)
    membership.join("a@1")
    settle(membership, SEGMENTS)
    membership.disconnect("a@1", gone_at=12.0)
    assert membership.next_expiry() == 12.0
    assert membership.join("a@1") == ()
    assert membership.plan(SEGMENTS) is None
    assert membership.expire(1e9) == ()


def test_who_is_to_be_given_up_first_is_looked_for_first_in_whatever_order_they_joined() -> None:
    """Or the segments of a consumer that has died would wait for the grace of another one."""
    membership = GroupMembership(None, 0, gone_at=10.0)
    for consumer, gone_at in (("a@1", 30.0), ("b@1", None), ("c@1", 10.0), ("d@1", 20.0)):
        membership.join(consumer)
        if gone_at is not None:
            membership.disconnect(consumer, gone_at=gone_at)
    assert membership.next_expiry() == 10.0
    assert membership.expire(10.0) == ("c@1",)
    assert membership.next_expiry() == 20.0


def test_a_successor_gives_everyone_in_the_record_time_to_come_back() -> None:
    record = AssignmentRecord(epoch=7, consumers={"a@1": SEGMENTS[:6], "b@1": SEGMENTS[6:]})
    membership = GroupMembership(record, 99, gone_at=10.0)
    membership.join("b@1")
    assert membership.expire(9.99) == ()
    assert membership.plan(SEGMENTS) is None
    assert membership.expire(10.0) == ("a@1",)
    planned = membership.plan(SEGMENTS)
    assert planned == AssignmentRecord(epoch=8, consumers={"b@1": SEGMENTS})


def test_of_several_that_are_replaced_or_lost_every_one_is() -> None:
    segments = [f"s{number}" for number in range(6)]
    held = {"a": ["s0", "s3"], "b": ["s2", "s5"], "c": ["s1", "s4"]}
    record = AssignmentRecord(epoch=7, consumers={f"{name}@1": mine for name, mine in held.items()})
    membership = GroupMembership(record, 99, gone_at=10.0)
    for consumer in ("a@1", "b@2", "c@2"):
        membership.join(consumer)
    planned = membership.plan(segments)
    assert planned is not None
    assert planned.consumers == {"a@1": held["a"], "b@2": held["b"], "c@2": held["c"]}
    assert membership.connected() == ("a@1", "b@2", "c@2")
    for consumer in ("b@2", "c@2"):
        membership.disconnect(consumer, gone_at=20.0)
    assert membership.connected() == ("a@1",)
    assert membership.expire(20.0) == ("b@2", "c@2")
    assert [membership.is_member(consumer) for consumer in ("a@1", "b@2", "c@2")] == [True, False, False]


def test_the_epoch_rises_even_past_a_record_that_was_deleted() -> None:
    membership = GroupMembership(AssignmentRecord(epoch=7, consumers={}), 99, gone_at=10.0)
    membership.confirm(None, 0)
    membership.join("a@1")
    planned = membership.plan(SEGMENTS)
    assert planned is not None
    assert planned.epoch == 8


def test_consumers_are_bounded_but_a_replacement_is_always_let_in() -> None:
    membership = GroupMembership(None, 0, gone_at=10.0)
    for index in range(MAX_CONSUMERS):
        membership.join(f"c{index}@1")
    with pytest.raises(Overloaded):
        membership.join("one-more@1")
    membership.join("c0@2")
    membership.join("c1@1")


class MembershipModel(RuleBasedStateMachine):
    """Joins, leaves, drops, time, layout changes, in any order: the record names exactly the members, one incarnation
    a name, balanced over exactly the segments, under a rising epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.segments = SEGMENTS[:4]
        self.membership = GroupMembership(None, 0, gone_at=0.0)
        self.members: dict[str, tuple[int, float | None]] = {}
        self.latest: dict[str, int] = {}
        self.epoch = 0

    @rule(name=NAMES)
    def join_anew(self, name: str) -> None:
        self.latest[name] = self.latest.get(name, 0) + 1
        self.membership.join(consumer_id(name, self.latest[name]))
        self.members[name] = (self.latest[name], None)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def join_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.members)))
        self.membership.join(consumer_id(name, self.members[name][0]))
        self.members[name] = (self.members[name][0], None)

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        self.membership.leave(consumer_id(name, self.latest.get(name, 0)))
        if name in self.members:
            del self.members[name]

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        self.membership.disconnect(consumer_id(name, self.latest.get(name, 0)), gone_at=self.now + 2.0)
        if name in self.members:
            self.members[name] = (self.members[name][0], self.now + 2.0)

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.membership.expire(self.now)
        self.members = {n: m for n, m in self.members.items() if m[1] is None or m[1] > self.now}

    @rule(count=st.integers(1, len(SEGMENTS)))
    def relayout(self, count: int) -> None:
        self.segments = SEGMENTS[-count:]

    @invariant()
    def record_is_right_after_at_most_one_write(self) -> None:
        settled = settle(self.membership, self.segments)
        assert sorted(settled) == sorted(consumer_id(name, m[0]) for name, m in self.members.items())
        if settled:
            assert sorted(s for held in settled.values() for s in held) == sorted(self.segments)
        epoch = self.membership.record.epoch if self.membership.record else 0
        assert epoch >= self.epoch
        self.epoch = epoch


TestMembership = MembershipModel.TestCase
