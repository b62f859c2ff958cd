"""Open transactions are announced to their coordinators."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import Cluster, connected
from tests.waiting import until
from txnclient.transactions.transaction import transaction_impl
from txnwire.ids import TxnId
from txnwire.proto import txn_pb2 as pb

MANY = 200_000


@virtual_time
async def test_open_transactions_are_announced_on_every_new_connection_to_their_coordinator() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        assert server.announced == [[]]
        txns = [await client.begin() for _ in range(3)]
        await txns[0].commit()
        await server.cut()
        await until(lambda: len(server.announced) > 1)
        assert sorted(server.announced[1]) == sorted(txn.id for txn in txns[1:])


@virtual_time
async def test_a_transaction_whose_begin_was_the_last_answer_of_its_connection_is_announced() -> None:
    """▲ The end of that connection came before there was anything to announce, and the cluster is followed at another
    server: nothing else connects to its coordinator within the grace."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        home = client._session.directory.home()
        assert home is not None
        (away,) = cluster.servers.keys() - {home.address}
        cluster.coordinators = {0: away}
        cluster.announce()
        await asyncio.sleep(0.1)
        await (await client.begin()).abort()
        server = cluster.servers[away]
        server.cut_behind["new_txn"] = 1
        txn = await client.begin()
        assert transaction_impl(txn).link.closed
        await until(lambda: [txn.id] in server.announced, within_s=5.0)


@pytest.mark.parametrize("moved", [0, 1])
@virtual_time
async def test_open_transactions_are_announced_where_their_tcid_has_moved(moved: int) -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        txns = [await client.begin() for _ in range(2)]
        assert sorted(txn.id.tcid for txn in txns) == [0, 1]
        await asyncio.sleep(1.0)
        cluster.coordinators = {moved: "broker:2", 1 - moved: "broker:1"}
        cluster.announce()
        second = cluster.servers["broker:2"]
        await until(lambda: sorted(txn.id for txn in txns) in [sorted(ids) for ids in second.announced])


@pytest.mark.parametrize("coordinators", [("broker:1", "broker:2"), ("broker:2", "broker:1")])
@virtual_time
async def test_a_coordinator_that_does_not_answer_keeps_no_other_from_hearing_of_its_transactions(
    coordinators: tuple[str, str],
) -> None:
    """Its answer is waited for for seconds, and the grace of the others runs."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        txns = []
        for tcid, address in enumerate(coordinators):
            cluster.coordinators = {tcid: address}
            cluster.announce()
            await asyncio.sleep(0.1)
            txns.append(await client.begin())
        cluster.coordinators = dict(enumerate(coordinators))
        cluster.announce()
        first, silent = cluster.servers["broker:1"], cluster.servers["broker:2"]
        silent.ignore["announce_session"] = 1000
        await silent.cut()
        await until(lambda: silent.seen["announce_session"] > 2)
        for _ in range(3):
            told, before = len(first.announced), cluster.clock.monotonic()
            await first.cut()
            await until(lambda told=told: len(first.announced) > told)  # type: ignore[misc]
            assert sorted(first.announced[-1]) == sorted(txn.id for txn in txns)
            assert cluster.clock.monotonic() - before < 0.5
        del silent.ignore["announce_session"]
        await until(lambda: len(silent.announced) > 0 and len(silent.announced[-1]) == 2)


@virtual_time
async def test_an_announcement_is_complete_also_over_a_connection_by_another_name() -> None:
    """A coordinator gives up what it knows of a session and does not find in its announcement."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        cluster.coordinators = {0: "broker:1", 1: "broker:1"}
        cluster.announce()
        await asyncio.sleep(0.1)
        txn = await client.begin()
        other = cluster.servers["broker:2"]
        while [txn.id] not in other.announced:
            for server in cluster.servers.values():
                await server.cut()  # until the cluster is followed over the other server
            await asyncio.sleep(1.5)
        assert [] not in other.announced[1:]


