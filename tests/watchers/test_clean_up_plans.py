"""What clean-up writes, in which order and how often, planned without any I/O (DESIGN §5, "clean-up")."""

from __future__ import annotations

import pytest

from segments.subscription.cursors.cursor import Cursor
from tests.segments.ledger_lengths import LedgerLengths
from txnstore import keys, records
from txnstore.etcd.wire import CommitEncoder
from txnstore.records import AbortedRecord, CursorMark, OwnerRecord, Watermark
from txnstore.store import MAX_COMMIT_BYTES, MAX_COMMIT_OPS, Commit, CommitVerdict, Delete, KeyValue, Put
from txnwire.errors import NotOwner, TxnError
from txnwire.ids import EARLIEST, Position, TxnId
from watchers.acks import WHOLE, AckPosition
from watchers.clean_up_plans import AckCleanUp, CleanUpPlan, WriteCleanUp
from watchers.outcomes import Decision
from watchers.pending_acks import PendingAcks
from watchers.visibility import TransactionBuffer

SEGMENT = "public/default/orders/0000-ffff-0"
EPOCH = 17
TXNS = [TxnId(0, counter) for counter in range(1, 400)]
OWNER = KeyValue(keys.owner(SEGMENT), records.encode(OwnerRecord(broker="b", address="a")), 1, EPOCH, EPOCH)
WATERMARK = keys.watermark(SEGMENT)


class Writes:
    """Buffer and target, told what the segment would tell them."""

    def __init__(self, watermark: KeyValue | None = None) -> None:
        self.buffer = TransactionBuffer(SEGMENT)
        self.lost: list[TxnError] = []
        self.target = WriteCleanUp(SEGMENT, EPOCH, self.buffer, watermark=watermark, on_lost=self.lost.append)
        self.entries = 0

    def ended(
        self, txn_id: TxnId, *, commit: bool = True, writers: tuple[int, ...] = (0,), counting: int | None = None
    ) -> None:
        for writer in writers:
            self.buffer.op_started(txn_id, writer)
            self.buffer.appended(txn_id, writer, Position(1, self.entries))
            self.buffer.confirmed(Position(1, self.entries))
            self.buffer.op_finished(txn_id)
            self.entries += 1
        self.buffer.decided(Decision(txn_id, commit, 100, None if counting is None else frozenset({counting})))


def done(revision: int = 50) -> CommitVerdict:
    return CommitVerdict(True, revision)


def ops(commit: Commit) -> int:
    return max(len(commit.compares), len(commit.puts) + len(commit.deletes), len(commit.else_reads))


def op_deletes(txn_id: TxnId) -> tuple[Delete, Delete]:
    prefix = keys.write_ops(txn_id, SEGMENT)
    return Delete(prefix, keys.prefix_end(prefix)), Delete(keys.write_index(SEGMENT, txn_id))


def flushed(target: WriteCleanUp, now_s: float = 100.0) -> None:
    """Get the watermark out of the way."""
    plan = target.plan(now_s)
    if plan is not None:
        assert target.settle(plan, done(1), now_s)


# ---- writes


def test_committed_one_write_transaction_costs_two_deletions_and_nothing_more() -> None:
    writes = Writes()
    writes.ended(TXNS[0])
    flushed(writes.target)
    for txn_id in TXNS[1:5]:
        writes.ended(txn_id)
    plan = writes.target.plan(100.5)
    assert plan is not None
    assert plan.commit.puts == ()
    assert plan.commit.deletes == tuple(delete for txn_id in TXNS[1:5] for delete in op_deletes(txn_id))
    assert [compare.key for compare in plan.commit.compares] == [keys.owner(SEGMENT)]


def test_aborted_record_goes_in_with_the_deletion_of_its_op() -> None:
    """▲ Durable before or with it; and created, never overwritten."""
    writes = Writes()
    writes.ended(TXNS[0], commit=False)
    plan = writes.target.plan(100.0)
    assert plan is not None
    record = keys.aborted(SEGMENT, TXNS[0])
    assert Put(record, records.encode(AbortedRecord(max_position=(1, 0)))) in plan.commit.puts
    assert plan.commit.deletes == op_deletes(TXNS[0])
    assert [compare.value for compare in plan.commit.compares if compare.key == record] == [0]


