"""A seek whose word to the consumer, that its broker has closed it, was lost with the connection."""

from __future__ import annotations

import pytest

import txnclient
from tests.segments.virtual_time import run
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.waiting import until
from txnclient.consuming.consumer import consumer_impl

LEFT = SEGMENTS[0]


@pytest.mark.parametrize("sought", [True, False], ids=["sought", "only lost"])
def test_behind_a_seek_that_only_the_next_attach_tells_of_what_is_held_comes_again(sought: bool) -> None:
    """▲ What the application holds can no longer be acked: passed over as held, it would never be done. Where nothing
    was sought it is passed over."""

    async def scenario() -> None:
        async with connected() as (cluster, client):
            server = cluster.servers["broker:1"]
            consumer = await client.consumer(TOPIC, "sub")
            await until(lambda: len(server.permits) == len(SEGMENTS))
            for number in range(3):
                server.deliver(LEFT, number, b"%d" % number)
            held = [await consumer.receive() for _ in range(2)]
            server.seeks += sought
            attached = server.seen["subscribe"] + len(SEGMENTS)
            await server.cut()  # with it the close that the seek had sent
            await until(lambda: server.seen["subscribe"] == attached)
            for number in range(3):
                server.deliver(LEFT, number, b"%d" % number)
            expected = [b"0", b"1", b"2"] if sought else [b"2"]
            again = [await consumer.receive(timeout=5) for _ in expected]
            assert [message.value for message in again] == expected
            with pytest.raises(txnclient.Timeout):
                await consumer.receive(timeout=0.1)
            txn = await client.begin()
            if sought:
                for message in held:
                    with pytest.raises(txnclient.NotAllowed, match="before a seek"):
                        await consumer.ack(message)
                with pytest.raises(txnclient.NotAllowed, match="before a seek"):
                    await consumer.ack(held[0], txn=txn)
            else:
                await consumer.ack(held[0], txn=txn)
            await txn.abort()

    run(scenario())


def test_behind_a_seek_of_its_own_a_consumer_starts_over_in_every_segment() -> None:
    """▲ What is in a buffer still was received before the seek, and can no longer be acked."""

    async def scenario() -> None:
        async with connected() as (cluster, client):
            server = cluster.servers["broker:1"]
            consumer = await client.consumer(TOPIC, "sub")
            await until(lambda: len(server.permits) == len(SEGMENTS))
            for segment in SEGMENTS:
                server.deliver(segment, 0, b"before")
            await until(lambda: all(feed.buffered for feed in consumer_impl(consumer)._feeds.values()))
            await consumer.seek("latest")
            assert await consumer.receive_many(10, timeout=1.0) == []
            assert sorted(one.segment for _, one in server.consumers.values()) == sorted(SEGMENTS)

    run(scenario())
