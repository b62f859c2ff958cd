"""A worker process of `test_named.py`: many writers of one named transaction, each says when it has written."""

from __future__ import annotations

import argparse
import asyncio
import json

import txnclient
from txnclient.producing.producer import Producer

TOPICS = ("topic://public/named/a", "topic://other/named/b")
SEGMENTS = 3


def values(writer: int) -> list[bytes]:
    """What a writer sends to each topic."""
    return [b"%016x/%d" % (writer, number) for number in range(3)]


async def write(client: txnclient.Client, producers: list[Producer], name: str) -> None:
    shared = await client.begin(name=name)
    for producer in producers:
        for number, value in enumerate(values(shared.writer_id)):
            await producer.send(value, key=str(number), txn=shared)
    print(json.dumps({"txn": str(shared.id), "writer": shared.writer_id}), flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--writers", type=int, required=True)
    parser.add_argument("--at-once", type=int, default=10)
    given = parser.parse_args()
    async with txnclient.connect(given.url, timeout=60.0) as client:
        producers = [await client.producer(topic) for topic in TOPICS]
        for first in range(0, given.writers, given.at_once):
            some = range(first, min(first + given.at_once, given.writers))
            await asyncio.gather(*(write(client, producers, given.name) for _ in some))


if __name__ == "__main__":
    asyncio.run(main())