def test_batches_stay_within_what_a_commit_may_hold_and_lose_nothing() -> None:
    writes = Writes()
    for index, txn_id in enumerate(TXNS[:200]):
        writes.ended(txn_id, commit=index % 3 > 0)
    cleaned: list[TxnId] = []
    now_s = 100.0
    while (plan := writes.target.plan(now_s)) is not None:
        assert ops(plan.commit) <= MAX_COMMIT_OPS
        cleaned += [applied.decision.txn_id for applied in plan.writes]
        assert writes.target.settle(plan, done(), now_s)
    assert cleaned == TXNS[:200]
    assert writes.target.backlog == 0
    assert writes.target._recorded == {}, "a record is remembered until the op has gone"


def test_records_of_many_losers_are_all_durable_before_the_ops_go() -> None:
    """▲ 300 writers of which one counts do not fit one commit."""
    writes = Writes()
    writes.ended(TXNS[0])
    writes.ended(TXNS[1], writers=tuple(range(1, 301)), counting=7)
    writes.ended(TXNS[2])
    written: dict[bytes, None] = {}
    deleted: list[Delete] = []
    while (plan := writes.target.plan(100.0)) is not None:
        assert ops(plan.commit) <= MAX_COMMIT_OPS
        records_put = {put.key: None for put in plan.commit.puts if put.key != WATERMARK}
        assert not records_put.keys() & written.keys(), "one that stands would lose its compare"
        written |= records_put
        deleted += plan.commit.deletes
        if op_deletes(TXNS[1])[0] in plan.commit.deletes:
            losers = [keys.aborted(SEGMENT, TXNS[1], writer) for writer in range(1, 301) if writer != 7]
            assert all(key in written for key in losers)
        assert writes.target.settle(plan, done(), 100.0)
    assert deleted == [delete for txn_id in TXNS[:3] for delete in op_deletes(txn_id)]
    assert writes.target._recorded == {}


def test_watermark_travels_along_at_most_once_a_second() -> None:
    writes = Writes()
    sent: list[tuple[float, Position]] = []
    for step in range(25):
        now_s = 100.0 + step / 10
        writes.ended(TXNS[step])
        plan = writes.target.plan(now_s)
        assert plan is not None
        if plan.watermark is not None:
            sent.append((now_s, plan.watermark))
        assert writes.target.settle(plan, done(step + 1), now_s)
    assert sent == [(100.0, Position(1, 0)), (101.0, Position(1, 10)), (102.0, Position(1, 20))]


def test_watermark_is_written_alone_when_nothing_is_to_be_cleaned() -> None:
    writes = Writes()
    assert writes.target.plan(100.0) is None
    assert writes.target.next_flush_s() is None
    writes.buffer.confirmed(Position(1, 5))
    flushed(writes.target, 100.0)
    assert writes.target.next_flush_s() is None
    writes.buffer.confirmed(Position(1, 6))
    assert writes.target.plan(100.5) is None
    assert writes.target.next_flush_s() == 101.0
    plan = writes.target.plan(101.0)
    assert plan is not None
    assert plan.commit.puts == (Put(WATERMARK, b'{"v":1,"position":[1,6]}'),)
    assert plan.commit.deletes == ()
    assert writes.target.plan(100.5, everything=True) is not None


def test_watermark_stays_below_an_aborted_entry_whose_record_is_on_its_way() -> None:
    """▲ The commit may be lost: what it carries is not durable yet."""
    writes = Writes()
    writes.ended(TXNS[0])
    writes.ended(TXNS[1], commit=False)
    plan = writes.target.plan(100.0)
    assert plan is not None
    assert plan.watermark == Position(1, 0)


