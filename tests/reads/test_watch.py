"""What wakes a watch, end to end: real client, servers, etcd, ledgers and gRPC.

Nothing is asked while it waits, so what is not told would be waited for in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.waiting import until
from txnclient.reading.watch import MOVE_TIMEOUT_S
from txnwire.errors import InvalidArgument, Timeout, TopicNotFound

TOPIC = "topic://acme/orders/placed"
LONG_S = 30.0
MOMENT_S = 0.1
"""A watch that wakes for nothing does so at once."""


async def sleeps(watch: txnclient.Watch) -> bool:
    return not await watch.wait(MOMENT_S)


async def send(client: txnclient.Client, value: bytes = b"v", txn: txnclient.Transaction | None = None) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send(value, txn=txn)


def consumers(cluster: InProcessCluster) -> int:
    broker = cluster.servers["broker"].server.broker
    assert broker is not None
    return sum(len(segment.dispatcher.consumers) for segment in broker.segments.values())


@pytest.fixture
async def topic(client: txnclient.Client) -> str:
    await client.create_topic(TOPIC, segments=2, autoscale="off")
    await send(client)
    return TOPIC


async def test_a_message_wakes_and_what_the_snapshot_has_does_not(client: txnclient.Client, topic: str) -> None:
    async with client.watch(await client.snapshot(topic)) as watch:
        assert await sleeps(watch)
        await send(client)
        assert await watch.wait(LONG_S)
        assert await watch.wait(LONG_S), "until it is moved"
        await watch.move(await client.snapshot(topic))
        assert await sleeps(watch)
        await send(client)
        assert await watch.wait(LONG_S)


async def test_what_came_between_the_snapshot_and_the_watch_wakes(client: txnclient.Client, topic: str) -> None:
    cut = await client.snapshot(topic)
    await send(client)
    async with client.watch(cut) as watch:
        assert await watch.wait(LONG_S)


async def test_what_came_between_a_snapshot_and_the_move_to_it_wakes(client: txnclient.Client, topic: str) -> None:
    """▲ The reader that has heard of it, and stands where the snapshot ends, has ended by then."""
    cut = await client.snapshot(topic)
    async with client.watch(cut) as watch:
        await send(client)
        assert await watch.wait(LONG_S)
        await watch.move(cut)
        assert await watch.wait(LONG_S)


@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_the_end_of_a_pending_transaction_wakes(client: txnclient.Client, topic: str, end: str) -> None:
    """Also of one that aborts, of which nothing is shown."""
    txn = await client.begin()
    await send(client, txn=txn)
    cut = await client.snapshot(topic)
    assert cut.pending == (txn.id,)
    async with client.watch(cut) as watch:
        assert await sleeps(watch)
        assert watch.sees_all
        await getattr(txn, end)()
        assert await watch.wait(LONG_S)
        later = await client.snapshot(topic)
        assert later.pending == ()
        await watch.move(later)
        assert await sleeps(watch)


async def test_who_is_woken_takes_no_snapshot_from_before_that(
    client: txnclient.Client, cluster: InProcessCluster, topic: str
) -> None:
    """Where another client commits."""
    async with cluster.connect() as other:
        txn = await other.begin()
        await send(other, txn=txn)
        async with client.watch(await client.snapshot(topic)) as watch:
            await txn.commit()
            assert await watch.wait(LONG_S)
    assert txn.result is not None
    assert client._session.told_revision >= txn.result.revision


async def test_what_is_sent_in_a_transaction_wakes(client: txnclient.Client, topic: str) -> None:
    async with client.watch(await client.snapshot(topic)) as watch, client.transaction() as txn:
        await send(client, txn=txn)
        assert await watch.wait(LONG_S)


async def test_a_watch_says_that_it_does_not_see_all_while_several_are_pending(
    client: txnclient.Client, topic: str
) -> None:
    async with client.transaction() as one, client.transaction() as other:
        await send(client, txn=one)
        await send(client, txn=other)
        cut = await client.snapshot(topic)
        async with client.watch(cut) as watch:
            assert not watch.sees_all
        async with client.watch(cut, isolation="read_uncommitted") as watch:
            assert watch.sees_all, "whose ends change nothing there"


async def test_an_uncommitted_watch_sleeps_when_a_transaction_ends(client: txnclient.Client, topic: str) -> None:
    txn = await client.begin()
    await send(client, txn=txn)
    async with client.watch(await client.snapshot(topic), isolation="read_uncommitted") as watch:
        await txn.commit()
        assert await sleeps(watch)
        await send(client)
        assert await watch.wait(LONG_S)


async def split(client: txnclient.Client) -> None:
    await client.split((await client.describe_topic(TOPIC)).active[0].name)


async def merge(client: txnclient.Client) -> None:
    await client.merge(*(segment.name for segment in (await client.describe_topic(TOPIC)).active))


async def delete(client: txnclient.Client) -> None:
    await client.delete_topic(TOPIC, force=True)


async def make_again(client: txnclient.Client) -> None:
    await delete(client)
    await client.create_topic(TOPIC, segments=2, autoscale="off")


@pytest.mark.parametrize("change", [split, merge, delete, make_again])
async def test_another_layout_wakes(client: txnclient.Client, topic: str, change: Callable[..., object]) -> None:
    async with client.watch(await client.snapshot(topic)) as watch:
        assert await sleeps(watch)
        await change(client)  # type: ignore[misc]
        assert await watch.wait(LONG_S)


@pytest.mark.parametrize("change", [split, merge, make_again])
async def test_a_snapshot_of_another_layout_is_watched_at_once(
    client: txnclient.Client, cluster: InProcessCluster, topic: str, change: Callable[..., object]
) -> None:
    """Also by a client that has heard of the old layout only."""
    async with cluster.connect() as other, other.watch(await other.snapshot(topic)) as watch:
        await change(client)  # type: ignore[misc]
        await watch.move(await client.snapshot(topic))
        assert await sleeps(watch)
        await send(client)
        assert await watch.wait(LONG_S)


async def test_a_deleted_topic_is_no_place_to_watch(client: txnclient.Client, topic: str) -> None:
    cut = await client.snapshot(topic)
    async with client.watch(cut) as watch:
        await delete(client)
        assert await watch.wait(LONG_S)
        with pytest.raises(TopicNotFound):
            await watch.move(cut)
    with pytest.raises(TopicNotFound):
        await client.watch(cut)


async def test_a_topic_made_again_is_waited_for_no_longer_than_asked(client: txnclient.Client, topic: str) -> None:
    """Its layouts count anew, so that of the snapshot never comes."""
    await split(client)
    cut = await client.snapshot(topic)
    await make_again(client)
    began = asyncio.get_running_loop().time()
    for waiting in (client.watch(cut, timeout=0.2), _moved(client, cut)):
        with pytest.raises((Timeout, TopicNotFound)):
            await waiting
    assert asyncio.get_running_loop().time() - began < MOVE_TIMEOUT_S


async def _moved(client: txnclient.Client, cut: txnclient.Snapshot) -> None:
    async with client.watch(await client.snapshot(TOPIC)) as watch:
        await watch.move(cut, timeout=0.2)


async def test_what_is_no_snapshot_is_refused(client: txnclient.Client, topic: str) -> None:
    with pytest.raises(InvalidArgument, match="begins at a snapshot"):
        await client.watch(topic)  # type: ignore[arg-type]
    async with client.watch(await client.snapshot(topic)) as watch:
        with pytest.raises(InvalidArgument, match="begins at a snapshot"):
            await watch.move(None)  # type: ignore[arg-type]
        assert await sleeps(watch)


async def test_it_goes_on_over_a_new_owner(client: txnclient.Client, cluster: InProcessCluster, topic: str) -> None:
    async with client.watch(await client.snapshot(topic)) as watch:
        assert await sleeps(watch)
        await cluster.restart_server("broker")
        await send(client)
        assert await watch.wait(LONG_S)


async def test_nothing_of_it_stays(client: txnclient.Client, cluster: InProcessCluster, topic: str) -> None:
    """Neither where it has woken nor where it is closed."""
    watch = await client.watch(await client.snapshot(topic))
    async with asyncio.timeout(LONG_S):
        await until(lambda: consumers(cluster) >= 2)
        await send(client)
        assert await watch.wait(LONG_S)
        await until(lambda: consumers(cluster) <= 1)
        await watch.close()
        await watch.close()
        await until(lambda: not consumers(cluster))
        await until(lambda: not any(task.get_name().startswith("feed of") for task in asyncio.all_tasks()))
    with pytest.raises(InvalidArgument, match="closed"):
        await watch.wait(LONG_S)


async def test_it_ends_with_its_client(cluster: InProcessCluster, client: txnclient.Client, topic: str) -> None:
    other = await cluster.connect()
    watch = await other.watch(await other.snapshot(topic))
    waiting = asyncio.create_task(watch.wait(LONG_S))
    await asyncio.sleep(0)
    await other.close()
    with pytest.raises(InvalidArgument, match="closed"):
        await waiting
