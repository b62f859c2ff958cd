"""A worker process of `test_fair_queues.py`: takes jobs off a queue with default settings, until nothing comes.

What it says: `ready`, then a line for each job done, `hangs` if it was told to hang."""

from __future__ import annotations

import argparse
import asyncio
import time

import txnclient

JOBS = "topic://public/fair/jobs"
SUBSCRIPTION = "workers"


def say(what: str) -> None:
    print(what, flush=True)


async def work(consumer: txnclient.Consumer[str], job_s: float, hang_after: int | None, blocks: bool) -> None:
    done = 0
    say("ready")
    while messages := await consumer.receive_many(1, timeout=20.0):
        if done == hang_after:
            say("hangs")
            if blocks:
                time.sleep(600)
            await asyncio.Event().wait()
        await asyncio.sleep(job_s)
        await consumer.ack(messages[0])
        done += 1
        say(messages[0].value)


async def process(consumer: txnclient.Consumer[str], job_s: float) -> None:
    async def handler(message: txnclient.Message[str]) -> None:
        await asyncio.sleep(job_s)
        say(message.value)

    say("ready")
    await txnclient.process(consumer, handler, idle_timeout=20.0)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--job-s", type=float, default=0.05)
    parser.add_argument("--hang-after", type=int)
    parser.add_argument("--blocks", action="store_true", help="hang with the event loop")
    parser.add_argument("--process", action="store_true", help="in `process`, not in a loop")
    given = parser.parse_args()
    async with (
        txnclient.connect(given.url) as client,
        client.consumer(JOBS, SUBSCRIPTION, type="queue", serializer="str") as consumer,
    ):
        if given.process:
            await process(consumer, given.job_s)
        else:
            await work(consumer, given.job_s, given.hang_after, given.blocks)


if __name__ == "__main__":
    asyncio.run(main())
