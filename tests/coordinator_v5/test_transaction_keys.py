"""Transaction keys at coordinators: who is served, what comes late, what a lost answer leaves behind (DESIGN §9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import pytest

from coordinator_v5 import transaction_keys
from coordinator_v5.names import Begun
from coordinator_v5.settings import CoordinatorSettings
from simulation.judges.key_judge import judge
from tests.coordinator_v5.processes import (
    LANDS_LATE,
    LOST_AFTER,
    LOST_BEFORE,
    Connection,
    Process,
    fresh_etcd,
    headers,
    open_headers,
    within,
)
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate
from txnstore.records import ABORTED, COMMITTED, TransactionKey
from txnstore.store import Commit, CommitVerdict
from txnstore.writes.key_transitions import read_key
from txnstore.writes.transitions import RecordedDecision
from txnwire.errors import (
    ExpiredTransaction,
    InvalidArgument,
    InvalidTxnState,
    NotAllowed,
    NotOwner,
    StoreFull,
    Timeout,
    TxnError,
)
from txnwire.ids import TxnId

KEY = "nightly/job 7"
RECORD = keys.txn_key("anonymous", KEY)
ONE = CoordinatorSettings(tcids=1, header_retention_s=5.0, client_grace_s=3.0)
TWO = CoordinatorSettings(tcids=2, header_retention_s=5.0, client_grace_s=3.0)


class Holder:
    """A client as a coordinator sees it: its connection, its epoch, its begins counted."""

    def __init__(self, name: str) -> None:
        self.connection = Connection(name)
        self.attempt = name.encode()
        self.epoch = -1
        self.begins = 0

    async def connect(self, process: Process, *, named: int | None = None) -> int:
        tcid = process.coordinator.owned_tcids[0]
        if named is None:
            named = await process.coordinator.connect_key(
                tcid, key=KEY, epoch=-1, attempt=b"", connection=self.connection
            )
        self.epoch = await process.coordinator.connect_key(
            tcid, key=KEY, epoch=named, attempt=self.attempt, connection=self.connection
        )
        return self.epoch

    async def begin(self, process: Process, *, number: int | None = None, timeout_ms: int = 60_000) -> Begun:
        number = self.begins + 1 if number is None else number
        begun = await process.coordinator.begin_keyed(
            process.coordinator.owned_tcids[0],
            key=KEY,
            epoch=self.epoch,
            number=number,
            attempt=b"%s/%d" % (self.attempt, number),
            timeout_ms=timeout_ms,
            connection=self.connection,
        )
        self.begins = max(self.begins, number)
        return begun


async def two(etcd: MemoryEtcd) -> tuple[Process, Process]:
    """Two coordinators, with a TCID each."""
    one = await Process(etcd, "one", ONE).start()
    other = await Process(etcd, "two", TWO).start()
    assert (one.coordinator.owned_tcids, other.coordinator.owned_tcids) == ((0,), (1,))
    return one, other


async def close(etcd: MemoryEtcd, *processes: Process) -> None:
    """Also: nothing in the store's history breaks a rule of keys."""
    for process in processes:
        await process.close()
    found = judge(change.events for change in etcd.mvcc.changes_since(0, at_most=1_000_000))
    assert not found.findings


def record_of(process: Process) -> TransactionKey:
    return read_key(process.record(RECORD)).record


async def commit(process: Process, txn_id: TxnId) -> RecordedDecision:
    return await process.coordinator.end(txn_id, commit=True)


async def refusal(answer: Awaitable[object]) -> TxnError:
    with pytest.raises(TxnError) as raised:
        await answer
    return raised.value


# ---- connect


