"""A saga over two topics: a trip is a hotel and a flight, both or neither, though they are booked one after the other.

    txnctl dev &                                     # a cluster on this machine
    python examples/saga.py --desk &                 # books and cancels; kill it, start it again, start two
    python examples/saga.py --saga &                 # decides what comes next; likewise
    python examples/saga.py --trips 100 --check      # trips, and whether each has ended as it should

Requests go to one topic, what became of them to the other, both keyed by the trip. Each step consumes a message and
produces the next one in one transaction: so no step is lost or done twice, and what a step needs to know is in its
message. Where the flight is refused, the hotel is cancelled: a compensation, which is a step like others.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from typing import Any

import txnclient

REQUESTS, OUTCOMES = "topic://public/saga/requests", "topic://public/saga/outcomes"
NEXT = {
    ("book hotel", True): "book flight",
    ("book flight", False): "cancel hotel",  # the compensation
    ("book hotel", False): None,
    ("book flight", True): None,
    ("cancel hotel", True): None,
}
"""What follows a step that was done, or refused."""


def full(trip: int) -> bool:
    """Every third flight is."""
    return trip % 3 == 0


def serve(message: txnclient.Message[Any]) -> dict[str, Any]:
    """The desk: a request becomes an outcome. Its books are the topic of outcomes itself."""
    request = message.value
    return {**request, "done": not (request["step"] == "book flight" and full(request["trip"]))}


def decide(message: txnclient.Message[Any]) -> dict[str, Any] | None:
    """The saga: an outcome becomes the next request, or is the end."""
    step = NEXT[message.value["step"], message.value["done"]]
    return None if step is None else {"trip": message.value["trip"], "step": step}


async def run(client: txnclient.Client, role: str, stop: asyncio.Event) -> None:
    source, target, handler = (REQUESTS, OUTCOMES, serve) if role == "desk" else (OUTCOMES, REQUESTS, decide)
    async with (
        client.consumer(source, role, serializer="json") as consumer,
        client.producer(target, serializer="json") as producer,
    ):
        done = await txnclient.process(consumer, handler, producer, batch_messages=10, stop=stop)
    print(f"{role}: {done.messages} steps")


async def begin_trips(client: txnclient.Client, count: int) -> None:
    async with client.producer(REQUESTS, serializer="json") as producer:
        await producer.send_many([(f"trip-{n}", {"trip": n, "step": "book hotel"}) for n in range(count)])


async def check(client: txnclient.Client, count: int) -> None:
    """Waits until all trips have ended, as each should, in this order and once."""
    refused = [("book hotel", True), ("book flight", False), ("cancel hotel", True)]
    expected = {n: refused if full(n) else [("book hotel", True), ("book flight", True)] for n in range(count)}
    steps: dict[int, list[tuple[str, bool]]] = {}
    async with client.reader(OUTCOMES, serializer="json") as reader:
        for _ in range(sum(map(len, expected.values()))):
            outcome = (await reader.receive(timeout=60)).value
            steps.setdefault(outcome["trip"], []).append((outcome["step"], outcome["done"]))
        more = await reader.receive_many(10, timeout=0.5)
    if steps != expected or more:
        wrong = {trip: found for trip, found in steps.items() if found != expected.get(trip)}
        raise SystemExit(f"not as it should be: {wrong}, and {len(more)} steps too many")
    booked = sum(not full(trip) for trip in steps)
    print(f"{count} trips: {booked} booked, {count - booked} given up and their hotel cancelled")


async def main(given: argparse.Namespace) -> None:
    async with txnclient.connect(given.url) as client:
        for topic in (REQUESTS, OUTCOMES):
            await client.create_topic(topic, segments=2)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with asyncio.TaskGroup() as roles:
            for role in ("desk", "saga"):
                if getattr(given, role):
                    roles.create_task(run(client, role, stop))
            if given.trips:
                await begin_trips(client, given.trips)
            if given.check:
                await check(client, given.trips)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default=os.environ.get("TXN_URL", "txn://127.0.0.1:6650"))
    parser.add_argument("--desk", action="store_true", help="book and cancel, until SIGTERM")
    parser.add_argument("--saga", action="store_true", help="decide what comes next, until SIGTERM")
    parser.add_argument("--trips", type=int, default=0, metavar="N", help="begin N trips")
    parser.add_argument("--check", action="store_true", help="wait for the end of these trips, and judge it")
    asyncio.run(main(parser.parse_args()))
