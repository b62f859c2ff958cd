"""Producers and consumers of topics that are deleted, and made again by the same name, while their client hears of it
late or not at all."""

from __future__ import annotations

import asyncio

import pytest

from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, connected
from tests.waiting import until
from txnwire.errors import NotOwner, TopicNotFound
from txnwire.proto import txn_pb2 as pb


@virtual_time
async def test_a_client_that_hears_of_the_next_topic_first_sends_nothing_to_it() -> None:
    """It was cut off while the first one was deleted: none of the layouts that it sees says that there was none."""
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


@virtual_time
async def test_what_waits_to_be_sent_is_told_when_its_topic_is_another_one() -> None:
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


@virtual_time
async def test_servers_that_do_not_tell_lives_apart_are_followed_as_before() -> None:
    async with connected() as (cluster, client), client.producer(TOPIC) as producer:
        cluster.split(0)
        await producer.send(b"x", key="k")


@pytest.mark.parametrize("type", ["stream", "queue"])
@virtual_time
async def test_a_consumer_of_the_next_topic_goes_on_when_the_end_of_the_former_one_is_heard_behind_its_join(
    type: str,
) -> None:
    """Its segments are newer than all that the client knows of the topic, which is at that moment nothing."""
    async with connected() as (cluster, client):
        await client.describe_topic(TOPIC)
        cluster.make_again()
        path = cluster.topology.active_paths[0]
        for server in cluster.servers.values():
            server.assignment = pb.Assignment(topic=TOPIC, epoch=1, segments=[path], life=20)
        async with client.consumer(TOPIC, "s", type=type) as consumer:
            tell_absent(cluster, through=10)
            await until(lambda: client._directory.known_layout(TOPIC) is None)
            await asyncio.sleep(2.0)
            cluster.announce()
            broker = cluster.servers["broker:1"]
            await until(lambda: any(request.segment == path for _, request in broker.consumers.values()))
            broker.deliver(path, 0, b"of the next one")
            assert (await consumer.receive(timeout=5.0)).value == b"of the next one"


@pytest.mark.parametrize(("through", "life"), [(30, 20), (20, 20), (0, 20), (10, 0)])
@virtual_time
async def test_a_consumer_is_told_that_its_own_topic_was_deleted(through: int, life: int) -> None:
    """Also by servers that do not say through which revision there is none, or when the subscription was created."""
    async with connected() as (cluster, client):
        for server in cluster.servers.values():
            server.assignment = pb.Assignment(topic=TOPIC, epoch=1, segments=[SEGMENTS[0]], life=life)
        cluster.owners[SEGMENTS[0]] = ""
        cluster.announce()
        async with client.consumer(TOPIC, "s") as consumer:
            tell_absent(cluster, through=through)
            with pytest.raises(TopicNotFound):
                await consumer.receive(timeout=5.0)


@pytest.mark.parametrize("made_again", [False, True])
@virtual_time
async def test_a_numbered_producer_is_told_that_its_topic_goes_while_it_asks_for_its_name(made_again: bool) -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        cluster.life = 7
        server.refuse["take_name"] = [NotOwner("not here yet") for _ in range(100)]
        opening = asyncio.ensure_future(client.producer(TOPIC, name="importer", sequence_id=-1).__aenter__())
        await until(lambda: server.seen["take_name"] > len(SEGMENTS))
        if made_again:
            cluster.make_again()
            cluster.announce()
        else:
            tell_absent(cluster, through=cluster.revision)
        with pytest.raises(TopicNotFound, match="was deleted"):
            await asyncio.wait_for(opening, 5.0)


def tell_absent(cluster: Cluster, *, through: int) -> None:
    """Push to every follower that the topic does not exist, which was so `through` a revision."""
    cluster.revision += 1
    layout = pb.Layout(topic=TOPIC, exists=False, topic_revision=through, revision=cluster.revision)
    for server in cluster.servers.values():
        for peer in server.followers:
            peer.push(pb.Command(layout=layout))
