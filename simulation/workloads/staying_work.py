"""Consumers that stay open through all faults of the controllers: of a stream, of a queue, and of a subscription that
is deleted and made again under its name while its next consumer already asks for it.

Each must get everything sent while it is open. After the work the layout changes once more and more is sent: a consumer
that gets no layouts any more misses that (`StayingLog.findings`). This client is never careless, and runs until
everything is judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field

import txnclient
from simulation.clients.life import LoggedLife
from txnclient.consuming.consumer import Consumer
from txnclient.producing.producer import Producer
from txnwire.errors import SubscriptionNotFound, TxnError

TOPIC = "topic://public/sim/staying"
STREAM, QUEUE, AGAIN = "staying", "staying-queue", "again"
KEYS = 16
LAST_SENDS = 16
"""Time after the last change of the layout."""
AGAIN_S = 4.0
"""Mean time between two deletions of the subscription that is made again."""


@dataclass(slots=True)
class StayingLog:
    """By subscription: what was sent since its present consumer was opened and has not come yet."""

    due: dict[str, dict[str, None]] = field(default_factory=dict)
    made_again: int = 0
    sent: int = 0
    ended: bool = False
    """Whether everything was sent, after the last change of the layout."""

    def findings(self) -> Iterator[str]:
        for subscription, values in self.due.items():
            if values:
                yield (
                    f"staying: {len(values)} of {self.sent} messages, the first of them {next(iter(values))}, did not "
                    f"come to {subscription}, whose consumer stayed"
                )
        if self.sent and not self.ended:
            yield "staying: it could not send what was left once everything had healed"


class StayingLife(LoggedLife[StayingLog]):
    """One life of the process. It goes on after the end of the work until it is killed."""

    async def live(self) -> None:
        while True:
            await super().live()
            await asyncio.sleep(0.5)

    def _connected(self) -> AbstractAsyncContextManager[txnclient.Client]:
        return self._connect()

    async def _work(self, client: txnclient.Client) -> None:
        await client.create_topic(TOPIC, segments=1)
        works = (self._send(client), self._stay(client, STREAM, "stream"), self._stay(client, QUEUE, "queue"))
        tasks = [asyncio.ensure_future(work) for work in (*works, self._use_again(client))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # ---- sending ----

    async def _send(self, client: txnclient.Client) -> None:
        async with client.producer(TOPIC) as producer:
            while self._plan.active:
                await self._pause(1.0)
                await self._send_one(producer)
                if self._random.random() < 0.1:
                    await self._change_layout(client)
            await self._change_layout(client)
            for _ in range(LAST_SENDS):
                await self._send_one(producer)
            self._log.ended = True
            await asyncio.Event().wait()

    async def _send_one(self, producer: Producer) -> None:
        """▲ A message is due if it was stored while the consumer was open; it may come before that is known here."""
        value = self._plan.value("staying")
        due = list(self._log.due.values())
        for values in due:
            values[value] = None
        self._log.sent += 1
        try:
            await producer.send(value.encode(), key=f"k{self._random.randrange(KEYS)}")
        except TxnError as error:
            for values in due:
                values.pop(value, None)
            self._met(error)

    async def _change_layout(self, client: txnclient.Client) -> None:
        active = (await client.describe_topic(TOPIC)).active
        with suppress(txnclient.NotAllowed, txnclient.InvalidArgument, txnclient.Timeout):
            if len(active) > 3:
                await client.merge(active[0].name, active[1].name)
            else:
                await client.split(self._random.choice(active).name)

    # ---- staying ----

    async def _stay(self, client: txnclient.Client, subscription: str, type: str) -> None:
        async with client.consumer(TOPIC, subscription, type=type, name=subscription) as consumer:
            self._log.due[subscription] = {}
            await self._receive(subscription, consumer)

    async def _receive(self, subscription: str, consumer: Consumer) -> None:
        while True:
            for message in await consumer.receive_many(50):
                self._log.due[subscription].pop(message.value.decode(), None)
                await self._ack(consumer, message)

    async def _ack(self, consumer: Consumer, message: txnclient.Message) -> None:
        try:
            await consumer.ack(message)
        except TxnError as error:
            if error.fatal or isinstance(error, SubscriptionNotFound):
                raise
            self._met(error)

    # ---- made again ----

    async def _use_again(self, client: txnclient.Client) -> None:
        consumer = await self._open_again(client)
        while True:
            await self._receive_for_a_while(consumer)
            deleting = asyncio.ensure_future(self._delete(client, consumer))
            try:
                await self._pause(0.03)
                consumer = await self._open_again(client)
                await deleting
            finally:
                deleting.cancel()
                await asyncio.gather(deleting, return_exceptions=True)
            self._log.made_again += 1

    async def _receive_for_a_while(self, consumer: Consumer) -> None:
        """Receives until its deletion; once the work is over, only a deletion ends it."""
        self._log.due[AGAIN] = {}
        receiving = asyncio.ensure_future(self._receive(AGAIN, consumer))
        try:
            await asyncio.wait((receiving,), timeout=self._random.expovariate(1 / AGAIN_S))
            if not self._plan.active:
                await asyncio.wait((receiving,))
        finally:
            del self._log.due[AGAIN]
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def _delete(self, client: txnclient.Client, consumer: Consumer) -> None:
        """A deletion without an answer may still delete the next one of the name: its consumer gets an error."""
        try:
            if self._plan.active:
                await client.delete_subscription(TOPIC, AGAIN, force=True)
        except SubscriptionNotFound:
            pass  # it is not there any more
        except TxnError as error:
            self._met(error)
        finally:
            await consumer.close()

    async def _open_again(self, client: txnclient.Client) -> Consumer:
        """Opens it, also while the former one is being deleted."""
        while True:
            try:
                return await client.consumer(TOPIC, AGAIN, name=AGAIN)
            except SubscriptionNotFound:
                pass  # of the one before
            except TxnError as error:
                self._met(error)
            await asyncio.sleep(0.05)