@pytest.mark.parametrize("elsewhere", [False, True])
@virtual_time
async def test_k1_a_new_holder_aborts_the_open_transaction_and_fences_the_old_one(elsewhere: bool) -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    old, new = Holder("old"), Holder("new")
    assert await old.connect(one) == 0
    begun = await old.begin(one)
    after = other if elsewhere else one
    assert await new.connect(after) == 1
    header = await one.header(begun.txn_id)
    assert header is not None
    assert (header.state, header.reason, header.txn_key, header.key_epoch) == (ABORTED, "fenced", KEY, 0)
    assert open_headers(etcd) == []
    for process in (one, other):
        assert isinstance(await refusal(commit(process, begun.txn_id)), ExpiredTransaction)
        assert isinstance(await refusal(process.coordinator.end(begun.txn_id, commit=False)), ExpiredTransaction)
        assert isinstance(await refusal(old.begin(process)), ExpiredTransaction)
        assert isinstance(await refusal(old.connect(process, named=-1)), NotAllowed)
    assert isinstance(old.connection.ended_with, ExpiredTransaction) is not elsewhere
    assert new.connection.ended_with is None
    mine = await new.begin(after)
    assert (await commit(one, mine.txn_id)).state == COMMITTED
    await close(etcd, one, other)


@virtual_time
async def test_a_commit_that_was_first_stands_and_the_old_holder_is_fenced_all_the_same() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    old, new = Holder("old"), Holder("new")
    await old.connect(one)
    begun = await old.begin(one)
    decided = await commit(other, begun.txn_id)
    assert await new.connect(one) == 1
    assert await commit(one, begun.txn_id) == decided
    assert isinstance(await refusal(old.begin(one)), ExpiredTransaction)
    await close(etcd, one, other)


@pytest.mark.parametrize("fate", [LOST_BEFORE, LOST_AFTER, LANDS_LATE])
@virtual_time
async def test_k2_a_connect_whose_answer_was_lost_gets_the_same_epoch(fate: Fate) -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    one.fates.script.append(fate)
    first = asyncio.ensure_future(holder.connect(one, named=-1))
    await asyncio.sleep(0.1)  # it is on its way, or has landed
    assert await holder.connect(other, named=-1) == 0
    assert await first == 0
    for process in (one, other, one):
        assert await holder.connect(process, named=-1) == 0
    assert holder.connection.ended_with is None
    assert record_of(one).epoch == 0
    await close(etcd, one, other)


@virtual_time
async def test_connections_that_held_a_key_one_after_the_other_may_go_in_any_order() -> None:
    """▲ The earlier one still had the key when it went behind the later one, and that ended what is done for a client
    that has vanished."""
    etcd = fresh_etcd()
    one = await Process(etcd, "one", ONE).start()
    holder, earlier = Holder("a"), Connection("a")
    later, holder.connection = holder.connection, earlier
    assert await holder.connect(one) == 0
    begun = await holder.begin(one)
    holder.connection = later
    assert await holder.connect(one, named=-1) == 0
    for connection in (later, earlier):
        one.coordinator.disconnected(connection)
    await asyncio.sleep(4.0)
    header = await one.header(begun.txn_id)
    assert header is not None
    assert header.state == ABORTED, "3 s of grace, and its client has not come back"
    await close(etcd, one)


@virtual_time
async def test_k2_a_connect_that_was_given_up_lets_the_next_client_in() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    one.fates.script += [LOST_BEFORE] * 200
    gone, new = Holder("gone"), Holder("new")
    assert isinstance(await refusal(gone.connect(one, named=-1)), Timeout)
    assert await new.connect(other) == 0
    begun = await new.begin(other)
    one.fates.script.clear()
    await asyncio.sleep(5.0)  # what is repeated there finds the key taken
    assert (await commit(other, begun.txn_id)).state == COMMITTED
    assert (record_of(one).epoch, record_of(one).attempt) == (0, b"new".hex())
    await close(etcd, one, other)


@virtual_time
async def test_k3_of_racing_connects_exactly_one_is_usable_and_epochs_are_given_once() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holders = [Holder(f"client-{number}") for number in range(12)]

    async def connect(at: int, holder: Holder) -> None:
        while True:
            try:
                await holder.connect((one, other)[at % 2])
            except NotAllowed:
                continue
            return

    await asyncio.gather(*(connect(at, holder) for at, holder in enumerate(holders)))
    assert sorted(holder.epoch for holder in holders) == list(range(12))
    last = max(holders, key=lambda holder: holder.epoch)
    for holder in holders:
        if holder is last:
            assert (await holder.begin(one)).decision is None
        else:
            assert isinstance(await refusal(holder.begin(one)), ExpiredTransaction)
    await close(etcd, one, other)


