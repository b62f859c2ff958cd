"""Snapshots end to end: real client, servers, etcd, ledgers and gRPC (DESIGN §10)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import txnclient
from txnclient import Snapshot

ORDERS, INVOICES = "topic://acme/orders/placed", "topic://globex/billing/invoices"
TOPICS = (ORDERS, INVOICES)


async def values(
    client: txnclient.Client, topics: Sequence[str] = TOPICS, *, end: Snapshot, start: Snapshot | None = None
) -> list[bytes]:
    """Everything between two snapshots, or up to one, sorted."""
    async with asyncio.timeout(20), client.reader(topics, start=start or "earliest", end=end) as reader:
        return sorted([message.value async for message in reader])


async def send(client: txnclient.Client, topic: str, value: bytes, txn: txnclient.Transaction | None = None) -> None:
    async with await client.producer(topic) as producer:
        for key in ("a", "b", "c"):
            await producer.send(value, key=key, txn=txn)


async def test_a_snapshot_holds_what_was_committed_and_keeps_holding_just_that(client: txnclient.Client) -> None:
    for topic in TOPICS:
        await client.create_topic(topic, segments=2)
    committed, aborted, pending = [await client.begin() for _ in range(3)]
    for topic in TOPICS:
        await send(client, topic, b"pending", pending)
        await send(client, topic, b"committed", committed)
        await send(client, topic, b"aborted", aborted)
        await send(client, topic, b"plain")
    result = await committed.commit()
    await aborted.abort()
    snapshot = await client.snapshot(TOPICS)
    assert snapshot.revision >= result.revision
    assert snapshot.pending == (pending.id,)
    expected = [b"committed"] * 6 + [b"plain"] * 6
    assert await values(client, end=snapshot) == expected
    await pending.commit()
    await send(client, ORDERS, b"later")
    assert await values(client, end=snapshot) == expected, "what was committed later is not in it"
    assert await values(client, end=Snapshot.from_json(snapshot.to_json())) == expected
    assert await values(client, [INVOICES], end=snapshot) == expected[::2]


async def test_from_one_snapshot_to_the_next_comes_what_was_committed_between_them(client: txnclient.Client) -> None:
    """Also what lay before the old ends: entries that were pending then and have committed since."""
    for topic in TOPICS:
        await client.create_topic(topic, segments=2)
    straddling, dropped, endless = [await client.begin() for _ in range(3)]
    await send(client, ORDERS, b"straddling", straddling)
    await send(client, ORDERS, b"dropped", dropped)
    await send(client, ORDERS, b"endless", endless)
    await send(client, ORDERS, b"first")
    first = await client.snapshot(TOPICS)
    await send(client, INVOICES, b"straddling", straddling)
    await send(client, INVOICES, b"endless", endless)
    await straddling.commit()
    await dropped.abort()
    await send(client, INVOICES, b"second")
    second = await client.snapshot(TOPICS)
    await send(client, ORDERS, b"third")
    third = await client.snapshot(TOPICS)
    assert await values(client, end=first) == [b"first"] * 3
    assert await values(client, start=first, end=second) == [b"second"] * 3 + [b"straddling"] * 6
    assert await values(client, start=second, end=third) == [b"third"] * 3
    assert await values(client, start=first, end=third) == [b"second"] * 3 + [b"straddling"] * 6 + [b"third"] * 3
    assert await values(client, start=second, end=second) == []
    with pytest.raises(txnclient.InvalidArgument, match="earlier one"):
        await values(client, start=third, end=second)
