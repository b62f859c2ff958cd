"""Ops and clean-up on a store that behaves as etcd does: verdicts, epochs, indexes, repeats."""

from __future__ import annotations

import pytest

from txnstore import keys, records
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import ABORTED, COMMITTED, OPEN, AbortedRecord, Header, Op
from txnstore.store import MAX_COMMIT_OPS, Commit, CommitVerdict, Delete, KeyValue, Put
from txnstore.writes.op_transitions import (
    Rewrite,
    aborted_rewrite,
    clean_up_ops,
    clean_up_revisions,
    plan_ack_op,
    plan_clean_up,
    plan_write_op,
    read_clean_up_verdict,
    read_op_verdict,
    watermark_rewrite,
)
from txnstore.writes.transitions import decide
from txnwire.errors import ExpiredTransaction, InternalError, NotOwner, TxnConflict, TxnError
from txnwire.ids import Position, TxnId

SEGMENT = "public/default/orders/0000-7fff-0"
TXN = TxnId(2, 5)
OPENED = Header(state=OPEN, timeout_ms=1, created_ms=0)
WRITE = Op(v=1, kind="write", segment=SEGMENT, messages=1, bytes=100)
ACK = Op(v=1, kind="ack", segment=SEGMENT, subscription="s", positions=[(1, 2, 1, "")], messages=1)


async def put(store: MemoryStore, key: bytes, value: bytes = b"{}") -> int:
    return (await store.commit(Commit(puts=(Put(key, value),)))).revision


async def begin(store: MemoryStore, txn_id: TxnId = TXN) -> None:
    await put(store, keys.txn(txn_id), records.encode(OPENED))


async def end(store: MemoryStore, state: str, reason: str | None = None, txn_id: TxnId = TXN) -> None:
    decided = decide(OPENED, state, finalized_ms=1, reason=reason, writers=None)
    await put(store, keys.txn(txn_id), records.encode(decided))


def present(store: MemoryStore, prefix: bytes) -> list[bytes]:
    return [record.key for record in store.etcd.mvcc.range(prefix, keys.prefix_end(prefix))[0]]


async def write(
    store: MemoryStore, epoch: int, counter: int = 1, *, txn_id: TxnId = TXN, first: bool = True
) -> CommitVerdict:
    return await store.commit(plan_write_op(txn_id, SEGMENT, epoch, counter, WRITE, first_in_segment=first))


# ---- ops ----


async def test_an_op_puts_its_record_and_with_the_first_its_index(memory_store: MemoryStore) -> None:
    await begin(memory_store)
    epoch = await put(memory_store, keys.owner(SEGMENT))
    assert (await write(memory_store, epoch, 1)).succeeded
    assert (await write(memory_store, epoch, 2, first=False)).succeeded
    ack = plan_ack_op(TXN, SEGMENT, "s", epoch, 3, ACK, first_in_subscription=True)
    assert (await memory_store.commit(ack)).succeeded
    assert len(present(memory_store, keys.txn_ops(TXN))) == 3
    assert present(memory_store, b"/idx/") == [keys.ack_index(SEGMENT, "s", TXN), keys.write_index(SEGMENT, TXN)]
    assert not ack.reserve, "new ops must be refused above the soft limit"


@pytest.mark.parametrize(
    ("header", "owned", "expected"),
    [
        ("open", True, None),
        ("open", False, NotOwner),
        ("absent", True, TxnConflict),
        ("committed", True, TxnConflict),
        ("aborted", True, TxnConflict),
        ("timeout", True, TxnConflict),
        ("fenced", True, ExpiredTransaction),
        ("fenced", False, ExpiredTransaction),
    ],
)
async def test_op_verdicts(
    memory_store: MemoryStore, header: str, owned: bool, expected: type[TxnError] | None
) -> None:
    if header != "absent":
        await begin(memory_store)
    if header == "committed":
        await end(memory_store, COMMITTED)
    elif header not in ("open", "absent"):
        await end(memory_store, ABORTED, reason=header)
    epoch = await put(memory_store, keys.owner(SEGMENT))
    commit = plan_write_op(TXN, SEGMENT, epoch if owned else epoch - 1, 1, WRITE, first_in_segment=True)
    result = await memory_store.commit(commit)
    if expected is None:
        read_op_verdict(commit, result, TXN)
        return
    with pytest.raises(expected) as caught:
        read_op_verdict(commit, result, TXN)
    assert type(caught.value) is expected
    assert present(memory_store, keys.TXN_OP) == []
    if header == "timeout":
        assert "timeout" in str(caught.value)


