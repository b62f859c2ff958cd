"""One transaction over two topics and two subscriptions, and a process that does it and dies in its midst (A1)."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import txnclient
from tests.processes import read_all

BEGUN, WRITTEN, ACKED, COMMITTING, COMMITTED = STEPS = ("begun", "written", "acked", "committing", "committed")
Commit = Callable[[txnclient.Transaction], Awaitable[object]]


def outputs_of(topic: str) -> list[bytes]:
    return [f"{topic} {number:02}".encode() for number in range(12)]


class Job:
    """One transaction over two output topics of three segments each and acks on two subscriptions."""

    def __init__(self, client: txnclient.Client, number: int) -> None:
        self.client = client
        self.inputs = [f"topic://public/in{number}/a", f"topic://public/in{number}/b"]
        self.outputs = [f"topic://public/out{number}/a", f"topic://other/out{number}/b"]

    async def prepare(self) -> None:
        for topic in (*self.inputs, *self.outputs):
            await self.client.create_topic(topic, segments=3)
        for topic in self.inputs:
            async with await self.client.producer(topic) as producer:
                await producer.send(b"input of " + topic.encode(), key="k")

    async def run(self, after: Callable[[str], Awaitable[None]], commit: Commit = txnclient.Transaction.commit) -> bool:
        """Whether it committed; if not, it was aborted. `after` is called with each step."""
        consumers = [await self.client.consumer(topic, "job") for topic in self.inputs]
        received = [await consumer.receive(timeout=20) for consumer in consumers]
        txn = await self.client.begin(timeout=60)
        await after(BEGUN)
        try:
            await self._write(txn)
            await after(WRITTEN)
            for consumer, message in zip(consumers, received, strict=True):
                await consumer.ack(message, txn=txn)
            await after(ACKED)
            await after(COMMITTING)
            await commit(txn)
            await after(COMMITTED)
            return True
        except txnclient.TxnError as error:
            assert error.retriable or error.requires_abort or isinstance(error, txnclient.InvalidTxnState), error
            return await self._end(txn)
        finally:
            for consumer in consumers:
                await consumer.close()

    async def _write(self, txn: txnclient.Transaction) -> None:
        for topic in self.outputs:
            async with await self.client.producer(topic) as producer:
                values = enumerate(outputs_of(topic))
                await producer.send_many([(f"key-{number}", value) for number, value in values], txn=txn)
                await producer.flush()

    async def _end(self, txn: txnclient.Transaction) -> bool:
        async with asyncio.timeout(40):
            while txn.state not in ("COMMITTED", "ABORTED"):
                try:
                    await txn.abort()
                except txnclient.InvalidTxnState:
                    break
                except txnclient.TxnError as error:
                    assert error.retriable, error
        return txn.state == "COMMITTED"

    def all_outputs(self) -> list[bytes]:
        return [value for topic in self.outputs for value in outputs_of(topic)]

    async def found(self) -> list[bytes]:
        return [value for topic in self.outputs for value in await read_all(self.client, topic)]

    async def redelivered(self) -> list[bytes]:
        """What a consumer that comes later still gets of the inputs: all that is before a sentinel of the same key."""
        values = []
        for topic in self.inputs:
            async with await self.client.producer(topic) as producer:
                await producer.send(b"sentinel", key="k")
            async with await self.client.consumer(topic, "job") as consumer:
                while (message := await consumer.receive(timeout=60)).value != b"sentinel":
                    values.append(message.value)
        return values


async def main() -> None:
    parser = argparse.ArgumentParser(description="Kills itself at a step; `--turns` of its event loop behind it.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--die-at", choices=STEPS, required=True)
    parser.add_argument("--turns", type=int, default=0)
    given = parser.parse_args()

    async def die() -> None:
        for _ in range(given.turns):
            await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGKILL)

    dying: list[asyncio.Task[None]] = []

    async def after(step: str) -> None:
        if step == given.die_at == COMMITTING:
            dying.append(asyncio.create_task(die()))  # beside the commit
        elif step == given.die_at:
            await die()

    async with txnclient.connect(given.url) as client:
        await Job(client, given.number).run(after)


if __name__ == "__main__":
    asyncio.run(main())
