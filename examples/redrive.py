"""Dead letters back into their queue, once the reason is mended.

    txnctl dev &                                     # a cluster on this machine
    python examples/redrive.py --jobs 60             # jobs, of which every fifth is broken for the worker of today
    python examples/redrive.py --work                # does the others; the broken ones become dead letters
    python examples/redrive.py --redrive             # moves them back; kill it, start it again
    python examples/redrive.py --work --mended       # the worker of tomorrow does them
    python examples/redrive.py --check               # each job is done once

A dead letter says where it comes from: its properties `dlq.topic`, `dlq.message_id`, `dlq.subscription` and
`dlq.redeliveries`. Moving it back is a consume-transform-produce job like others: the copy and the ack of the dead
letter are one transaction. What has been moved back too often goes to a topic that people look at.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import Counter
from typing import Any

import txnclient

JOBS, DONE = "topic://public/redrive/jobs", "topic://public/redrive/done"
PARKED = "topic://public/redrive/parked"
SUBSCRIPTION = "workers"
DEAD_LETTERS = f"{JOBS}-{SUBSCRIPTION}-DLQ"
MOST = 3
"""How often a job is moved back before it is parked."""


async def place(client: txnclient.Client, count: int) -> None:
    async with client.producer(JOBS, serializer="json", batch_bytes=1) as producer:
        await producer.send_many([{"job": number, "broken": number % 5 == 0} for number in range(count)])
    print(f"{count} jobs")


async def work(client: txnclient.Client, mended: bool, idle: float) -> None:
    def do(message: txnclient.Message[Any]) -> dict[str, int]:
        if message.value["broken"] and not mended:
            raise ValueError("cannot be done by this version")
        return {"job": message.value["job"]}

    retries = {"max_redeliveries": 1, "redelivery_delay": 0.1, "dead_letter_topic": DEAD_LETTERS}
    async with (
        client.consumer(JOBS, SUBSCRIPTION, type="queue", serializer="json", **retries) as jobs,
        client.producer(DONE, serializer="json") as done,
    ):
        statistics = await txnclient.process(jobs, do, done, batch_messages=10, idle_timeout=idle)
    print(f"{statistics.messages} done, gave back {statistics.nacked}")


async def redrive(client: txnclient.Client, idle: float) -> None:
    def back(letter: txnclient.Message[bytes]) -> txnclient.Output:
        times = int(letter.properties.get("redriven", "0")) + 1
        own = {name: value for name, value in letter.properties.items() if not name.startswith("dlq.")}
        if times > MOST:
            return txnclient.Output(letter.data, properties=dict(letter.properties), to="parked")
        return txnclient.Output(letter.data, properties={**own, "redriven": str(times)}, to="jobs")

    async with (
        client.consumer(DEAD_LETTERS, "redrive") as letters,
        client.producer(JOBS) as jobs,
        client.producer(PARKED) as parked,
    ):
        producers = {"jobs": jobs, "parked": parked}
        moved = await txnclient.process(letters, back, producers, batch_messages=3, idle_timeout=idle)
    print(f"{moved.messages} dead letters moved")


async def check(client: txnclient.Client) -> None:
    async with client.reader(JOBS, end="latest", serializer="json") as jobs:
        placed = Counter([message.value["job"] async for message in jobs if "redriven" not in message.properties])
    async with client.reader(DONE, end="latest", serializer="json") as results:
        done = Counter([message.value["job"] async for message in results])
    if done != placed or not placed:
        raise SystemExit(f"not done once: {sorted((placed - done).keys() | (done - placed).keys())}")
    print(f"{len(done)} jobs done once")


async def main(given: argparse.Namespace) -> None:
    async with txnclient.connect(given.url) as client:
        for topic in (JOBS, DONE, DEAD_LETTERS, PARKED):
            await client.create_topic(topic)
        if given.jobs:
            await place(client, given.jobs)
        if given.work:
            await work(client, given.mended, given.idle)
        if given.redrive:
            await redrive(client, given.idle)
        if given.check:
            await check(client)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default=os.environ.get("TXN_URL", "txn://127.0.0.1:6650"))
    parser.add_argument("--jobs", type=int, metavar="N", help="place N jobs")
    parser.add_argument("--work", action="store_true", help="do jobs")
    parser.add_argument("--mended", action="store_true", help="with --work: the version that can do the broken ones")
    parser.add_argument("--redrive", action="store_true", help="move dead letters back")
    parser.add_argument("--idle", type=float, default=2.0, help="end after so many seconds without a message")
    parser.add_argument("--check", action="store_true", help="each job is done once")
    asyncio.run(main(parser.parse_args()))
