"""Workers of a queue that hang, forget and pause, under all faults (DESIGN §8).

All consumers are of one process, and the first one always works. Others hold messages for longer than their
`ack_timeout` and ack them all the same, or never again; or they pause. In the end each message was acked by one
committed transaction: whoever hangs or pauses keeps none from the worker that works, and an ack that comes too late
counts only where it is the only one. Messages that are to be delivered later come not before their time. This client
is never careless, and runs until everything is judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import txnclient
from simulation.clients.draining import WorkloadDrain, outcomes_of, read_all, take_all
from simulation.clients.life import EndlessLife
from simulation.workloads.queue_work import QueueLog, Taken
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.received.message import Message
from txnclient.producing.producer import Producer
from txnwire.errors import TxnConflict, TxnError

TOPIC = "topic://public/sim/hanging"
SUBSCRIPTION = "hanging"
ACK_TIMEOUTS_S = (0.5, 1.0, 4.0)
WORKERS = 3
LATER_SHARE = 0.3
LATER_S = (0.05, 1.0, 4.0)
"""The last ones of a run leave out the longest."""
EARLY_S = 1e-6
"""Of adding floats."""
FOR_EVER_SHARE = 0.1
"""Share of hangs and pauses that end only with the process."""
LAST_SENDS = 10


@dataclass(slots=True)
class HangingLog:
    """`queue`: what was acked in which transaction, and what was found at the end."""

    queue: QueueLog = field(default_factory=QueueLog)
    hung: int = 0
    """Messages held beyond their timeout."""
    late: int = 0
    """Transactions refused because of a message that had been given back."""
    taken_over: int = 0
    """Messages that came again while a worker held them."""
    paused: int = 0
    timed: int = 0
    """Sends and acks that a limit of their own has ended."""
    stored: dict[str, None] = field(default_factory=dict)
    """Values whose send was answered."""
    due: dict[str, float] = field(default_factory=dict)
    """When a message may come first, on the loop's clock."""
    later: int = 0
    """Messages that came at their time."""
    held: dict[str, None] = field(default_factory=dict)
    """Values that a worker holds beyond their timeout."""
    ended: bool = False
    """Whether everything was sent, with all the time of the rest to work it off."""
    breaches: list[str] = field(default_factory=list)

    def findings(self) -> Iterator[str]:
        yield from self.breaches
        yield from (text.replace("queue:", "hanging:", 1) for text in self.queue.findings())
        visible = dict.fromkeys(self.queue.visible)
        yield from (f"hanging: {value} was stored and is not visible" for value in self.stored if value not in visible)
        if self.ended:
            for value in self.queue.left:
                yield f"hanging: {value} came to no worker that works, as long as others hung"
        elif self.stored:
            yield "hanging: it could not send what was left once everything had healed"


