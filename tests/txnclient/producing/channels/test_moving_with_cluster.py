"""Producers over real splits and merges: real servers, etcd, ledgers and gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Literal

import pytest

import txnclient
from tests.cluster import InProcessCluster, running_cluster
from tests.segments.gates import GatedLedgers
from tests.txnclient.lossy_transport import LossyTransport
from tests.txnclient.test_with_cluster import new_topic, read_all, receive
from tests.waiting import until
from txnclient.connection.topic_layout import ACTIVE, SegmentInfo
from txnclient.producing.large_values import PIECE_BYTES
from txnwire.clock import SystemClock
from txnwire.ids import EARLIEST
from txnwire.protocol import MAX_VALUE_BYTES
from txnwire.transport.grpc_transport import GrpcTransport

KEYS = [f"k{number}" for number in range(32)]


async def active(client: txnclient.Client, topic: str) -> list[SegmentInfo]:
    layout = await client.describe_topic(topic)
    return sorted((one for one in layout.segments.values() if one.state == ACTIVE), key=lambda one: one.range)


async def change_at_random(client: txnclient.Client, topic: str, random: Random, changes: int) -> None:
    for _ in range(changes):
        segments = await active(client, topic)
        number = random.randrange(len(segments))
        if len(segments) > 4 or (len(segments) > 1 and random.random() < 0.4):
            number = min(number, len(segments) - 2)
            await client.merge(segments[number].name, segments[number + 1].name)
        else:
            await client.split(segments[number].name)


class Writing:
    """Writes until it is told to stop; `sent`: of each key what must be read, in order."""

    def __init__(self, client: txnclient.Client, producer: txnclient.Producer, seed: int) -> None:
        self.sent: dict[bytes, list[bytes]] = {}
        self.unplaced = 0
        """Messages that are stored nobody knows where."""
        self._client = client
        self._producer = producer
        self._random = Random(seed)
        self._over = False
        self._number = 0
        self._task = asyncio.ensure_future(self._write())

    async def stop(self) -> None:
        self._over = True
        await self._task

    async def _write(self) -> None:
        while not self._over:
            messages = []
            for _ in range(self._random.randrange(1, 40)):
                self._number += 1
                messages.append((self._random.choice(KEYS), b"%d" % self._number))
            kind = self._random.randrange(4)
            if kind == 0:
                self._sent_at(await self._producer.send_many(messages))
            elif kind == 1:
                sends = [self._producer.send(value, key=key) for key, value in messages]
                self._sent_at(await asyncio.gather(*sends))
            else:
                txn = await self._client.begin()
                for key, value in messages:
                    self._producer.send_nowait(value, key=key, txn=txn)
                if kind == 2:
                    await txn.abort()
                    continue
                await txn.commit()
            for key, value in messages:
                self.sent.setdefault(key.encode(), []).append(value)

    def _sent_at(self, ids: Sequence[txnclient.MessageId]) -> None:
        self.unplaced += sum(one.position == EARLIEST for one in ids)


def by_key(messages: list[txnclient.Message]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for message in messages:
        assert message.key is not None
        found.setdefault(message.key, []).append(message.data)
    return found


async def test_s5_producers_follow_splits_and_merges_without_losing_or_doubling_or_reordering(
    client: txnclient.Client,
) -> None:
    topic = await new_topic(client)
    writers = [Writing(client, await client.producer(topic, linger_ms=1), seed) for seed in range(2)]
    await change_at_random(client, topic, Random(5), 8)
    for writer in writers:
        await writer.stop()
    messages = await read_all(client, topic)
    for writer in writers:
        mine = [one for one in messages if one.producer_name == writer._producer.name]
        assert by_key(mine) == writer.sent
        assert not writer.unplaced, "no answer was lost: all acks come before the news of a seal"
    assert len(await active(client, topic)) > 1


@asynccontextmanager
async def connected_lossily(cluster: InProcessCluster) -> AsyncIterator[tuple[txnclient.Client, LossyTransport]]:
    transport = LossyTransport(GrpcTransport(SystemClock()))
    async with txnclient.connect(cluster.url, transport=transport) as client:
        yield client, transport


async def test_l7_lost_acks_and_lost_news_of_seals_give_one_copy(cluster: InProcessCluster) -> None:
    async with connected_lossily(cluster) as (client, transport), cluster.connect() as other:
        topic = await new_topic(other)
        producer = await client.producer(topic, linger_ms=1)
        writer = Writing(client, producer, 3)
        random = Random(8)
        for kind in ("send_ok", "producer_closed", "open_producer_ok", "layout", "send_ok", "producer_closed"):
            transport.lose[kind] = 1
            await change_at_random(other, topic, random, 1)
        await writer.stop()
        assert by_key(await read_all(other, topic)) == writer.sent


async def test_l7_s10_brokers_that_crash_while_segments_are_split(cluster: InProcessCluster) -> None:
    async with cluster.connect() as client:
        topic = await new_topic(client)
        writer = Writing(client, await client.producer(topic, linger_ms=1), 4)
        for seed in range(3):
            changing = asyncio.ensure_future(change_at_random(client, topic, Random(seed), 1))
            await asyncio.sleep(0.01 * seed)
            await cluster.restart_server("broker")
            await changing
        await writer.stop()
        assert by_key(await read_all(client, topic)) == writer.sent


async def test_a7_a_value_in_pieces_that_is_under_way_when_its_segment_is_split_appears_once(
    client: txnclient.Client,
) -> None:
    topic = await new_topic(client)
    producer = await client.producer(topic, compression=None)
    values = [Random(seed).randbytes(MAX_VALUE_BYTES + 1) for seed in range(4)]
    async with client.transaction() as txn:
        sending = [asyncio.ensure_future(producer.send(value, key="k", chunk=True, txn=txn)) for value in values]
        await change_at_random(client, topic, Random(1), 2)
        ids = await asyncio.gather(*sending)
    messages = await read_all(client, topic)
    assert [one.data == value for one, value in zip(messages, values, strict=True)] == [True] * 4
    assert [one.id for one in messages] == ids


@pytest.mark.parametrize("kind", ["stream", "queue"])
async def test_a7_what_a_sealed_segment_holds_of_a_value_in_pieces_keeps_nobody_from_its_children(
    etcd: str, tmp_path: Path, kind: Literal["stream", "queue"]
) -> None:
    disk = GatedLedgers(tmp_path)
    async with (
        running_cluster(etcd, tmp_path, make_ledgers=lambda _: disk) as cluster,
        cluster.connect() as client,
        client.consumer(topic := await new_topic(client), "s", type=kind) as consumer,
        client.producer(topic, compression=None, buffer_bytes=PIECE_BYTES) as producer,
    ):
        value = Random(3).randbytes(6 * PIECE_BYTES)
        async with client.transaction() as txn:
            await producer.send(b"before", key="k", txn=txn)
            disk.hold()
            sending = asyncio.ensure_future(producer.send(value, key="k", chunk=True, txn=txn))
            await until(lambda: disk.waiting > 0)  # its first piece is on its way to the disk
            changing = asyncio.ensure_future(change_at_random(client, topic, Random(1), 1))
            await until(lambda: held_back(cluster))
            disk.open()
            await changing
            sent = await sending
            assert len(await active(client, topic)) == 2
            await producer.send(b"behind", key="k", txn=txn)
        received = []
        for _ in range(3):
            received += await receive(consumer, 1)
            await consumer.ack(received[-1])
        assert sorted(len(one.data) for one in received) == [6, 6, len(value)]
        assert next(one for one in received if len(one.data) > 6).id == sent
        assert sent.segment != received[0].id.segment or kind == "queue"
        assert await consumer.receive_many(10, timeout=0.3) == []
        assert producer.last_sequence_id > 7, "part of it was sent twice"


def held_back(cluster: InProcessCluster) -> bool:
    """Whether the only segment is being sealed, so that nothing more gets into it."""
    broker = cluster.servers["broker"].server.broker
    assert broker is not None
    (served,) = broker.segments.values()
    return served.pipeline._held is not None


async def test_l10_of_two_live_producers_of_a_name_the_fenced_one_loses_nothing_that_was_acked(
    cluster: InProcessCluster,
) -> None:
    """Over splits, both writing: one of them is fenced, sooner or later, or both; what either was told is stored, is,
    once and in order per key."""
    async with cluster.connect() as first, cluster.connect() as second:
        topic = await new_topic(first)
        writers = [
            _Acked(await one.producer(topic, name="p", linger_ms=1), "ab"[n]) for n, one in enumerate((first, second))
        ]
        await change_at_random(first, topic, Random(2), 4)
        assert any(writer.fenced for writer in writers)
        for writer in writers:
            await writer.stop()
        found = by_key(await read_all(first, topic))
        acked = writers[0].acked | writers[1].acked
        assert acked
        for key, values in acked.items():
            assert len(set(found[key])) == len(found[key])
            assert found[key][: len(values)] == values


class _Acked:
    """Writes until it is fenced or stopped, each key by one send after the other."""

    def __init__(self, producer: txnclient.Producer, prefix: str) -> None:
        self.acked: dict[bytes, list[bytes]] = {}
        self.fenced = False
        self._over = False
        self._producer = producer
        self._tasks = [asyncio.ensure_future(self._write(f"{prefix}{key}")) for key in KEYS]

    async def stop(self) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)

    async def _write(self, key: str) -> None:
        number = 0
        while not self._over:
            try:
                await self._producer.send(b"%d" % number, key=key)
            except txnclient.ProducerFenced:
                self.fenced = True
                return
            self.acked.setdefault(key.encode(), []).append(b"%d" % number)
            number += 1
