"""A queue whose worker gives up on many messages: each goes to a dead-letter topic exactly once, under all faults. A
move is a transaction of the worker's client that sends a copy and acks the original.

At the end each message of the topic was acked, or is in the dead-letter topic once, or is still there; and none is in
two of these places.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import txnclient
from simulation.workloads.workload import DRAIN_SILENCE_S, TOPICS, Plan
from simulation.world.world import Ports
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.dead_letters import ORIGIN_MESSAGE_ID
from txnwire.errors import TopicNotFound, TxnError

TOPIC = TOPICS[1]
DEAD = "topic://public/sim/dead"
SUBSCRIPTION = "fragile"
GIVEN_UP_SHARE = 0.5


@dataclass(slots=True)
class DeadLog:
    """`acked`: values with a requested ack outside of transactions, which a crash may forget. `dead`: (origin, value)
    of the copies; `left`, `visible`: values found at the end."""

    acked: dict[str, None] = field(default_factory=dict)
    dead: list[tuple[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    visible: list[str] = field(default_factory=list)

    def findings(self) -> Iterator[str]:
        for origin, count in Counter(origin for origin, _ in self.dead).items():
            if count > 1:
                yield f"dead letters: the message {origin} was moved {count} times"
        values, visible, left = [value for _, value in self.dead], dict.fromkeys(self.visible), dict.fromkeys(self.left)
        for value in dict.fromkeys(values):
            if values.count(value) > 1:
                yield f"dead letters: {value} was moved {values.count(value)} times"
            if value in left:
                yield f"dead letters: {value} was moved, and came at the end as well"
            if value not in visible:
                yield f"dead letters: {value} was moved and is not visible where it came from"
        gone = {**dict.fromkeys(values), **self.acked, **left}
        yield from (f"dead letters: {value} is neither acked, moved nor left" for value in visible if value not in gone)


class DeadLife:
    """One life of the worker."""

    def __init__(self, ports: Ports, plan: Plan, log: DeadLog) -> None:
        self._ports = ports
        self._plan = plan
        self._log = log
        self._random = ports.random
        self._name = ports.owner.name
        self._careless = plan.caller(ports.random)

    async def live(self) -> None:
        """Returns when it cannot go on; it is then restarted."""
        ports = self._ports
        try:
            opening = txnclient.connect(
                self._plan.url, timeout=10.0, transport=ports.transport, clock=ports.clock, random=ports.random
            )
            async with self._careless.within(opening) as client:
                await self._careless.call(client.create_topic(TOPIC, segments=self._plan.segments))
                until = ports.clock.monotonic() + self._random.uniform(5.0, 40.0)
                consuming = client.consumer(
                    TOPIC, SUBSCRIPTION, type="queue", prefetch=self._random.choice((5, 50)),
                    max_redeliveries=self._random.choice((0, 1, 2)), dead_letter_topic=DEAD,
                )  # fmt: skip
                async with self._careless.within(consuming) as consumer:
                    while self._plan.active and ports.clock.monotonic() < until:
                        await self._turn(consumer)
        except TxnError as error:
            self._plan.met(self._name, error)

    async def _turn(self, consumer: Consumer) -> None:
        await asyncio.sleep(self._random.expovariate(1 / (8 * self._plan.pause_s)))
        try:
            messages = await self._careless.call(consumer.receive_many(self._random.randrange(1, 12), timeout=1.0))
            back = [message for message in messages if self._random.random() < GIVEN_UP_SHARE]
            kept = [message for message in messages if message not in back]
            if back:
                await self._careless.call(consumer.nack(back, delay=self._random.choice((0.0, 0.5))))
            if kept:
                self._log.acked.update((message.value.decode(), None) for message in kept)
                await self._careless.call(consumer.ack(kept))
        except TxnError as error:
            self._plan.met(self._name, error)
            if error.fatal:
                raise


class DeadDrain:
    """Runs at the end, when everything has healed and the worker has ended."""

    def __init__(self, ports: Ports, plan: Plan, log: DeadLog) -> None:
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
                    log.visible.append(message.value.decode())
            async with client.consumer(TOPIC, SUBSCRIPTION, type="queue") as consumer:
                while messages := await consumer.receive_many(500, timeout=DRAIN_SILENCE_S):
                    log.left += [message.value.decode() for message in messages]
                    await consumer.ack(messages)
            try:
                async with client.reader(DEAD, start="earliest", end="latest") as reader:
                    async for message in reader:
                        log.dead.append((message.properties[ORIGIN_MESSAGE_ID], message.value.decode()))
            except TopicNotFound:
                return  # none has died
