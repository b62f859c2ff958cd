"""Transaction keys at coordinators: who is served, what comes late, what a lost answer leaves behind (DESIGN §9)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from coordinator_v5.naming import transaction_keys
from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.naming.key_holders import KEY, ONE, TWO, Holder, close, commit, refusal, two
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
from txnstore.memory.memory_store import Fate
from txnstore.records import ABORTED, COMMITTED, TransactionKey
from txnstore.store import Commit, CommitVerdict
from txnstore.writes.key_transitions import read_key
from txnwire.errors import (
    ExpiredTransaction,
    InvalidArgument,
    NotAllowed,
    NotOwner,
    StoreFull,
    Timeout,
)

RECORD = keys.txn_key("anonymous", KEY)


def record_of(process: Process) -> TransactionKey:
    return read_key(process.record(RECORD)).record


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
    counted = [process.coordinator.statistics() for process in (one, other)]
    assert (sum(each.aborted for each in counted), after.coordinator.statistics().aborted_by) == (1, {"fenced": 1})
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
    epochs = {f"k{tcid}": one.coordinator.key_epoch_held("anonymous", f"k{tcid}") for tcid in range(8)}
    assert epochs == {f"k{tcid}": 0 if f"k{tcid}" in kept else None for tcid in range(8)}
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


@virtual_time
async def test_all_keys_of_a_connection_and_all_of_a_coordinator_id_are_forgotten_with_it() -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one", TWO).start()
    connections = [Connection("client-0"), Connection("client-1")]
    for tcid, connection in enumerate(connections):
        for number in range(3):
            key = f"k{tcid}-{number}"
            await one.coordinator.connect_key(tcid, key=key, epoch=-1, attempt=b"a", connection=connection)
    assert one.coordinator.statistics().transaction_keys == 6
    one.coordinator.disconnected(connections[0])
    held = one.coordinator.statistics().held_keys
    assert [(each.owner, each.key, each.epoch) for each in held] == [("anonymous", f"k1-{n}", 0) for n in range(3)]
    one.coordinator._lost(1)
    assert one.coordinator.statistics().transaction_keys == 0
    assert not one.coordinator._keys._of_connection
    await close(etcd, one)
