"""Readers that open together share a snapshot, never one from before they asked, against a scripted broker."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.waiting import until

LEFT, RIGHT = SEGMENTS


async def opened(client: txnclient.Client, at_least: int = 0) -> txnclient.Snapshot:
    """What a reader to "latest" reads to."""
    async with client.reader(TOPIC, end="latest", at_least=at_least) as reader:
        assert reader.snapshot is not None
        return reader.snapshot


@virtual_time
async def test_readers_that_open_together_share_a_snapshot_that_is_begun_after_they_asked() -> None:
    """▲ In one that was under way already there is nothing of what was committed since."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        gate = server.hold["take_snapshot"] = asyncio.Event()
        first = [asyncio.ensure_future(opened(client)) for _ in range(2)]
        await until(lambda: server.seen["take_snapshot"] == 1)
        given_up, *later = [asyncio.ensure_future(opened(client)) for _ in range(4)]
        await asyncio.sleep(1)
        assert server.seen["take_snapshot"] == 1
        given_up.cancel()
        gate.set()
        one, two = await asyncio.gather(*first)
        three, four, five = await asyncio.gather(*later)
        assert one is two
        assert three is four is five
        assert three is not one
        assert server.seen["take_snapshot"] == 2
        assert await opened(client) is not three, "nobody is given one that is over"


@virtual_time
async def test_who_waits_for_a_revision_that_may_never_come_holds_nobody_up() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        ahead = cluster.revision + 5
        waiting = asyncio.ensure_future(opened(client, at_least=ahead))
        await until(lambda: server.seen["take_snapshot"])
        assert (await opened(client)).revision < ahead
        cluster.revision = ahead
        assert (await waiting).revision == ahead
        asked = [one.take_snapshot for one in server.commands if one.HasField("take_snapshot")]
        assert {one.at_least for one in asked} == {0, ahead}


@virtual_time
async def test_who_asks_just_as_the_last_snapshot_is_there_gets_another() -> None:
    """Its task has returned, and the loop has yet to tell of that."""
    async with connected() as (_, client):
        cuts = client._cuts
        asked: list[asyncio.Future[txnclient.Snapshot]] = []
        first = cuts._ask((TOPIC,))
        first.add_done_callback(lambda _: asked.append(cuts._ask((TOPIC,))))
        async with asyncio.timeout(30):
            await first
            await until(lambda: asked)
            assert await asked[0] is not first.result()


@virtual_time
async def test_a_snapshot_that_fails_fails_for_all_who_share_it_and_the_next_one_does_not() -> None:
    async with connected() as (cluster, client):
        cluster.servers["broker:1"].refuse["take_snapshot"] = [txnclient.DataCorrupt("a record")]
        answers = await asyncio.gather(*(opened(client) for _ in range(2)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [txnclient.DataCorrupt] * 2
        assert answers[0] is not answers[1]
        assert await opened(client)


@virtual_time
async def test_a_snapshot_that_fails_keeps_none_waiting_who_asked_since_it_was_begun() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.refuse["take_snapshot"] = [txnclient.DataCorrupt("a record")]
        gate = server.hold["take_snapshot"] = asyncio.Event()
        first = asyncio.ensure_future(opened(client))
        await until(lambda: server.seen["take_snapshot"] == 1)
        second = asyncio.ensure_future(opened(client))
        await asyncio.sleep(0.1)
        gate.set()
        with pytest.raises(txnclient.DataCorrupt):
            await first
        async with asyncio.timeout(1.0):
            assert await second


@virtual_time
async def test_closing_the_client_ends_what_waits_for_a_snapshot() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.hold["take_snapshot"] = asyncio.Event()
        waiting = [asyncio.ensure_future(opened(client))]
        await until(lambda: server.seen["take_snapshot"] == 1)
        waiting.append(asyncio.ensure_future(opened(client)))
        await asyncio.sleep(0.1)
        await client.close()
        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(answer, txnclient.ConnectionLost)


@virtual_time
async def test_a_delivery_and_a_revision_handed_over_count_for_what_is_opened_next() -> None:
    """▲ Else an owner that lags would be asked before it knows of the rest of what was seen."""
    async with connected() as (cluster, client), client.reader(TOPIC) as reader:
        server = cluster.servers["broker:1"]
        await until(lambda: len(server.permits) == 2)
        server.deliver(LEFT, 0, b"seen", revision=4711)
        await reader.receive()
        for told in (4711, 4712):
            before = len(server.commands)
            async with client.reader(TOPIC):
                await until(lambda before=before: server.commands[before + 1 :])  # type: ignore[misc]
                await asyncio.sleep(1)
            asked = [one.subscribe for one in server.commands[before:] if one.HasField("subscribe")]
            assert {one.min_revision for one in asked} == {told}
            cluster.revision = 4712
            assert (await client.snapshot(TOPIC, at_least=4712)).revision == 4712


@virtual_time
async def test_a_snapshot_of_an_older_program_is_taken_again_until_it_is_new_enough() -> None:
    """One that does not know what `at_least` is."""
    async with connected(timeout=5.0) as (cluster, client):
        asking = asyncio.ensure_future(client.snapshot(TOPIC, at_least=9))
        await asyncio.sleep(1)
        cluster.revision = 9
        assert (await asking).revision == 9
        with pytest.raises(txnclient.Timeout, match="revision 9, and at_least asks for 10"):
            await client.snapshot(TOPIC, at_least=10)


@virtual_time
async def test_who_waits_for_a_snapshot_is_told_at_once_that_the_client_was_closed() -> None:
    """Both who waits for the one under way and who waits for the next."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.hold["take_snapshot"] = asyncio.Event()
        waiting = [asyncio.ensure_future(opened(client))]
        await until(lambda: server.seen["take_snapshot"] == 1)
        waiting += [asyncio.ensure_future(opened(client)) for _ in range(2)]
        await asyncio.sleep(0.1)
        before = cluster.clock.monotonic()
        closing = asyncio.ensure_future(client.close())
        for one in waiting:
            with pytest.raises(txnclient.ConnectionLost, match="closed"):
                await one
        await closing
        assert cluster.clock.monotonic() - before < 5.0
        server.hold["take_snapshot"].set()
