"""Whole entries, readers and scans show the same (X2)."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

import txnclient
import txnclient.sync
from tests.both_topics import INVOICES, ORDERS, heads_of
from tests.cluster import InProcessCluster
from txnclient import Snapshot, WholeEntry
from txnclient.reading.snapshot import Span
from txnwire.ids import EARLIEST, Position

TOPICS = (ORDERS, INVOICES)


KEYS = ("a", "b", "c", "d", "e")


class Shown(NamedTuple):
    """One message, whoever read it."""

    segment: str
    position: Position
    index: int
    key: bytes | None
    value: bytes
    properties: dict[str, str]
    event_time_ms: int | None
    publish_time_ms: int
    producer: str
    sequence_id: int
    txn_id: txnclient.TxnId | None


def of_entry(segment: str, entry: WholeEntry) -> list[Shown]:
    block = entry.block
    return [
        Shown(
            segment,
            entry.position,
            index,
            block.key(index),
            block.value(index),
            block.properties(index),
            block.event_time_ms(index),
            entry.publish_time_ms,
            entry.producer,
            entry.sequence_id + index,
            entry.txn_id,
        )
        for index in range(len(block))
    ]


def of_message(message: txnclient.Message) -> Shown:
    return Shown(
        message.id.segment,
        message.position,
        message.id.index,
        message.key,
        message.value,
        message.properties,
        message.event_time_ms,
        message.publish_time_ms,
        message.producer_name,
        message.sequence_id,
        message.txn_id,
    )


async def in_bulk(
    client: txnclient.Client, start: Snapshot | None, end: Snapshot, **options: Any
) -> dict[str, list[Shown]]:
    """By segment, what lies between two cuts, each segment by itself, as Spark's tasks do."""
    span = Span(start, end)
    found: dict[str, list[Shown]] = {}
    for path, one in span.ends(TOPICS).items():
        async with asyncio.timeout(60):
            async for entries in client.read_entries(path, after=span.after(path), end=one, span=span, **options):
                for entry in entries:
                    found.setdefault(path, []).extend(of_entry(path, entry))
    return found


async def by_reader(client: txnclient.Client, start: Snapshot | None, end: Snapshot) -> dict[str, list[Shown]]:
    found: dict[str, list[Shown]] = {}
    async with asyncio.timeout(60), client.reader(TOPICS, start=start or "earliest", end=end) as reader:
        async for message in reader:
            found.setdefault(message.id.segment, []).append(of_message(message))
    return found


