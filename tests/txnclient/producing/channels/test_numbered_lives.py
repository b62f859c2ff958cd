"""Numbered producers on scripted brokers: who is asked for the name, and what repeated sends are told."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.producing.channels.test_numbered import numbered
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.waiting import until
from txnwire.ids import HASH_SPACE, hash_key

KEY = next(key for key in map(str, range(20)) if hash_key(key.encode()) < HASH_SPACE // 4)
"""Of the first segment, and of its first child."""


@pytest.mark.parametrize("fenced", [False, True])
@virtual_time
async def test_every_repeated_send_of_a_batch_is_told_what_became_of_the_first(fenced: bool) -> None:
    """▲ A program that repeats what it is not sure of would wait for ever."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await numbered(client, TOPIC)
        server.stall_sends = True
        sends = [producer.send_nowait(b"%d" % one, key=KEY, sequence_id=one) for one in range(4)]
        await until(lambda: server.stalled)
        repeated = [producer.send_nowait(b"%d" % one, key=KEY, sequence_id=one) for one in (0, 1, 2, 3, 2, 3)]
        if fenced:
            server.drop_stalled()
            server.refuse["open_producer"] = [txnclient.ProducerFenced("a later life has the name")]
            await server.cut()
            told = await asyncio.wait_for(asyncio.gather(*repeated, return_exceptions=True), 60.0)
            assert [type(error) for error in told] == [txnclient.ProducerFenced] * 6
            await asyncio.gather(*sends, return_exceptions=True)
        else:
            server.stall_sends = False
            server.finish_sends()
            ids = await asyncio.wait_for(asyncio.gather(*sends), 60.0)
            assert await asyncio.wait_for(asyncio.gather(*repeated), 60.0) == [*ids, ids[2], ids[3]]
            await producer.close()


@virtual_time
async def test_every_ancestor_of_a_segment_is_asked_before_it_is_opened() -> None:
    """▲ Where a later life has taken the name, this one must not go on."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        async with numbered(client, TOPIC) as producer:
            server.commands.clear()
            cluster.split(0)
            cluster.split(2)
            await until(lambda: len(client._directory.known_layout(TOPIC).segments) == 6)  # type: ignore[union-attr]
            sent = await producer.send(b"x", key=KEY, sequence_id=1)
            asked = [one.take_name.segment for one in server.commands if one.HasField("take_name")]
            assert sorted(asked) == sorted([cluster.path(0), cluster.path(2), sent.segment])


@virtual_time
async def test_an_opening_that_one_broker_refuses_does_not_wait_for_the_others() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        cluster.move(SEGMENTS[1], "broker:2")
        cluster.servers["broker:1"].refuse["take_name"] = [txnclient.NotAllowed("not this one")]
        other = cluster.servers["broker:2"]
        other.refuse["take_name"] = [txnclient.NotOwner("moving") for _ in range(1000)]
        async with asyncio.timeout(2.0):
            with pytest.raises(txnclient.NotAllowed, match="not this one"):
                await numbered(client, TOPIC)
        asked = other.seen["take_name"]
        await asyncio.sleep(30.0)
        assert other.seen["take_name"] == asked, "nobody waits for it"


@pytest.mark.parametrize("sealed", [0, 1])
@virtual_time
async def test_an_opening_waits_for_the_children_of_any_segment_that_is_sealed(sealed: int) -> None:
    """▲ A former life may write to them still."""
    async with connected() as (cluster, client):
        cluster.seal(sealed)
        opening = asyncio.ensure_future(numbered(client, TOPIC).__aenter__())
        await asyncio.sleep(5.0)
        assert not opening.done()
        cluster.split(sealed)
        await (await asyncio.wait_for(opening, 20.0)).close()


@virtual_time
async def test_each_id_of_a_batch_that_a_split_divides_is_told() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        async with numbered(client, TOPIC, linger_ms=3_600_000) as producer:
            server.stall_sends = True
            sends = [producer.send_nowait(b"0", key=KEY, sequence_id=0)]
            await until(lambda: server.stalled)
            sends += [producer.send_nowait(b"%d" % one, key=f"k{one}", sequence_id=one) for one in range(1, 40)]
            cluster.seal(0)
            server.stall_sends = False
            cluster.split(0)
            async with asyncio.timeout(30.0):
                await producer.flush()
            assert all(one.done() for one in sends)
            paths = {one.result().segment for one in sends}
            assert paths == {cluster.path(number) for number in (0, 1, 2, 3)}
