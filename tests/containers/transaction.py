"""Commits one transaction and aborts another one, and reads both: the first program that a new cluster should pass."""

from __future__ import annotations

import txnclient

TOPIC = "topic://public/default/first"


async def values(client: txnclient.Client, isolation: str) -> list[bytes]:
    async with await client.reader(TOPIC, start="earliest", end="latest", isolation=isolation) as reader:
        return sorted([message.value async for message in reader])


async def commit_and_abort(url: str) -> None:
    async with txnclient.connect(url, timeout=60.0) as client:
        await client.create_topic(TOPIC, segments=2)
        async with await client.producer(TOPIC) as producer:
            kept, lost = await client.begin(), await client.begin()
            for key in ("a", "b"):
                await producer.send(f"kept {key}".encode(), key=key, txn=kept)
                await producer.send(f"lost {key}".encode(), key=key, txn=lost)
            await lost.abort()
            await kept.commit()
        assert await values(client, "read_committed") == [b"kept a", b"kept b"]
        assert await values(client, "read_uncommitted") == [b"kept a", b"kept b", b"lost a", b"lost b"]
        assert await client.outcomes([kept.id, lost.id]) == {kept.id: "COMMITTED", lost.id: "ABORTED"}
