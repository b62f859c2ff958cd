"""TCIDs change hands: what a successor finds, and what its predecessor can still do (nothing)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import ONE_TCID, Connection, Process, fresh_etcd, headers, open_headers
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.records import ABORTED, COMMITTED, OPEN, REASON_SESSION, REASON_TIMEOUT, Header, RegistrationRecord
from txnstore.store import Commit, Delete, KeyValue, Put
from txnwire.errors import NotOwner, TxnError
from txnwire.ids import TxnId
from txnwire.turns import turns_divided_by

FOUR = CoordinatorSettings(tcids=4, mark_every_s=0.5)


async def take_over(etcd: MemoryEtcd, dead: Process, settings: CoordinatorSettings) -> Process:
    dead.kill()
    successor = await Process(etcd, "successor", settings).start()
    await until(lambda: len(successor.coordinator.owned_tcids) == settings.tcids)
    return successor


@pytest.mark.parametrize("at_once", [FOUR.headers_at_once, 2, 1])
@virtual_time
async def test_d4_a_successor_finds_every_open_transaction_and_ends_it(at_once: int) -> None:
    """Old ones by their deadline keys, young ones above the mark; in however many pages and turns."""
    etcd = fresh_etcd()
    one = await Process(etcd, "one", FOUR).start()
    old = [(await one.coordinator.begin(n % 4, timeout_ms=200_000)).txn_id for n in range(12)]
    await asyncio.sleep(4)
    young = [(await one.coordinator.begin(n % 4, timeout_ms=200_000)).txn_id for n in range(12)]
    decided = (await one.coordinator.begin(0)).txn_id
    await one.coordinator.end(decided, commit=True)
    await asyncio.sleep(1.5 * FOUR.mark_every_s)  # it stays below the young, which have no deadline key yet
    paged = replace(FOUR, headers_at_once=at_once, keys_at_once=at_once)
    with turns_divided_by(1000):  # one at once
        two = await take_over(etcd, one, paged)
    assert two.coordinator.statistics().open == 24
    connection = Connection("a")
    await two.coordinator.announce(connection, [*old, *young])
    await asyncio.sleep(20)
    assert sorted(open_headers(etcd)) == sorted([*old, *young])
    for txn_id in old[:4] + young[:4]:
        assert (await two.coordinator.end(txn_id, commit=True)).state == COMMITTED
    assert (await two.coordinator.end(decided, commit=True)).state == COMMITTED
    begun = await two.coordinator.begin(0)
    assert begun.txn_id.counter > max(txn_id.counter for txn_id in young)
    await two.close()


@virtual_time
async def test_what_nobody_announces_after_a_take_over_is_aborted_after_the_grace() -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one").start()
    await one.coordinator.begin(0, timeout_ms=200_000)
    announced = (await one.coordinator.begin(0, timeout_ms=200_000)).txn_id
    two = await take_over(etcd, one, ONE_TCID)
    await asyncio.sleep(9)
    assert len(open_headers(etcd)) == 2
    await two.coordinator.announce(Connection("a"), [announced])
    assert await until(lambda: open_headers(etcd) == [announced]) < 2.5
    assert two.coordinator.statistics().vanished == 1
    await two.close()


@virtual_time
async def test_an_announcement_that_comes_before_the_take_over_is_remembered() -> None:
    etcd = fresh_etcd()
    one, two = await Process(etcd, "one").start(), await Process(etcd, "two").start()
    begun = await one.coordinator.begin(0, timeout_ms=200_000)
    one.kill()
    connection = Connection("a")
    await two.coordinator.announce(connection, [begun.txn_id])
    await until(lambda: two.coordinator.owned_tcids == (0,))
    await asyncio.sleep(15)
    assert open_headers(etcd) == [begun.txn_id]
    two.coordinator.disconnected(connection)
    assert 10.0 <= await until(lambda: not open_headers(etcd)) < 11.5
    await two.close()


@virtual_time
async def test_an_announcement_at_the_moment_in_which_an_id_is_served_claims_what_is_open() -> None:
    """Dies if others have a turn between the two: these would be taken for unclaimed, and aborted after the grace."""
    etcd = fresh_etcd()
    one, two = await Process(etcd, "one").start(), await Process(etcd, "two").start()
    begun = [(await one.coordinator.begin(0, timeout_ms=200_000)).txn_id for _ in range(3)]
    one.kill()
    await until(lambda: two.coordinator.owned_tcids == (0,), "the take-over", within_s=300, longest_poll_s=0.0001)
    await two.coordinator.announce(Connection("a"), begun)
    await asyncio.sleep(15)
    assert open_headers(etcd) == begun
    await two.close()


@virtual_time
async def test_e4_clients_of_a_tcid_whose_lease_ended_early_need_not_announce_anything() -> None:
    """The lease is lost and won again by the same process: its connections have stayed."""
    etcd = fresh_etcd()
    one = await Process(etcd, "one").start()
    connection = Connection("a")
    begun = [(await one.coordinator.begin(0, timeout_ms=200_000, connection=connection)).txn_id for _ in range(3)]
    etcd.expire_lease(etcd.leases()[0])
    assert await until(lambda: one.coordinator.owned_tcids == ()) < 5
    assert await until(lambda: one.coordinator.owned_tcids == (0,)) < 5
    await asyncio.sleep(30)
    assert open_headers(etcd) == begun
    for txn_id in begun:
        assert (await one.coordinator.end(txn_id, commit=True)).state == COMMITTED
    await one.close()


@virtual_time
async def test_e4_a_dead_coordinator_whose_lease_ends_late_keeps_nobody_from_deciding() -> None:
    """Any coordinator ends its transactions; what is past its deadline waits for whoever may sweep, and a grace."""
    etcd = fresh_etcd()
    late = CoordinatorSettings(tcids=1, lease_ttl_s=300.0)
    one, two = await Process(etcd, "one", late).start(), await Process(etcd, "two").start()
    wanted, left = [(await one.coordinator.begin(0, timeout_ms=20_000)).txn_id for _ in range(2)]
    one.kill()
    await asyncio.sleep(10)
    assert two.coordinator.owned_tcids == ()
    assert (await two.coordinator.end(wanted, commit=True)).state == COMMITTED
    await asyncio.sleep(200)
    assert open_headers(etcd) == [left]
    assert 80 < await until(lambda: two.coordinator.owned_tcids == (0,), within_s=300.0) < 100
    assert await until(lambda: not open_headers(etcd), within_s=300.0) < CoordinatorSettings().client_grace_s + 1.5
    assert (await two.coordinator.end(wanted, commit=True)).state == COMMITTED
    begun = await two.coordinator.begin(0)
    assert begun.txn_id.counter > left.counter
    await two.close()


@virtual_time
async def test_deadlines_go_on_after_a_take_over() -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one").start()
    begun = await one.coordinator.begin(0, timeout_ms=30_000)
    await asyncio.sleep(3)
    two = await take_over(etcd, one, ONE_TCID)
    await two.coordinator.announce(Connection("a"), [begun.txn_id])
    started_ms = begun.deadline_ms - 30_000
    await until(lambda: not open_headers(etcd))
    assert 30_000 <= two.clock.wall_ms() - started_ms <= 31_500
    header = await two.header(begun.txn_id)
    assert header is not None
    assert header.reason == REASON_TIMEOUT
    await two.close()


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
@virtual_time
async def test_d6_a_successor_with_another_wall_clock_never_stretches_a_deadline(step_ms: int) -> None:
    """C11."""
    etcd = fresh_etcd()
    one = await Process(etcd, "one").start()
    begun = await one.coordinator.begin(0, timeout_ms=20_000)
    one.kill()
    two = Process(etcd, "two", ONE_TCID)
    two.clock.step_ms = step_ms
    await two.start()
    await two.coordinator.announce(Connection("a"), [begun.txn_id])
    assert await until(lambda: not open_headers(etcd)) <= 20 + 5 + 1.5 + 1
    await two.close()


@virtual_time
async def test_a_restarted_coordinator_does_not_wait_for_its_old_lease() -> None:
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=4, lease_ttl_s=60.0)
    one = await Process(etcd, "same", settings).start()
    begun = await one.coordinator.begin(2, timeout_ms=100_000)
    one.kill()
    again = Process(etcd, "same", settings)
    loop = asyncio.get_running_loop()
    started = loop.time()
    await again.start()
    assert again.coordinator.owned_tcids == (0, 1, 2, 3)
    assert loop.time() - started < 2.0
    assert open_headers(etcd) == [begun.txn_id]
    await again.close()


@virtual_time
async def test_a_coordinator_that_lost_its_tcids_can_begin_nothing() -> None:
    """▲ The begin compares the TCID epoch; dies without: the header would stand where no successor looks."""
    etcd = fresh_etcd()
    one = await Process(etcd, "one").start()
    await one.coordinator.begin(0)
    two = Process(etcd, "two", ONE_TCID)
    await two.start()
    one.pause()
    await until(lambda: two.coordinator.owned_tcids == (0,))
    late = asyncio.ensure_future(one.coordinator.begin(0))
    await asyncio.sleep(0)
    one.resume()
    with pytest.raises(NotOwner):
        await late
    await asyncio.sleep(2)
    assert one.coordinator.owned_tcids == ()
    with pytest.raises(NotOwner):
        await one.coordinator.begin(0)
    assert len(headers(etcd)) == 1
    await one.close()
    await two.close()


@virtual_time
async def test_a_coordinator_knows_that_etcd_has_not_answered_for_its_lease() -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one").start()
    assert one.coordinator.registered
    etcd.crash()
    await until(lambda: not one.coordinator.registered, within_s=30)
    etcd.restart()
    await until(lambda: one.coordinator.registered, within_s=30)
    await one.close()


@virtual_time
async def test_lost_ids_of_lost_coordinators_are_not_reused() -> None:
    etcd = fresh_etcd()
    seen: dict[TxnId, None] = {}
    for life in range(6):
        process = await Process(etcd, f"life-{life}", ONE_TCID).start()
        await until(lambda p=process: p.coordinator.owned_tcids == (0,))  # type: ignore[misc]
        for _ in range(5):
            txn_id = (await process.coordinator.begin(0)).txn_id
            assert txn_id not in seen
            seen[txn_id] = None
        process.kill()
    assert len(seen) == 30


@virtual_time
async def test_a_successor_collects_what_its_predecessors_left_decided() -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one", FOUR).start()
    ids = [(await one.coordinator.begin(n % 4)).txn_id for n in range(40)]
    for at, txn_id in enumerate(ids):
        await one.coordinator.end(txn_id, commit=at % 3 != 0)
    await asyncio.sleep(2)
    two = await take_over(etcd, one, replace(FOUR, headers_at_once=3))  # pages
    assert len(headers(etcd)) == 40
    assert 59 < await until(lambda: not headers(etcd), within_s=300.0) < 70
    for at, txn_id in enumerate(ids):
        decision = await two.coordinator.end(txn_id, commit=at % 3 != 0)
        assert decision.state == (COMMITTED if at % 3 else ABORTED)
    await two.close()


@virtual_time
async def test_what_predecessors_left_decided_is_collected_also_where_the_store_failed_as_it_was_looked_for() -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one").start()
    for _ in range(3):
        await one.coordinator.end((await one.coordinator.begin(0)).txn_id, commit=True)
    await asyncio.sleep(7)  # they are below the mark by now
    one.kill()
    two = await Process(etcd, "two").start()
    await until(lambda: bool(two.coordinator._take_over.to_walk))  # loaded, but for them
    two.fates.no_reads = True
    await asyncio.sleep(30)
    two.fates.no_reads = False
    assert len(headers(etcd)) == 3
    await until(lambda: not headers(etcd), within_s=90)
    await two.close()


@virtual_time
async def test_ids_that_are_taken_while_nothing_can_be_read_are_served_once_it_can() -> None:
    etcd = fresh_etcd()
    one, two = await Process(etcd, "one").start(), await Process(etcd, "two").start()
    one.kill()
    two.fates.no_reads = True
    await until(lambda: bool(two.coordinator._ownership._mine))
    await asyncio.sleep(15)
    two.fates.no_reads = False
    await until(lambda: two.coordinator.owned_tcids == (0,), within_s=15)
    await two.close()


@virtual_time
async def test_an_open_header_below_the_mark_without_a_key_is_found_all_the_same() -> None:
    """No rule of ours leaves one; a restored backup may."""
    etcd = fresh_etcd()
    odd = keys.txn(TxnId(0, 7))
    header = Header(state=OPEN, timeout_ms=1_700_000_030_000, created_ms=1_700_000_000_000)
    seq = b'{"v":1,"next":500,"indexed_below":400}'
    etcd.mvcc.commit([Commit(puts=(Put(odd, records.encode(header)), Put(keys.txn_seq(0), seq)))])
    process = await Process(etcd, "one").start()
    assert 10 <= await until(lambda: not open_headers(etcd)) < 12
    found = await process.header(TxnId(0, 7))
    assert found is not None
    assert found.reason == REASON_SESSION
    await process.close()


@pytest.mark.parametrize(
    "key",
    [
        keys.txn(TxnId(0, 7)),
        keys.txn(TxnId(0, 7)) + b"?",
        keys.TXN + b"0000/not-a-number",
        keys.TXN_BY_DEADLINE + b"soon/nobody",
        keys.TXN_BY_DEADLINE + b"0000000000001",
        keys.TXN_BY_DEADLINE + b"\xff/\xff",
        keys.TXN + b"\xff",
    ],
)
@virtual_time
async def test_an_unreadable_header_or_key_stops_nothing_else(key: bytes) -> None:
    etcd = fresh_etcd()
    etcd.mvcc.commit([Commit(puts=(Put(key, b"not json"),))])
    process = await Process(etcd, "one").start()
    begun = await process.coordinator.begin(0)
    assert (await process.coordinator.end(begun.txn_id, commit=True)).state == COMMITTED
    await process.close()


@pytest.mark.parametrize("state", [COMMITTED, "PREPARED"])
@virtual_time
async def test_a_header_put_once_in_another_state_than_open_ends_no_coordinator(state: str) -> None:
    """Nobody here writes one; whoever takes its id over, meets it."""
    etcd = fresh_etcd()
    header = Header(state=state, timeout_ms=1, created_ms=1)
    etcd.mvcc.commit([Commit(puts=(Put(keys.txn(TxnId(0, 7)), records.encode(header)),))])
    process = await Process(etcd, "one").start()
    await asyncio.sleep(90)  # past its deadline, and past the grace of its client
    begun = await process.coordinator.begin(0)
    assert (await process.coordinator.end(begun.txn_id, commit=True)).state == COMMITTED
    assert await process.header(TxnId(0, 7)) == header
    await process.close()


@virtual_time
async def test_what_stands_behind_a_strange_key_is_collected_all_the_same() -> None:
    etcd = fresh_etcd()
    etcd.mvcc.commit([Commit(puts=(Put(keys.txn(TxnId(0, 0)) + b"x", b""),))])
    one = await Process(etcd, "one").start()
    for _ in range(3):
        await one.coordinator.end((await one.coordinator.begin(0)).txn_id, commit=True)
    await asyncio.sleep(7)  # they are below the mark by now
    two = await take_over(etcd, one, ONE_TCID)
    await until(lambda: len(headers(etcd)) == 1, within_s=90)
    await two.close()


@virtual_time
async def test_an_id_that_cannot_be_loaded_costs_none_of_the_others() -> None:
    """It is tried again: what is in its way is mended by somebody."""
    etcd = fresh_etcd()
    etcd.mvcc.commit([Commit(puts=(Put(keys.txn_seq(2), b"not json"),))])
    process = Process(etcd, "one", FOUR)
    starting = asyncio.ensure_future(process.start())
    await until(lambda: process.coordinator.owned_tcids == (0, 1, 3))
    assert (await process.coordinator.begin(0)).txn_id.tcid == 0
    with pytest.raises(NotOwner):
        await process.coordinator.begin(2)
    etcd.mvcc.commit([Commit(deletes=(Delete(keys.txn_seq(2)),))])
    await starting
    assert process.coordinator.owned_tcids == (0, 1, 2, 3)
    assert (await process.coordinator.begin(2)).txn_id.tcid == 2
    await process.close()


@virtual_time
async def test_an_id_that_is_lost_while_it_is_loaded_is_not_served() -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one", FOUR).start()
    for number in range(200):
        await one.coordinator.begin(number % 4, timeout_ms=200_000)
    one.kill()
    slow = replace(FOUR, headers_at_once=1)
    two = Process(etcd, "two", slow)
    await two.start()
    # looked at before the next one is loaded
    await until(lambda: two.coordinator.owned_tcids == (0,), "the first one", within_s=300, longest_poll_s=0.0001)
    other = records.encode(RegistrationRecord(id="other", address="other:1"))
    for tcid in (1, 2):
        etcd.mvcc.commit([Commit(deletes=(Delete(keys.tc(tcid)),))])
        etcd.mvcc.commit([Commit(puts=(Put(keys.tc(tcid), other),))])
    await until(lambda: 3 in two.coordinator.owned_tcids, within_s=300.0)
    await asyncio.sleep(5)
    assert two.coordinator.owned_tcids == (0, 3)
    await two.close()


@pytest.mark.parametrize("lost", [1, 3])
@virtual_time
async def test_an_id_that_is_lost_before_the_first_of_it_is_read_is_not_served(lost: int) -> None:
    etcd = fresh_etcd()
    process = Process(etcd, "one", FOUR)
    get_really = process.store.get
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def held(key: bytes, **options: float) -> KeyValue | None:
        found = await get_really(key, **options)
        if key == keys.txn_seq(lost):
            reading.set()
            await go_on.wait()
        return found

    process.store.get = held  # type: ignore[method-assign]
    starting = asyncio.ensure_future(process.start())
    await reading.wait()
    other = records.encode(RegistrationRecord(id="other", address="other:1"))
    etcd.mvcc.commit([Commit(deletes=(Delete(keys.tc(lost)),))])
    etcd.mvcc.commit([Commit(puts=(Put(keys.tc(lost), other),))])
    await asyncio.sleep(1)
    go_on.set()
    await starting
    assert process.coordinator.owned_tcids == tuple(sorted({0, 1, 2, 3} - {lost}))
    assert lost not in [tc.tcid for tc in process.coordinator._take_over.to_walk], "it is loaded for nothing"
    await process.close()


@virtual_time
async def test_a_coordinator_without_a_store_gives_up_starting() -> None:
    etcd = fresh_etcd()
    process = Process(etcd, "one")
    process.store.memory_backend.disconnect()
    with pytest.raises(TxnError):
        await process.start()
    process.store.memory_backend.reconnect()
    await process.store.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("successor", ["another", "itself"])
@virtual_time
async def test_d7_a_begin_whose_answer_died_with_its_coordinator_is_found_by_its_attempt(successor: str) -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one").start()
    connection = Connection("a")
    begun = await one.coordinator.begin(0, attempt=b"x" * 8, connection=connection)
    if successor == "itself":
        etcd.expire_lease(etcd.leases()[0])
        await until(lambda: one.coordinator.owned_tcids == ())
        await until(lambda: one.coordinator.owned_tcids == (0,))
        two = one
    else:
        two = await take_over(etcd, one, ONE_TCID)
        connection = Connection("a")
    assert await two.coordinator.begin(0, attempt=b"x" * 8, connection=connection) == begun
    assert open_headers(etcd) == [begun.txn_id]
    await asyncio.sleep(20)
    assert open_headers(etcd) == [begun.txn_id]
    await two.coordinator.end(begun.txn_id, commit=True)
    again = await two.coordinator.begin(0, attempt=b"x" * 8, connection=connection)
    assert again.txn_id != begun.txn_id
    await two.close()


@virtual_time
async def test_after_a_take_over_only_its_owner_can_claim_a_transaction() -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one").start()
    begun = await one.coordinator.begin(0, attempt=b"x" * 8, owner="ann", connection=Connection("a", "ann"))
    two = await take_over(etcd, one, ONE_TCID)
    thief = Connection("b", "bob")
    await two.coordinator.announce(thief, [begun.txn_id])
    assert (await two.coordinator.begin(0, attempt=b"x" * 8, owner="bob", connection=thief)) != begun
    await until(lambda: begun.txn_id not in open_headers(etcd), within_s=12)
    await two.close()


@virtual_time
async def test_of_two_coordinators_of_one_name_the_later_one_keeps_it_and_the_earlier_waits() -> None:
    """The earlier one was paused until another had been started in its place, and wakes up."""
    etcd = fresh_etcd()
    woken = await Process(etcd, "one").start()
    woken.pause()
    later = await Process(etcd, "one").start()
    woken.resume()
    await until(lambda: woken.coordinator.namesake is not None)
    owner = later.record(keys.tc(0))
    assert owner is not None
    await asyncio.sleep(120)
    assert later.record(keys.tc(0)) == owner, "nobody has taken it from the later one, for a moment or longer"
    assert (woken.coordinator.registered, woken.coordinator.namesake) == (False, "one:1")
    assert (later.coordinator.registered, later.coordinator.namesake) == (True, None)
    later.kill()
    await until(lambda: woken.coordinator.registered)
    assert woken.coordinator.namesake is None
    await woken.close()
