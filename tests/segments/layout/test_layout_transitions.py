"""The pure core of splits and merges: whoever asks for what, in whatever order steps land, the ranges tile exactly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from segments.layout.layout_transitions import (
    MERGE,
    SPLIT,
    LayoutChanged,
    Wanted,
    find_candidates,
    find_change,
    find_done,
    find_joined,
    normalize,
    plan_forget_drained,
    plan_give_up,
    plan_intent,
    plan_layout,
    plan_prune,
    plan_pruned,
    read_sealed,
    read_topology,
)
from segments.layout.topology import ACTIVE, SEALED, Topology, create_record
from txnstore import keys, records
from txnstore.records import LayoutChange, LedgerRecord, TopicRecord
from txnstore.store import Commit, KeyValue, Target, created_at
from txnwire.errors import InvalidArgument, NotAllowed, TopicNotFound, TxnError
from txnwire.ids import HASH_SPACE
from txnwire.names import TopicName

TOPIC = TopicName("public", "nyc", "flights")
KEY = keys.topic(TOPIC.path)
HELD = created_at(keys.leader("controller"), 7)


def record_of(topic: TopicRecord, revision: int = 1) -> KeyValue:
    return KeyValue(KEY, records.encode(topic), 1, 1, revision)


def landed(commit: Commit, revision: int) -> KeyValue:
    [put] = commit.puts
    return KeyValue(put.key, put.value, 2, 1, revision)


def topic(segments: int = 2) -> KeyValue:
    return record_of(create_record(segments, policies={"retention_ms": 5}, created_ms=1))


def intend(record: KeyValue, wanted: Wanted, change_id: str = "c1") -> tuple[LayoutChange, KeyValue]:
    wanted = normalize(read_topology(record), wanted)
    change, commit = plan_intent(record, wanted, change_id=change_id, still_held=HELD, now_ms=9)
    return change, landed(commit, record.mod_revision + 1)


def finish(record: KeyValue, change: LayoutChange) -> KeyValue:
    commit = plan_layout(record, change, dict.fromkeys(change.parents, 3), still_held=HELD)
    return landed(commit, record.mod_revision + 1)


def test_a_split_is_an_intent_then_a_layout() -> None:
    change, begun = intend(topic(), Wanted(SPLIT, (0,)))
    before = read_topology(begun)
    assert change == LayoutChange(id="c1", kind=SPLIT, parents=[0], at=0x4000, since_ms=9)
    assert [entry.id for entry in before.active] == [0, 1]
    assert before.epoch == 1
    after = read_topology(finish(begun, change))
    assert [(entry.id, entry.lo, entry.hi) for entry in after.active] == [
        (2, 0, 0x3FFF),
        (3, 0x4000, 0x7FFF),
        (1, 0x8000, 0xFFFF),
    ]
    assert after.segments[0].state == SEALED
    assert after.epoch == 2
    assert after.record.changes == []
    assert after.policies == {"retention_ms": 5}


def test_a_merge_names_its_parents_in_hash_order() -> None:
    change, begun = intend(topic(), Wanted(MERGE, (1, 0)))
    assert change.parents == [0, 1]
    after = read_topology(finish(begun, change))
    assert [(entry.id, entry.lo, entry.hi, entry.parents) for entry in after.active] == [(2, 0, 0xFFFF, [0, 1])]


@pytest.mark.parametrize(
    ("wanted", "error", "says"),
    [
        (Wanted(SPLIT, (9,)), InvalidArgument, "has no segment 9"),
        (Wanted(SPLIT, (0,), 0), InvalidArgument, "expected a hash in"),
        (Wanted(SPLIT, (0,), 0x8000), InvalidArgument, "expected a hash in"),
        (Wanted(MERGE, (0, 0)), InvalidArgument, "not adjacent"),
        (Wanted(MERGE, (0, 2)), InvalidArgument, "not adjacent"),
        (Wanted(MERGE, (0,)), InvalidArgument, "a merge of 2"),
        (Wanted("bend", (0, 1)), InvalidArgument, "bend"),
    ],
)
def test_what_the_layout_does_not_allow_is_refused(wanted: Wanted, error: type[TxnError], says: str) -> None:
    with pytest.raises(error, match=says):
        intend(topic(3), wanted)


@pytest.mark.parametrize("second", [Wanted(SPLIT, (0,), 5), Wanted(MERGE, (0, 1))])
def test_s6_one_change_of_a_segment_at_a_time(second: Wanted) -> None:
    _, begun = intend(topic(), Wanted(SPLIT, (0,)))
    with pytest.raises(NotAllowed, match=r"split of public/nyc/flights/0000-7fff-0 is under way"):
        intend(begun, second, "c2")
    _, both = intend(begun, Wanted(SPLIT, (1,)), "c2")
    assert [change.id for change in read_topology(both).record.changes] == ["c1", "c2"]


def test_s6_of_all_changes_under_way_no_parent_takes_another_one() -> None:
    _, begun = intend(topic(4), Wanted(MERGE, (0, 1)))
    _, begun = intend(begun, Wanted(MERGE, (2, 3)), "c2")
    for parent in range(4):
        with pytest.raises(NotAllowed, match=rf"merge of \S+-{parent} is under way"):
            intend(begun, Wanted(SPLIT, (parent,)), "c3")


def test_s6_a_change_joins_and_ends_no_other_one_of_its_topic() -> None:
    first, begun = intend(topic(), Wanted(SPLIT, (0,)))
    second, both = intend(begun, Wanted(SPLIT, (1,)), "c2")
    topology = read_topology(both)
    assert find_joined(topology, normalize(topology, Wanted(SPLIT, (1,)))) == second
    assert [find_change(topology, change_id) for change_id in ("c1", "c2", "c3")] == [first, second, None]
    for change, other in ((first, second), (second, first)):
        given_up = landed(plan_give_up(both, change.id, still_held=HELD), 9)
        assert read_topology(given_up).record.changes == [other]
        assert read_topology(finish(both, change)).record.changes == [other]


def test_s6_the_same_request_joins_and_finds_what_it_has_made() -> None:
    change, begun = intend(topic(), Wanted(SPLIT, (0,)))
    again = normalize(read_topology(begun), Wanted(SPLIT, (0,), 0x4000))
    assert find_joined(read_topology(begun), again) == change
    assert find_done(read_topology(begun), again) is None
    done = read_topology(finish(begun, change))
    paths = done.paths
    assert find_done(done, again) == LayoutChanged(2, (paths[0],), (paths[2], paths[3]))
    assert find_done(done, Wanted(SPLIT, (0,), 5)) is None
    with pytest.raises(InvalidArgument, match=f"it is SEALED, not ACTIVE; {paths[2]} and {paths[3]} came of it"):
        intend(finish(begun, change), Wanted(SPLIT, (0,), 5))


def test_a_merge_done_is_neither_another_merge_nor_a_split() -> None:
    change, begun = intend(topic(3), Wanted(MERGE, (0, 1)))
    done = read_topology(finish(begun, change))
    assert find_done(done, Wanted(MERGE, (0, 1))) == LayoutChanged(2, (done.paths[0], done.paths[1]), (done.paths[3],))
    assert find_done(done, Wanted(MERGE, (1, 2))) is None
    assert find_done(done, Wanted(SPLIT, (0,), 5)) is None
    assert find_done(done, Wanted(MERGE, (0, 0))) is None
    change, begun = intend(finish(begun, change), Wanted(MERGE, (3, 2)))
    assert find_done(read_topology(finish(begun, change)), Wanted(MERGE, (1, 2))) is None, "each was merged elsewhere"


def test_nothing_begins_in_a_topic_that_is_being_deleted() -> None:
    marked = create_record(2, policies={}, created_ms=1)
    with pytest.raises(TopicNotFound):
        plan_intent(
            record_of(TopicRecord(**{f: getattr(marked, f) for f in marked.__struct_fields__} | {"deleting_ms": 5})),
            Wanted(SPLIT, (0,), 5),
            change_id="c1",
            still_held=HELD,
            now_ms=1,
        )


def test_s10_the_layout_compares_the_leader_the_intent_and_every_seal() -> None:
    """▲ What no longer stands as it was seen makes no layout."""
    change, begun = intend(topic(), Wanted(MERGE, (0, 1)))
    commit = plan_layout(begun, change, {0: 41, 1: 42}, still_held=HELD)
    paths = read_topology(begun).paths
    assert commit.compares[0] == HELD
    assert [(one.key, one.target, one.value) for one in commit.compares[1:]] == [
        (KEY, Target.MOD, begun.mod_revision),
        (keys.ledger(paths[0]), Target.MOD, 41),
        (keys.ledger(paths[1]), Target.MOD, 42),
    ]


@pytest.mark.parametrize(
    ("record", "sealed"),
    [
        (None, None),
        (LedgerRecord(ledgers=[]), None),
        (LedgerRecord(ledgers=[], sealed=(1, 1), sealed_by="c2"), None),
        (LedgerRecord(ledgers=[], sealed=(1, 1)), None),
        (LedgerRecord(ledgers=[], sealed=(0, -1), sealed_by="c1"), 8),
    ],
)
def test_only_a_seal_for_this_change_counts(record: LedgerRecord | None, sealed: int | None) -> None:
    stored = None if record is None else KeyValue(keys.ledger("x"), records.encode(record), 1, 1, 8)
    assert read_sealed(stored, "c1") == sealed


def test_a_child_of_two_is_pruned_once_both_are_forgotten() -> None:
    """▲ A reader in the order of the graph would miss what lies between."""
    topology = Topology(TOPIC, create_record(2, policies={}, created_ms=1)).merge(0, 1).split(2)
    assert find_candidates(topology) == [0, 1]
    assert find_candidates(topology, [0]) == [1]
    assert find_candidates(topology, [1]) == [0]
    assert find_candidates(topology, [0, 1]) == [2]


@pytest.mark.parametrize(("never_used", "lost_id"), [((), 1), ((0,), 1), ((1,), 0), ((0, 1), -1)])
def test_segments_pruned_together_are_marked_and_remembered_by_the_last_that_held_anything(
    never_used: tuple[int, ...], lost_id: int
) -> None:
    merged = record_of(Topology(TOPIC, create_record(2, policies={}, created_ms=1)).merge(0, 1).record)
    marked = landed(plan_prune(merged, [0, 1], still_held=HELD, never_used=never_used), 2)
    topology = read_topology(marked)
    assert (topology.record.pruning, topology.record.lost_id) == ([0, 1], lost_id)
    assert [read_topology(landed(plan_pruned(marked, one, still_held=HELD), 3)).paths.get(one) for one in (0, 1)] == [
        None,
        None,
    ]


@pytest.mark.parametrize(("pruned", "left"), [((), [0, 1]), ((0,), [1]), ((1,), [0]), ((0, 1), [])])
def test_a_pruned_segment_is_remembered_until_its_own_drained_records_are_gone(
    pruned: tuple[int, ...], left: list[int]
) -> None:
    merged = Topology(TOPIC, create_record(2, policies={}, created_ms=1)).merge(0, 1).prune(0).prune(1)
    record = record_of(replace(merged.record, pruning=[0, 1]))
    drained = [keys.drained(TOPIC.path, name, one) for name in "ab" for one in pruned]
    commit = plan_forget_drained(record, pruned, drained, still_held=HELD)
    assert read_topology(landed(commit, 2)).record.pruning == left
    assert [delete.key for delete in commit.deletes] == drained


class Layouts(RuleBasedStateMachine):
    """Any requests, finished, given up or repeated in any order: the active segments tile, ids are never used twice, no
    segment has two changes, and only what was sealed for a change makes its layout."""

    def __init__(self) -> None:
        super().__init__()
        self.record = topic(3)
        self.begun = 0
        self.seen: set[int] = {0, 1, 2}

    @property
    def topology(self) -> Topology:
        return read_topology(self.record)

    @rule(kind=st.sampled_from([SPLIT, MERGE]), data=st.data(), at=st.none() | st.integers(0, HASH_SPACE - 1))
    def ask(self, kind: str, data: st.DataObject, at: int | None) -> None:
        ids = st.sampled_from(list(self.topology.segments))
        parents = (data.draw(ids),) if kind == SPLIT else (data.draw(ids), data.draw(ids))
        before = self.topology
        try:
            wanted = normalize(before, Wanted(kind, parents, at if kind == SPLIT else None))
            if find_done(before, wanted) or find_joined(before, wanted):
                return
            self.begun += 1
            _, self.record = intend(self.record, wanted, f"c{self.begun}")
        except (InvalidArgument, NotAllowed):
            return
        assert all(before.segments[parent].state == ACTIVE for parent in wanted.parents)

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.topology.record.changes:
            change = data.draw(st.sampled_from(self.topology.record.changes))
            self.record = finish(self.record, change)
            made = set(self.topology.segments) - self.seen
            assert made
            assert not any(one in self.seen for one in made)
            self.seen |= made
            wanted = Wanted(change.kind, tuple(change.parents), change.at)
            assert find_done(self.topology, wanted) is not None

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        if self.topology.record.changes:
            change = data.draw(st.sampled_from(self.topology.record.changes))
            before = self.topology
            commit = plan_give_up(self.record, change.id, still_held=HELD)
            self.record = landed(commit, self.record.mod_revision + 1)
            assert find_change(self.topology, change.id) is None
            assert self.topology.active == before.active
            assert self.topology.epoch == before.epoch

    @invariant()
    def tiles(self) -> None:
        at = 0
        for entry in self.topology.active:
            assert entry.lo == at
            at = entry.hi + 1
        assert at == HASH_SPACE

    @invariant()
    def one_change_a_segment(self) -> None:
        parents = [parent for change in self.topology.record.changes for parent in change.parents]
        assert len(parents) == len(set(parents))
        assert all(self.topology.segments[parent].state == ACTIVE for parent in parents)


TestS6Layouts = Layouts.TestCase
TestS6Layouts.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.integers(1, 40), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_lineage_covers_exactly_the_range(changes: int, random: object) -> None:
    """Every hash of an active segment was held, at each generation, by exactly one of its ancestors."""
    record = topic(2)
    for number in range(changes):
        active = read_topology(record).active
        index = random.randrange(len(active))  # type: ignore[attr-defined]
        one = active[index]
        if len(active) > 6 and index:
            wanted = Wanted(MERGE, (active[index - 1].id, one.id))
        elif one.lo < one.hi:
            wanted = Wanted(SPLIT, (one.id,))
        else:
            continue
        change, record = intend(record, wanted, f"c{number}")
        record = finish(record, change)
    topology = read_topology(record)
    for entry in topology.active:
        roots = [one for one in topology.ancestors(entry.id) if not topology.segments[one].parents] or [entry.id]
        assert sorted(roots) == sorted(set(roots))
        held = [topology.segments[one] for one in roots]
        assert min(one.lo for one in held) <= entry.lo
        assert max(one.hi for one in held) >= entry.hi
