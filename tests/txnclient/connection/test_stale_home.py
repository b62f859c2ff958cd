"""Where a client follows the cluster: it leaves a server that is cut off from the store, and only such a one."""

from __future__ import annotations

import asyncio

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, ScriptedServer, connected
from tests.waiting import until

ADDRESSES = ("broker:1", "broker:2", "broker:3")


def home_of(cluster: Cluster) -> ScriptedServer:
    (home,) = (server for server in cluster.servers.values() if server.followers)
    return home


def another(cluster: Cluster, than: ScriptedServer) -> str:
    return next(address for address in ADDRESSES if address != than.address)


async def producing(cluster: Cluster, client: txnclient.Client) -> tuple[ScriptedServer, txnclient.Producer[bytes]]:
    """Home, which owns every segment, and a producer that is open there."""
    home = home_of(cluster)
    for segment in SEGMENTS:
        cluster.move(segment, home.address)
    producer = await client.producer(TOPIC)
    await producer.send(b"0")
    return home, producer


@virtual_time
async def test_sends_go_on_though_home_is_cut_off_from_the_store_and_says_so() -> None:
    async with connected(*ADDRESSES, timeout=30.0) as (cluster, client):
        home, producer = await producing(cluster, client)
        home.cut_off(stale=True)
        for segment in SEGMENTS:
            cluster.move(segment, another(cluster, home))
        waiting = [producer.send_nowait(b"%d" % number, key=str(number)) for number in range(16)]
        await asyncio.gather(*waiting)
        stored = sum(values.count(b"15") for values in cluster.values_by_key().values())
        assert stored == 1


@virtual_time
async def test_sends_go_on_though_home_names_an_owner_of_former_times_and_says_nothing() -> None:
    async with connected(*ADDRESSES, timeout=60.0) as (cluster, client):
        home, producer = await producing(cluster, client)
        home.cut_off(stale=False)
        for segment in SEGMENTS:
            cluster.move(segment, another(cluster, home))
        await asyncio.gather(*(producer.send_nowait(b"%d" % number, key=str(number)) for number in range(16)))


@virtual_time
async def test_a_client_whose_servers_are_all_stale_stays_and_asks_ever_more_slowly() -> None:
    async with connected(*ADDRESSES, timeout=30.0) as (cluster, client):
        home, producer = await producing(cluster, client)
        for server in cluster.servers.values():
            server.cut_off(stale=True)
        await asyncio.sleep(300.0)
        asked = sum(server.seen["watch_cluster"] for server in cluster.servers.values())
        assert 5 < asked < 100
        assert client._directory.home() is not None
        assert client._directory.home().address == home.address  # type: ignore[union-attr]
        await producer.send(b"1")  # home still owns them: what works goes on
        fresh = cluster.servers[another(cluster, home)]
        fresh.hear_again()
        for segment in SEGMENTS:
            cluster.move(segment, fresh.address)
        await until(lambda: client._directory.home().address == fresh.address)  # type: ignore[union-attr]
        await producer.send(b"2")


@virtual_time
async def test_a_home_that_leads_nobody_astray_is_not_left() -> None:
    async with connected(*ADDRESSES, timeout=30.0) as (cluster, client):
        home, producer = await producing(cluster, client)
        for turn in range(20):  # segments that change hands: refused once or twice each time, and then told
            for segment in SEGMENTS:
                cluster.owners[segment] = ADDRESSES[turn % len(ADDRESSES)]
            sending = asyncio.gather(*(producer.send_nowait(b"x", key=str(number)) for number in range(8)))
            await asyncio.sleep(0.3)
            cluster.announce()
            await sending
        assert home_of(cluster) is home
