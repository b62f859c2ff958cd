"""Work of a coordinator that was put off, or whose first try failed, is taken up again."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from coordinator_v5.begins import MAX_EXTRA
from coordinator_v5.naming.name_expiry import NameExpiry
from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import Connection, Process, StepClock, fresh_etcd, headers, open_headers, within
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate, MemoryStore
from txnstore.records import ABORTED, COMMITTED, TxnName
from txnstore.store import Commit, Put, created_at
from txnstore.writes.name_transitions import KEEP_MS
from txnwire.errors import NotOwner, StoreFull, Timeout
from txnwire.ids import TxnId

QUOTA_BYTES = 1 << 30
FULL = 1
"""A quota that nothing fits in."""


@virtual_time
async def test_d2_a_deadline_that_passes_amid_an_unanswered_begin_is_met_once_that_has_landed() -> None:
    """▲ Its begin is on its way for as long again: it is looked at once more, not passed over for good."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    await process.coordinator.begin(0)  # ids are in hand
    answer_s = CoordinatorSettings().begin_patience_s * 0.75  # before another id is tried
    process.fates.script = [Fate(arrive_s=0.001, answer_s=answer_s)]
    begun = await process.coordinator.begin(0, timeout_ms=int(answer_s * 500))
    assert begun.txn_id in open_headers(etcd)
    await until(lambda: begun.txn_id not in open_headers(etcd), within_s=5.0)
    await process.close()


def fill(etcd: MemoryEtcd) -> None:
    etcd.quota_bytes = FULL


def make_room(etcd: MemoryEtcd) -> None:
    etcd.quota_bytes = QUOTA_BYTES
    etcd.disarm()


@virtual_time
async def test_d2_an_abort_that_a_full_etcd_refuses_is_made_once_there_is_room() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    begun = await process.coordinator.begin(0, timeout_ms=2_000)
    fill(etcd)
    await asyncio.sleep(10.0)
    assert open_headers(etcd) == [begun.txn_id]
    make_room(etcd)
    await until(lambda: not open_headers(etcd), within_s=10.0)
    header = await process.header(begun.txn_id)
    assert header is not None
    assert header.state == ABORTED
    await process.close()


@virtual_time
async def test_d7_the_abort_of_a_begin_that_another_id_has_served_is_tried_again() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    await process.coordinator.begin(0)  # ids are in hand
    process.fates.script = [Fate(arrive_s=0.001, answer_s=4.0)]
    begun = await process.coordinator.begin(0, timeout_ms=60_000)
    fill(etcd)
    await asyncio.sleep(8.0)
    (late,) = [one for one in open_headers(etcd) if one.counter == begun.txn_id.counter - 1]
    make_room(etcd)
    await until(lambda: late not in open_headers(etcd), within_s=10.0)
    assert begun.txn_id in open_headers(etcd)
    await process.close()


@virtual_time
async def test_d7_a_begin_that_goes_unanswered_again_keeps_none_behind_it_from_its_second_try() -> None:
    """They are looked at in the order of their last tries, up to the first that was tried a moment ago."""
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=1, mark_every_s=3600.0)
    process = await Process(etcd, "one", settings).start()
    before = await process.coordinator.begin(0)  # ids are in hand
    await process.coordinator.end(before.txn_id, commit=True)
    await asyncio.sleep(1.0)  # and the mark is written
    unanswered = Fate(arrive_s=0.001, answer_s=60.0)
    process.fates.script = [unanswered, unanswered, unanswered]  # both, and the first one once more
    first = asyncio.ensure_future(process.coordinator.begin(0, timeout_ms=120_000))
    await asyncio.sleep(settings.begin_patience_s / 2)
    second = asyncio.ensure_future(process.coordinator.begin(0, timeout_ms=120_000))
    await until(second.done, within_s=settings.begin_patience_s * 1.3)
    assert not first.done()
    await second
    first.cancel()
    await process.close()


@virtual_time
async def test_d3_a_deadline_key_that_a_full_etcd_refuses_is_written_once_there_is_room() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    await process.coordinator.begin(0, timeout_ms=120_000)
    fill(etcd)
    await asyncio.sleep(CoordinatorSettings().index_after_s + 5.0)
    assert within(etcd, keys.TXN_BY_DEADLINE) == []
    make_room(etcd)
    await until(lambda: len(within(etcd, keys.TXN_BY_DEADLINE)) == 1, within_s=10.0)
    await process.close()


