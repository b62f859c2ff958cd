"""Workers share a queue under all faults; a judge checks the queue at the end.

Each takes some messages, acks them in a transaction, sometimes gives some back or aborts, and may be killed. A message
may be delivered any number of times. But no two committed transactions acked the same one, and in the end each visible
message was acked by a committed transaction or is still there, never both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import txnclient
from simulation.workloads.workload import DRAIN_SILENCE_S, TOPICS, Plan
from simulation.world.world import Ports
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.message import Message
from txnwire.errors import TxnError

TOPIC = TOPICS[0]
SUBSCRIPTION = "jobs"
GIVEN_UP_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class Taken:
    """The values that one transaction acked, or tried to."""

    process: str
    txn_id: str
    values: tuple[str, ...]


@dataclass(slots=True)
class QueueLog:
    """What all workers of a run did; `left` and `visible`: what was found at the end."""

    taken: list[Taken] = field(default_factory=list)
    delivered: int = 0
    again: int = 0
    left: list[str] = field(default_factory=list)
    visible: list[str] = field(default_factory=list)
    outcomes: dict[str, str] = field(default_factory=dict)

    def findings(self) -> Iterator[str]:
        owners: dict[str, Taken] = {}
        for taken in self.taken:
            if self.outcomes.get(taken.txn_id) != "COMMITTED":
                continue
            for value in dict.fromkeys(taken.values):
                if value in owners:
                    yield f"queue: {value} was acked by {owners[value].txn_id} and {taken.txn_id}, which both committed"
                owners[value] = taken
        visible, left = dict.fromkeys(self.visible), dict.fromkeys(self.left)
        for value in visible:
            if value not in owners and value not in left:
                yield f"queue: {value} was lost: nobody acked it for good, and it did not come at the end"
            if value in owners and value in left:
                yield f"queue: {value} came at the end although {owners[value].txn_id} had committed its ack"
        yield from (f"queue: {value} was delivered and is not visible" for value in left if value not in visible)
        yield from (f"queue: {value} was acked and is not visible" for value in owners if value not in visible)


class QueueLife:
    """One life of one worker."""

    def __init__(self, ports: Ports, plan: Plan, log: QueueLog) -> None:
        self._ports = ports
        self._plan = plan
        self._log = log
        self._random = ports.random
        self._name = ports.owner.name
        self._careless = plan.caller(ports.random)

    async def live(self) -> None:
        """Returns when it cannot go on, or after a while; it is then restarted, as under a supervisor."""
        ports = self._ports
        try:
            opening = txnclient.connect(
                self._plan.url, timeout=10.0, transport=ports.transport, clock=ports.clock, random=ports.random
            )
            async with self._careless.within(opening) as client:
                await self._careless.call(client.create_topic(TOPIC, segments=self._plan.segments))
                until = ports.clock.monotonic() + self._random.uniform(5.0, 60.0)
                prefetch = self._random.choice((1, 10, 200))
                consuming = client.consumer(TOPIC, SUBSCRIPTION, type="queue", prefetch=prefetch)
                async with self._careless.within(consuming) as consumer:
                    while self._plan.active and ports.clock.monotonic() < until:
                        await self._turn(client, consumer)
        except TxnError as error:
            self._plan.met(self._name, error)

    async def _turn(self, client: txnclient.Client, consumer: Consumer) -> None:
        await asyncio.sleep(self._random.expovariate(1 / (8 * self._plan.pause_s)))
        try:
            receiving = consumer.receive_many(self._random.randrange(1, 20), timeout=1.0)
            messages = await self._careless.call(receiving)
            self._log.delivered += len(messages)
            self._log.again += sum(1 for message in messages if message.redelivery_count)
            if messages:
                await self._work(client, consumer, messages)
        except TxnError as error:
            self._plan.met(self._name, error)
            if error.fatal:
                raise

    async def _work(self, client: txnclient.Client, consumer: Consumer, messages: Sequence[Message]) -> None:
        kept = [message for message in messages if self._random.random() > GIVEN_UP_SHARE]
        back = [message for message in messages if message not in kept]
        if back:
            await self._careless.call(consumer.nack(back, delay=self._random.choice((0.0, 0.5, 3.0))))
        txn = await self._careless.call(client.begin(timeout=self._random.choice((1.0, 15.0))))
        self._log.taken.append(Taken(self._name, str(txn.id), tuple(message.value.decode() for message in kept)))
        try:
            if kept:
                await self._careless.call(consumer.ack(kept, txn=txn))
            if self._random.random() < GIVEN_UP_SHARE:
                await self._careless.call(txn.abort())
            else:
                await self._careless.call(txn.commit())
        except TxnError:
            await self._careless.call(txn.abort())
            raise


class QueueDrain:
    """Runs at the end, when everything has healed and no worker runs."""

    def __init__(self, ports: Ports, plan: Plan, log: QueueLog) -> None:
        self._ports = ports
        self._plan = plan
        self._log = log

    async def run(self) -> None:
        ports, log = self._ports, self._log
        async with txnclient.connect(
            self._plan.url, timeout=30.0, transport=ports.transport, clock=ports.clock, random=ports.random
        ) as client:
            log.outcomes = await outcomes_of(client, [taken.txn_id for taken in log.taken])
            async with client.reader(TOPIC, start="earliest", end="latest") as reader:
                async for message in reader:
                    log.visible.append(message.value.decode())
            async with client.consumer(TOPIC, SUBSCRIPTION, type="queue") as consumer:
                while messages := await consumer.receive_many(500, timeout=DRAIN_SILENCE_S):
                    log.left += [message.value.decode() for message in messages]
                    await consumer.ack(messages)


async def outcomes_of(client: txnclient.Client, txn_ids: Sequence[str]) -> dict[str, str]:
    ids = [txnclient.TxnId.parse(text) for text in txn_ids]
    found: dict[str, str] = {}
    for start in range(0, len(ids), 200):
        told: Mapping[txnclient.TxnId, str] = await client.outcomes(ids[start : start + 200])
        found |= {str(txn_id): outcome for txn_id, outcome in told.items()}
    return found