@pytest.mark.parametrize("taken", [False, True])
async def test_a_refused_broker_is_told_who_owns_the_segment_now(memory_store: MemoryStore, taken: bool) -> None:
    await begin(memory_store)
    epoch = await put(memory_store, keys.owner(SEGMENT))
    await memory_store.commit(Commit(deletes=(Delete(keys.owner(SEGMENT)),)))
    now = f"epoch {await put(memory_store, keys.owner(SEGMENT))}" if taken else "nobody"
    op = plan_write_op(TXN, SEGMENT, epoch, 1, WRITE, first_in_segment=True)
    with pytest.raises(NotOwner, match=f"had epoch {epoch}, now {now}"):
        read_op_verdict(op, await memory_store.commit(op), TXN)
    clean_up = plan_clean_up(SEGMENT, epoch, writes=[TXN])
    with pytest.raises(NotOwner, match=f"had epoch {epoch}, now {now}"):
        read_clean_up_verdict(clean_up, await memory_store.commit(clean_up))


async def test_l1_no_write_slips_in_behind_a_decision_or_a_collection(memory_store: MemoryStore) -> None:
    """▲ `version == 1` is compared in the op's own transaction; dies with that compare left out."""
    await begin(memory_store)
    epoch = await put(memory_store, keys.owner(SEGMENT))
    await end(memory_store, ABORTED, reason="client")
    commit = plan_write_op(TXN, SEGMENT, epoch, 1, WRITE, first_in_segment=True)
    assert not (await memory_store.commit(commit)).succeeded
    await memory_store.commit(Commit(deletes=(Delete(keys.txn(TXN)),)))
    assert not (await memory_store.commit(commit)).succeeded
    await begin(memory_store, TxnId(2, 6))
    assert not (await memory_store.commit(commit)).succeeded
    assert present(memory_store, keys.TXN_OP) == []


async def test_a_repeat_that_finds_its_own_key_has_succeeded_and_a_second_use_of_a_counter_has_not(
    memory_store: MemoryStore,
) -> None:
    """▲ Op keys are compared absent: dies with a plain put."""
    await begin(memory_store)
    epoch = await put(memory_store, keys.owner(SEGMENT))
    commit = plan_write_op(TXN, SEGMENT, epoch, 1, WRITE, first_in_segment=True)
    assert (await memory_store.commit(commit)).succeeded
    again = await memory_store.commit(commit)
    assert not again.succeeded
    read_op_verdict(commit, CommitVerdict(False, again.revision, again.reads, repeated=True), TXN)
    with pytest.raises(InternalError, match="twice"):
        read_op_verdict(commit, again, TXN)


async def test_a_repeat_that_landed_before_the_decision_is_a_success_after_it(memory_store: MemoryStore) -> None:
    await begin(memory_store)
    epoch = await put(memory_store, keys.owner(SEGMENT))
    commit = plan_write_op(TXN, SEGMENT, epoch, 1, WRITE, first_in_segment=True)
    await memory_store.commit(commit)
    await end(memory_store, COMMITTED)
    again = await memory_store.commit(commit)
    read_op_verdict(commit, CommitVerdict(False, again.revision, again.reads, repeated=True), TXN)


# ---- clean-up ----


async def test_clean_up_deletes_its_own_ops_and_index_and_nobody_else_s(memory_store: MemoryStore) -> None:
    other = "public/default/orders/8000-ffff-1"
    await begin(memory_store)
    for segment in (SEGMENT, other):
        epoch = await put(memory_store, keys.owner(segment))
        op = plan_write_op(TXN, segment, epoch, 1, WRITE, first_in_segment=True)
        ack = plan_ack_op(TXN, segment, "s", epoch, 2, ACK, first_in_subscription=True)
        for commit in (op, ack):
            assert (await memory_store.commit(commit)).succeeded
    mine = memory_store.etcd.mvcc.get(keys.owner(SEGMENT))
    assert mine is not None
    batch = plan_clean_up(
        SEGMENT,
        mine.create_revision,
        writes=[TXN],
        rewrites=[aborted_rewrite(SEGMENT, TXN, None, Position(1, 9)), watermark_rewrite(SEGMENT, Position(1, 9), 0)],
    )
    result = await memory_store.commit(batch)
    assert read_clean_up_verdict(batch, result) is None
    assert clean_up_revisions(batch, result) == {
        keys.aborted(SEGMENT, TXN): result.revision,
        keys.watermark(SEGMENT): result.revision,
    }
    left = present(memory_store, keys.txn_ops(TXN))
    assert [keys.op_parts(key)[1:] for key in left] == [(SEGMENT, "s"), (other, "s"), (other, None)]
    assert keys.write_index(SEGMENT, TXN) not in present(memory_store, b"/idx/")
    aborted = memory_store.etcd.mvcc.get(keys.aborted(SEGMENT, TXN))
    assert aborted is not None
    assert records.decode(AbortedRecord, aborted.value, key=aborted.key).max_position == (1, 9)


async def test_a3_ten_thousand_ops_are_cleaned_by_two_deletes(memory_store: MemoryStore) -> None:
    epoch = await put(memory_store, keys.owner(SEGMENT))
    prefix = keys.write_ops(TXN, SEGMENT)
    for at in range(0, 10_000, 100):
        puts = tuple(Put(keys.op(prefix, epoch, counter), b"{}") for counter in range(at, at + 100))
        await memory_store.commit(Commit(puts=puts))
    await put(memory_store, keys.write_index(SEGMENT, TXN), b"")
    batch = plan_clean_up(SEGMENT, epoch, writes=[TXN])
    assert len(batch.deletes) == 2
    assert (await memory_store.commit(batch)).succeeded
    assert present(memory_store, keys.TXN_OP) == []
    assert present(memory_store, b"/idx/") == []


