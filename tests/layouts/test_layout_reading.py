"""Readers and snapshots while segments are split and merged: real client, servers, etcd, ledgers and gRPC."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.waiting import grown, until
from txnclient import Snapshot

ORDERS, INVOICES = "topic://acme/orders/placed", "topic://globex/billing/invoices"
TOPICS = (ORDERS, INVOICES)
KEYS = ("a", "b", "c", "d")
PARTS = len(KEYS) * len(TOPICS)


async def read(
    client: txnclient.Client, *, topics: Sequence[str] = TOPICS, **bounds: Snapshot | str
) -> list[txnclient.Message]:
    async with asyncio.timeout(30), client.reader(topics, **bounds) as reader:
        return [message async for message in reader]


def number_of(message: txnclient.Message) -> int:
    return int(message.value.split(b"-")[1])


def assert_in_order(messages: Sequence[txnclient.Message]) -> None:
    """Each writer uses keys of its own and counts up."""
    last: dict[tuple[str, bytes | None], int] = {}
    for message in messages:
        place = (message.topic, message.key)
        assert last.get(place, 0) < number_of(message), f"{message.value!r} of key {message.key!r} behind {last[place]}"
        last[place] = number_of(message)


async def split_any(client: txnclient.Client, topic: str, chance: random.Random) -> None:
    """A split, or a merge where there are many."""
    active = (await client.describe_topic(topic)).active
    if len(active) > 3 or (len(active) > 1 and chance.random() < 0.4):
        at = chance.randrange(len(active) - 1)
        await client.merge(active[at].name, active[at + 1].name)
    else:
        await client.split(chance.choice(active).name)


async def write(client: txnclient.Client, name: str, ended: list[bytes], stop: asyncio.Event) -> None:
    """One transaction after another over all keys and both topics, every fourth aborted."""
    async with await client.producer(ORDERS) as orders, await client.producer(INVOICES) as invoices:
        number = 0
        while not stop.is_set():
            number += 1
            value = f"{name}-{number}".encode()
            try:
                txn = await client.begin()
                for key in KEYS:
                    await asyncio.gather(*(one.send(value, key=f"{name}{key}", txn=txn) for one in (orders, invoices)))
                await (txn.commit() if number % 4 else txn.abort())
            except txnclient.TxnError:
                continue  # its broker went away in the middle: whichever way it ended, it ended whole
            if number % 4:
                ended.append(value)


async def test_x2_snapshots_and_readers_over_splits_merges_and_a_new_owner(cluster: InProcessCluster) -> None:
    """Every snapshot holds each transaction whole or not at all, what follows from one to the next adds up to the last,
    and a reader that follows all the while has everything once, each key in its order."""
    await cluster.start_server("broker-2", "broker")
    chance = random.Random(7)
    async with cluster.connect() as client:
        for topic in TOPICS:
            await client.create_topic(topic, segments=2, autoscale="off")
        stop, ended = asyncio.Event(), list[bytes]()
        snapshots: list[tuple[Snapshot, list[bytes]]] = []
        followed: list[txnclient.Message] = []
        changed: list[None] = []

        async def follow(reader: txnclient.Reader) -> None:
            async for message in reader:
                followed.append(message)

        async def change() -> None:
            while not stop.is_set():
                await split_any(client, chance.choice(TOPICS), chance)
                changed.append(None)
                await asyncio.sleep(chance.random() * 0.1)

        async with client.reader(TOPICS) as reader, asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follow(reader))
            for writer in ("w", "x", "y"):
                tasks.create_task(write(client, writer, ended, stop))
            changing = tasks.create_task(change())
            for number in range(8):
                if number == 4:
                    await cluster.stop_server("broker")
                before, more, changes = list(ended), grown(ended, 4), grown(changed, 2)
                snapshots.append((await client.snapshot(TOPICS), before))
                await until(more, "four more transactions", within_s=30)
                await until(changes, "two more changes", within_s=30)
            stop.set()
            await changing
            seen = Counter[bytes]()

            def is_whole() -> bool:
                seen.clear()
                seen.update(message.value for message in followed)
                return sorted(set(seen.values())) == [PARTS] and set(ended) <= set(seen)

            await until(
                is_whole,
                "all that committed, also though its answer was lost with its broker",
                within_s=30,
                longest_poll_s=0.1,
            )
            following.cancel()
        summed: Counter[tuple[str, bytes | None, bytes]] = Counter()
        last: Snapshot | None = None
        for snapshot, before in snapshots:
            alone = await read(client, end=snapshot)
            assert_in_order(alone)
            count = Counter(message.value for message in alone)
            assert sorted(set(count.values())) in ([], [PARTS]), "torn snapshot"
            assert not [value for value in before if value not in count], "what had been committed is in it"
            summed.update(map(content, await read(client, start=last or "earliest", end=snapshot)))
            assert summed == Counter(map(content, alone)), "what followed since the last one and it are this one"
            assert last is None or (last.precedes(snapshot) and snapshot.adds_to(last))
            last = snapshot
        assert_in_order(followed)
        assert not [value for value in seen if int(value.split(b"-")[1]) % 4 == 0], "an aborted one was read"


def content(message: txnclient.Message) -> tuple[str, bytes | None, bytes]:
    return message.topic, message.key, message.value


async def send(client: txnclient.Client, value: bytes, txn: txnclient.Transaction | None = None) -> None:
    async with await client.producer(ORDERS) as producer:
        for key in KEYS:
            await producer.send(value, key=key, txn=txn)


async def values(client: txnclient.Client, **bounds: Snapshot | str) -> list[bytes]:
    """Each value once, in the order in which they come; all keys must agree on it."""
    messages = await read(client, topics=[ORDERS], **bounds)
    by_key = {key: [message.value for message in messages if message.key == key.encode()] for key in KEYS}
    assert len({tuple(found) for found in by_key.values()}) == 1, by_key
    return by_key["a"]


async def test_x2_a_reader_bounded_by_a_snapshot_from_before_amid_and_after_a_split(client: txnclient.Client) -> None:
    """A transaction that is open over the split writes on both sides of it: it is in a snapshot whole or not at all."""
    await client.create_topic(ORDERS, autoscale="off")
    across = await client.begin()
    await send(client, b"first")
    await send(client, b"across 1", across)
    before = await client.snapshot([ORDERS])
    [root] = (await client.describe_topic(ORDERS)).active
    splitting = asyncio.create_task(client.split(root.name))
    amid = await client.snapshot([ORDERS])
    await splitting
    await send(client, b"across 2", across)
    await send(client, b"second")
    after = await client.snapshot([ORDERS])
    assert after.topics[ORDERS].epoch == before.topics[ORDERS].epoch + 1
    assert [path for path, one in after.segments.items() if one.sealed] == [root.path]
    await across.commit()
    done = await client.snapshot([ORDERS])
    for snapshot in (before, amid):
        assert await values(client, end=snapshot) == [b"first"]
    assert await values(client, end=after) == [b"first", b"second"]
    assert await values(client, end=done) == [b"first", b"across 1", b"across 2", b"second"]
    assert await values(client, start=before, end=after) == [b"second"]
    assert await values(client, start=amid, end=after) == [b"second"]
    assert await values(client, start=after, end=done) == [b"across 1", b"across 2"]
    assert await values(client, start=before, end=done) == [b"across 1", b"across 2", b"second"]
    later = await client.snapshot([ORDERS])
    assert not later.adds_to(done)
    assert await values(client, start=done, end=later) == []


@pytest.mark.parametrize("commits", [True, False])
async def test_s7_an_open_transaction_in_the_parent_holds_the_children_back(
    client: txnclient.Client, commits: bool
) -> None:
    await client.create_topic(ORDERS, autoscale="off")
    async with client.reader(ORDERS) as reader:
        await send(client, b"before")
        held = await client.begin()
        await send(client, b"held", held)
        [root] = (await client.describe_topic(ORDERS)).active
        await client.split(root.name)
        await send(client, b"child")
        found = [await reader.receive(timeout=10) for _ in KEYS]
        assert {message.value for message in found} == {b"before"}
        with pytest.raises(txnclient.Timeout):
            await reader.receive(timeout=0.3)
        assert await values(client, end="latest") == [b"before", b"child"], "whatever is committed, past what is open"
        assert await values(client, end="latest", isolation="read_uncommitted") == [b"before", b"held", b"child"]
        await (held.commit() if commits else held.abort())
        expected = [b"held"] * commits + [b"child"]
        for value in expected:
            assert [(await reader.receive(timeout=10)).value for _ in KEYS] == [value] * len(KEYS)
        assert await values(client, end="latest") == [b"before", *expected]


async def test_v5_starts_over_a_layout_that_has_changed(client: txnclient.Client) -> None:
    """From a message's id on, from a time on, and from latest on: over sealed segments and across a later change."""
    await client.create_topic(ORDERS, autoscale="off")
    async with await client.producer(ORDERS) as producer:
        await producer.send(b"1", key="a")
        [root] = (await client.describe_topic(ORDERS)).active
        layout = await client.split(root.name)
        second = await producer.send(b"2", key="a")
        await asyncio.sleep(0.01)  # so that the publish times differ
        third = await producer.send(b"3", key="a")
        lower, upper = layout.active
        async with client.reader(ORDERS, start="latest") as tail:
            merged = await client.merge(lower.name, upper.name)
            await producer.send(b"4", key="a")
            assert (await tail.receive(timeout=10)).value == b"4"
        from_second = [message.value for message in await read(client, topics=[ORDERS], start=second, end="latest")]
        assert from_second == [b"2", b"3", b"4"]
        from_third = await read(client, topics=[ORDERS], start=third, end="latest")
        assert [message.value for message in from_third] == [b"3", b"4"]
        since = await read(client, topics=[ORDERS], start=from_third[0].publish_time_ms, end="latest")
        assert [message.value for message in since] == [b"3", b"4"]
        assert (await read(client, topics=[ORDERS], start="latest", end="latest")) == []
        assert [one.segment_id for one in merged.active] == [3]