def test_watermark_compares_what_it_was_written_as() -> None:
    """▲ A late old value must never land on a new one."""
    stored = KeyValue(WATERMARK, records.encode(Watermark(position=(1, 3))), 2, 5, 9)
    writes = Writes(watermark=stored)
    writes.buffer.confirmed(Position(1, 3))
    assert writes.target.plan(100.0) is None
    for entry_id, revision in ((4, 9), (5, 60)):
        writes.buffer.confirmed(Position(1, entry_id))
        plan = writes.target.plan(100.0 + entry_id)
        assert plan is not None
        assert [compare.value for compare in plan.commit.compares if compare.key == WATERMARK] == [revision]
        assert writes.target.settle(plan, done(60), 100.0 + entry_id)


def test_lost_compare_takes_over_what_stands_and_plans_again() -> None:
    """As after a commit that had landed unanswered, before this process knew of it."""
    writes = Writes()
    writes.ended(TXNS[0], commit=False)
    writes.ended(TXNS[1])
    writes.ended(TXNS[2], commit=False)
    plan = writes.target.plan(100.0)
    assert plan is not None
    stands = KeyValue(WATERMARK, records.encode(Watermark(position=(1, 40))), 1, 7, 7)
    by_key = {WATERMARK: (stands,)}
    for txn_id in (TXNS[0], TXNS[2]):
        record = KeyValue(keys.aborted(SEGMENT, txn_id), b'{"v":1,"max_position":null}', 1, 6, 6)
        by_key[record.key] = (record,)
    reads = ((OWNER,), *(by_key.get(put.key, ()) for put in plan.commit.puts))
    assert not writes.target.settle(plan, CommitVerdict(False, 70, reads), 100.0)
    assert writes.buffer.clean_up_backlog == 3
    plan = writes.target.plan(100.0)
    assert plan is not None
    assert plan.commit.puts == ()
    assert plan.commit.deletes == tuple(delete for txn_id in TXNS[:3] for delete in op_deletes(txn_id))
    assert writes.target.settle(plan, done(), 100.0)
    assert writes.target.backlog == 0


def test_the_record_of_one_loser_that_stands_already_leaves_the_other_s_to_be_written() -> None:
    """▲ With the ops gone and no record of its own, its entries would be read as committed."""
    writes = Writes()
    writes.ended(TXNS[0], writers=(1, 2, 3), counting=3)
    plan = writes.target.plan(100.0)
    assert plan is not None
    stands = KeyValue(keys.aborted(SEGMENT, TXNS[0], 1), b'{"v":1,"max_position":null}', 1, 6, 6)
    reads = ((OWNER,), *((stands,) if put.key == stands.key else () for put in plan.commit.puts))
    assert not writes.target.settle(plan, CommitVerdict(False, 70, reads), 100.0)
    plan = writes.target.plan(100.0)
    assert plan is not None
    recorded = [put.key for put in plan.commit.puts if put.key != WATERMARK]
    assert recorded == [keys.aborted(SEGMENT, TXNS[0], 2)]
    assert plan.commit.deletes == op_deletes(TXNS[0])


def test_lost_epoch_is_not_owner() -> None:
    writes = Writes()
    writes.ended(TXNS[0])
    plan = writes.target.plan(100.0)
    assert plan is not None
    other = KeyValue(OWNER.key, OWNER.value, 1, EPOCH + 1, EPOCH + 1)
    for reads in ((other,), ()):
        with pytest.raises(NotOwner, match="had epoch 17"):
            writes.target.settle(plan, CommitVerdict(False, 70, (reads, ())), 100.0)
    assert writes.target.backlog == 1


# ---- acks


class Acks:
    def __init__(self, entries: int = 1_000_000) -> None:
        self.cursor = Cursor(LedgerLengths({1: entries}), EARLIEST)
        self.pending = PendingAcks(SEGMENT, "sub", self.cursor)
        self.lost: list[TxnError] = []
        self.target = AckCleanUp(SEGMENT, "sub", EPOCH, self.pending, on_lost=self.lost.append)

    def ended(self, txn_id: TxnId, *entries: int, commit: bool = True) -> None:
        acked = tuple(AckPosition(Position(1, entry_id), 1) for entry_id in entries)
        self.pending.confirmed(self.pending.reserve(txn_id, 0, acked, cumulative=False))
        self.pending.decided(Decision(txn_id, commit, 100))

    def settle(self, plan: CleanUpPlan, now_s: float = 100.0, revision: int = 50) -> None:
        assert self.target.settle(plan, done(revision), now_s)