async def test_a_batch_takes_along_all_of_each_kind_that_it_is_given(memory_store: MemoryStore) -> None:
    epoch = await put(memory_store, keys.owner(SEGMENT))
    txns = [TxnId(2, counter) for counter in (5, 6, 7)]
    for counter, txn_id in enumerate(txns):
        await begin(memory_store, txn_id)
        assert (await write(memory_store, epoch, counter, txn_id=txn_id)).succeeded
        ack = plan_ack_op(txn_id, SEGMENT, "s", epoch, 10 + counter, ACK, first_in_subscription=True)
        assert (await memory_store.commit(ack)).succeeded
    forgotten = [keys.aborted(SEGMENT, TxnId(1, counter)) for counter in (1, 2)]
    for key in forgotten:
        await put(memory_store, key)
    batch = plan_clean_up(
        SEGMENT,
        epoch,
        writes=txns,
        acks=[("s", txn_id) for txn_id in txns],
        rewrites=[aborted_rewrite(SEGMENT, txn_id, None, None) for txn_id in txns],
        forget=forgotten,
    )
    result = await memory_store.commit(batch)
    recorded = [keys.aborted(SEGMENT, txn_id) for txn_id in txns]
    assert clean_up_revisions(batch, result) == dict.fromkeys(recorded, result.revision)
    assert present(memory_store, keys.TXN_OP) == present(memory_store, b"/idx/") == []
    assert present(memory_store, keys.SEGMENT_STATE) == recorded


def test_a3_a_batch_cut_by_its_cost_fits_every_etcd() -> None:
    many = [TxnId(1, counter) for counter in range(1, 500)]
    batch = 0
    while clean_up_ops(writes=batch + 1, rewrites=batch + 1) <= MAX_COMMIT_OPS:
        batch += 1
    commit = plan_clean_up(
        SEGMENT, 7, writes=many[:batch], rewrites=[aborted_rewrite(SEGMENT, one, None, None) for one in many[:batch]]
    )
    assert batch >= 30
    assert len(commit.compares) <= MAX_COMMIT_OPS
    assert len(commit.puts) + len(commit.deletes) <= MAX_COMMIT_OPS
    assert len(commit.else_reads) <= MAX_COMMIT_OPS


async def test_clean_up_of_a_lost_segment_is_refused(memory_store: MemoryStore) -> None:
    epoch = await put(memory_store, keys.owner(SEGMENT))
    await memory_store.commit(Commit(deletes=(Delete(keys.owner(SEGMENT)),)))
    batch = plan_clean_up(SEGMENT, epoch, writes=[TXN])
    with pytest.raises(NotOwner):
        read_clean_up_verdict(batch, await memory_store.commit(batch))


async def test_p11_a_late_old_value_never_lands_on_a_newer_one(memory_store: MemoryStore) -> None:
    """▲ Rewrites compare the record's mod revision; dies with that compare left out."""
    epoch = await put(memory_store, keys.owner(SEGMENT))
    other, key = keys.cursor_block(SEGMENT, "s", "0"), keys.cursor_block(SEGMENT, "s", "1")
    old = plan_clean_up(SEGMENT, epoch, rewrites=[Rewrite(other, b"old", 0), Rewrite(key, b"old", 0)])
    new = plan_clean_up(SEGMENT, epoch, rewrites=[Rewrite(key, b"new", 0)])
    assert (await memory_store.commit(new)).succeeded
    late = await memory_store.commit(old)
    found = read_clean_up_verdict(old, late)
    assert found is not None
    now = found[key]
    assert isinstance(now, KeyValue)
    assert now.value == b"new"
    assert found[other] is None


@pytest.mark.parametrize(("value", "landed"), [(b"mine", True), (b"other", False)])
async def test_a_repeated_batch_is_recognized_by_its_values(
    memory_store: MemoryStore, value: bytes, landed: bool
) -> None:
    epoch = await put(memory_store, keys.owner(SEGMENT))
    first, key = keys.cursor_block(SEGMENT, "s", "0"), keys.watermark(SEGMENT)
    first_at, at = await put(memory_store, first, b"mine"), await put(memory_store, key, value)
    batch = plan_clean_up(SEGMENT, epoch, rewrites=[Rewrite(first, b"mine", 0), Rewrite(key, b"mine", 0)])
    refused = await memory_store.commit(batch)
    repeated = CommitVerdict(False, refused.revision, refused.reads, repeated=True)
    assert (read_clean_up_verdict(batch, repeated) is None) == landed
    assert read_clean_up_verdict(batch, refused) is not None, "without a repeat the writer was somebody else"
    if landed:
        assert clean_up_revisions(batch, repeated) == {first: first_at, key: at}
