"""Clients that vanish, come back, announce themselves, or only lose a reply."""

from __future__ import annotations

import asyncio

import pytest

from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import ONE_TCID, Connection, Process, fresh_etcd, open_headers
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore.memory.memory_store import Fate
from txnstore.records import ABORTED, COMMITTED, REASON_SESSION
from txnwire.errors import InvalidTxnState


@virtual_time
async def test_a_vanished_client_s_transactions_are_aborted_after_the_grace() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    connection, other = Connection("a"), Connection("b")
    mine = [await process.coordinator.begin(0, connection=connection) for _ in range(3)]
    kept = await process.coordinator.begin(0, connection=other)
    process.coordinator.disconnected(connection)
    took = await until(lambda: len(open_headers(etcd)) == 1)
    assert 10.0 <= took < 11.5
    for begun in mine:
        header = await process.header(begun.txn_id)
        assert header is not None
        assert (header.state, header.reason) == (ABORTED, REASON_SESSION)
    with pytest.raises(InvalidTxnState, match="session"):
        await process.coordinator.end(mine[0].txn_id, commit=True)
    assert open_headers(etcd) == [kept.txn_id]
    await asyncio.sleep(1)
    statistics = process.coordinator.statistics()
    assert (statistics.vanished, statistics.sessions, statistics.open) == (3, 1, 1)
    await process.close()


@virtual_time
async def test_all_that_clients_have_open_that_vanish_together_is_aborted_in_time() -> None:
    """Dies if each sweep looks at one of them, or at one transaction of each."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    connections = [Connection(f"client-{number}") for number in range(10)]
    for connection in connections * 10:
        await process.coordinator.begin(0, connection=connection)
    for connection in connections:
        process.coordinator.disconnected(connection)
    assert await until(lambda: not open_headers(etcd)) < 11.5
    await process.close()


@virtual_time
async def test_a_client_that_comes_back_in_time_keeps_its_transactions() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    first, second = Connection("a"), Connection("a")
    begun = await process.coordinator.begin(0, connection=first)
    process.coordinator.disconnected(first)
    await asyncio.sleep(9)
    await process.coordinator.announce(second, [begun.txn_id])
    await asyncio.sleep(30)
    assert open_headers(etcd) == [begun.txn_id]
    assert (await process.coordinator.end(begun.txn_id, commit=True)).state == COMMITTED
    process.coordinator.disconnected(second)
    await until(lambda: process.coordinator.statistics().sessions == 0, within_s=20)
    await process.close()


@virtual_time
async def test_a_client_that_came_back_hides_none_that_was_lost_after_it() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    first, other = Connection("a"), Connection("b")
    kept = await process.coordinator.begin(0, connection=first)
    await process.coordinator.begin(0, connection=other)
    process.coordinator.disconnected(first)
    await process.coordinator.announce(Connection("a"), [kept.txn_id])
    process.coordinator.disconnected(other)
    await until(lambda: open_headers(etcd) == [kept.txn_id], within_s=20)
    await process.close()


@virtual_time
async def test_with_several_connections_the_last_one_counts() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    first, second = Connection("a"), Connection("a")
    begun = await process.coordinator.begin(0, connection=first)
    await process.coordinator.announce(second, [begun.txn_id])
    process.coordinator.disconnected(first)
    process.coordinator.disconnected(first)
    process.coordinator.disconnected(Connection("never seen"))
    await asyncio.sleep(15)
    assert open_headers(etcd) == [begun.txn_id]
    process.coordinator.disconnected(second)
    assert 10.0 <= await until(lambda: not open_headers(etcd)) < 11.5
    await process.close()


@virtual_time
async def test_d7_a_begin_whose_answer_the_client_never_got_goes_when_it_is_not_announced() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    first, second = Connection("a"), Connection("a")
    known = await process.coordinator.begin(0, connection=first, attempt=b"k" * 8)
    await process.coordinator.begin(0, connection=first, attempt=b"u" * 8)
    claimed = await process.coordinator.begin(0, connection=first, attempt=b"c" * 8)
    process.coordinator.disconnected(first)
    await process.coordinator.announce(second, [known.txn_id])
    await asyncio.sleep(5)
    assert await process.coordinator.begin(0, connection=second, attempt=b"c" * 8) == claimed
    fresh = await process.coordinator.begin(0, connection=second, attempt=b"f" * 8)
    await asyncio.sleep(7)
    assert open_headers(etcd) == [known.txn_id, claimed.txn_id, fresh.txn_id]
    await process.close()


@virtual_time
async def test_nobody_can_claim_somebody_else_s_transaction() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    owner, thief = Connection("a"), Connection("b")
    begun = await process.coordinator.begin(0, connection=owner)
    await process.coordinator.announce(thief, [begun.txn_id])
    process.coordinator.disconnected(owner)
    assert await until(lambda: not open_headers(etcd)) < 11.5
    await process.close()


@virtual_time
async def test_time_a_paused_coordinator_slept_through_is_no_client_s_fault() -> None:
    """Announcements may sit unread in its sockets: dies if the grace runs on the plain monotonic clock."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one", CoordinatorSettings(tcids=1, lease_ttl_s=600.0)).start()
    first, second = Connection("a"), Connection("a")
    begun = await process.coordinator.begin(0, connection=first, timeout_ms=600_000)
    await asyncio.sleep(1)
    process.coordinator.disconnected(first)
    process.pause()
    await asyncio.sleep(60)
    process.resume()
    await asyncio.sleep(2)
    await process.coordinator.announce(second, [begun.txn_id])
    await asyncio.sleep(15)
    assert open_headers(etcd) == [begun.txn_id]
    await process.close()