@virtual_time
async def test_k3_a_late_connect_fences_nobody() -> None:
    """One coordinator sleeps over a connect; its client goes elsewhere, and is fenced itself meanwhile."""
    etcd = fresh_etcd()
    one, other = await two(etcd)
    first, second = Holder("first"), Holder("second")
    one.pause()
    late = one.loop.create_task(
        one.coordinator.connect_key(0, key=KEY, epoch=-1, attempt=b"first", connection=first.connection),
        context=one.loop.context_of(one.owner),
    )
    assert await first.connect(other, named=-1) == 0
    assert await second.connect(other) == 1
    begun = await second.begin(other)
    one.resume()
    assert isinstance(await refusal(late), NotAllowed)
    assert (await commit(other, begun.txn_id)).state == COMMITTED
    await close(etcd, one, other)


@virtual_time
async def test_a_connection_that_comes_back_keeps_its_epoch_its_transaction_and_closes_nobody() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    begun = await holder.begin(one)
    before, holder.connection = holder.connection, Connection("a")
    assert await holder.connect(one, named=-1) == 0
    one.coordinator.disconnected(before)
    assert one.coordinator.statistics().transaction_keys == 1
    await one.coordinator.announce(holder.connection, [begun.txn_id])
    await asyncio.sleep(20.0)
    assert open_headers(etcd) == [begun.txn_id]
    assert before.ended_with is None
    one.coordinator.disconnected(holder.connection)
    assert one.coordinator.statistics().transaction_keys == 0
    await close(etcd, one, other)


@virtual_time
async def test_k5_a_key_that_was_idle_for_long_keeps_its_epoch() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    await commit(one, (await holder.begin(one)).txn_id)
    await asyncio.sleep(1200.0)
    assert not headers(etcd)
    assert await holder.connect(other, named=-1) == 0
    assert await Holder("b").connect(other) == 1
    assert isinstance(await refusal(holder.begin(one)), ExpiredTransaction)
    await close(etcd, one, other)


@virtual_time
async def test_keys_are_checked_and_only_owners_of_the_coordinator_id_answer() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    at = Connection("a")
    for key in ("", "k" * 513, "a&b", "\ud800"):
        with pytest.raises(InvalidArgument, match="transaction key"):
            await one.coordinator.connect_key(0, key=key, epoch=-1, attempt=b"", connection=at)
        with pytest.raises(InvalidArgument, match="transaction key"):
            await one.coordinator.begin_keyed(0, key=key, epoch=0, number=1, connection=at)
    with pytest.raises(InvalidArgument, match="count from 1"):
        await one.coordinator.begin_keyed(0, key=KEY, epoch=0, number=0, connection=at)
    for owned_elsewhere in (1, 7):
        with pytest.raises(NotOwner):
            await one.coordinator.connect_key(owned_elsewhere, key=KEY, epoch=-1, attempt=b"", connection=at)
    # Of two owners, the same text is two keys.
    assert await Holder("a").connect(one) == 0
    foreign = Holder("b")
    foreign.connection = Connection("b", owner="somebody & co")
    assert await foreign.connect(one) == 0
    assert {held[:2] for held in one.coordinator.statistics().held_keys} == {
        ("anonymous", KEY),
        ("somebody & co", KEY),
    }
    await close(etcd, one, other)


# ---- begin


@virtual_time
async def test_one_transaction_at_a_time_and_the_same_begin_is_answered_alike() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    first = await holder.begin(one)
    for process in (one, other):
        again = await holder.begin(process, number=1)
        assert (again.txn_id, again.deadline_ms, again.joined) == (first.txn_id, first.deadline_ms, True)
        assert "one at a time" in str(await refusal(holder.begin(process, number=2)))
        assert isinstance(await refusal(holder.begin(process, number=2)), InvalidTxnState)
    await commit(one, first.txn_id)
    second = await holder.begin(other)
    assert second.txn_id != first.txn_id
    assert isinstance(await refusal(holder.begin(one, number=1)), NotAllowed), "it comes late"
    assert open_headers(etcd) == [second.txn_id]
    await commit(one, second.txn_id)
    ended = await holder.begin(one, number=2)
    assert (ended.txn_id, ended.decision) == (second.txn_id, RecordedDecision(COMMITTED, 0))
    assert open_headers(etcd) == [], "a late begin opens nothing, whether or not another one was begun since"
    await close(etcd, one, other)


