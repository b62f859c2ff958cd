"""What a batch reads again of entries before its start, where their transaction was open and is decided now."""

from __future__ import annotations

from pyspark_txnstore.source.limits import Backlog
from pyspark_txnstore.source.look_back import pair_to_plan
from tests.spark.log_world import Txn, World, WorldCuts
from tests.spark.source.test_limits_cases import ELSEWHERE, ONE, PARENT, THREE, TWO, at, cut, filled, heads
from txnclient.reading.entries import PieceHead


def decide(world: World, txn: Txn, *, committed: bool) -> None:
    world.revision += 1
    txn.revision, txn.committed = world.revision, committed


def test_of_a_transaction_that_aborts_nothing_is_read_again_in_any_segment() -> None:
    """▲ Retention may have taken its entries. Each segment has more of them than one answer tells."""
    world = World(lambda _: 0)
    world.split()
    world.begin()
    (long,) = world.txns.values()
    for pick in (lambda _: 0, lambda choices: choices - 1):
        world.draw = pick
        for _ in range(8):
            world.append_in_transaction()
    world.begin()
    short = list(world.txns.values())[1]
    world.append_in_transaction()  # of the last that is open
    world.draw = lambda _: 0
    assert [len(one.entries) for one in world.segments()] == [0, 8, 9]
    known, cuts = Backlog(), WorldCuts(world)
    first = world.cut(world.topics)
    decide(world, short, committed=True)
    second = world.cut(world.topics)
    _, end = pair_to_plan(cuts, first, second, known)
    (again,) = known.ranges(first, end)
    assert (again.after, again.end) == tuple(one.position for one in world.segments()[2].entries[7:])
    decide(world, long, committed=False)
    third = world.cut(world.topics)
    start, end = pair_to_plan(cuts, second, third, known)
    assert (start, known.ranges(second, end)) == (second, [])


def test_a_large_value_of_any_of_the_transactions_is_read_in_one() -> None:
    """▲ Its pieces on both sides of the start's end, behind an entry that has none."""
    pieces = [head._replace(piece=PieceHead("p", 1, 7, n, 2)) for n, head in enumerate(heads([ONE, ONE]))]
    log = [*heads([TWO, None, None]), pieces[0]._replace(position=at(3)), pieces[1]._replace(position=at(5_000))]
    start, target = cut({PARENT: 4}, pending=(ONE, TWO)), cut({PARENT: 5_000}, revision=60)
    known = filled(Backlog(), start, target, {PARENT: log})
    assert [(one.after, one.end) for one in known.ranges(start, target)] == [(at(-1), at(5_000))]


def test_all_that_is_known_to_have_aborted_is_forgotten_and_the_rest_is_read_again() -> None:
    log = heads([ONE, TWO, ONE, TWO, None, THREE])
    start = cut({PARENT: 5, ELSEWHERE: 5}, pending=(ONE, TWO, THREE))
    target = cut({PARENT: 5, ELSEWHERE: 5}, revision=60)
    known = filled(Backlog(), start, target, {PARENT: log, ELSEWHERE: log})
    assert known.missing(start, target) == []
    here, there = known.known_before(target, ())
    assert [(one.segment, one.after, one.end) for one in (here, there)] == [
        (PARENT, at(-1), at(5)),
        (ELSEWHERE, at(-1), at(5)),
    ]
    for part in (here, there):
        known.hide(part, [one._replace(aborted=one.txn_id in (TWO, THREE)) for one in log])
    assert (known.transactions, len(known)) == (1, 4)
    assert [(one.after, one.end) for one in known.known_before(target, ())] == [(at(-1), at(2))] * 2
    assert known.known_before(target, {ONE}) == []
    assert known.known_before(cut({PARENT: 5, ELSEWHERE: 5}, revision=60, pending=(ONE,)), ()) == []


def test_what_is_read_again_far_apart_is_looked_for_place_by_place() -> None:
    places = (0, 10, 3_000, 6_000)
    log = [heads([ONE])[0]._replace(position=at(n)) for n in places]
    start, target = cut({PARENT: 7_000}, pending=(ONE,)), cut({PARENT: 7_000}, revision=60)
    known = filled(Backlog(), start, target, {PARENT: log})
    assert known.missing(start, target) == []
    stretches = [(at(-1), at(10)), (at(2_999), at(3_000)), (at(5_999), at(6_000))]
    assert [(one.after, one.end) for one in known.known_before(target, ())] == stretches
    assert [(one.after, one.end) for one in known.ranges(start, target)] == stretches