class History:
    """Random doings in both topics, one after the other; what is open stays so for a while."""

    def __init__(self, client: txnclient.Client, cluster: InProcessCluster, seed: int) -> None:
        self.client = client
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.producers: list[txnclient.Producer[bytes]] = []
        self.open: list[list[txnclient.Transaction]] = []
        """Each with all its writers."""
        self.count = 0

    async def begin(self) -> None:
        for topic in TOPICS:
            await self.client.create_topic(topic, segments=2, autoscale="off")
            for _ in range(2):
                # Batches of a few messages, some of them compressed.
                compression = self.chance.choice([None, "zstd"])
                self.producers.append(await self.client.producer(topic, batch_bytes=2_000, compression=compression))

    async def step(self) -> None:
        kinds = ["send"] * 6 + ["begin", "begin", "named", "end", "end", "end", "large", "split", "plain"]
        await getattr(self, "_" + self.chance.choice(kinds))()

    async def _send_in(self, txn: txnclient.Transaction | None) -> None:
        chance = self.chance
        messages = []
        for _ in range(chance.randrange(1, 40)):
            self.count += 1
            value = b"%d " % self.count * chance.randrange(1, 30)
            properties = {"n": str(self.count)} if chance.random() < 0.1 else None
            time_ms = self.count if chance.random() < 0.1 else None
            key = chance.choice([*KEYS, None])
            messages.append(txnclient.OutgoingMessage(value, key and key.encode(), properties, time_ms))
        await chance.choice(self.producers).send_many(messages, txn=txn)

    async def _plain(self) -> None:
        await self._send_in(None)

    async def _send(self) -> None:
        if self.open:
            for txn in self.chance.choice(self.open):
                await self._send_in(txn)

    async def _begin(self) -> None:
        self.open.append([await self.client.begin()])

    async def _named(self) -> None:
        self.count += 1
        self.open.append([await self.client.begin(name=f"job/{self.count}") for _ in range(3)])

    async def _large(self) -> None:
        if self.open:
            self.count += 1
            txn = self.chance.choice(self.chance.choice(self.open))
            value = b"%06d " % self.count * self.chance.randrange(800_000, 1_000_000)
            await self.chance.choice(self.producers).send(
                value, key=self.chance.choice(KEYS), chunk=True, txn=txn, properties={"large": "yes"}
            )

    async def _end(self) -> None:
        if not self.open:
            return
        writers = self.open.pop(self.chance.randrange(len(self.open)))
        if self.chance.random() < 0.4:
            await writers[0].abort()
            return
        for txn in writers:
            await txn.flush()
        if len(writers) > 1:
            counted = [txn.writer_id for txn in writers if self.chance.random() < 0.5]
            await writers[0].commit(writers=counted)
        else:
            await writers[0].commit()

    async def _split(self) -> None:
        topic = self.chance.choice(TOPICS)
        active = (await self.client.describe_topic(topic)).active
        if len(active) > 2:
            at = self.chance.randrange(len(active) - 1)
            await self.client.merge(active[at].name, active[at + 1].name)
        else:
            await self.client.split(self.chance.choice(active).name)


@pytest.mark.parametrize("seed", range(1, 6))
async def test_x2_what_is_read_in_bulk_is_what_a_reader_shows(
    cluster: InProcessCluster, client: txnclient.Client, seed: int
) -> None:
    """Between any two cuts of a history of aborts, writers that do not count, large values in pieces, open
    transactions, splits and merges."""
    history = History(client, cluster, seed)
    await history.begin()
    cuts: list[Snapshot | None] = [None]
    for _ in range(5):
        for _ in range(14):
            await history.step()
        cuts.append(await client.snapshot(TOPICS))
    last = cuts[-1]
    assert last is not None
    pairs = [*pairwise(cuts), (None, last), (cuts[2], last)]
    shown = 0
    for start, end in pairs:
        assert end is not None
        expected = await by_reader(client, start, end)
        assert await in_bulk(client, start, end) == expected
        shown += sum(map(len, expected.values()))
    assert shown > 100
    await assert_heads(client, last)


async def assert_heads(client: txnclient.Client, cut: Snapshot) -> None:
    """All that is stored up to a cut, by its heads, and by READ_UNCOMMITTED; and what the cut shows, told by heads."""
    for path, bounds in cut.segments.items():
        heads = await heads_of(client, path, bounds.end, min_revision=cut.revision)
        raw = {}
        async for entries in client.read_entries(path, after=EARLIEST, end=bounds.end, isolation="read_uncommitted"):
            raw.update({entry.position: entry for entry in entries})
        plain = {head.position: head for head in heads if head.piece is None}
        values = {head.position: head for head in heads if head.piece is not None and head.piece.number == 0}
        assert sorted(raw) == sorted({**plain, **{at: one for at, one in values.items() if at in raw}})
        for position, head in {**plain, **values}.items():
            if (entry := raw.get(position)) is not None:
                assert (head.txn_id, head.writer) == (entry.txn_id, entry.writer)
                assert (head.messages, head.publish_time_ms) == (len(entry.block), entry.publish_time_ms)
        committed = [
            head.position
            for head in heads
            if not head.aborted
            and (head.piece is None or head.piece.number == 0)
            and (head.txn_id is None or cut.counts(head.txn_id, head.writer))
        ]
        span = Span(None, cut)
        shown = [
            entry.position
            async for entries in client.read_entries(path, after=EARLIEST, end=bounds.end, span=span)
            for entry in entries
        ]
        assert committed == shown