@virtual_time
async def test_d6_a_session_that_returns_keeps_none_behind_it_from_being_called_vanished() -> None:
    """Lost sessions are looked at in order, up to the first whose grace has not passed."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    coordinator, first, second = process.coordinator, Connection("first"), Connection("second")
    kept = await coordinator.begin(0, connection=first)
    left = await coordinator.begin(0, connection=second)
    coordinator.disconnected(first)
    coordinator.disconnected(second)
    await coordinator.announce(Connection("first"), [kept.txn_id])
    await until(lambda: open_headers(etcd) == [kept.txn_id], within_s=CoordinatorSettings().client_grace_s + 5.0)
    assert left.txn_id not in open_headers(etcd)
    await process.close()


@virtual_time
async def test_e5_what_a_round_of_collection_could_not_take_along_is_taken_by_a_later_one() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, header_retention_s=5.0)).start()
    for _ in range(3):
        await process.coordinator.end((await process.coordinator.begin(0)).txn_id, commit=True)
    fill(etcd)
    await asyncio.sleep(30.0)
    assert len(headers(etcd)) == 3
    make_room(etcd)
    await until(lambda: not headers(etcd), within_s=60.0)
    await process.close()


@pytest.mark.parametrize("rounds", [0, 1], ids=["at-first", "later"])
@virtual_time
async def test_names_that_a_failed_round_has_left_are_looked_at_soon_and_not_a_whole_round_later(rounds: int) -> None:
    etcd = fresh_etcd()
    clock = StepClock()
    store = MemoryStore(etcd, clock, random.Random(1))
    for number in (1, 2):  # of the newest per kind one is kept
        named = TxnName(v=1, txn_id=str(TxnId(0, number)), outcome=COMMITTED, collected_ms=clock.wall_ms())
        await store.commit(Commit(puts=(Put(keys.txn_name(f"sink/q/{number}"), records.encode(named)),)))
    leader = (await store.commit(Commit(puts=(Put(keys.leader("sweeper"), b""),)))).revision
    guard = created_at(keys.leader("sweeper"), leader)
    expiry = asyncio.ensure_future(NameExpiry(store, clock, guard=guard, first_s=60.0, every_s=3600.0).run())
    if rounds:
        await asyncio.sleep(70.0)
    clock.step_ms = KEEP_MS + 60_000
    store.memory_backend.disconnect()
    await asyncio.sleep((3600.0 if rounds else 60.0) + 45.0)  # the round has begun, and has failed
    store.memory_backend.reconnect()
    await until(lambda: len(within(etcd, keys.TXN_NAME)) == 1, within_s=300.0)
    expiry.cancel()
    await store.close()


@virtual_time
async def test_d7_however_many_begins_went_unanswered_before_the_next_one_is_served_with_a_fresh_id_too() -> None:
    """▲ Few may be on their way under a second id: what has come back from there makes room for others."""
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=1, mark_every_s=3600.0)
    process = await Process(etcd, "one", settings).start()
    before = await process.coordinator.begin(0)  # ids are in hand
    await process.coordinator.end(before.txn_id, commit=True)
    await asyncio.sleep(1.0)
    for _ in range(MAX_EXTRA + 1):
        process.fates.script = [Fate(arrive_s=0.001, answer_s=2 * settings.begin_patience_s)]
        begin = asyncio.ensure_future(process.coordinator.begin(0, timeout_ms=120_000))
        await until(begin.done, within_s=1.5 * settings.begin_patience_s)
        await process.coordinator.end((await begin).txn_id, commit=True)
        await until(lambda: not open_headers(etcd), within_s=2 * settings.begin_patience_s)
    await process.close()


@virtual_time
async def test_ids_that_a_full_etcd_refuses_are_asked_for_again() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, id_block=2)).start()
    await asyncio.sleep(1.0)
    fill(etcd)
    for at_once in (1, 1, 1, 1, 1, 5):
        begins = (process.coordinator.begin(0) for _ in range(at_once))
        answers = await asyncio.gather(*begins, return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreFull] * at_once
    with pytest.raises(StoreFull):
        await process.coordinator.begin_named(0, name="job")
    make_room(etcd)
    await until(lambda: not process.store.refuses_new, within_s=60.0)
    for _ in range(5):
        await process.coordinator.begin(0)
    await process.coordinator.begin_named(0, name="job")
    await process.close()


@pytest.mark.parametrize("named", [True, False], ids=["name", "key"])
@virtual_time
async def test_d7_a_begin_that_a_full_etcd_refuses_leaves_nothing_and_is_made_once_there_is_room(named: bool) -> None:
    """Or the name, or the key, would be refused for ever, and what was refused count as open."""
    etcd = fresh_etcd()
    process, connection = await Process(etcd, "one").start(), Connection("a")
    coordinator = process.coordinator
    epoch = await coordinator.connect_key(0, key="k", epoch=-1, attempt=b"a", connection=connection)

    async def begin() -> TxnId:
        if named:
            return (await coordinator.begin_named(0, name="job")).txn_id
        return (await coordinator.begin_keyed(0, key="k", epoch=epoch, number=1, connection=connection)).txn_id

    fill(etcd)
    for _ in range(3):
        with pytest.raises(StoreFull):
            await begin()
    assert coordinator.statistics().open == 0
    make_room(etcd)
    begun = await begin()
    assert open_headers(etcd) == [begun]
    await process.close()


@virtual_time
async def test_d6_deadlines_are_met_however_many_aborts_a_full_etcd_has_refused() -> None:
    """▲ So many aborts may be on their way at once: those that were refused are not."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, swept_at_once=2)).start()
    for _ in range(4):
        await process.coordinator.begin(0, timeout_ms=2_000)
    fill(etcd)
    await asyncio.sleep(10.0)
    assert len(open_headers(etcd)) == 4
    make_room(etcd)
    await until(lambda: not open_headers(etcd), within_s=10.0)
    await process.close()