def large_acks(acks: Acks, txn_id: TxnId, first: int, count: int, named: int = 9_999) -> None:
    """The first messages of entries of 10 000, all but one of them, in one transaction."""
    most = (1 << named) - 1
    for start in range(first, first + count, 100):
        part = tuple(AckPosition(Position(1, start + n), 10_000, most) for n in range(min(100, first + count - start)))
        acks.pending.confirmed(acks.pending.reserve(txn_id, 0, part, cumulative=False))
    acks.pending.decided(Decision(txn_id, True, 100))


def ack_deletes(txn_id: TxnId) -> tuple[Delete, Delete]:
    prefix = keys.ack_ops(txn_id, SEGMENT, "sub")
    return Delete(prefix, keys.prefix_end(prefix)), Delete(keys.ack_index(SEGMENT, "sub", txn_id))


def block_key(name: str) -> bytes:
    return keys.cursor_block(SEGMENT, "sub", name)


def test_cursor_records_and_ack_op_deletes_are_one_commit() -> None:
    """▲ An op goes only with, or after, what it acked: a crash in between would lose the ack (P6)."""
    acks = Acks()
    acks.ended(TXNS[0], 0, 5)
    acks.ended(TXNS[1], 7, commit=False)
    plan = acks.target.plan(100.0)
    assert plan is not None
    assert [put.key for put in plan.commit.puts] == [block_key("mark"), block_key("1-0")]
    assert plan.commit.deletes == (*ack_deletes(TXNS[0]), *ack_deletes(TXNS[1]))
    assert [compare.value for compare in plan.commit.compares] == [EPOCH, 0, 0]
    acks.settle(plan)
    assert acks.target.plan(500.0) is None
    assert acks.target.backlog == 0


def test_ops_wait_where_cursor_records_alone_fill_a_commit() -> None:
    acks = Acks()
    acks.cursor._max_blocks = 1000
    acks.ended(TXNS[0], *range(1, 4096 * 120, 4096))
    acks.ended(TXNS[1], 0)
    put: list[bytes] = []
    deleted: list[Delete] = []
    while (plan := acks.target.plan(100.0)) is not None:
        assert ops(plan.commit) <= MAX_COMMIT_OPS
        put += [one.key for one in plan.commit.puts]
        if plan.commit.deletes:
            assert len(put) == 1 + 119
        deleted += plan.commit.deletes
        acks.settle(plan)
    assert put[0] == block_key("mark")
    assert deleted == [*ack_deletes(TXNS[0]), *ack_deletes(TXNS[1])]


def test_plain_acks_are_persisted_at_most_once_a_second() -> None:
    acks = Acks()
    sent: list[list[bytes]] = []
    for step in range(25):
        acks.pending.ack([AckPosition(Position(1, step), 1)])
        plan = acks.target.plan(100.0 + step / 10)
        if plan is None:
            assert acks.target.next_flush_s() == pytest.approx(100 + len(sent))
            continue
        sent.append([record.value for record in plan.commit.puts])
        acks.settle(plan, 100.0 + step / 10)
    assert sent == [[records.encode(CursorMark(position=(1, entry_id)))] for entry_id in (0, 10, 20)]


def test_block_the_mark_has_passed_is_deleted_with_the_mark() -> None:
    acks = Acks()
    acks.ended(TXNS[0], 5)
    plan = acks.target.plan(100.0)
    assert plan is not None
    acks.settle(plan)
    acks.pending.ack_cumulative(AckPosition(Position(1, 9), 1))
    plan = acks.target.plan(200.0)
    assert plan is not None
    assert [put.key for put in plan.commit.puts] == [block_key("mark")]
    assert plan.commit.deletes == (Delete(block_key("1-0")),)


