"""What becomes of a segment, or of a connection, is told to all its producers, consumers, readers and subscriptions."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.segments.brokering import TOPIC, Cluster
from tests.segments.brokering_clients import Consumer, Producer
from tests.segments.changing import controlling
from tests.segments.owner.seals import begin, eventually_split
from tests.waiting import until, until_answer
from txnstore import keys
from txnwire.errors import InvalidArgument, NotAllowed, NotOwner, TxnError
from txnwire.ids import Position

QUEUES, STREAMS = ("jobs", "tasks"), ("one", "two")


async def test_all_who_use_a_segment_that_is_lost_are_told_so(memory_cluster: Cluster) -> None:
    """▲ Who is not would wait for messages and answers that nobody sends any more."""
    cluster = memory_cluster
    [path] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producers = [await client.producer(path, name) for name in ("p1", "p2", "p3")]
    consumers = [await client.reader(path) for _ in range(3)]
    consumers += [await cluster.subscribe(client, path, name=name) for name in STREAMS]
    for name in QUEUES:
        consumers += [await cluster.queue(client, path, name=name, consumer=one) for one in ("c1", "c2")]
    lost = node.broker.segments[path]
    assert lost.users(None) == (3, 9)
    assert lost.statistics().readers == 3
    told = await node.service.admin["subscription.stats"]({"segment": path})
    assert told["subscriptions"].keys() == {*STREAMS, *QUEUES}
    lost.lost(NotOwner("taken away"))
    users: list[Producer | Consumer] = [*producers, *consumers]
    await until(lambda: all(isinstance(user.closed, NotOwner) for user in users), within_s=20)
    assert not any(target in node.broker._shared.clean_up._registered for target in lost._targets)


async def test_with_a_connection_all_its_producers_and_consumers_are_gone(memory_cluster: Cluster) -> None:
    """▲ One that stays keeps its topic from being deleted, and a queue's messages from the others."""
    cluster = memory_cluster
    [path] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    for name in ("p1", "p2"):
        await client.producer(path, name)
        await client.reader(path)
        await cluster.queue(client, path, consumer=name)
    served = node.broker.segments[path]
    assert served.users(None) == (2, 4)
    await client.close()
    await until(lambda: served.users(None) == (0, 0), within_s=20)


async def test_of_the_consumers_that_were_closed_only_the_last_ones_are_remembered(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are closed at once: their next commands are answered with what has closed them."""
    monkeypatch.setattr("segments.broker.consuming.CLOSED_KEPT", 2)
    cluster = memory_cluster
    [path] = await cluster.create_topic()
    client = await cluster.connect(node := await cluster.start())
    readers = [await client.reader(path) for _ in range(6)]
    node.broker.segments[path].lost(NotOwner("taken away"))
    await until(lambda: all(reader.closed for reader in readers))
    await until(lambda: path in node.broker.segments)
    await client.reader(path)
    answers = []
    for reader in readers:
        with pytest.raises(TxnError) as error:
            await reader.ack(Position(1, 0))
        answers.append(type(error.value))
    assert answers == [InvalidArgument] * 4 + [NotOwner] * 2


async def test_a_new_assignment_takes_all_its_segments_from_who_had_them(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    paths = await cluster.create_topic(segments=3)
    node = await cluster.start()
    client = await cluster.connect(node)
    await cluster.create_subscription()
    await cluster.assign({"c1@0000000000000007": paths}, epoch=1)
    holders = [await client.subscribe(path) for path in paths]
    await cluster.assign({"c2@0000000000000007": paths}, epoch=2)
    await until(lambda: all(isinstance(holder.closed, NotAllowed) for holder in holders), within_s=20)


async def test_a_commit_is_delivered_by_all_queues_of_its_segment(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [path] = await cluster.create_topic()
    client = await cluster.connect(node := await cluster.start())
    consumers = [await cluster.queue(client, path, name=name) for name in QUEUES]
    producer, txn = await client.producer(path), await cluster.begin()
    await producer.send("a", txn=txn)
    await producer.send("b")
    for consumer in consumers:
        await consumer.wait("b")
    queues = list(node.broker.segments[path].subscriptions)
    assert [one.statistics().queue.set_aside for one in queues] == [1, 1]  # type: ignore[union-attr]
    await cluster.commit(txn)
    for consumer in consumers:
        await consumer.wait("b", "a")


async def test_whoever_waits_for_the_end_of_a_segment_finds_its_appender_ended(memory_cluster: Cluster) -> None:
    """▲ Its broker closes the ledgers behind that, or takes the same segment over anew."""
    [path] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    await until(lambda: path in node.broker.segments)
    served = node.broker.segments[path]
    [appender] = [task for task in asyncio.all_tasks() if task.get_name() == f"appender of {path}"]
    served.stop(NotOwner("taken away"))
    await served.wait_stopped()
    assert appender.done()


async def test_a_sealed_segment_is_drained_by_every_subscription_that_has_acked_all_of_it(
    memory_cluster: Cluster,
) -> None:
    """Though nothing else happens to it. ▲ The children would stay unread in one that is left out."""
    cluster = memory_cluster
    [path] = await cluster.create_topic()
    node = await cluster.start(settings=replace(cluster.settings, cursor_flush_s=0.01))
    client = await cluster.connect(node)
    await (await client.producer(path)).send("a")
    for name in STREAMS:
        consumer = await cluster.subscribe(client, path, name=name)
        await consumer.wait("a")
        await consumer.ack(consumer.messages[0])
    await client.close()
    served = node.broker.segments[path]
    await served.sealing.seal(await begin(cluster, path))
    clean_up = node.broker._shared.clean_up
    await until(lambda: clean_up._turn is None and not clean_up.statistics().in_flight, what="all is written")
    async with controlling(cluster):  # goes on with the split
        await eventually_split(cluster, path)
        for name in STREAMS:
            await until_present(cluster, keys.drained(TOPIC.path, name, 0))


async def until_present(cluster: Cluster, key: bytes) -> None:
    await until_answer(lambda: cluster.store.get(key), lambda found: found is not None, f"{key!r} to be stored")
