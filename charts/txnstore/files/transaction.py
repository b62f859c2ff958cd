"""Commits one transaction and aborts another one, and reads both: what `helm test` runs, against `TXN_URL`."""

from __future__ import annotations

import asyncio
import os
import uuid

import txnclient


async def values(client: txnclient.Client, topic: str, isolation: str) -> list[bytes]:
    async with await client.reader(topic, start="earliest", end="latest", isolation=isolation) as reader:
        return sorted([message.value async for message in reader])


async def main() -> None:
    topic = f"topic://public/helm-test/{uuid.uuid4().hex}"
    async with txnclient.connect(os.environ["TXN_URL"]) as client:
        await client.create_topic(topic, segments=2)
        try:
            async with await client.producer(topic) as producer:
                kept, lost = await client.begin(), await client.begin()
                for key in ("a", "b"):
                    await producer.send(f"kept {key}".encode(), key=key, txn=kept)
                    await producer.send(f"lost {key}".encode(), key=key, txn=lost)
                await lost.abort()
                await kept.commit()
            committed = await values(client, topic, "read_committed")
            everything = await values(client, topic, "read_uncommitted")
            outcomes = await client.outcomes([kept.id, lost.id])
        finally:
            await client.delete_topic(topic, force=True)
    expected = [b"kept a", b"kept b"]
    if committed != expected or everything != [*expected, b"lost a", b"lost b"]:
        raise SystemExit(f"read_committed gave {committed}, read_uncommitted {everything}")
    if outcomes != {kept.id: "COMMITTED", lost.id: "ABORTED"}:
        raise SystemExit(f"outcomes: {outcomes}")
    print(f"{kept.id} is committed and read, {lost.id} is aborted and hidden")


asyncio.run(asyncio.wait_for(main(), float(os.environ.get("TIMEOUT_S", "60"))))