@virtual_time
async def test_the_same_begin_again_behind_the_end_of_its_transaction_is_told_that() -> None:
    """It may have been on its way for long: nobody waits for it who would end what it opens."""
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    begun = await holder.begin(one)
    await commit(one, begun.txn_id)
    for process in (one, other):
        again = await holder.begin(process, number=1)
        assert (again.txn_id, again.decision) == (begun.txn_id, RecordedDecision(COMMITTED, 0))
    assert open_headers(etcd) == []
    await close(etcd, one, other)


@pytest.mark.parametrize("commit_first", [True, False])
@pytest.mark.parametrize("commit_late", [True, False])
@virtual_time
async def test_l2_a_delayed_end_never_ends_the_next_transaction_of_the_key(
    commit_first: bool, commit_late: bool
) -> None:
    """Wherever it comes, also once the header of what it meant is gone."""
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    first = await holder.begin(one)
    ended = await one.coordinator.end(first.txn_id, commit=commit_first)
    second = await holder.begin(one)
    for collected in (False, True):
        if collected:
            await until(lambda: [keys.txn_of(record.key) for record in headers(etcd)] == [second.txn_id])
        for process in (one, other):
            late = process.coordinator.end(first.txn_id, commit=commit_late)
            if commit_late is commit_first:
                assert (await late).state == ended.state
            else:
                assert isinstance(await refusal(late), InvalidTxnState)
        assert open_headers(etcd) == [second.txn_id]
    assert (await commit(one, second.txn_id)).state == COMMITTED
    await close(etcd, one, other)


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("fate", [LOST_BEFORE, LOST_AFTER, LANDS_LATE])
@virtual_time
async def test_d7_a_lost_keyed_begin_leaves_one_transaction_through_whichever_coordinator(
    fate: Fate, elsewhere: bool
) -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    await asyncio.sleep(1.0)  # its block of ids has come
    one.fates.script.append(fate)
    first = asyncio.ensure_future(holder.begin(one, number=1))
    await asyncio.sleep(0.1)
    begun = await holder.begin(other if elsewhere else one, number=1)
    assert (await first).txn_id == begun.txn_id
    assert open_headers(etcd) == [begun.txn_id]
    await asyncio.sleep(10.0)
    assert open_headers(etcd) == [begun.txn_id], "its client is there and knows of it"
    await commit(one, begun.txn_id)
    await close(etcd, one, other)


@pytest.mark.parametrize("fate", [LOST_BEFORE, LOST_AFTER, LANDS_LATE])
@virtual_time
async def test_a_begin_of_the_old_holder_that_is_still_on_its_way_never_lands_behind_the_new_one(fate: Fate) -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    old, new = Holder("old"), Holder("new")
    await old.connect(one)
    await asyncio.sleep(1.0)
    one.fates.script.append(fate)
    begin = asyncio.ensure_future(old.begin(one))
    await asyncio.sleep(0.1)
    assert await new.connect(other) == 1
    try:
        begun = await begin
    except ExpiredTransaction:
        pass
    else:
        assert isinstance(await refusal(commit(one, begun.txn_id)), ExpiredTransaction)
    mine = await new.begin(other)
    assert open_headers(etcd) == [mine.txn_id]
    await asyncio.sleep(30.0)
    assert one.coordinator.statistics().open + other.coordinator.statistics().open == 1
    await close(etcd, one, other)


@virtual_time
async def test_a_coordinator_that_slept_over_a_begin_and_its_key_opens_nothing() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    old, new = Holder("old"), Holder("new")
    await old.connect(one)
    await commit(one, (await old.begin(one)).txn_id)  # the record is remembered there
    one.pause()
    late = one.loop.create_task(old.begin(one), context=one.loop.context_of(one.owner))
    await new.connect(other)
    one.resume()
    assert isinstance(await refusal(late), ExpiredTransaction)
    assert open_headers(etcd) == []
    await close(etcd, one, other)


