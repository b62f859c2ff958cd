"""Thumbnails by a crowd of workers: a queue with retries, and a topic for what cannot be done.

    txnctl dev &                                     # a cluster on this machine
    python examples/queue_workers.py                 # 60 pictures, 3 worker processes, the results
    python examples/queue_workers.py --worker        # in other terminals: more workers

Any worker takes any job. A job that raises is given back and tried again after a while, by whoever is free; after three
more tries it is moved to the dead letters, where it says where it came from and how often it was tried. A worker that
is killed loses nothing: its jobs go to the others. Result and ack of a job are one transaction, so no job has two
results.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

import txnclient
import txnclient.sync

PICTURES = "topic://public/pictures/uploaded"
THUMBNAILS = "topic://public/pictures/thumbnails"
SUBSCRIPTION = "thumbnailers"
DEAD_LETTERS = f"{PICTURES}-{SUBSCRIPTION}-DLQ"
PROGRAM = str(Path(__file__).resolve())


def make_thumbnail(message: txnclient.Message[str]) -> str:
    """The work. Every tenth picture is broken, and stays so."""
    picture = message.value
    if picture.endswith("0.jpg"):
        raise ValueError(f"{picture} is no picture")
    return f"{picture} by worker {os.getpid()}"


def work(url: str) -> None:
    """A worker, without `await`: until it is told to stop."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with (
        txnclient.sync.connect(url) as client,
        client.consumer(
            PICTURES,
            SUBSCRIPTION,
            type="queue",
            serializer="str",
            prefetch=10,
            max_redeliveries=3,
            redelivery_delay=0.2,
        ) as jobs,
        client.producer(THUMBNAILS, serializer="str") as thumbnails,
    ):
        print(f"worker {os.getpid()} is ready", flush=True)
        done = txnclient.sync.process(jobs, make_thumbnail, thumbnails, batch_messages=5, stop=stop)
        print(f"worker {os.getpid()}: {done.messages} thumbnails, gave back {done.nacked}", flush=True)


async def upload(client: txnclient.Client, pictures: list[str]) -> None:
    async with client.producer(PICTURES, serializer="str", batch_bytes=1) as producer:  # one job, one entry
        await producer.send_many([(None, picture) for picture in pictures])


async def collect(client: txnclient.Client, pictures: list[str]) -> None:
    """Wait until every picture has become a thumbnail or a dead letter, and never both or twice."""
    made: Counter[str] = Counter()
    async with client.reader([THUMBNAILS, DEAD_LETTERS], serializer="str") as reader:
        while len(made) < len(pictures):
            message = await reader.receive(timeout=60)
            picture = message.value.partition(" by ")[0]
            made[picture] += 1
            if message.topic == DEAD_LETTERS:
                print(f"{picture}: given up after {message.properties['dlq.redeliveries']} tries")
        doubled = [picture for picture, count in made.items() if count > 1]
        doubled += [message.value for message in await reader.receive_many(10, timeout=0.5)]
    if doubled or sorted(made) != sorted(pictures):
        raise SystemExit(f"not each exactly once: {doubled or sorted(set(pictures) ^ set(made))}")
    print(f"{len(pictures)} pictures: each done once or given up")


async def drive(url: str, count: int, workers: int) -> None:
    async with txnclient.connect(url) as client:
        await client.create_topic(PICTURES, segments=2)
        await client.create_topic(THUMBNAILS)
        await client.create_topic(DEAD_LETTERS)  # the first dead letter would: the reader below wants it now
        command = [sys.executable, PROGRAM, "--url", url, "--worker"]
        crowd = [await asyncio.create_subprocess_exec(*command) for _ in range(workers)]
        try:
            pictures = [f"{number}.jpg" for number in range(1, count + 1)]
            await upload(client, pictures)
            await collect(client, pictures)
        finally:
            for worker in crowd:
                if worker.returncode is None:
                    worker.send_signal(signal.SIGTERM)
            await asyncio.gather(*(worker.wait() for worker in crowd))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--url", default=os.environ.get("TXN_URL", "txn://127.0.0.1:6650"))
    parser.add_argument("--pictures", type=int, default=60)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help="be one more worker, and nothing else")
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.url)
    else:
        asyncio.run(drive(arguments.url, arguments.pictures, arguments.workers))
