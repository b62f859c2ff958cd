"""What owners answer when a cut is taken."""

from __future__ import annotations

import asyncio

import pytest

from segments.owner.segment_cuts import NOTED_FOR_S, SegmentCuts
from tests.segments.brokering import Cluster
from tests.segments.controller.cut_records import (
    LEFT,
    ONE,
    TWO,
    R,
)
from tests.segments.virtual_time import virtual_time
from txnwire.errors import NotOwner, Timeout
from txnwire.ids import Position, TxnId
from txnwire.proto import txn_pb2 as pb
from txnwire.turns import turns_divided_by
from watchers.outcomes import Decision
from watchers.visibility import CUT_AT_ONCE, TransactionBuffer


class Answering:
    """A segment's half of a cut over a buffer, with a clock to be moved."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.followed = asyncio.Event()
        self.buffer = TransactionBuffer(LEFT)
        self.lost: Exception | None = None
        self.cuts = SegmentCuts(
            LEFT, self.buffer, self, check=self.check, wait_followed=self.wait_followed, wait_s=10.0
        )

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0

    def check(self) -> None:
        if self.lost is not None:
            raise self.lost

    async def wait_followed(self, revision: int) -> None:
        await self.followed.wait()

    def write(self, txn_id: TxnId, position: Position) -> None:
        self.buffer.op_started(txn_id, 0)
        self.buffer.appended(txn_id, 0, position)
        self.buffer.confirmed(position)
        self.buffer.op_finished(txn_id)


@virtual_time
async def test_an_answer_waits_until_decisions_are_followed_and_nothing_decided_is_in_flight() -> None:
    segment = Answering()
    segment.write(ONE, Position(1, 0))
    assert segment.cuts.begin() == Position(1, -1)
    segment.buffer.op_started(ONE, 0)
    answering = asyncio.ensure_future(segment.cuts.answer(R, Position(0, -1)))
    await asyncio.sleep(1)
    assert not answering.done(), "decisions are not followed to R"
    segment.buffer.decided(Decision(ONE, True, R - 1))
    segment.followed.set()
    await asyncio.sleep(1)
    assert not answering.done(), "an entry of what is committed at R is still on its way"
    segment.buffer.appended(ONE, 0, Position(1, 1))
    segment.buffer.confirmed(Position(1, 1))
    segment.buffer.op_finished(ONE)
    segment.cuts.woken()
    found = await answering
    assert found == (Position(1, 1), (), ())


@virtual_time
async def test_all_cuts_that_wait_for_an_operation_go_on_once_it_has_ended() -> None:
    segment = Answering()
    segment.followed.set()
    segment.cuts.begin()
    segment.buffer.op_started(ONE, 0)
    segment.buffer.decided(Decision(ONE, True, R))
    answering = [asyncio.ensure_future(segment.cuts.answer(R, Position(0, -1))) for _ in range(3)]
    await asyncio.sleep(1)
    assert not any(one.done() for one in answering)
    segment.buffer.op_finished(ONE)
    segment.cuts.woken()
    assert len(await asyncio.gather(*answering)) == 3
    assert not segment.cuts._waiters, "or each cut would stay as long as the segment is served"


@virtual_time
async def test_an_answer_that_cannot_come_ends_by_its_time_limit_or_with_the_segment() -> None:
    segment = Answering()
    segment.followed.set()
    segment.cuts.begin()
    segment.buffer.op_started(ONE, 0)
    segment.buffer.decided(Decision(ONE, True, R))
    with pytest.raises(Timeout, match="operation in flight"):
        await segment.cuts.answer(R, Position(0, -1))
    answering = asyncio.ensure_future(segment.cuts.answer(R, Position(0, -1)))
    await asyncio.sleep(1)
    segment.lost = NotOwner("lost")
    segment.cuts.woken()
    with pytest.raises(NotOwner):
        await answering


@virtual_time
async def test_what_was_decided_after_r_is_named_though_it_is_applied_and_cleaned_up() -> None:
    segment = Answering()
    segment.followed.set()
    segment.cuts.begin()
    for number, txn_id in enumerate((ONE, TWO)):
        segment.write(txn_id, Position(1, number))
    for decision in (Decision(ONE, True, R + 1), Decision(TWO, False, R + 2)):
        applied = segment.buffer.decided(decision)
        assert applied is not None
        segment.buffer.cleaned([applied])
    found = await segment.cuts.answer(R, Position(0, -1))
    assert found == (Position(1, 1), (ONE, TWO), ()), "aborted later is pending, not aborted"
    found = await segment.cuts.answer(R + 1, Position(0, -1))
    assert found.undecided == (TWO,)
    found = await segment.cuts.answer(R + 2, Position(0, -1))
    assert (found.undecided, found.aborted) == ((), ((TWO, None),))


@virtual_time
async def test_an_answer_needs_decisions_noted_since_before_r() -> None:
    """▲ After a while they are noted no more: better no cut than one that misses what was decided meanwhile."""
    segment = Answering()
    segment.followed.set()
    with pytest.raises(Timeout, match="begin it again"):
        await segment.cuts.answer(R, Position(0, -1))
    segment.cuts.begin()
    segment.write(ONE, Position(1, 0))
    segment.now_s = NOTED_FOR_S + 1
    segment.cuts.woken()
    segment.buffer.decided(Decision(ONE, True, R + 5))
    segment.cuts.begin()  # another cut's: what was decided before it is not known
    with pytest.raises(Timeout, match="begin it again"):
        await segment.cuts.answer(R, Position(0, -1))
    assert (await segment.cuts.answer(R + 5, Position(0, -1))).undecided == ()


@virtual_time
async def test_decisions_are_noted_for_the_cut_that_began_last() -> None:
    segment = Answering()
    segment.followed.set()
    segment.write(ONE, Position(1, 0))
    for began_s in (0.0, NOTED_FOR_S - 1):
        segment.now_s = began_s
        segment.cuts.begin()
    segment.now_s += 2.0
    segment.cuts.woken()
    segment.buffer.decided(Decision(ONE, True, R + 5))
    assert (await segment.cuts.answer(R, Position(0, -1))).undecided == (ONE,)


IDS = [TxnId(0, counter) for counter in range(1, 10)]


def busy_segment() -> Answering:
    """Eight transactions, three of them decided, and one whose entry is not confirmed yet."""
    segment = Answering()
    segment.followed.set()
    segment.cuts.begin()
    for number, txn_id in enumerate(IDS[:8]):
        segment.write(txn_id, Position(1, number))
    segment.buffer.decided(Decision(IDS[0], False, R))
    segment.buffer.decided(Decision(IDS[1], True, R, frozenset({7})))
    segment.buffer.decided(Decision(IDS[2], True, R + 1))
    segment.buffer.op_started(IDS[8], 0)
    segment.buffer.appended(IDS[8], 0, Position(1, 8))
    return segment


@pytest.mark.parametrize("turns", range(1, 10))
@virtual_time
async def test_an_answer_in_turns_is_of_the_moment_in_which_nothing_was_in_flight(turns: int) -> None:
    """▲ Dies if anything is looked up in a later turn: what was decided after that moment would be missing, and what is
    behind the end be told."""
    segment = busy_segment()
    with turns_divided_by(CUT_AT_ONCE):  # one transaction at once
        answering = asyncio.ensure_future(segment.cuts.answer(R, Position(0, -1)))
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not answering.done()
        segment.buffer.decided(Decision(IDS[3], False, R + 2))
        segment.buffer.decided(Decision(IDS[4], True, R + 3))
        segment.buffer.pruned([(IDS[0], None), (IDS[1], 0)])
        segment.buffer.forget_decisions()
        segment.buffer.confirmed(Position(1, 8))
        segment.write(TxnId(0, 10), Position(1, 9))
        found = await answering
    assert found == (Position(1, 7), (*IDS[3:8], IDS[2]), ((IDS[0], None), (IDS[1], 0)))


@pytest.mark.parametrize("divisor", [1, 500, 1000])  # all at once, two of them, one
async def test_an_owner_names_every_transaction_of_a_cut_however_many_turns_it_takes(
    memory_cluster: Cluster, divisor: int
) -> None:
    """▲ Readers of the snapshot would take one that is left out for committed."""
    [path] = await memory_cluster.create_topic()
    with turns_divided_by(divisor):
        client = await memory_cluster.connect(await memory_cluster.start())
    producer = await client.producer(path)
    undecided, aborted = [[await memory_cluster.begin() for _ in range(3)] for _ in range(2)]
    for txn_id in (*undecided, *aborted):
        await producer.send("a", txn=txn_id)
    asked = pb.SegmentPositions(segment=path, for_cut=True)
    resolved = (await client.call(segment_positions=asked)).segment_positions_ok.max_read_position
    revision = [await memory_cluster.abort(txn_id) for txn_id in aborted][-1]
    cut = await client.call(segment_cut=pb.SegmentCut(segment=path, revision=revision, resolved=resolved))
    told = cut.segment_cut_ok
    assert [one.txnid_least_bits for one in told.undecided] == [txn_id.least_bits for txn_id in undecided]
    assert [(one.txnid_least_bits, one.whole) for one in told.aborted] == [(one.least_bits, True) for one in aborted]