@virtual_time
async def test_k7_transactions_of_a_holder_that_never_comes_back_end_after_the_grace() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    begun = await holder.begin(one)
    one.coordinator.disconnected(holder.connection)
    assert 2.0 < await until(lambda: not open_headers(etcd)) < 5.0
    header = await one.header(begun.txn_id)
    assert header is not None
    assert header.reason == "session"
    # It is not fenced: nobody took its key.
    holder.connection = Connection("a")
    assert await holder.connect(one, named=-1) == 0
    assert (await holder.begin(one)).decision is None
    await close(etcd, one, other)


@virtual_time
async def test_a_killed_coordinator_s_keyed_transaction_is_its_client_s_at_the_successor() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    begun = await holder.begin(one)
    one.kill()
    await until(lambda: other.coordinator.owned_tcids == (0, 1))
    assert await holder.connect(other, named=-1) == 0
    await other.coordinator.announce(holder.connection, [begun.txn_id])
    await asyncio.sleep(20.0)
    assert open_headers(etcd) == [begun.txn_id]
    again = await holder.begin(other, number=1)
    assert (again.txn_id, again.joined) == (begun.txn_id, True)
    await commit(other, begun.txn_id)
    assert (await holder.begin(other)).decision is None
    await close(etcd, other)


@virtual_time
async def test_k7_a_transaction_whose_holder_went_before_its_begin_had_landed_ends_after_the_grace() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    await asyncio.sleep(1.0)  # its block of ids has come
    one.fates.script.append(LOST_BEFORE)
    beginning = asyncio.ensure_future(holder.begin(one))
    await asyncio.sleep(0.1)
    one.coordinator.disconnected(holder.connection)
    begun = await beginning
    assert open_headers(etcd) == [begun.txn_id]
    assert 2.0 < await until(lambda: not open_headers(etcd)) < 5.0
    await close(etcd, one, other)


@virtual_time
async def test_a_begin_repeated_at_the_successor_makes_its_transaction_the_holder_s_again() -> None:
    """Its answer was lost, so no list of its client names it: nobody else would show that its client is there."""
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    begun = await holder.begin(one)
    one.kill()
    await until(lambda: other.coordinator.owned_tcids == (0, 1))
    assert await holder.connect(other, named=-1) == 0
    await other.coordinator.announce(holder.connection, [])
    assert (await holder.begin(other, number=1)).txn_id == begun.txn_id
    await asyncio.sleep(20.0)
    assert open_headers(etcd) == [begun.txn_id]
    await close(etcd, other)


# ---- delete


@virtual_time
async def test_k4_deleting_a_key_aborts_its_transaction_fences_its_holder_and_never_lowers_an_epoch() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    begun = await holder.begin(one)

    async def delete(epoch: int) -> TransactionKey:
        deleted = await transaction_keys.delete(other.store, other.clock, owner="anonymous", key=KEY, epoch=epoch)
        return deleted.record

    with pytest.raises(NotAllowed):
        await delete(7)
    tombstone = await delete(0)
    assert (tombstone.epoch, tombstone.deleted_ms > 0, tombstone.txn_id) == (1, True, None)
    header = await one.header(begun.txn_id)
    assert header is not None
    assert (header.state, header.reason) == (ABORTED, "fenced")
    assert await delete(0) == await delete(1) == tombstone, "repeating it is harmless"
    assert isinstance(await refusal(holder.begin(one)), ExpiredTransaction)
    assert isinstance(await refusal(holder.connect(one, named=-1)), NotAllowed)
    assert isinstance(await refusal(commit(one, begun.txn_id)), ExpiredTransaction)
    again = Holder("b")
    assert await again.connect(one) == 2
    with pytest.raises(NotAllowed, match="not as it was"):
        await delete(0)  # a late one: what it meant is gone, what is there now is somebody else's
    assert (await again.begin(one)).decision is None
    await close(etcd, one, other)


@virtual_time
async def test_k4_a_key_is_deleted_though_its_holder_begins_another_transaction_just_then() -> None:
    """What the deletion has looked at has changed: it looks again, and aborts that one as well."""
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    commit_really = other.store.commit

    async def overtaken(commit: Commit, *, timeout_s: float = 10.0) -> CommitVerdict:
        other.store.commit = commit_really  # type: ignore[method-assign]
        await holder.begin(one)
        return await commit_really(commit, timeout_s=timeout_s)

    other.store.commit = overtaken  # type: ignore[method-assign]
    deleted = await transaction_keys.delete(other.store, other.clock, owner="anonymous", key=KEY, epoch=0)
    assert record_of(one) == deleted.record
    assert deleted.record.deleted_ms
    assert open_headers(etcd) == []
    assert isinstance(await refusal(holder.begin(one)), ExpiredTransaction)
    await close(etcd, one, other)


