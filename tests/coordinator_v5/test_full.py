"""What a coordinator does unasked while etcd is full or silent: each refused write costs etcd an entry of its log."""

from __future__ import annotations

import asyncio

from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import LOST_BEFORE, Connection, Process, fresh_etcd, open_headers, within
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.records import COMMITTED

CROWD = 300


def fill(etcd: MemoryEtcd) -> int:
    """Returns the former quota."""
    plenty, etcd.quota_bytes, etcd.no_space = etcd.quota_bytes, 1, True
    return plenty


def make_room(etcd: MemoryEtcd, quota_bytes: int) -> None:
    """As after a compaction and a defragmentation."""
    etcd.quota_bytes, etcd.no_space = quota_bytes, False


@virtual_time
async def test_deadline_keys_that_a_full_etcd_refuses_are_put_again_seldom_and_once_there_is_room() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    client = Connection("one")
    for _ in range(CROWD):
        await process.coordinator.begin(0, timeout_ms=600_000, connection=client)
    plenty = fill(etcd)
    await asyncio.sleep(1)
    before = process.store.statistics().members
    await asyncio.sleep(20)
    assert process.store.statistics().members - before <= 6 * CROWD
    make_room(etcd, plenty)
    await until(lambda: len(within(etcd, keys.TXN_BY_DEADLINE)) == CROWD, within_s=8)
    await process.close()


@virtual_time
async def test_aborts_that_a_full_etcd_refuses_are_sent_again_seldom_and_once_there_is_room() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    client = Connection("one")
    for _ in range(CROWD):
        await process.coordinator.begin(0, timeout_ms=600_000, connection=client)
    await asyncio.sleep(2)  # they have their deadline keys
    process.coordinator.disconnected(client)
    plenty = fill(etcd)
    await asyncio.sleep(11)  # the grace is over
    before = process.store.statistics().members
    await asyncio.sleep(10)
    assert process.store.statistics().members - before <= 21 * CROWD
    make_room(etcd, plenty)
    await until(lambda: not open_headers(etcd), within_s=3)
    await process.close()


@virtual_time
async def test_an_id_that_a_full_etcd_does_not_let_be_taken_costs_none_of_those_that_are_held() -> None:
    """Repeated ends are answered by reads; and none of its clients has to look for another coordinator."""
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=4)
    one, two = [await Process(etcd, name, settings).start() for name in ("one", "two")]
    await until(lambda: len(two.coordinator.owned_tcids) == 2)
    held = one.coordinator.owned_tcids
    begun = await one.coordinator.begin(held[0], connection=Connection("client"), timeout_ms=600_000)
    await one.coordinator.end(begun.txn_id, commit=True)
    plenty = fill(etcd)
    two.kill()
    await asyncio.sleep(20)  # its lease has ended
    assert one.coordinator.owned_tcids == held
    assert (await one.coordinator.end(begun.txn_id, commit=True)).state == COMMITTED
    make_room(etcd, plenty)
    await until(lambda: len(one.coordinator.owned_tcids) == 4, within_s=5)
    await one.close()


@virtual_time
async def test_ids_are_not_given_up_for_another_coordinator_that_a_full_etcd_lets_take_none() -> None:
    """▲ They would be nobody's: nobody answers how a transaction ended, nor collects any to make room."""
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=4)
    one = await Process(etcd, "one", settings).start()
    await asyncio.sleep(settings.balance_after_s + 1)
    two = await Process(etcd, "two", settings).start()
    plenty = fill(etcd)
    await asyncio.sleep(20)
    assert len(one.coordinator.owned_tcids) == 4
    make_room(etcd, plenty)
    await until(lambda: [len(each.coordinator.owned_tcids) for each in (one, two)] == [2, 2], within_s=8)
    await one.close()
    await two.close()


@virtual_time
async def test_an_id_whose_taking_is_not_answered_costs_none_of_those_that_are_held() -> None:
    """As while etcd defragments: it renews leases all the same."""
    etcd = fresh_etcd()
    settings = CoordinatorSettings(tcids=4)
    one, two = [await Process(etcd, name, settings).start() for name in ("one", "two")]
    await until(lambda: len(two.coordinator.owned_tcids) == 2)
    held, seen = set(one.coordinator.owned_tcids), list[bool]()
    two.kill()
    one.fates.script = [LOST_BEFORE] * 60
    while len(one.coordinator.owned_tcids) < 4 and len(seen) < 60:
        await asyncio.sleep(1)
        seen.append(held <= set(one.coordinator.owned_tcids))
    assert len(seen) > 15, "the taking was never in want of an answer"
    assert all(seen)
    assert len(one.coordinator.owned_tcids) == 4
    await one.close()


@virtual_time
async def test_a_start_that_is_cancelled_keeps_no_id_from_others() -> None:
    """▲ As of a server whose roles take too long to start: nobody closes what has not started."""
    etcd = fresh_etcd()
    one, two = Process(etcd, "one"), Process(etcd, "two")
    tell = one.coordinator._ownership._on_taken

    async def taken(ids: dict[int, int]) -> None:
        one.fates.no_reads = True  # it cannot load the id that it has taken
        await tell(ids)

    one.coordinator._ownership._on_taken = taken
    starting = asyncio.ensure_future(one.coordinator.start())
    await asyncio.sleep(1)
    assert within(etcd, keys.TC)
    assert not starting.done()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await until(lambda: not within(etcd, keys.TC), within_s=3)
    await two.start()
    assert two.coordinator.owned_tcids == (0,)
    await two.close()
    await one.store.close()