def test_p6_lost_cursor_compare_merges_and_plans_again() -> None:
    acks = Acks()
    acks.ended(TXNS[0], 0, 1)
    plan = acks.target.plan(100.0)
    assert plan is not None
    stands = KeyValue(block_key("mark"), records.encode(CursorMark(position=(1, 9))), 3, 2, 44)
    assert not acks.target.settle(plan, CommitVerdict(False, 70, ((OWNER,), (stands,))), 100.0)
    assert acks.cursor.mark_delete == Position(1, 9)
    plan = acks.target.plan(100.0)
    assert plan is not None
    assert [(compare.key, compare.value) for compare in plan.commit.compares][1] == (block_key("mark"), 44)
    assert plan.commit.puts == (Put(block_key("mark"), records.encode(CursorMark(position=(1, 9)))),)
    acks.settle(plan)
    assert acks.target.backlog == 0


def test_ack_that_came_while_a_commit_was_on_its_way_is_written_next() -> None:
    acks = Acks()
    acks.ended(TXNS[0], 0)
    plan = acks.target.plan(100.0)
    assert plan is not None
    acks.ended(TXNS[1], 1)
    acks.settle(plan, revision=50)
    plan = acks.target.plan(100.1)
    assert plan is not None
    assert plan.commit.puts == (Put(block_key("mark"), records.encode(CursorMark(position=(1, 1)))),)
    assert [compare.value for compare in plan.commit.compares] == [EPOCH, 50]
    assert plan.commit.deletes == ack_deletes(TXNS[1])
    assert acks.pending.skip(Position(1, 1)) == WHOLE


def bytes_of(commit: Commit) -> int:
    return len(CommitEncoder(b"/txnstore").transaction(commit))


def test_a_cursor_of_many_large_entries_acked_in_part_is_stored_in_commits_that_the_store_takes() -> None:
    """C9: every batch of a queue's consumer keeps one message that is not acked."""
    acks = Acks()
    large_acks(acks, TXNS[0], 1, 1000)
    stored: dict[bytes, bytes] = {}
    deleted: list[Delete] = []
    for step in range(100):
        plan = acks.target.plan(100.0)
        if plan is None:
            break
        assert bytes_of(plan.commit) <= MAX_COMMIT_BYTES
        assert ops(plan.commit) <= MAX_COMMIT_OPS
        # As many deletions as a commit takes need their room beside the records, whichever comes with them.
        assert sum(len(put.value) for put in plan.commit.puts) <= MAX_COMMIT_BYTES * 6 // 10
        stored.update((put.key, put.value) for put in plan.commit.puts)
        deleted += plan.commit.deletes
        acks.settle(plan, revision=50 + step)
    assert deleted == [*ack_deletes(TXNS[0])]
    assert acks.target.backlog == 0
    found = [KeyValue(key, value, 1, 50, 50) for key, value in stored.items()]
    loaded = Cursor.load(LedgerLengths({1: 1_000_000}), EARLIEST, found)
    assert [loaded.acked(Position(1, n)).bit_count() for n in range(1, 1001)] == [9_999] * 1000


def test_ops_go_once_what_they_acked_is_stored_though_others_go_on_acking() -> None:
    """▲ Else they would stay for as long as more is acked between two commits than one commit stores."""
    acks = Acks()
    large_acks(acks, TXNS[0], 1, 700, named=5_000)
    stored: dict[bytes, bytes] = {}
    for step in range(30):
        plan = acks.target.plan(100.0 + step)
        assert plan is not None
        acks.pending.ack([AckPosition(Position(1, n), 10_000, 1 << 6_000 + step) for n in range(1, 701, 20)])
        stored.update((put.key, put.value) for put in plan.commit.puts)
        if ack_deletes(TXNS[0])[0] in plan.commit.deletes:
            break
        acks.settle(plan, revision=50 + step)
    else:
        raise AssertionError("its ops are not deleted")
    found = [KeyValue(key, value, 1, 50, 50) for key, value in stored.items()]
    loaded = Cursor.load(LedgerLengths({1: 1_000_000}), EARLIEST, found)
    assert all(loaded.acked(Position(1, n)) & (1 << 5_000) - 1 == (1 << 5_000) - 1 for n in range(1, 701))