class HangingLife(EndlessLife[HangingLog]):
    """One life of the process."""

    async def _work(self, client: txnclient.Client) -> None:
        await client.create_topic(TOPIC, segments=self._plan.segments)
        self._log.held.clear()
        timeout_s = self._random.choice(ACK_TIMEOUTS_S)
        works = [self._work_on(client, number, timeout_s) for number in range(WORKERS)]
        await self._together(self._send(client), *works)

    # ---- sending ----

    async def _send(self, client: txnclient.Client) -> None:
        async with client.producer(TOPIC, linger_ms=self._random.choice((0, 20))) as producer:
            while self._plan.active:
                await self._pause(0.5)
                await asyncio.gather(*(self._send_one(producer) for _ in range(self._random.randrange(1, 6))))
            for _ in range(LAST_SENDS):
                await self._send_one(producer)
            self._log.ended = True
            await asyncio.Event().wait()

    async def _send_one(self, producer: Producer) -> None:
        value, limit_s, later_s = self._plan.value("hanging"), self._limit_s(), self._later_s()
        if later_s is not None:
            self._log.due[value] = self._now() + later_s
        key = f"k{self._random.randrange(8)}"
        try:
            await producer.send(value.encode(), key=key, timeout=limit_s, deliver_after=later_s)
        except TxnError as error:
            self._failed(error, limit_s)
        else:
            self._log.stored[value] = None

    def _limit_s(self) -> float | None:
        """Of one call; sometimes so short that even a healthy cluster may be too slow."""
        return self._random.choice((None, None, 0.01, 0.5)) if self._plan.active else None

    def _later_s(self) -> float | None:
        if not self._plan.steady_clocks or self._random.random() > LATER_SHARE:
            return None
        return self._random.choice(LATER_S if self._plan.active else LATER_S[:-1])

    def _failed(self, error: TxnError, limit_s: float | None = None) -> None:
        self._log.timed += limit_s is not None and isinstance(error, txnclient.Timeout)
        self._log.late += isinstance(error, TxnConflict)
        self._go_on_unless_fatal(error)

    # ---- working ----

    async def _work_on(self, client: txnclient.Client, number: int, timeout_s: float) -> None:
        prefetch = self._random.choice((1, 10, 200))
        async with client.consumer(
            TOPIC, SUBSCRIPTION, type="queue", name=f"worker-{number}", prefetch=prefetch, ack_timeout=timeout_s
        ) as consumer:
            while True:
                messages = await consumer.receive_many(self._random.randrange(1, 10), timeout=1.0)
                self._came(messages)
                if number and self._random.random() < 0.15:
                    await self._hang(client, consumer, messages, timeout_s)
                elif number and self._random.random() < 0.1:
                    await self._pause_it(consumer)
                elif messages:
                    await self._transaction(client, consumer, messages)

    def _came(self, messages: Sequence[Message]) -> None:
        log = self._log
        log.queue.delivered += len(messages)
        log.queue.again += sum(message.redelivery_count > 0 for message in messages)
        for message in messages:
            due_s = log.due.get(message.value.decode())
            if due_s is not None:
                log.later += 1
                if self._now() < due_s - EARLY_S:
                    log.breaches.append(f"hanging: {message.value!r} came {due_s - self._now():.3f} s before its time")
        log.taken_over += sum(message.value.decode() in log.held for message in messages)

    async def _hang(
        self, client: txnclient.Client, consumer: Consumer, messages: Sequence[Message], timeout_s: float
    ) -> None:
        """Holds them for longer than allowed; then forgets them, or acks them as if nothing had been."""
        values = {message.value.decode(): None for message in messages}
        self._log.hung += len(values)
        self._log.held |= values
        await self._for_long(timeout_s)
        for value in values:
            self._log.held.pop(value, None)
        if messages and self._random.random() < 0.7:
            await self._transaction(client, consumer, messages)

    async def _for_long(self, least_s: float) -> None:
        if self._random.random() < FOR_EVER_SHARE:
            await asyncio.Event().wait()
        await asyncio.sleep(least_s * self._random.uniform(0.7, 3.0))

    async def _pause_it(self, consumer: Consumer) -> None:
        """Pauses it for a while, or for ever. It must hand out nothing, however often it is asked."""
        consumer.pause()
        self._log.paused += 1
        for_ever = self._random.random() < FOR_EVER_SHARE
        until = self._now() + (float("inf") if for_ever else self._random.uniform(0.2, 3.0))
        while self._now() < until:
            if messages := await consumer.receive_many(10, timeout=0.5):
                self._log.breaches.append(f"hanging: {len(messages)} messages were handed out by a paused consumer")
        consumer.resume()

    async def _transaction(self, client: txnclient.Client, consumer: Consumer, messages: Sequence[Message]) -> None:
        try:
            txn = await client.begin(timeout=15.0)
        except TxnError as error:
            self._failed(error)
            return
        values = tuple(message.value.decode() for message in messages)
        self._log.queue.taken.append(Taken(self._name, str(txn.id), values))
        limit_s = self._limit_s()
        try:
            await consumer.ack(messages, txn=txn, timeout=limit_s)
            await txn.commit()
        except TxnError as error:
            self._failed(error, limit_s)
            await self._abort(txn)

    async def _abort(self, txn: txnclient.Transaction) -> None:
        try:
            await txn.abort()
        except TxnError as error:
            self._failed(error)


class HangingDrain(WorkloadDrain[HangingLog]):
    async def _read(self, client: txnclient.Client) -> None:
        log = self._log.queue
        log.outcomes = await outcomes_of(client, [taken.txn_id for taken in log.taken])
        log.visible += [message.value.decode() for message in await read_all(client, TOPIC)]
        async with client.consumer(TOPIC, SUBSCRIPTION, type="queue") as consumer:
            log.left += [message.value.decode() for message in await take_all(consumer, self._plan.lags)]
