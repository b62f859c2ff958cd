"""The small pure parts: id blocks, the late-index mark, retention, latencies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator_v5.transactions import IdBlocks, OwnedTcid, OwnedTransaction, Phase
from txnstore.records import OPEN, Header, TxnSeq
from txnstore.writes.transitions import FIRST_SEQ, TcSeq
from txnwire.ids import TxnId

HEADER = Header(state=OPEN, timeout_ms=60_000, created_ms=0)


def owned() -> OwnedTcid:
    return OwnedTcid(1, 5, FIRST_SEQ, id_block=8)


def begun(tc: OwnedTcid, counter: int, *, at: float = 0.0, timeout_s: float = 60.0) -> OwnedTransaction:
    txn = OwnedTransaction(tc, TxnId(1, counter), HEADER, phase=Phase.OPEN, begun_at=at, due=at + timeout_s)
    tc.add(txn)
    return txn


@given(st.integers(1, 64), st.lists(st.booleans(), max_size=300))
def test_ids_rise_and_are_given_out_once_whenever_blocks_arrive(size: int, takes: list[bool]) -> None:
    """True takes an id, False lets a block that was asked for arrive, with a gap (a lost block) before it."""
    ids, taken, start = IdBlocks(size), [], 1
    for take in takes:
        if take:
            counter = ids.take()
            lowest = ids.lowest
            if counter is not None:
                assert lowest is None or lowest > counter
                taken.append(counter)
        elif ids.wants_more:
            ids.grant(start, start + size)
            start += 2 * size
    assert taken == sorted(set(taken))


def test_a_block_is_asked_for_before_the_last_one_is_used_up() -> None:
    ids = IdBlocks(8)
    assert ids.wants_more
    assert ids.take() is None
    ids.asked = True
    assert not ids.wants_more
    ids.asked = False
    ids.grant(1, 9)
    for _ in range(3):
        ids.take()
        assert not ids.wants_more
    assert ids.take() == 4
    assert ids.wants_more
    ids.grant(9, 17)
    assert [ids.take() for _ in range(12)] == list(range(5, 17))
    assert ids.take() is None


def test_the_mark_stands_at_the_first_transaction_without_a_key() -> None:
    tc = owned()
    tc.seq = TcSeq(TxnSeq(next=9), 1)
    tc.ids.grant(1, 9)
    assert tc.mark() == 1
    first, second = (begun(tc, tc.ids.take() or 0) for _ in range(2))
    assert tc.mark() == 1
    tc.indexed(first)
    assert tc.mark() == 2
    tc.remove(second)
    assert tc.mark() == 3, "the next id in hand: nothing below it is open without a key"
    assert tc.find(1) is first
    assert tc.never_given_out(3)
    assert not tc.never_given_out(2)


def test_only_what_is_old_enough_and_undecided_is_indexed_in_id_order() -> None:
    tc = owned()
    txns = [begun(tc, counter, at=counter / 10) for counter in range(1, 6)]
    txns[1].ending = HEADER
    txns[2].phase = Phase.BEGINNING
    txns[3].indexing = True
    assert tc.to_index(1.0, 1.0, 10) == []
    assert tc.to_index(1.55, 1.0, 10) == [txns[0], txns[4]]
    assert tc.to_index(1.55, 1.0, 1) == [txns[0]]


def test_deadlines_come_due_in_order_and_once() -> None:
    tc = owned()
    soon, late, ended, busy = (begun(tc, n, timeout_s=s) for n, s in ((1, 1.0), (2, 1.5), (3, 1.2), (4, 0.5)))
    tc.remove(ended)
    busy.ending = HEADER
    assert tc.due(0.4, 10) == []
    assert tc.due(1.3, 10) == [soon]
    busy.ending = None
    assert tc.due(2.0, 10) == [late, busy] or tc.due(2.0, 10) == [busy, late]
    assert tc.due(10.0, 10) == []
    for number in range(5, 8):
        begun(tc, number, timeout_s=1.9)
    assert [len(tc.due(10.0, 2)), len(tc.due(10.0, 2))] == [2, 1], "a crowd comes in parts"
    tc.watch_deadline(soon, 11.0)
    assert tc.due(11.0, 10) == [soon]


def test_retention_starts_when_a_decision_is_first_seen() -> None:
    tc = owned()
    tc.saw_final(9, True, 100, now=0.0, name=None)
    tc.saw_final(4, False, 101, now=1.0, name=None)
    tc.saw_final(9, True, 100, now=50.0, name=None)
    assert tc.collectable(59.0, 60.0, 10) == []
    found = tc.collectable(61.0, 60.0, 10)
    assert [(seen.final.counter, seen.final.committed) for seen in found] == [(4, False), (9, True)]
    assert tc.collectable(100.0, 60.0, 10) == []


def test_what_could_not_be_collected_comes_before_those_in_their_retention_and_takes_no_room_of_others() -> None:
    tc = owned()
    for counter in range(1, 7):
        tc.saw_final(counter, True, 100, now=0.0 if counter < 5 else 50.0, name=None)
    first, second = tc.collectable(60.0, 60.0, 2)
    tc.collect_again(second)
    tc.collect_again(first)
    tc.saw_final(1, True, 100, now=60.0, name=None)
    assert (tc.retained, tc.retains(1), tc.retains(7)) == (6, True, False)
    assert [seen.final.counter for seen in tc.collectable(60.0, 60.0, 2)] == [1, 2, 3, 4]
    assert (tc.collectable(60.0, 60.0, 2), tc.retained) == ([], 2)
    for seen in (first, second):
        tc.collect_again(seen)
    assert [seen.final.counter for seen in tc.collectable(60.0, 60.0, 1)] == [1]
    tc.saw_final(1, True, 100, now=70.0, name=None)  # found again by a walk meanwhile
    tc.collect_again(first)
    assert [seen.final.counter for seen in tc.collectable(200.0, 60.0, 10)] == [1, 2, 5, 6]


def test_the_overdue_are_counted_without_being_taken() -> None:
    tc = owned()
    for counter, due in enumerate((3.0, 1.0, 9.0, 2.0, 8.0), start=1):
        begun(tc, counter, timeout_s=due)
    tc.to_index(0.5, 0.0, 0)  # the longer ones get onto the heap only now
    assert [tc.overdue(now, 9) for now in (0.5, 2.0, 8.5, 100.0)] == [0, 2, 4, 5]
    assert [tc.overdue(100.0, most) for most in (0, 1, 3)] == [0, 1, 3]
    tc.remove(tc.young[2])
    assert tc.overdue(2.0, 9) == 1
    assert len(tc.due(100.0, 10)) == 4
