"""Consumers that stay open through all faults of the controllers: of a stream, of a queue, of topics by a pattern, and
of a subscription that is deleted and made again under its name while its next consumer already asks for it.

Each must get everything sent while it is open. After the work the layout changes once more and more is sent: a consumer
that gets no layouts any more misses that (`StayingLog.findings`). Meanwhile they pause and resume, and ask for their
lag. A subscription that was left by `unsubscribe` begins anew: what its former consumer got comes again. This client is
never careless, and runs until everything is judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import txnclient
from simulation.clients.life import EndlessLife
from simulation.clients.plan import ClientPorts, Plan
from txnclient.consuming.consumer import Consumer
from txnclient.producing.producer import Producer
from txnwire.errors import SubscriptionNotFound, TxnError

TOPIC = "topic://public/sim/staying"
STREAM, QUEUE, AGAIN, PATTERN = "staying", "staying-queue", "again", "staying-pattern"
LATER = "topic://public/sim/later-"
TOPICS_PATTERN = "public/sim/later-[0-9]+"
MOST_LATER = 4
LATER_S = 8.0
"""Mean time between two topics that are made for the consumer of the pattern."""
UNSUBSCRIBED_SHARE = 0.4
REMEMBERED = 5
"""Values that the former consumer of a subscription has got and that must come again."""
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
    unsubscribed: int = 0
    again: int = 0
    """Messages that came again behind an `unsubscribe`."""
    paused: int = 0
    resumed: int = 0
    """Segments that were paused, and handed out again."""
    later: int = 0
    """Topics made for the consumer of the pattern, over all lives."""
    by_pattern: int = 0
    """Messages that came of such topics."""
    breaches: list[str] = field(default_factory=list)
    sent: int = 0
    ended: bool = False
    """Whether everything was sent, after the last change of the layout."""

    def findings(self) -> Iterator[str]:
        yield from self.breaches
        for subscription, values in self.due.items():
            if values:
                yield (
                    f"staying: {len(values)} of {self.sent} messages, the first of them {next(iter(values))}, did not "
                    f"come to {subscription}, whose consumer stayed"
                )
        if self.sent and not self.ended:
            yield "staying: it could not send what was left once everything had healed"


class StayingLife(EndlessLife[StayingLog]):
    """One life of the process."""

    def __init__(self, ports: ClientPorts, plan: Plan, log: StayingLog) -> None:
        super().__init__(ports, plan, log)
        self._came: dict[str, None] = {}
        """What has come to the present consumer of `AGAIN`."""
        self._paused: dict[str, dict[str, None]] = {}
        """Segments that were paused and not resumed, by subscription."""

    async def _work(self, client: txnclient.Client) -> None:
        await client.create_topic(TOPIC, segments=1)
        await self._together(
            self._send(client),
            self._stay(client, STREAM, "stream"),
            self._stay(client, QUEUE, "queue"),
            self._use_again(client),
            self._follow_pattern(client),
            self._make_later(client),
        )

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
        value, of_pattern = self._plan.value("staying"), producer.topic != TOPIC
        due = [values for name, values in self._log.due.items() if (name == PATTERN) == of_pattern]
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
            self._paused.pop(subscription, None)
            await self._receive(subscription, consumer)

    async def _receive(self, subscription: str, consumer: Consumer) -> None:
        while True:
            if subscription in (STREAM, QUEUE):
                self._pause_some(subscription, consumer)
            if self._random.random() < 0.05:
                await self._ask_lag(consumer)
            for message in await consumer.receive_many(50, timeout=1.0):
                if message.id.segment in self._paused.get(subscription, ()):
                    self._log.breaches.append(f"staying: {message.id} came to {subscription}, which had paused it")
                self._has_come(subscription, message.value.decode())
                await self._ack(consumer, message)

    def _has_come(self, subscription: str, value: str) -> None:
        self._log.due[subscription].pop(value, None)
        self._log.by_pattern += subscription == PATTERN
        if subscription == AGAIN:
            self._came[value] = None

    def _pause_some(self, subscription: str, consumer: Consumer) -> None:
        """▲ At the end of the work all are resumed: a message that is lost by a pause does not come then."""
        paused, chance = self._paused.setdefault(subscription, {}), self._random
        if not self._plan.active or (paused and chance.random() < 0.2):
            consumer.resume()
            self._log.resumed += len(paused)
            paused.clear()
        elif paused and chance.random() < 0.3:
            one = next(iter(paused))
            consumer.resume(one)
            del paused[one]
            self._log.resumed += 1
        elif chance.random() < 0.1:
            segments = consumer.segments
            some = chance.sample(segments, chance.randrange(len(segments) + 1))
            consumer.pause(some or None)
            paused.update(dict.fromkeys(some or segments))
            self._log.paused += len(some or segments)

    async def _ask_lag(self, consumer: Consumer) -> None:
        try:
            self._plan.lags.heard(repr(consumer), await consumer.lag())
        except TxnError as error:
            if error.fatal or isinstance(error, SubscriptionNotFound):
                raise
            self._met(error)

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
        due: dict[str, None] = {}
        stays = False
        while True:
            await self._receive_for_a_while(consumer, due, stays=stays)
            due = {}
            stays = not self._plan.active
            if stays or self._random.random() < UNSUBSCRIBED_SHARE:
                due = await self._unsubscribe(consumer)
                consumer = await self._open_again(client)
                continue
            deleting = asyncio.ensure_future(self._delete(client, consumer))
            try:
                await self._pause(0.03)
                consumer = await self._open_again(client)
                await deleting
            finally:
                deleting.cancel()
                await asyncio.gather(deleting, return_exceptions=True)
            self._log.made_again += 1

    async def _unsubscribe(self, consumer: Consumer) -> dict[str, None]:
        """Returns what must come again: if it was told that the subscription is gone, what has come to it."""
        try:
            await consumer.unsubscribe(force=self._random.random() < 0.5)
        except TxnError as error:
            self._met(error)
            return {}
        self._log.unsubscribed += 1
        return dict.fromkeys(list(self._came)[:REMEMBERED])

    async def _receive_for_a_while(self, consumer: Consumer, due: dict[str, None], *, stays: bool) -> None:
        """Receives until its deletion, which alone ends it if it `stays`. `due`: what must come besides what is sent
        meanwhile."""
        asked = tuple(due)
        self._came = {}
        self._log.due[AGAIN] = due
        receiving = asyncio.ensure_future(self._receive(AGAIN, consumer))
        try:
            until_s = None if stays else min(self._random.expovariate(1 / AGAIN_S), 3 * AGAIN_S)
            await asyncio.wait((receiving,), timeout=until_s)
        finally:
            del self._log.due[AGAIN]
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
            self._log.again += sum(value in self._came for value in asked)

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

    # ---- by a pattern ----

    async def _follow_pattern(self, client: txnclient.Client) -> None:
        """Topics are made for it meanwhile, and written before it can have joined them."""
        async with client.consumer(topics_pattern=TOPICS_PATTERN, subscription=PATTERN, name=PATTERN) as consumer:
            self._log.due[PATTERN] = {}
            await self._receive(PATTERN, consumer)

    async def _make_later(self, client: txnclient.Client) -> None:
        while self._plan.active:
            await self._pause(LATER_S)
            if PATTERN not in self._log.due or not self._plan.active:
                continue
            if self._log.later < MOST_LATER:
                self._log.later += 1
            topic = f"{LATER}{self._log.later}"
            try:
                await client.create_topic(topic, segments=1)
                async with client.producer(topic) as producer:
                    for _ in range(self._random.randrange(1, 4)):
                        await self._send_one(producer)
            except TxnError as error:
                self._met(error)
