"""What a batch reads again of entries before its start, where their transaction was open and is decided now."""

from __future__ import annotations

from pyspark_txnstore.source.limits import Backlog
from pyspark_txnstore.source.look_back import pair_to_plan
from tests.spark.log_world import Txn, World, WorldCuts


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
