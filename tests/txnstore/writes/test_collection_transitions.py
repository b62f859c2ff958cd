"""Collection: runs and batches as properties, refusals on a store that behaves as etcd does, leftovers as a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnstore import keys, records
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import ABORTED, COMMITTED, NO_WRITER, OPEN, AbortedRecord, Header, Op, TxnName
from txnstore.store import MAX_COMMIT_OPS, Commit, CommitVerdict, Delete, KeyValue, Put
from txnstore.writes.collection_transitions import (
    MAX_COLLECTED,
    MAX_RUNS,
    Collectable,
    Horizon,
    Leftover,
    Leftovers,
    OutcomeBitmap,
    batches_of,
    block_of,
    leftover_records,
    name_rewrite,
    parts_of,
    plan_collect,
    plan_expire_outcomes,
    plan_leftovers,
    read_collect_verdict,
    read_horizon,
    read_outcomes,
    runs_of,
)
from txnstore.writes.op_transitions import Rewrite
from txnstore.writes.transitions import RecordedDecision, decide
from txnwire.errors import DataCorrupt, NotOwner
from txnwire.ids import TxnId

SEGMENT = "public/default/orders/0000-ffff-0"
OPENED = Header(state=OPEN, timeout_ms=1, created_ms=0)
FINAL = records.encode(decide(OPENED, COMMITTED, finalized_ms=1, reason=None, writers=None))

ascending = st.lists(st.integers(1, 20_000), min_size=1, max_size=400, unique=True).map(sorted)


async def put(store: MemoryStore, key: bytes, value: bytes = b"{}") -> int:
    return (await store.commit(Commit(puts=(Put(key, value),)))).revision


async def finish(store: MemoryStore, counter: int, tcid: int = 1) -> Collectable:
    await put(store, keys.txn(TxnId(tcid, counter)), records.encode(OPENED))
    revision = await put(store, keys.txn(TxnId(tcid, counter)), FINAL)
    return Collectable(counter, True, revision)


def present(store: MemoryStore, prefix: bytes) -> list[bytes]:
    return [record.key for record in store.etcd.mvcc.range(prefix, keys.prefix_end(prefix))[0]]


# ---- pure ----


@given(ascending)
def test_runs_cover_exactly_what_was_given(counters: list[int]) -> None:
    runs = runs_of(counters)
    assert [one for first, last in runs for one in range(first, last + 1)] == counters
    assert all(runs[at][1] + 1 < runs[at + 1][0] for at in range(len(runs) - 1))


@given(ascending)
def test_a_batch_stays_within_one_block_and_every_limit(counters: list[int]) -> None:
    batches = batches_of([Collectable(counter, True, counter) for counter in counters])
    assert [one.counter for batch in batches for one in batch] == counters
    for batch in batches:
        ids = [one.counter for one in batch]
        assert len({block_of(counter) for counter in ids}) == 1
        assert len(runs_of(ids)) <= MAX_RUNS
        assert len(batch) <= MAX_COLLECTED
        commit = plan_collect(5, OutcomeBitmap(1, block_of(ids[0])), batch, Horizon(), raise_to=9, touched_ms=1)
        assert len(commit.compares) <= MAX_COMMIT_OPS
        assert len(commit.puts) + len(commit.deletes) <= MAX_COMMIT_OPS


def test_of_neighbours_as_many_go_together_as_one_commit_may_delete() -> None:
    neighbours = [Collectable(counter, True, 1) for counter in range(1, MAX_COLLECTED + 3)]
    assert [len(batch) for batch in batches_of(neighbours)] == [MAX_COLLECTED, 2]
    apart = [*neighbours[: 2 * MAX_RUNS], *neighbours[3 * MAX_RUNS :][:5]]
    assert batches_of(apart) == [apart], "two runs, of many ids"


def test_neighbours_cost_one_mutation_each_and_two_for_all() -> None:
    commit = plan_collect(
        5, OutcomeBitmap(1, 0), [Collectable(n, True, n) for n in range(1, 301)], Horizon(), raise_to=300, touched_ms=1
    )
    assert (len(commit.puts), len(commit.deletes), len(commit.compares)) == (2, 1, 5)


@given(st.dictionaries(st.integers(4096, 8191), st.booleans(), max_size=60), st.booleans())
def test_outcomes_survive_their_record(finals: dict[int, bool], known: bool) -> None:
    block = OutcomeBitmap(1, 1).with_finals([Collectable(n, ok, 1) for n, ok in finals.items()], touched_ms=7)
    record = KeyValue(block.key, records.encode(block.record()), 1, 2, 9)
    again = read_outcomes(1, 1, record)
    assert again == block._replace(mod_revision=9)
    for counter in range(4096, 8192, 97):
        expected = {True: COMMITTED, False: ABORTED, None: None}[finals.get(counter)]
        assert again.state_of(counter) == expected


@pytest.mark.parametrize("bitmap", ["!!", "AAAA"])
def test_a_damaged_outcome_block_is_named(bitmap: str) -> None:
    value = b'{"v":1,"decided":"%s","committed":"%s","touched_ms":1}' % (bitmap.encode(), bitmap.encode())
    with pytest.raises(DataCorrupt, match="/txn-outcome/0001/"):
        read_outcomes(1, 0, KeyValue(OutcomeBitmap(1, 0).key, value, 1, 2, 9))


# ---- on a store ----


async def test_collection_deletes_headers_sets_bits_and_raises_the_horizon(memory_store: MemoryStore) -> None:
    epoch = await put(memory_store, keys.tc(1))
    finals = [await finish(memory_store, counter) for counter in (5, 6, 7, 90)]
    top = max(one.revision for one in finals)
    commit = plan_collect(epoch, OutcomeBitmap(1, 0), finals, Horizon(), raise_to=top, touched_ms=44)
    result = await memory_store.commit(commit)
    verdict = read_collect_verdict(commit, result, OutcomeBitmap(1, 0), Horizon())
    assert verdict.applied
    assert present(memory_store, keys.TXN) == []
    assert verdict.horizon == Horizon(top, result.revision)
    assert verdict.horizon == read_horizon(memory_store.etcd.mvcc.get(keys.GC_HORIZON))
    block = read_outcomes(1, 0, memory_store.etcd.mvcc.get(OutcomeBitmap(1, 0).key))
    assert block == verdict.outcomes
    assert [block.state_of(n) for n in (4, 5, 6, 7, 8, 90)] == [None, COMMITTED, COMMITTED, COMMITTED, None, COMMITTED]


@pytest.mark.parametrize("what", ["op", "open", "outcomes", "horizon", "owner"])
async def test_e5_nothing_is_collected_while_an_op_remains_or_anything_else_is_not_as_known(
    memory_store: MemoryStore, what: str
) -> None:
    epoch = await put(memory_store, keys.tc(1))
    finals = [await finish(memory_store, counter) for counter in (5, 6, 7)]
    if what == "op":
        await put(memory_store, keys.op(keys.write_ops(TxnId(1, 6), SEGMENT), 3, 1))
    elif what == "open":
        await put(memory_store, keys.txn(TxnId(1, 8)), records.encode(OPENED))
        finals.append(Collectable(8, True, 1))
    elif what == "outcomes":
        await put(memory_store, OutcomeBitmap(1, 0).key, records.encode(OutcomeBitmap(1, 0).record()))
    elif what == "horizon":
        await put(memory_store, keys.GC_HORIZON, b'{"v":1,"revision":3}')
    else:
        await memory_store.commit(Commit(deletes=(Delete(keys.tc(1)),)))
    before = present(memory_store, keys.TXN)
    commit = plan_collect(epoch, OutcomeBitmap(1, 0), finals, Horizon(), raise_to=999, touched_ms=44)
    result = await memory_store.commit(commit)
    if what == "owner":
        with pytest.raises(NotOwner):
            read_collect_verdict(commit, result, OutcomeBitmap(1, 0), Horizon())
    else:
        verdict = read_collect_verdict(commit, result, OutcomeBitmap(1, 0), Horizon())
        assert not verdict.applied
        assert verdict.horizon == Horizon(3, result.revision) if what == "horizon" else Horizon()
    assert present(memory_store, keys.TXN) == before


async def test_e5_an_op_of_a_neighbour_does_not_hold_a_run_up(memory_store: MemoryStore) -> None:
    """The run 5–7 is bounded by key: op keys of 4 and of 8 lie outside."""
    epoch = await put(memory_store, keys.tc(1))
    finals = [await finish(memory_store, counter) for counter in (5, 6, 7)]
    for neighbour in (4, 8):
        await put(memory_store, keys.op(keys.write_ops(TxnId(1, neighbour), SEGMENT), 3, 1))
    commit = plan_collect(epoch, OutcomeBitmap(1, 0), finals, Horizon(), raise_to=999, touched_ms=44)
    assert (await memory_store.commit(commit)).succeeded


async def test_a_repeated_collection_knows_its_own_landing(memory_store: MemoryStore) -> None:
    epoch = await put(memory_store, keys.tc(1))
    finals = [await finish(memory_store, 5)]
    commit = plan_collect(epoch, OutcomeBitmap(1, 0), finals, Horizon(), raise_to=9, touched_ms=44)
    assert (await memory_store.commit(commit)).succeeded
    again = await memory_store.commit(commit)
    repeated = CommitVerdict(False, again.revision, again.reads, repeated=True)
    assert read_collect_verdict(commit, repeated, OutcomeBitmap(1, 0), Horizon()).applied


async def test_a_block_touched_again_does_not_expire(memory_store: MemoryStore) -> None:
    await put(memory_store, OutcomeBitmap(1, 0).key, records.encode(OutcomeBitmap(1, 0, touched_ms=5).record()))
    seen = read_outcomes(1, 0, memory_store.etcd.mvcc.get(OutcomeBitmap(1, 0).key))
    await put(memory_store, OutcomeBitmap(1, 0).key, records.encode(OutcomeBitmap(1, 0, touched_ms=9).record()))
    assert not (await memory_store.commit(plan_expire_outcomes(seen))).succeeded


@pytest.mark.parametrize(("named", "taken"), [(TxnId(1, 5), True), (TxnId(1, 6), False), (None, False)])
def test_a_name_record_takes_the_outcome_over_only_while_it_names_the_transaction(
    named: TxnId | None, taken: bool
) -> None:
    key = keys.txn_name("job/1")
    record = None if named is None else KeyValue(key, records.encode(TxnName(v=1, txn_id=str(named))), 1, 2, 30)
    rewrite = name_rewrite(record, TxnId(1, 5), RecordedDecision(COMMITTED, 8, None, ("0a",), "rows=3"), 55)
    assert (rewrite is not None) == taken
    if rewrite is not None:
        assert rewrite.mod_revision == 30
        written = records.decode(TxnName, rewrite.value, key=key)
        assert (written.writers, written.note) == (["0a"], "rows=3")


async def test_a_name_record_is_rewritten_in_the_collection_s_own_transaction(memory_store: MemoryStore) -> None:
    epoch = await put(memory_store, keys.tc(1))
    finals = [await finish(memory_store, 5)]
    named = [keys.txn_name("job/1"), keys.txn_name("job/2")]
    fresh = [Rewrite(key, b"x", 0) for key in named]
    for place in range(2):
        names = [rewrite._replace(mod_revision=12345) if at == place else rewrite for at, rewrite in enumerate(fresh)]
        refused = plan_collect(epoch, OutcomeBitmap(1, 0), finals, Horizon(), raise_to=9, touched_ms=1, names=names)
        assert not (await memory_store.commit(refused)).succeeded, "one of them is stale"
    commit = plan_collect(epoch, OutcomeBitmap(1, 0), finals, Horizon(), raise_to=9, touched_ms=1, names=fresh)
    assert (await memory_store.commit(commit)).succeeded
    assert present(memory_store, keys.TXN_NAME) == named


# ---- leftovers ----

TXN = TxnId(1, 5)
A, B = 0xA, 0xB


def op(kind: str, counter: int, writer: int | None = None, subscription: str = "s") -> KeyValue:
    prefix = keys.write_ops(TXN, SEGMENT) if kind == "write" else keys.ack_ops(TXN, SEGMENT, subscription)
    text = None if writer is None else f"{writer:016x}"
    value = records.encode(Op(v=1, kind=kind, segment=SEGMENT, writer=text))
    return KeyValue(keys.op(prefix, 3, counter), value, 1, 2, 2)


def leftovers_of(decision: RecordedDecision, ops: list[KeyValue], at_once: int = 10) -> list[Leftover]:
    leftovers = Leftovers(decision)
    pages = [ops[at : at + at_once] for at in range(0, len(ops), at_once)]
    return [*(one for page in pages for one in leftovers.add(page)), *leftovers.rest()]


def plans(leftover: Leftover, found: KeyValue | None = None) -> list[Commit]:
    planned = [plan_leftovers(TXN, part, [found] * len(leftover_records(TXN, part))) for part in parts_of(leftover)]
    return [commit for commit in planned if commit.puts or commit.deletes]


OPS = [op("ack", 1), op("write", 2, A), op("write", 3, B)]


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (RecordedDecision(ABORTED, 8, "timeout"), Leftover(SEGMENT, True, (None,), ("s",), ())),
        (RecordedDecision(COMMITTED, 8), Leftover(SEGMENT, True, (), (), ("s",))),
        (RecordedDecision(COMMITTED, 8, None, (f"{A:016x}",)), Leftover(SEGMENT, True, (B,), (), ("s",))),
        (RecordedDecision(COMMITTED, 8, None, (f"{A:016x}", f"{B:016x}")), Leftover(SEGMENT, True, (), (), ("s",))),
        (RecordedDecision(COMMITTED, 8, None, ()), Leftover(SEGMENT, True, (A, B), (), ("s",))),
    ],
)
def test_leftovers_are_sorted_by_what_may_go(decision: RecordedDecision, expected: Leftover) -> None:
    assert leftovers_of(decision, OPS) == [expected]


def test_a_write_that_names_no_writer_loses_alone_beside_the_winners() -> None:
    """Writer 0, as its entry says: a record of the whole transaction would hide what the winners wrote."""
    decision = RecordedDecision(COMMITTED, 8, None, (f"{A:016x}",))
    (leftover,) = leftovers_of(decision, [op("write", 1), op("write", 2, A)])
    assert leftover.aborted == (NO_WRITER,)
    (commit,) = plans(leftover)
    assert [put.key for put in commit.puts] == [keys.aborted(SEGMENT, TXN, NO_WRITER)]
    (leftover,) = leftovers_of(RecordedDecision(COMMITTED, 8, None, (f"{NO_WRITER:016x}",)), [op("write", 1)])
    assert leftover.aborted == (), "a list may name it, as the owner of the segment would read it"


def test_a_write_whose_writer_cannot_be_read_is_corruption_that_names_its_key() -> None:
    value = records.encode(Op(v=1, kind="write", segment=SEGMENT, writer="nobody"))
    record = KeyValue(keys.op(keys.write_ops(TXN, SEGMENT), 3, 1), value, 1, 2, 2)
    with pytest.raises(DataCorrupt, match="/txn-op/"):
        leftovers_of(RecordedDecision(COMMITTED, 8, None, ()), [record])


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([A, B])), max_size=40), st.integers(1, 10))
def test_leftovers_do_not_depend_on_where_a_page_of_ops_ends(writes: list[tuple[int, int]], at_once: int) -> None:
    """A segment whose last ops come with the next page is told of with them."""
    ops = []
    for counter, (segment, writer) in enumerate(writes):
        path = f"public/default/t/0000-ffff-{segment}"
        value = records.encode(Op(v=1, kind="write", segment=path, writer=f"{writer:016x}"))
        ops.append(KeyValue(keys.op(keys.write_ops(TXN, path), 3, counter), value, 1, 2, 2))
    ops.sort(key=lambda record: record.key)
    decision = RecordedDecision(COMMITTED, 8, None, (f"{A:016x}",))
    whole = leftovers_of(decision, ops, at_once=len(ops) + 1)
    assert leftovers_of(decision, ops, at_once) == whole
    lost = {f"public/default/t/0000-ffff-{segment}" for segment, writer in writes if writer == B}
    assert {leftover.segment for leftover in whole if leftover.aborted == (B,)} == lost


async def leave_ops(store: MemoryStore, state: str) -> list[KeyValue]:
    await put(store, keys.txn(TXN), records.encode(OPENED))
    for record in OPS:
        await put(store, record.key, record.value)
    await put(store, keys.write_index(SEGMENT, TXN), b"")
    await put(store, keys.ack_index(SEGMENT, "s", TXN), b"")
    decided = decide(OPENED, state, finalized_ms=1, reason="timeout", writers=None)
    await put(store, keys.txn(TXN), records.encode(decided))
    return store.etcd.mvcc.range(keys.txn_ops(TXN), keys.prefix_end(keys.txn_ops(TXN)))[0]


@pytest.mark.parametrize("state", [ABORTED, COMMITTED])
@pytest.mark.parametrize("owned", [False, True])
async def test_leftovers_go_only_while_the_segment_has_no_owner(
    memory_store: MemoryStore, state: str, owned: bool
) -> None:
    """▲ The absence of `/owner/<segment>` is compared; an aborted write becomes a record with null as it goes."""
    ops = await leave_ops(memory_store, state)
    (leftover,) = leftovers_of(RecordedDecision(state, 8, "timeout"), ops)
    if owned:
        await put(memory_store, keys.owner(SEGMENT))
    commits = plans(leftover)
    results = [await memory_store.commit(commit) for commit in commits]
    left = present(memory_store, keys.TXN_OP)
    aborted = memory_store.etcd.mvcc.get(keys.aborted(SEGMENT, TXN))
    if owned:
        assert not any(result.succeeded for result in results)
        assert len(left) == 3
        assert aborted is None
    elif state == ABORTED:
        assert left == []
        assert present(memory_store, b"/idx/") == []
        assert aborted is not None
        assert records.decode(AbortedRecord, aborted.value, key=aborted.key).max_position is None
    else:
        assert [keys.op_parts(key)[2] for key in left] == ["s"], "a committed ack waits for an owner that applies it"
        assert present(memory_store, b"/idx/") == [keys.ack_index(SEGMENT, "s", TXN)]
        assert aborted is None


async def test_leftovers_of_an_open_transaction_are_never_touched(memory_store: MemoryStore) -> None:
    await put(memory_store, keys.txn(TXN), records.encode(OPENED))
    await put(memory_store, OPS[1].key, OPS[1].value)
    (commit,) = plans(Leftover(SEGMENT, True, (None,), (), ()))
    assert not (await memory_store.commit(commit)).succeeded


async def test_s8_no_record_follows_a_segment_that_was_erased_meanwhile(memory_store: MemoryStore) -> None:
    """▲ The leftovers were read, then an owner came, erased the segment with its topic, and went."""
    ops = await leave_ops(memory_store, ABORTED)
    (leftover,) = leftovers_of(RecordedDecision(ABORTED, 8, "timeout"), ops)
    commits = plans(leftover)
    for prefix in (keys.TXN_OP, b"/idx/"):
        await memory_store.commit(Commit(deletes=(Delete(prefix, keys.prefix_end(prefix)),)))
    assert not any([(await memory_store.commit(commit)).succeeded for commit in commits])
    assert present(memory_store, keys.SEGMENT_STATE) == []


def test_a_known_position_is_made_unknown_and_an_unknown_one_left() -> None:
    leftover = Leftover(SEGMENT, True, (None,), (), ())
    key = keys.aborted(SEGMENT, TXN)
    known = KeyValue(key, records.encode(AbortedRecord(max_position=(1, 2))), 1, 2, 66)
    unknown = KeyValue(key, records.encode(AbortedRecord(max_position=None)), 1, 2, 66)
    (commit,) = plans(leftover, known)
    assert [(one.key, one.value) for one in commit.compares][3:] == [(key, 66)]
    (commit,) = plans(Leftover(SEGMENT, True, (A, B), (), ()), known)
    assert [(one.key, one.value) for one in commit.compares][3:] == [
        (keys.aborted(SEGMENT, TXN, writer), 66) for writer in (A, B)
    ]
    (commit,) = plans(leftover, unknown)
    assert commit.puts == ()
    assert len(commit.deletes) == 2


@given(st.integers(0, 250), st.integers(0, 120), st.booleans())
def test_leftovers_are_cut_to_the_limits_and_records_never_follow_their_ops(
    writers: int, subscriptions: int, writes: bool
) -> None:
    leftover = Leftover(SEGMENT, writes, tuple(range(writers)) if writes else (), tuple(
        f"s{n}" for n in range(subscriptions)), ())  # fmt: skip
    commits = plans(leftover)
    assert sum(len(commit.puts) for commit in commits) == len(leftover.aborted)
    assert sum(len(commit.deletes) for commit in commits) == 2 * (writes + subscriptions)
    prefix = keys.write_ops(TXN, SEGMENT)
    deleting = [at for at, commit in enumerate(commits) if any(one.key == prefix for one in commit.deletes)]
    recording = [at for at, commit in enumerate(commits) if commit.puts]
    if deleting and recording:
        assert max(recording) <= deleting[0]
    for commit in commits:
        assert len(commit.compares) <= MAX_COMMIT_OPS
        assert 0 < len(commit.puts) + len(commit.deletes) <= MAX_COMMIT_OPS


# ---- two at once ----


@pytest.mark.parametrize("shared", ["block", "horizon"])
async def test_of_two_collections_planned_from_one_record_the_second_changes_nothing(
    memory_store: MemoryStore, shared: str
) -> None:
    """▲ Dies if it lands: outcomes that the first has noted would be lost, or the horizon would go back."""
    horizon = Horizon(10**6) if shared == "block" else Horizon()
    tcids, commits = (1, 1) if shared == "block" else (1, 2), []
    for tcid in (1, 2):
        await put(memory_store, keys.tc(tcid))
    for at, tcid in enumerate(tcids):
        tc = await memory_store.get(keys.tc(tcid))
        assert tc is not None
        final = await finish(memory_store, 5 + 2 * at, tcid)
        commits.append(
            plan_collect(tc.create_revision, OutcomeBitmap(tcid, 0), [final], horizon, raise_to=900 - at, touched_ms=1)
        )
    assert [(await memory_store.commit(commit)).succeeded for commit in commits] == [True, False]
    assert present(memory_store, keys.TXN) == [keys.txn(TxnId(tcids[1], 7))]
    if shared == "horizon":
        assert read_horizon(await memory_store.get(keys.GC_HORIZON)).revision == 900
