"""Producers of topics that are deleted, and made again by the same name, while their client hears nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.segments.virtual_time import run
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected, until
from txnwire.errors import TopicNotFound


def test_a_client_that_hears_of_the_next_topic_first_sends_nothing_to_it() -> None:
    """It was cut off while the first one was deleted: none of the layouts that it sees says that there was none."""

    async def scenario() -> None:
        async with connected() as (cluster, client):
            cluster.life = 7
            cluster.announce()
            async with client.producer(TOPIC) as producer:
                txn = await client.begin()
                await producer.send(b"first", key="k", txn=txn)
                cluster.make_again()
                cluster.announce()
                await until(lambda: set(client._directory.known_layout(TOPIC).segments) == {2, 3})
                with pytest.raises(TopicNotFound):
                    await producer.send(b"second", key="k", txn=txn)
                with pytest.raises(TopicNotFound):
                    await txn.commit()
                with pytest.raises(TopicNotFound):
                    producer.send_nowait(b"x")
                async with client.producer(TOPIC) as anew:
                    await anew.send(b"new", key="k")
            assert sum(len(stored) for path, stored in cluster.stored.items() if path not in SEGMENTS) == 1

    run(scenario())


def test_what_waits_to_be_sent_is_told_when_its_topic_is_another_one() -> None:
    async def scenario() -> None:
        async with connected() as (cluster, client):
            cluster.life = 7
            async with client.producer(TOPIC) as producer:
                for path in SEGMENTS:
                    cluster.owners[path] = ""
                cluster.announce()
                await until(lambda: not client._directory.known_layout(TOPIC).active[0].owner)
                sends = [producer.send_nowait(b"x", key="k"), asyncio.ensure_future(producer.send_many([b"y"]))]
                await asyncio.sleep(0.1)
                cluster.make_again()
                cluster.announce()
                async with asyncio.timeout(5.0):
                    ended = await asyncio.gather(*sends, return_exceptions=True)
                assert [type(error) for error in ended] == [TopicNotFound, TopicNotFound]
            assert not any(cluster.stored.values())

    run(scenario())


def test_servers_that_do_not_tell_lives_apart_are_followed_as_before() -> None:
    async def scenario() -> None:
        async with connected() as (cluster, client), client.producer(TOPIC) as producer:
            cluster.split(0)
            await producer.send(b"x", key="k")

    run(scenario())