@virtual_time
async def test_d3_what_another_coordinator_has_decided_early_is_followed_at_once_and_not_at_its_deadline() -> None:
    """Its late index finds it decided; its header would stay, and be asked for again and again."""
    etcd = fresh_etcd()
    one, two = await Process(etcd, "one").start(), await Process(etcd, "two").start()
    begun = await one.coordinator.begin(0, timeout_ms=3_000_000)
    assert (await two.coordinator.end(begun.txn_id, commit=True)).state == COMMITTED
    await until(lambda: one.coordinator.statistics().open == 0, within_s=CoordinatorSettings().index_after_s + 1.0)
    await until(lambda: not headers(etcd), within_s=90.0)
    await one.close()
    await two.close()


@virtual_time
async def test_d6_a_commit_that_comes_while_a_zombie_sweeps_is_made_although_the_sweep_is_refused() -> None:
    """▲ Its abort compares an epoch that is another's by now; what a client has asked for meanwhile needs none."""
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=1, client_grace_s=0.3, mark_every_s=3600.0)
    one, two = await Process(etcd, "one", settings).start(), await Process(etcd, "two").start()
    connection = Connection("a")
    begun = await one.coordinator.begin(0, timeout_ms=300_000, connection=connection)
    await until(lambda: len(within(etcd, keys.TXN_BY_DEADLINE)) == 1)
    await asyncio.sleep(1.0)
    one.pause()
    await until(lambda: two.coordinator.owned_tcids == (0,))
    await two.coordinator.announce(Connection("a"), [begun.txn_id])
    one.coordinator.disconnected(connection)
    txn = one.coordinator._state.find(begun.txn_id)
    assert txn is not None
    one.coordinator._ownership._on_lost = lambda _: None
    one.fates.script = [Fate(arrive_s=0.05, answer_s=0.05)] * 100
    one.resume()
    await until(lambda: txn.ending is not None, within_s=5.0)
    end = partial(one.coordinator.end, begun.txn_id, commit=True, writers=["00000000000000a1"], note="done")
    ends = [asyncio.ensure_future(end()) for _ in range(2)]
    for decision in await asyncio.wait_for(asyncio.gather(*ends), 5.0):
        assert (decision.state, decision.writers, decision.note) == (COMMITTED, ("00000000000000a1",), "done")
    assert txn.tc.lost
    await one.close()
    await two.close()


@virtual_time
async def test_d7_a_lost_begin_that_was_ended_meanwhile_is_begun_anew_under_a_fresh_id() -> None:
    """Whoever has taken it for one that nobody was told of has ended it: its client is given none that is over."""
    etcd = fresh_etcd()
    one, two = await Process(etcd, "one").start(), await Process(etcd, "two").start()
    await one.coordinator.end((await one.coordinator.begin(0)).txn_id, commit=True)  # ids are in hand
    one.fates.script = [Fate(arrive_s=0.001, fail_s=1.0)]
    beginning = asyncio.ensure_future(one.coordinator.begin(0))
    await until(lambda: len(open_headers(etcd)) == 1)
    (lost,) = open_headers(etcd)
    await two.coordinator.end(lost, commit=False)
    begun = await beginning
    assert open_headers(etcd) == [begun.txn_id]
    assert (await one.coordinator.end(begun.txn_id, commit=True)).state == COMMITTED
    await one.close()
    await two.close()