@virtual_time
async def test_very_many_open_transactions_are_announced_as_they_are() -> None:
    cluster = Cluster()
    await cluster.start("broker:1")
    client = await txnclient.connect("txn://broker:1", transport=cluster.transport, clock=cluster.clock)
    server, coordinators = cluster.servers["broker:1"], client._coordinators
    link = client._session.links.ready("broker:1")
    assert link is not None
    ids = [TxnId(0, counter) for counter in range(1, MANY + 1)]
    for txn_id in ids:
        reply = pb.NewTxnOk(txnid_most_bits=txn_id.most_bits, txnid_least_bits=txn_id.least_bits)
        coordinators.begun(reply, link, cluster.clock.monotonic() + 60.0)
    ended = coordinators.open_transactions[7]
    coordinators.forget(ended)
    _, answered = coordinators._send_announcement(link)
    await answered
    assert server.announced[-1] == [txn_id for txn_id in ids if txn_id != ended.id]
    await cluster.stop()
    await client.close()


@virtual_time
async def test_open_transactions_are_announced_again_where_their_tcid_has_come_back() -> None:
    """▲ Over the same connection: its coordinator has lost the TCID meanwhile, with what it knew of the sessions."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        cluster.coordinators = {0: "broker:1"}
        cluster.announce()
        await asyncio.sleep(0.1)
        txn = await client.begin()
        first, second = cluster.servers["broker:1"], cluster.servers["broker:2"]
        await first.cut()
        await until(lambda: [txn.id] in first.announced)
        second.ignore["announce_session"] = 1000
        told, address = len(first.announced), first.address
        link = client._session.links.ready(address)
        for owner in (second.address, address):
            cluster.coordinators = {0: owner}
            cluster.announce()
            await until(lambda owner=owner: client._directory.coordinator_address(0) == owner)  # type: ignore[misc]
        await until(lambda: len(first.announced) > told, within_s=5.0)
        assert first.announced[-1] == [txn.id]
        assert client._session.links.ready(address) is link


@virtual_time
async def test_of_several_tcids_of_one_coordinator_each_is_announced_once_and_again_when_it_has_come_back() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        txns = [await client.begin(timeout=3600.0) for _ in range(2)]
        assert sorted(txn.id.tcid for txn in txns) == [0, 1]
        first, second = cluster.servers["broker:1"], cluster.servers["broker:2"]
        for tcid in (1, 0):
            await first.cut()
            await asyncio.sleep(60.0)
            told = len(first.announced)
            await asyncio.sleep(60.0)
            assert len(first.announced) == told
            second.ignore["announce_session"] = 1000
            for owner in (second.address, first.address):
                cluster.coordinators = {tcid: owner, 1 - tcid: first.address}
                cluster.announce()
                await until(lambda: client._directory.coordinator_address(tcid) == owner)  # noqa: B023
            await until(lambda: len(first.announced) > told, within_s=5.0)  # noqa: B023
            assert sorted(first.announced[-1]) == sorted(txn.id for txn in txns)


@virtual_time
async def test_a_coordinator_that_cannot_be_reached_is_tried_again_at_leisure(caplog: pytest.LogCaptureFixture) -> None:
    """Virtual time does not pass while something turns."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        cluster.coordinators = {0: "broker:2"}
        cluster.announce()
        await asyncio.sleep(0.1)
        txn = await client.begin(timeout=3600.0)
        second = cluster.servers["broker:2"]
        await second.stop()
        await second.cut()
        await asyncio.sleep(60.0)
        told = len(second.announced)
        await second.start()
        await until(lambda: len(second.announced) > told and second.announced[-1] == [txn.id])
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@virtual_time
async def test_a_begin_that_was_cancelled_and_fails_is_nobody_s_defect(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.hold["new_txn"] = asyncio.Event()
        server.refuse["new_txn"] = [txnclient.StoreFull("no room") for _ in range(10)]
        beginning = asyncio.ensure_future(client.begin())
        await until(lambda: server.seen["new_txn"])
        beginning.cancel()
        await asyncio.wait([beginning])
        server.hold.pop("new_txn").set()
        await asyncio.sleep(30.0)
        assert cluster.states == {}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
