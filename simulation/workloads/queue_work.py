"""Workers share a queue under all faults; a judge checks the queue at the end.

Each takes some messages, acks them in a transaction, sometimes gives some back or aborts, and may be killed. A message
may be delivered any number of times. But no two committed transactions acked the same one, and in the end each visible
message was acked by a committed transaction or is still there, never both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import txnclient
from simulation.clients.draining import WorkloadDrain, outcomes_of, read_all, take_all
from simulation.clients.life import LoggedLife
from simulation.clients.plan import TOPICS
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.received.message import Message
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


class QueueLife(LoggedLife[QueueLog]):
    """One life of one worker. It ends after a while."""

    async def _work(self, client: txnclient.Client) -> None:
        await self._careless.call(client.create_topic(TOPIC, segments=self._plan.segments))
        until = self._now() + self._random.uniform(5.0, 60.0)
        prefetch = self._random.choice((1, 10, 200))
        consuming = client.consumer(TOPIC, SUBSCRIPTION, type="queue", prefetch=prefetch)
        async with self._careless.within(consuming) as consumer:
            await self._repeat(partial(self._turn, client, consumer), pause_s=8 * self._plan.pause_s, until=until)

    async def _turn(self, client: txnclient.Client, consumer: Consumer) -> None:
        receiving = consumer.receive_many(self._random.randrange(1, 20), timeout=1.0)
        messages = await self._careless.call(receiving)
        self._log.delivered += len(messages)
        self._log.again += sum(1 for message in messages if message.redelivery_count)
        if messages:
            await self._transaction(client, consumer, messages)

    async def _transaction(self, client: txnclient.Client, consumer: Consumer, messages: Sequence[Message]) -> None:
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


class QueueDrain(WorkloadDrain[QueueLog]):
    async def _read(self, client: txnclient.Client) -> None:
        log = self._log
        log.outcomes = await outcomes_of(client, [taken.txn_id for taken in log.taken])
        log.visible += [message.value.decode() for message in await read_all(client, TOPIC)]
        async with client.consumer(TOPIC, SUBSCRIPTION, type="queue") as consumer:
            log.left += [message.value.decode() for message in await take_all(consumer)]
