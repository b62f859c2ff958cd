"""A topic is made, written, consumed, trimmed by a short retention, deleted with its content, and made again under its
name; its subscription likewise. Under all faults this must be true:

- no message of a deleted topic is ever seen in the current one of its name, nor an aborted message;
- messages acked by a committed transaction never come again, unless the subscription was made anew meanwhile;
- in the end everything comes that was committed and not acked for good: retention takes nothing of it, and no ack of a
  subscription that was deleted counts for the one made anew.

One process does all the work, so that it knows everything; it may be killed at any step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import txnclient
from simulation.clients.draining import WorkloadDrain, outcomes_of, read_all, take_all
from simulation.clients.life import LoggedLife
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.received.message import Message
from txnclient.producing.producer import Producer
from txnwire.errors import DataTrimmed, SubscriptionNotFound, TopicNotFound, TxnError

TOPIC = "topic://public/sim/passing"
SUBSCRIPTION = "passing"
RETENTION_MS = 1500
ABORTED_SHARE = 0.25


@dataclass(slots=True)
class Generation:
    """One topic of the name. `subscription`: counts the subscriptions made in it."""

    number: int
    segments: int
    retention_ms: int | None
    deleting: bool = False
    unsubscribing: bool = False
    subscription: int = 0
    joined: bool = False
    written: int = 0
    certain: dict[str, int] = field(default_factory=dict)
    """Values stored outside transactions → the subscription that existed when they were sent."""
    in_txn: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Values stored in transactions → the transaction, and the subscription as above."""
    acked: list[tuple[str, int, str]] = field(default_factory=list)
    """(transaction, subscription, value)"""
    delivered: list[tuple[str, int]] = field(default_factory=list)
    """Values in the order of receipt, with the subscription; values of another generation too."""


@dataclass(slots=True)
class PassingLog:
    """What is known of the topic over all lives of the process."""

    generations: list[Generation] = field(default_factory=list)
    attempts: dict[str, None] = field(default_factory=dict)
    """Every transaction that was begun."""
    subscriptions: int = 0
    """Number of subscriptions over all generations."""
    left: list[str] = field(default_factory=list)
    visible: list[str] = field(default_factory=list)
    """Messages that a reader from the beginning finds at the end, also those that no subscription would get any more.
    """
    drained: bool = False
    outcomes: dict[str, str] = field(default_factory=dict)

    @property
    def current(self) -> Generation:
        return self.generations[-1]

    def committed(self, txn_id: str) -> bool:
        return self.outcomes.get(txn_id) == "COMMITTED"

    def findings(self) -> Iterator[str]:
        for one in self.generations:
            seen = [*one.delivered, *((value, one.subscription) for value in self._left_of(one))]
            for value in dict.fromkeys(value for value, _ in seen):
                if not value.startswith(f"{one.number}-"):
                    yield f"passing: {value} of a deleted topic came in topic {one.number} of its name"
                elif value in one.in_txn and self.outcomes.get(one.in_txn[value][0]) == "ABORTED":
                    yield f"passing: {value} of {one.in_txn[value][0]}, which was aborted, was delivered"
        if self.generations and self.drained:
            yield from self._at_the_end(self.current)

    def _left_of(self, one: Generation) -> Sequence[str]:
        return (*self.left, *self.visible) if one is self.current else ()

    def _at_the_end(self, one: Generation) -> Iterator[str]:
        acked = {
            value: txn_id
            for txn_id, number, value in one.acked
            if self.committed(txn_id) and number == one.subscription
        }
        left = dict.fromkeys(self.left)
        stored = {value: number for value, (txn_id, number) in one.in_txn.items() if self.committed(txn_id)}
        for value, sent_under in {**one.certain, **stored}.items():
            kept = one.retention_ms is None or sent_under == one.subscription > 0
            if value not in left and value not in acked and kept:
                yield f"passing: {value} was lost: nobody acked it for good, and it did not come at the end"
        yield from (
            f"passing: {value} came at the end although {acked[value]} had committed its ack"
            for value in left
            if value in acked
        )