def test_a_large_cursor_is_stored_though_others_go_on_acking_outside_transactions() -> None:
    """▲ Else the end of it would wait for as long as more is acked before it than one commit stores."""
    acks = Acks()
    acks.pending.ack([AckPosition(Position(1, n), 10_000, (1 << 5_000) - 1) for n in range(1, 701)])
    stored: dict[bytes, bytes] = {}
    for step in range(30):
        plan = acks.target.plan(100.0 + step)
        assert plan is not None
        acks.pending.ack([AckPosition(Position(1, n), 10_000, 1 << 6_000 + step) for n in range(1, 701, 20)])
        stored.update((put.key, put.value) for put in plan.commit.puts)
        acks.settle(plan, revision=50 + step)
    found = [KeyValue(key, value, 1, 50, 50) for key, value in stored.items()]
    loaded = Cursor.load(LedgerLengths({1: 1_000_000}), EARLIEST, found)
    assert all(loaded.acked(Position(1, n)) & (1 << 5_000) - 1 == (1 << 5_000) - 1 for n in range(1, 701))


def test_p6_ops_of_acks_that_came_amid_a_large_cursor_stay_until_those_are_stored() -> None:
    """▲ A cursor that takes several commits is stored as it was when the first one left: what is acked since is in none
    of them, and would be lost by a crash behind the last."""
    acks = Acks()
    large_acks(acks, TXNS[0], 1, 700)
    stored: dict[bytes, bytes] = {}
    for step in range(30):
        plan = acks.target.plan(100.0)
        assert plan is not None
        if not step:
            acks.ended(TXNS[1], 5000)
        stored.update((put.key, put.value) for put in plan.commit.puts)
        if ack_deletes(TXNS[1])[0] in plan.commit.deletes:
            break
        acks.settle(plan, revision=50 + step)
    else:
        raise AssertionError("its ops are not deleted")
    assert step > 1
    found = [KeyValue(key, value, 1, 50, 50) for key, value in stored.items()]
    loaded = Cursor.load(LedgerLengths({1: 1_000_000}), EARLIEST, found)
    assert loaded.acked(Position(1, 5000)) == WHOLE


def test_what_was_to_be_written_before_a_seek_is_not_written_after_it() -> None:
    """▲ S8: acks would come back that the seek has forgotten."""
    acks = Acks()
    large_acks(acks, TXNS[0], 1, 700)
    plan = acks.target.plan(100.0)
    assert plan is not None
    acks.settle(plan)
    acks.cursor.seek(EARLIEST)
    while (plan := acks.target.plan(100.0, everything=True)) is not None:
        assert [put.key for put in plan.commit.puts if put.key != block_key("mark")] == []
        acks.settle(plan, revision=60)


def test_p6_a_compare_lost_amid_a_large_cursor_begins_anew_with_what_stands() -> None:
    """The rest of the copy was read before: it would lose its compares for ever."""
    acks = Acks()
    large_acks(acks, TXNS[0], 1, 700)
    plan = acks.target.plan(100.0)
    assert plan is not None
    acks.settle(plan, revision=50)
    plan = acks.target.plan(100.0)
    assert plan is not None
    stands = tuple((KeyValue(put.key, put.value, 3, 2, 70),) for put in plan.commit.puts)
    assert stands
    assert not acks.target.settle(plan, CommitVerdict(False, 71, ((OWNER,), *stands)), 100.0)
    lost = {put.key for put in plan.commit.puts}
    for step in range(30):
        plan = acks.target.plan(100.0)
        if plan is None:
            break
        assert {compare.value for compare in plan.commit.compares if compare.key in lost} <= {70}
        lost -= {put.key for put in plan.commit.puts}
        acks.settle(plan, revision=80 + step)
    assert acks.target.backlog == 0
