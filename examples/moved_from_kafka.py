"""A transactional Kafka program, moved: the same loop, in the same order, with the names of this client.

    txnctl dev &                                     # a cluster on this machine
    python examples/moved_from_kafka.py --clicks 500
    python examples/moved_from_kafka.py --enrich     # kill it, start it again: the key fences the one before
    python examples/moved_from_kafka.py --check

`enrich` is what one writes here. `enrich_by_hand` (`--by-hand`) is the loop as it was: beside each call stands what it
was called in Kafka. A loop of one's own has to take care of three things that `process` does by itself: to give the
messages back when anything fails, to go on after what passes, and to end when it is fenced.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Mapping
from typing import Any

import txnclient

CLICKS, VISITS = "topic://public/kafka/clicks", "topic://public/kafka/visits"


class Sender:
    """`send(topic, value, key, headers)`: a producer here belongs to one topic, so this keeps one of each."""

    def __init__(self, client: txnclient.Client) -> None:
        self._client = client
        self._producers: dict[str, txnclient.Producer[bytes]] = {}

    async def send(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        txn: txnclient.Transaction | None = None,
    ) -> txnclient.MessageId:
        if topic not in self._producers:
            self._producers[topic] = await self._client.producer(topic)
        return await self._producers[topic].send(value, key=key, properties=headers, txn=txn)


def visit(message: txnclient.Message[bytes]) -> txnclient.Output:
    return txnclient.Output(message.value.upper(), properties=visit_headers(message))


def visit_headers(message: txnclient.Message[bytes]) -> dict[str, str]:
    """Kafka's `partition` and `offset` are the segment and the position of a message; both together are its `id`."""
    return {**message.properties, "click": str(message.id)}


async def enrich(client: txnclient.Client, idle: float) -> None:
    async with client.consumer(CLICKS, "enrich") as clicks, client.producer(VISITS) as visits:
        done = await txnclient.process(clicks, visit, visits, batch_messages=20, idle_timeout=idle)
    print(f"{done.messages} clicks in {done.transactions} transactions")


async def enrich_by_hand(client: txnclient.Client, idle: float) -> None:
    sender = Sender(client)
    done = 0
    async with client.consumer(CLICKS, "enrich") as consumer:  # group.id, subscribe(); read_committed is the default
        while messages := await consumer.receive_many(20, timeout=idle):  # poll()
            try:
                # begin_transaction(); send_offsets_to_transaction(); commit_transaction() or abort_transaction().
                # Whatever is raised in the block, the messages are given back: Kafka's seek() to what was committed.
                async with consumer.transaction(messages) as txn:
                    for message in messages:
                        headers = visit_headers(message)
                        await sender.send(VISITS, message.value.upper(), key=message.key, headers=headers, txn=txn)
            except txnclient.TxnError as error:
                if error.fatal or not (error.retriable or error.requires_abort):
                    raise  # fenced by a newer holder of the key, or a mistake
                await asyncio.sleep(0.1)  # the same messages come again
            else:
                done += len(messages)
    print(f"{done} clicks")


async def place(client: txnclient.Client, count: int) -> None:
    sender = Sender(client)
    for first in range(0, count, 50):
        several = range(first, min(first + 50, count))
        users = [(f"user-{n % 9}".encode(), f"click {n}".encode()) for n in several]
        await asyncio.gather(*(sender.send(CLICKS, value, key=key, headers={"from": "web"}) for key, value in users))
    print(f"{count} clicks")


async def check(client: txnclient.Client) -> None:
    async def read(topic: str) -> dict[bytes | None, list[Any]]:
        found: dict[bytes | None, list[Any]] = {}
        async with client.reader(topic, end="latest") as reader:
            async for message in reader:
                found.setdefault(message.key, []).append((message.value.lower(), message.properties["from"]))
        return found

    clicks, visits = await read(CLICKS), await read(VISITS)
    if clicks != visits or not clicks:
        raise SystemExit("clicks and visits differ")
    print(f"{sum(map(len, visits.values()))} visits, each once and in order for each user")


async def main(given: argparse.Namespace) -> None:
    async with txnclient.connect(given.url) as client:
        for topic in (CLICKS, VISITS):
            await client.create_topic(topic, segments=2)  # num.partitions, but segments are split and merged
        if given.clicks:
            await place(client, given.clicks)
    if given.enrich or given.by_hand:
        # transactional.id and init_transactions(): whoever connects with the key fences the one before
        async with txnclient.connect(given.url, transaction_key="enrich-1") as client:
            await (enrich if given.enrich else enrich_by_hand)(client, given.idle)
    if given.check:
        async with txnclient.connect(given.url) as client:
            await check(client)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default=os.environ.get("TXN_URL", "txn://127.0.0.1:6650"))
    parser.add_argument("--clicks", type=int, metavar="N", help="send N clicks")
    parser.add_argument("--enrich", action="store_true", help="clicks become visits, by `process`")
    parser.add_argument("--by-hand", action="store_true", help="likewise, by the loop as it was in Kafka")
    parser.add_argument("--idle", type=float, default=2.0, help="end after so many seconds without a click")
    parser.add_argument("--check", action="store_true", help="each click has one visit")
    asyncio.run(main(parser.parse_args()))