@virtual_time
async def test_a_full_store_lets_a_holder_fence_another_one_but_begins_and_makes_nothing_new() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    old = Holder("old")
    await old.connect(one)
    begun = await old.begin(one)
    for process in (one, other):
        process.store._soft_limit.exceeded = lambda: True  # type: ignore[method-assign]
    new = Holder("new")
    assert await new.connect(other) == 1
    assert isinstance(await refusal(commit(one, begun.txn_id)), ExpiredTransaction)
    assert isinstance(await refusal(new.begin(other)), StoreFull)
    await close(etcd, one, other)


@virtual_time
async def test_begins_of_a_key_that_the_store_refuses_take_no_room_from_others() -> None:
    """Else a coordinator whose etcd was full for a while would begin nothing any more."""
    etcd = fresh_etcd()
    one = await Process(etcd, "one", replace(ONE, max_open=3)).start()
    holder = Holder("a")
    await holder.connect(one)
    await asyncio.sleep(1.0)  # its block of ids has come
    one.store._soft_limit.exceeded = lambda: True  # type: ignore[method-assign]
    for _ in range(4):
        assert isinstance(await refusal(holder.begin(one)), StoreFull)
    one.store._soft_limit.exceeded = lambda: False  # type: ignore[method-assign]
    assert (await holder.begin(one)).decision is None
    await close(etcd, one)


@virtual_time
async def test_what_is_written_reads_as_it_stands() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    holder = Holder("a")
    await holder.connect(one)
    begun = await holder.begin(one)
    (found,) = within(etcd, keys.TXN_KEY)
    assert found.key == b"/txn-key/anonymous&nightly%2Fjob%207"
    assert keys.txn_key_parts(found.key) == ("anonymous", KEY)
    record = records.decode(TransactionKey, found.value, key=found.key)
    assert (record.epoch, record.txn_id, record.begins, record.attempt) == (0, str(begun.txn_id), 1, b"a".hex())
    await close(etcd, one, other)


@virtual_time
async def test_of_two_connects_whose_answers_come_in_the_wrong_order_the_newer_holder_stays() -> None:
    etcd = fresh_etcd()
    one, other = await two(etcd)
    old, new = Holder("old"), Holder("new")
    await old.connect(other)
    before = read_key(one.record(RECORD))
    await new.connect(one)
    with pytest.raises(NotAllowed, match="newer holder"):
        one.coordinator._keys._holds(RECORD, before, old.connection, 0)
    assert new.connection.ended_with is None
    assert [held.epoch for held in one.coordinator.statistics().held_keys] == [1]
    await close(etcd, one, other)


@virtual_time
async def test_holders_are_counted_where_their_coordinator_id_is_now() -> None:
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=8, balance_after_s=0.2)
    one = await Process(etcd, "one", settings).start()
    connections = [Connection(f"client-{tcid}") for tcid in range(8)]
    for tcid, connection in enumerate(connections):
        await one.coordinator.connect_key(tcid, key=f"k{tcid}", epoch=-1, attempt=b"a", connection=connection)
    assert one.coordinator.statistics().transaction_keys == 8
    other = await Process(etcd, "two", settings).start()
    await until(lambda: len(other.coordinator.owned_tcids) == 4)
    kept = [f"k{tcid}" for tcid in one.coordinator.owned_tcids]
    assert sorted(held.key for held in one.coordinator.statistics().held_keys) == kept
    for tcid in other.coordinator.owned_tcids:  # as clients do, over another connection
        await other.coordinator.connect_key(
            tcid, key=f"k{tcid}", epoch=-1, attempt=b"a", connection=Connection(f"client-{tcid}")
        )
    counted = [process.coordinator.statistics().transaction_keys for process in (one, other)]
    assert counted == [4, 4]
    for connection in connections:
        one.coordinator.disconnected(connection)
    assert one.coordinator.statistics().transaction_keys == 0
    assert all(connection.ended_with is None for connection in connections)
    await close(etcd, one, other)