@virtual_time
async def test_d7_a_keyed_begin_that_is_answered_long_after_its_client_has_gone_is_aborted() -> None:
    """▲ By then its session is forgotten: nobody would look at what is opened in it."""
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=1)
    process, connection = await Process(etcd, "one", settings).start(), Connection("a")
    coordinator = process.coordinator
    epoch = await coordinator.connect_key(0, key="k", epoch=-1, attempt=b"a", connection=connection)
    await asyncio.sleep(1.1)  # its block of ids has come
    process.fates.script = [Fate(arrive_s=0.001, fail_s=0.5)] * 1000
    begin = coordinator.begin_keyed(0, key="k", epoch=epoch, number=1, timeout_ms=3_000_000, connection=connection)
    beginning = asyncio.ensure_future(begin)
    await asyncio.sleep(0.1)
    coordinator.disconnected(connection)
    with pytest.raises(Timeout):
        await beginning
    await until(lambda: coordinator.statistics().sessions == 0)
    assert len(open_headers(etcd)) == 1
    process.fates.script.clear()
    await until(lambda: not open_headers(etcd), within_s=2 * settings.client_grace_s)
    await process.close()


@virtual_time
async def test_d7_a_begin_of_a_name_that_waits_for_an_id_is_told_once_its_coordinator_id_is_lost() -> None:
    """It looks for the next owner then, and not once its time is up."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, id_block=1)).start()
    await asyncio.sleep(1.1)
    process.fates.script = [Fate(arrive_s=None, fail_s=0.5)] * 1000
    begin = process.coordinator.begin_named
    begins = [asyncio.ensure_future(begin(0, name=f"job-{number}")) for number in range(5)]  # ids for a few
    await asyncio.sleep(0.1)
    etcd.expire_lease(etcd.leases()[0])
    await until(lambda: process.coordinator.owned_tcids == ())
    with pytest.raises(NotOwner):
        await asyncio.wait_for(begins[-1], 1.0)
    process.fates.script.clear()
    await asyncio.gather(*begins, return_exceptions=True)
    await process.close()


@virtual_time
async def test_d7_begins_that_wait_for_ids_are_told_at_once_that_their_coordinator_id_is_lost() -> None:
    """All of them look for the next owner then, and not once their patience is over."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, id_block=1)).start()
    await asyncio.sleep(1.1)
    process.fates.script = [Fate(arrive_s=None, fail_s=0.5)] * 1000
    begins = [asyncio.ensure_future(process.coordinator.begin(0)) for _ in range(8)]  # ids for a few
    await asyncio.sleep(0.1)
    etcd.expire_lease(etcd.leases()[0])
    await until(lambda: process.coordinator.owned_tcids == ())
    await asyncio.sleep(0)
    told = [begin for begin in begins if begin.done()]
    assert len(told) > 4, "those that have an id wait for their answers"
    assert all(isinstance(begin.exception(), NotOwner) for begin in told)
    process.fates.script.clear()
    await asyncio.gather(*begins, return_exceptions=True)
    await process.close()


@virtual_time
async def test_d7_an_attempt_that_a_full_etcd_has_refused_is_begun_anew_as_soon_as_it_is_repeated() -> None:
    """Dies if it waits for the answer of the first one, which has come already."""
    etcd = fresh_etcd()
    process, connection = await Process(etcd, "one").start(), Connection("a")
    patience_s = CoordinatorSettings().begin_patience_s
    fill(etcd)
    for _ in range(3):
        with pytest.raises(StoreFull):
            await asyncio.wait_for(process.coordinator.begin(0, attempt=b"a", connection=connection), patience_s / 2)
    make_room(etcd)
    await until(lambda: not process.store.refuses_new)
    begun = await asyncio.wait_for(process.coordinator.begin(0, attempt=b"a", connection=connection), patience_s / 2)
    assert open_headers(etcd) == [begun.txn_id]
    await process.close()


@virtual_time
async def test_d1_all_who_ask_for_one_end_are_told_at_once_that_a_full_etcd_refuses_it() -> None:
    """They share one write; whoever was not told would wait for its time-out."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    begun = await process.coordinator.begin(0)
    fill(etcd)
    asked = [asyncio.ensure_future(process.coordinator.end(begun.txn_id, commit=True)) for _ in range(3)]
    found = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 1.0)
    assert [type(one) for one in found] == [StoreFull] * 3
    make_room(etcd)
    assert (await process.coordinator.end(begun.txn_id, commit=True)).state == COMMITTED
    await process.close()
