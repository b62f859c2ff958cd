"""Which commits may share a request, and which must wait (DESIGN §4, "Group commit"). Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnstore.access.grouping import Group, GroupMember, GroupPlanner, halves
from txnstore.store import (
    MAX_COMMIT_BYTES,
    MAX_COMMIT_OPS,
    Commit,
    Compare,
    Delete,
    Put,
    absent,
    range_is_empty,
    unchanged_since,
    version_is,
)
from txnwire.errors import InvalidArgument

A, B, C, D = b"/a", b"/b", b"/c", b"/d"
ALL = (b"/", b"0")


def commit(
    *compares: Compare, puts: Sequence[bytes] = (), deletes: Sequence[bytes | tuple[bytes, bytes]] = (), lease: int = 0
) -> Commit:
    cut = [Delete(span) if isinstance(span, bytes) else Delete(*span) for span in deletes]
    return Commit(compares, tuple(Put(key, b"", lease) for key in puts), tuple(cut))


def planner(max_txn_ops: int = 1000, max_members: int = 500, max_bytes: int = 10**6) -> GroupPlanner[GroupMember]:
    return GroupPlanner(max_txn_ops=max_txn_ops, max_bytes=max_bytes, max_members=max_members)


def offered(plan: GroupPlanner[GroupMember], *commits: Commit) -> list[GroupMember]:
    members = [GroupMember(one, b"xx") for one in commits]
    for member in members:
        plan.offer(member)
    return members


def taken(plan: GroupPlanner[GroupMember]) -> Group[GroupMember]:
    group = plan.take()
    assert group is not None
    return group


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        pytest.param(commit(absent(A), puts=[A]), commit(absent(B), puts=[B]), True, id="apart"),
        pytest.param(commit(version_is(C, 1), puts=[A]), commit(version_is(C, 1), puts=[B]), True, id="same compare"),
        pytest.param(commit(version_is(A, 1), puts=[B]), commit(puts=[A]), False, id="compare, then put"),
        pytest.param(commit(puts=[A]), commit(version_is(A, 1), puts=[B]), False, id="put, then compare"),
        pytest.param(commit(version_is(A, 1), puts=[B]), commit(deletes=[A]), False, id="compare, then delete"),
        pytest.param(commit(puts=[A]), commit(puts=[A]), False, id="put twice"),
        pytest.param(commit(deletes=[A]), commit(puts=[A]), False, id="delete, then put"),
        pytest.param(commit(deletes=[A]), commit(deletes=[A]), False, id="deleted twice"),
        pytest.param(commit(range_is_empty(*ALL), puts=[b"x"]), commit(puts=[A]), False, id="range compare, put in it"),
        pytest.param(
            commit(puts=[A]), commit(range_is_empty(*ALL), puts=[b"x"]), False, id="put, range compare over it"
        ),
        pytest.param(commit(range_is_empty(A, B), puts=[b"x"]), commit(puts=[B]), True, id="put just behind the range"),
        pytest.param(
            commit(deletes=[ALL]), commit(version_is(A, 1), puts=[b"x"]), False, id="range delete, compare in it"
        ),
        pytest.param(
            commit(version_is(A, 1), puts=[b"x"]), commit(deletes=[ALL]), False, id="compare, range delete over it"
        ),
        pytest.param(commit(deletes=[ALL]), commit(puts=[A]), False, id="range delete, put in it"),
        pytest.param(commit(deletes=[(A, B)]), commit(deletes=[(B, C)]), True, id="neighbouring range deletes"),
        pytest.param(commit(deletes=[(A, C)]), commit(deletes=[(B, D)]), False, id="overlapping range deletes"),
        pytest.param(commit(deletes=[(A, C)]), commit(range_is_empty(B, C), puts=[b"x"]), False, id="range on range"),
        pytest.param(commit(range_is_empty(A, C)), commit(range_is_empty(B, C)), True, id="two range compares"),
        pytest.param(commit(deletes=[(A, B), (C, D)]), commit(puts=[C]), False, id="several range deletes, put in one"),
        pytest.param(commit(puts=[C]), commit(deletes=[(A, B), (C, D)]), False, id="put, several range deletes"),
        pytest.param(
            commit(range_is_empty(A, B), range_is_empty(C, D)),
            commit(puts=[C]),
            False,
            id="several compares, put in it",
        ),
        pytest.param(
            commit(puts=[C]), commit(range_is_empty(A, B), range_is_empty(C, D)), False, id="put, several compares"
        ),
        pytest.param(commit(deletes=[A, C]), commit(puts=[C]), False, id="several deletes, put of one"),
        pytest.param(commit(version_is(A, 1), version_is(C, 1)), commit(puts=[C]), False, id="several keys compared"),
        pytest.param(commit(puts=[A], lease=7), commit(puts=[B]), False, id="a put on a lease travels alone"),
        pytest.param(commit(puts=[B]), commit(puts=[A], lease=7), False, id="a put on a lease joins nobody"),
    ],
)
def test_who_may_share_a_request(first: Commit, second: Commit, together: bool) -> None:
    plan = planner()
    members = offered(plan, first, second)
    assert taken(plan).members == (members if together else members[:1])


def test_a_commit_may_compare_what_it_writes_itself() -> None:
    plan = planner()
    members = offered(plan, commit(absent(A), range_is_empty(*ALL), puts=[A]))
    assert taken(plan).members == members


def test_one_unanswered_write_per_key() -> None:
    """▲ A key stays held until the group that writes it is finished; mere compares of it are not held up."""
    plan = planner()
    first, second, comparing, ranging, other = offered(
        plan,
        commit(puts=[A]),
        commit(unchanged_since(A, 5), puts=[A]),
        commit(version_is(A, 1), puts=[B]),
        commit(deletes=[ALL]),
        commit(puts=[C]),
    )
    in_flight = taken(plan)
    assert in_flight.members == [first, other]
    assert taken(plan).members == [comparing], "a compare of a held key may be in flight"
    assert plan.take() is None
    assert list(plan.waiting()) == [second, ranging]
    plan.finish(in_flight)
    assert taken(plan).members == [second]


def test_a_range_delete_in_flight_holds_every_key_in_it() -> None:
    plan = planner()
    ranging, inside, outside = offered(plan, commit(deletes=[(A, C)]), commit(puts=[B]), commit(puts=[C]))
    in_flight = taken(plan)
    assert in_flight.members == [ranging, outside]
    assert plan.take() is None
    plan.finish(in_flight)
    assert taken(plan).members == [inside]


@pytest.mark.parametrize(
    ("holding", "late"),
    [
        pytest.param([commit(puts=[A]), commit(puts=[B])], commit(puts=[C, B]), id="by the second of its keys"),
        pytest.param([commit(deletes=[(A, B)]), commit(deletes=[(C, D)])], commit(puts=[C]), id="by a later group"),
        pytest.param([commit(puts=[A]), commit(deletes=[(C, D)])], commit(puts=[B, C]), id="by a range, its second"),
        pytest.param([commit(puts=[A]), commit(puts=[C])], commit(deletes=[(B, C), (C, D)]), id="by its second range"),
    ],
)
def test_who_writes_what_a_group_in_flight_writes_waits_for_that_group(holding: list[Commit], late: Commit) -> None:
    plan = planner(max_members=1)
    offered(plan, *holding)
    first, second = taken(plan), taken(plan)
    (member,) = offered(plan, late)
    assert plan.take() is None
    plan.finish(first)
    assert plan.take() is None
    plan.finish(second)
    assert taken(plan).members == [member]


def test_who_was_parked_comes_before_who_came_later() -> None:
    plan = planner()
    first, parked = offered(plan, commit(puts=[A]), commit(puts=[A]))
    in_flight = taken(plan)
    assert plan.take() is None
    (late,) = offered(plan, commit(puts=[A]))
    plan.finish(in_flight)
    assert in_flight.members == [first]
    second = taken(plan)
    assert second.members == [parked]
    assert plan.take() is None
    plan.finish(second)
    assert taken(plan).members == [late]


@pytest.mark.parametrize(
    ("limit", "ops_each", "expected"), [(128, 8, 120), (128, 28, 100), (1024, 100, 500), (128, 100, 28)]
)
def test_a3_nested_budgets_are_the_limit_minus_the_outer(limit: int, ops_each: int, expected: int) -> None:
    plan = planner(max_txn_ops=limit)
    offered(plan, *[commit(puts=[b"/%d/%d" % (n, m) for m in range(ops_each)]) for n in range(1000)])
    assert len(taken(plan).members) == expected


@pytest.mark.parametrize("place", [0, 1, 26])
def test_a3_the_member_of_most_operations_sets_the_room_of_all_wherever_it_stands(place: int) -> None:
    plan = planner(max_txn_ops=128)
    ops = [1] * 1000
    ops[place] = 100
    offered(plan, *[commit(puts=[b"/%d/%d" % (n, m) for m in range(ops[n])]) for n in range(1000)])
    assert len(taken(plan).members) == 28


@pytest.mark.parametrize(
    ("callers", "sizes"), [(1, [1]), (64, [64]), (100, [64, 36]), (256, [128, 128]), (2000, [500] * 4)]
)
def test_many_callers_are_served_in_halves(callers: int, sizes: list[int]) -> None:
    """So that etcd works on one half while this process works on the other."""
    plan = planner()
    offered(plan, *[commit(puts=[b"/%d" % n]) for n in range(callers)])
    groups = [taken(plan) for _ in sizes]
    assert [len(group.members) for group in groups] == sizes
    assert plan.take() is None


def test_halves_are_those_of_all_that_is_outstanding_in_however_many_requests() -> None:
    plan = planner()
    offered(plan, *[commit(puts=[b"/%d" % n]) for n in range(200)])
    assert [len(taken(plan).members) for _ in range(2)] == [100, 100]
    offered(plan, *[commit(puts=[b"/more/%d" % n]) for n in range(160)])
    assert len(taken(plan).members) == 160


def test_a_group_stays_within_the_bytes() -> None:
    plan = planner(max_bytes=5)
    members = offered(plan, commit(puts=[A]), commit(puts=[B]), commit(puts=[C]))
    assert taken(plan).members == members[:2]


def test_a_withdrawn_member_is_not_taken() -> None:
    plan = planner()
    first, second = offered(plan, commit(puts=[A]), commit(puts=[B]))
    first.withdrawn = True
    assert taken(plan).members == [second]


@pytest.mark.parametrize(
    ("malformed", "says"),
    [
        (commit(puts=[A, A]), "twice"),
        (commit(puts=[B, A, A]), "b'/a' twice"),
        (commit(puts=[A], deletes=[A]), "twice"),
        (commit(puts=[A], deletes=[ALL]), "deletes a range that holds it"),
        (commit(puts=[D, B], deletes=[(A, C)]), "b'/b' and deletes a range that holds it"),
        (commit(puts=[C], deletes=[(A, B), (C, D)]), "b'/c' and deletes a range that holds it"),
        (commit(deletes=[(B, A)]), "end must be above its start"),
        (commit(range_is_empty(A, A)), "end must be above its start"),
        (commit(puts=[b"%d" % n for n in range(MAX_COMMIT_OPS + 1)]), "cut it into several"),
    ],
)
def test_malformed_commits_are_refused_before_they_are_sent(malformed: Commit, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        GroupMember(malformed, b"")


def test_a_commit_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="cut it into several"):
        GroupMember(commit(puts=[A]), bytes(MAX_COMMIT_BYTES + 1))


def test_halves_lose_nobody() -> None:
    members = [GroupMember(commit(puts=[b"%d" % n]), b"") for n in range(5)]
    first, second = halves(members)
    assert first + second == members
    assert len(first) == 2


# --- property: whatever is offered, every request obeys the rules and everything is sent once ---

some_key = st.sampled_from([A, B, C, b"/d", b"/e"])
some_range = st.tuples(some_key, some_key).filter(lambda pair: pair[0] < pair[1])


@st.composite
def some_commit(draw: st.DrawFn) -> Commit:
    compares: list[Compare] = [absent(key) for key in draw(st.lists(some_key, max_size=2))]
    compares += [range_is_empty(*span) for span in draw(st.lists(some_range, max_size=1))]
    puts = draw(st.lists(some_key, max_size=2, unique=True))
    deletes: list[bytes | tuple[bytes, bytes]] = [
        key for key in draw(st.lists(some_key, max_size=1)) if key not in puts
    ]
    deletes += [
        (start, end) for start, end in draw(st.lists(some_range, max_size=1)) if not any(start <= k < end for k in puts)
    ]
    written = [key for key in deletes if isinstance(key, bytes)]
    ranges = [span for span in deletes if isinstance(span, tuple)]
    if any(start <= key < end for key in written for start, end in ranges):
        deletes = list(written)
    return commit(*compares, puts=puts, deletes=deletes, lease=draw(st.sampled_from([0, 0, 0, 9])) if puts else 0)


def written_by(member: GroupMember) -> set[bytes]:
    spans = [(put.key, put.key + b"\0") for put in member.commit.puts]
    spans += [(delete.key, delete.range_end or delete.key + b"\0") for delete in member.commit.deletes]
    return {key for key in (A, B, C, b"/d", b"/e") for start, end in spans if start <= key < end}


def compared_by(member: GroupMember) -> set[bytes]:
    spans = [(compare.key, compare.range_end or compare.key + b"\0") for compare in member.commit.compares]
    return {key for key in (A, B, C, b"/d", b"/e") for start, end in spans if start <= key < end}


@given(st.lists(some_commit(), max_size=25), st.lists(st.integers(0, 3), max_size=60), st.integers(2, 8))
def test_every_request_obeys_the_rules(commits: list[Commit], finishing: list[int], max_members: int) -> None:
    plan = planner(max_members=max_members)
    members = offered(plan, *commits)
    in_flight: list[Group[GroupMember]] = []
    sent: list[GroupMember] = []
    turns = iter([*finishing, *[0] * 200])
    while len(sent) < len(members) or in_flight:
        group = plan.take()
        if group is not None:
            for other in in_flight:
                for one in group.members:
                    for two in other.members:
                        assert not written_by(one) & written_by(two), "one unanswered write per key"
            check(group)
            in_flight.append(group)
            sent += group.members
        if in_flight and (group is None or next(turns)):
            plan.finish(in_flight.pop(next(turns) % len(in_flight)))
    assert sorted(map(id, sent)) == sorted(map(id, members)), "everything is sent, once"
    assert not list(plan.waiting())
    for key in (A, B, C, b"/d", b"/e"):
        writers = [member for member in sent if written_by(member) == {key} and is_plain(member)]
        expected = [member for member in members if member in writers]
        assert writers == expected, f"plain writes of {key!r} keep their order"


def is_plain(member: GroupMember) -> bool:
    return not member.commit.compares and not member.alone


def check(group: Group[GroupMember]) -> None:
    assert group.members
    for one in group.members:
        assert len(group.members) == 1 or not any(put.lease for put in one.commit.puts)
        for other in group.members:
            if other is not one:
                assert not written_by(one) & (written_by(other) | compared_by(other))