@virtual_time
async def test_a_session_that_ends_while_its_begin_is_on_its_way_leaves_nothing_open() -> None:
    etcd = fresh_etcd()
    process = await Process(etcd, "one", ONE_TCID).start()
    connection = Connection("a")
    begun = asyncio.ensure_future(process.coordinator.begin(0, connection=connection))
    await asyncio.sleep(0)
    process.coordinator.disconnected(connection)
    await begun
    assert len(open_headers(etcd)) == 1
    assert 10.0 <= await until(lambda: not open_headers(etcd)) < 11.5
    assert await until(lambda: process.coordinator.statistics().sessions == 0) < 2
    await process.close()


@virtual_time
async def test_d7_a_begin_that_is_claimed_after_all_keeps_none_behind_it_from_going() -> None:
    """What nobody has claimed is looked at in order, up to the first whose grace has not passed."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    first, second = Connection("a"), Connection("a")
    claimed = await process.coordinator.begin(0, connection=first, attempt=b"c" * 8)
    await process.coordinator.begin(0, connection=first, attempt=b"u" * 8)
    process.coordinator.disconnected(first)
    await process.coordinator.announce(second, [])
    assert await process.coordinator.begin(0, connection=second, attempt=b"c" * 8) == claimed
    await until(lambda: open_headers(etcd) == [claimed.txn_id], within_s=12)
    await process.close()


@virtual_time
async def test_d7_a_begin_that_is_answered_once_its_id_was_lost_stays_its_client_s() -> None:
    """As what was open by then: who has stayed need not announce it, and may not know that there is anything to."""
    etcd = fresh_etcd()
    process = await Process(etcd, "one").start()
    connection = Connection("a")
    await process.coordinator.begin(0, connection=connection)  # ids are in hand
    process.fates.script = [Fate(arrive_s=0.001, answer_s=0.3)]
    beginning = asyncio.ensure_future(process.coordinator.begin(0, timeout_ms=200_000, connection=connection))
    await asyncio.sleep(0.1)
    etcd.expire_lease(etcd.leases()[0])
    await until(lambda: process.coordinator.owned_tcids == ())
    begun = await beginning
    assert process.coordinator.owned_tcids == ()
    await until(lambda: process.coordinator.owned_tcids == (0,))
    await asyncio.sleep(30)
    assert begun.txn_id in open_headers(etcd)
    process.coordinator.disconnected(connection)
    await until(lambda: not open_headers(etcd), within_s=15)
    await until(lambda: process.coordinator.statistics().sessions == 0, within_s=2)
    await process.close()
