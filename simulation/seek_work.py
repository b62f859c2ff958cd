"""A stream subscription that is sought to and fro over a layout that changes: what it has drained is taken back, and
comes again, parents before children.

One process works on it. Between two seeks, and within one life of its consumer, what comes of a key comes in the order
in which it stands. After a seek to the earliest everything comes that was not received and acked since: acks of before,
on their way still, count for nothing. After a seek to a time everything comes that was published from then on, by the
clock of who sent it, however clocks differ. A seek to a message of another topic is refused and moves nothing. In the
end it is sought to the earliest once more, and then everything visible comes, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import txnclient
from simulation.history import Place
from simulation.recorder import place_of
from simulation.workload import DRAIN_SILENCE_S, TOPICS, Plan
from simulation.world import Ports
from txnclient.consumer import Consumer
from txnclient.message import Message
from txnwire.errors import InvalidArgument, TxnError
from txnwire.ids import MessageId

TOPIC = TOPICS[0]
SUBSCRIPTION = "sought"
EVER_MS = 0


@dataclass(slots=True)
class SeekLog:
    """What was seen over all lives; `left` and `visible`: (key, place, value) as found at the end."""

    seeks: int = 0
    breaches: list[str] = field(default_factory=list)
    since: dict[str, None] | None = None
    """What was acked, or may have been, since a seek to the earliest or to a time; None where the last was another."""
    from_ms: int = EVER_MS
    """That time."""
    refused: int = 0
    """Seeks to a message of another topic."""
    unanswered: bool = False
    """Whether a seek may still come into effect, of which nobody has heard."""
    again: list[str] = field(default_factory=list)
    """What came at the end, before the last seek."""
    left: list[tuple[str, Place, str]] = field(default_factory=list)
    visible: list[tuple[str, Place, str]] = field(default_factory=list)
    published_ms: dict[str, int] = field(default_factory=dict)
    """Of the visible ones."""

    @property
    def knows_what_is_due(self) -> bool:
        return self.since is not None and not self.unanswered

    def findings(self) -> Iterator[str]:
        yield from self.breaches
        yield from (f"sought: at the end, {text}" for text in out_of_order(self.left))
        left, visible = [value for *_, value in self.left], [value for *_, value in self.visible]
        for value in dict.fromkeys(left):
            if left.count(value) > 1:
                yield f"sought: {value} came {left.count(value)} times at the end"
        if self.knows_what_is_due:
            in_range = [value for value in visible if self.published_ms[value] >= self.from_ms]
            due = [value for value in in_range if value not in (self.since or {})]
            came = dict.fromkeys(self.again)
            yield from (
                f"sought: {value} was not acked since the seek and did not come" for value in due if value not in came
            )
        yield from (f"sought: {value} did not come at the end" for value in visible if value not in left)
        yield from (f"sought: {value} came at the end and is not visible" for value in left if value not in visible)


def out_of_order(seen: Sequence[tuple[str, Place, str]]) -> Iterator[str]:
    """Of (key, place, value) in the order of receipt: what came behind what stands behind it."""
    highest: dict[str, Place] = {}
    for key, place, value in seen:
        if key in highest and place < highest[key]:
            yield f"{value} of {key} at {place} came behind {highest[key]}"
        highest[key] = max(highest.get(key, place), place)


def _seen(messages: Sequence[Message]) -> list[tuple[str, Place, str]]:
    return [((one.key or b"").decode(), place_of(one.id), one.value.decode()) for one in messages]


class SeekLife:
    """One life of the process."""

    def __init__(self, ports: Ports, plan: Plan, log: SeekLog) -> None:
        self._ports = ports
        self._plan = plan
        self._log = log
        self._random = ports.random
        self._careless = plan.caller(ports.random)
        self._ids: list[MessageId] = []
        self._times_ms: list[int] = []
        self._foreign: MessageId | None = None

    async def live(self) -> None:
        """Returns when it cannot go on, or a while has passed: it is started anew."""
        ports = self._ports
        try:
            opening = txnclient.connect(
                self._plan.url, timeout=15.0, transport=ports.transport, clock=ports.clock, random=ports.random
            )
            async with self._careless.within(opening) as client:
                await client.create_topic(TOPIC, segments=self._plan.segments)
                until = ports.clock.monotonic() + self._random.uniform(5.0, 40.0)
                self._foreign = await self._one_of_another_topic(client)
                consuming = client.consumer(TOPIC, SUBSCRIPTION, name="seeker", start="earliest")
                async with self._careless.within(consuming) as consumer:
                    while self._plan.active and ports.clock.monotonic() < until:
                        await self._read_on(consumer)
                        await self._seek(consumer)
        except TxnError as error:
            self._plan.met(ports.owner.name, error)

    async def _one_of_another_topic(self, client: txnclient.Client) -> MessageId | None:
        await client.create_topic(TOPICS[1], segments=self._plan.segments)
        async with client.reader(TOPICS[1], start="earliest") as reader:
            messages = await reader.receive_many(1, timeout=0.5)
        return messages[0].id if messages else None

    async def _read_on(self, consumer: Consumer) -> None:
        """Until the next seek. Everything is acked, outside of transactions, so that parents are drained."""
        until = self._ports.clock.monotonic() + self._random.expovariate(1 / 5.0)
        while self._plan.active and self._ports.clock.monotonic() < until:
            await asyncio.sleep(self._random.expovariate(1 / self._plan.pause_s))
            receiving = consumer.receive_many(self._random.choice((3, 50, 500)), timeout=1.0)
            messages = await self._careless.call(receiving)
            self._ids = [*self._ids, *(one.id for one in messages)][-200:]
            self._times_ms = [*self._times_ms, *(one.publish_time_ms for one in messages)][-200:]
            for text in out_of_order(_seen(messages)):
                self._log.breaches.append(f"sought: {self._ports.owner.name}: {text}")
            if not messages:
                continue
            if self._log.since is not None:
                self._log.since.update(dict.fromkeys(one.value.decode() for one in messages))
            if self._random.random() < 0.3:
                for answer in consumer.ack_nowait(messages):
                    answer.add_done_callback(_heard)  # a seek may overtake it
            else:
                await self._careless.call(consumer.ack(messages))

    async def _seek(self, consumer: Consumer) -> None:
        drawn, log = self._random.random(), self._log
        if drawn < 0.1 and self._foreign is not None:
            await self._seek_elsewhere(consumer, self._foreign)
            return
        log.since, in_doubt, log.unanswered = None, log.unanswered, True
        if drawn < 0.4:
            await self._careless.call(consumer.seek("earliest"), weight=3)
            log.since, log.from_ms = {}, EVER_MS
        elif drawn < 0.6 and self._times_ms:
            time_ms = self._random.choice(self._times_ms) + self._random.choice((-1, 0, 1))
            await self._careless.call(consumer.seek(time_ms), weight=3)
            log.since, log.from_ms = {}, time_ms
        elif drawn < 0.7:
            await self._careless.call(consumer.seek("latest"), weight=3)
        elif self._ids:
            await self._careless.call(consumer.seek(self._random.choice(self._ids)), weight=3)
        log.unanswered = in_doubt
        log.seeks += 1

    async def _seek_elsewhere(self, consumer: Consumer, foreign: MessageId) -> None:
        """▲ It must not mean the earliest: every cursor would be set back."""
        try:
            await self._careless.call(consumer.seek(foreign), weight=3)
        except InvalidArgument:
            self._log.refused += 1
        else:
            self._log.breaches.append(f"sought: a seek to {foreign} of another topic was taken")


def _heard(answer: asyncio.Future[None]) -> None:
    """Whatever came of it: the next ack, or the end of this life, tells as well."""
    if not answer.cancelled():
        answer.exception()


class SeekDrain:
    """At the end, when everything has healed and the process lives no more."""

    def __init__(self, ports: Ports, plan: Plan, log: SeekLog) -> None:
        self._ports = ports
        self._plan = plan
        self._log = log

    async def run(self) -> None:
        ports, log = self._ports, self._log
        async with txnclient.connect(
            self._plan.url, timeout=30.0, transport=ports.transport, clock=ports.clock, random=ports.random
        ) as client:
            async with client.reader(TOPIC, start="earliest", end="latest") as reader:
                async for message in reader:
                    log.visible += _seen([message])
                    log.published_ms[message.value.decode()] = message.publish_time_ms
            async with client.consumer(TOPIC, SUBSCRIPTION, name="drain", start="earliest") as consumer:
                while log.knows_what_is_due and (messages := await consumer.receive_many(500, timeout=DRAIN_SILENCE_S)):
                    log.again += [value for *_, value in _seen(messages)]
                    await consumer.ack(messages)
                await consumer.seek("earliest")
                while messages := await consumer.receive_many(500, timeout=DRAIN_SILENCE_S):
                    log.left += _seen(messages)
                    await consumer.ack(messages)
