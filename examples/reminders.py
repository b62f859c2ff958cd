"""Reminders: jobs that a queue delivers at their time.

    txnctl dev &                                     # a cluster on this machine
    python examples/reminders.py --remind 3600 tea   # in an hour
    python examples/reminders.py                     # two reminders, within 2 s, and the worker that waits for them

A reminder is a message sent with `deliver_after`. The worker waits for nothing itself: it may be started late, killed
or doubled, and each reminder is still noted once, because the note and the ack are one transaction.
"""

from __future__ import annotations

import argparse
import asyncio
import os

import txnclient

REMINDERS = "topic://public/reminders/due"
NOTES = "topic://public/reminders/notes"


async def remind(client: txnclient.Client, after_s: float, *texts: str) -> None:
    async with client.producer(REMINDERS, serializer="str") as producer:
        await producer.send_many(texts, deliver_after=after_s)


def note(reminder: txnclient.Message[str]) -> str:
    """The work. What has come late says so itself: `deliver_at_ms` is the time that was asked for."""
    return f"{reminder.value} (due at {reminder.deliver_at_ms})"


async def work(client: txnclient.Client, count: int | None) -> None:
    async with (
        client.consumer(REMINDERS, "worker", type="queue", serializer="str") as reminders,
        client.producer(NOTES, serializer="str") as notes,
    ):
        await txnclient.process(reminders, note, notes, max_messages=count)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default=os.environ.get("TXN_URL", "txn://127.0.0.1:6650"))
    parser.add_argument("--remind", type=float, metavar="SECONDS")
    parser.add_argument("--work", action="store_true", help="until it is stopped")
    parser.add_argument("texts", nargs="*", default=["tea"])
    args = parser.parse_args()
    async with txnclient.connect(args.url) as client:
        for topic in (REMINDERS, NOTES):
            await client.create_topic(topic)
        if args.remind is not None:
            await remind(client, args.remind, *args.texts)
        elif args.work:
            await work(client, None)
        else:
            await remind(client, 2, "the later one")
            await remind(client, 0.5, "the earlier one")
            await work(client, 2)
            async with client.reader(NOTES, serializer="str", end="latest") as reader:
                print(*[message.value async for message in reader], sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