class PassingLife(LoggedLife[PassingLog]):
    """One life of the process."""

    async def _work(self, client: txnclient.Client) -> None:
        while self._plan.active:
            await self._one_topic(client)

    def _ended_by(self, error: TxnError) -> None:
        """A topic or subscription is not found: a deletion requested by a former life, and under way when that was
        killed, has landed late."""
        if not isinstance(error, TopicNotFound | SubscriptionNotFound):
            self._met(error)
        elif self._log.generations:
            self._log.current.deleting = True

    async def _one_topic(self, client: txnclient.Client) -> None:
        """Goes on with the current topic, or makes the next."""
        log = self._log
        if not log.generations or log.current.deleting:
            if log.generations:
                with suppress(TopicNotFound):
                    await self._careless.call(client.delete_topic(TOPIC, force=True), weight=3)
            log.generations.append(
                Generation(
                    len(log.generations), self._random.choice((1, 2)), self._random.choice((None, None, RETENTION_MS))
                )
            )
        one = log.current
        creating = client.create_topic(TOPIC, segments=one.segments, retention_ms=one.retention_ms)
        await self._careless.call(creating)
        until = self._now() + self._random.uniform(2.0, 25.0)
        async with self._careless.within(client.producer(TOPIC)) as producer:
            while self._goes_on(until):
                await self._one_subscription(client, one, producer)
        if self._plan.active:
            one.deleting = True

    async def _one_subscription(self, client: txnclient.Client, one: Generation, producer: Producer) -> None:
        if one.unsubscribing:
            with suppress(SubscriptionNotFound):
                await self._careless.call(client.delete_subscription(TOPIC, SUBSCRIPTION, force=True), weight=3)
            one.unsubscribing = False
            one.joined = False
        if not one.joined:
            self._log.subscriptions += 1
            one.subscription = self._log.subscriptions
        consuming = client.consumer(TOPIC, SUBSCRIPTION, name="passing", start="earliest")
        async with self._careless.within(consuming) as consumer:
            one.joined = True
            until = self._now() + self._random.uniform(1.0, 10.0)
            while self._goes_on(until):
                await self._pause(4 * self._plan.pause_s)
                if self._random.random() < 0.2:
                    await self._send_plain(one, producer)
                else:
                    await self._transaction(client, one, producer, consumer)
        if self._plan.active and self._random.random() < 0.6:
            one.unsubscribing = True

    def _value(self, one: Generation) -> str:
        one.written += 1
        return f"{one.number}-{one.written}"

    async def _send_plain(self, one: Generation, producer: Producer) -> None:
        value = self._value(one)
        await self._careless.call(producer.send(value.encode(), key=value))
        one.certain[value] = one.subscription

    async def _transaction(
        self, client: txnclient.Client, one: Generation, producer: Producer, consumer: Consumer
    ) -> None:
        txn = await self._careless.call(client.begin(timeout=self._random.choice((1.0, 10.0))))
        self._log.attempts[str(txn.id)] = None
        try:
            for _ in range(self._random.randrange(1, 4)):
                value = self._value(one)
                await self._careless.call(producer.send(value.encode(), key=value, txn=txn))
                one.in_txn[value] = (str(txn.id), one.subscription)
            messages: list[Message] = []
            if self._random.random() < 0.5:
                receiving = consumer.receive_many(self._random.randrange(1, 8), timeout=0.5)
                messages = await self._careless.call(receiving)
            values = [message.value.decode() for message in messages]
            one.delivered += [(value, one.subscription) for value in values]
            if messages:
                one.acked += [(str(txn.id), one.subscription, value) for value in values]
                await self._careless.call(consumer.ack(messages, txn=txn))
            await self._careless.call(txn.abort() if self._random.random() < ABORTED_SHARE else txn.commit())
        except TxnError as error:
            if not isinstance(error, TopicNotFound | SubscriptionNotFound):
                self._met(error)
            await self._careless.call(txn.abort())
            raise


class PassingDrain(WorkloadDrain[PassingLog]):
    def _anything_done(self) -> bool:
        return bool(self._log.generations)

    async def _read(self, client: txnclient.Client) -> None:
        log = self._log
        log.outcomes = await outcomes_of(client, list(log.attempts))
        one = log.current
        if one.deleting or one.unsubscribing:
            return  # it is unknown how far that has come
        with suppress(TopicNotFound):
            log.visible += await _read_untrimmed(client)
            async with client.consumer(TOPIC, SUBSCRIPTION, name="passing", start="earliest") as consumer:
                log.left += [message.value.decode() for message in await take_all(consumer, self._plan.lags)]
                log.drained = True


async def _read_untrimmed(client: txnclient.Client) -> list[str]:
    """Starts the read again if retention takes something meanwhile: the rest may be a part of a transaction."""
    while True:
        with suppress(DataTrimmed):
            return [message.value.decode() for message in await read_all(client, TOPIC)]
