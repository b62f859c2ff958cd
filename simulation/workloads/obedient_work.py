"""Clients that know nothing of errors but their three flags (`retriable`, `requires_abort`, `fatal`).

Each consumes a stream that it shares with another one, and puts a copy of each message into a topic of its own, in the
transaction that acks it. Its whole error handling is:

    retriable        the same call again
    requires_abort   abort, rewind, begin again
    fatal            stop the client, start a new one

Anything else is a finding. Under all faults the copies must be exactly what has come: nothing is lost, doubled, or left
behind, and no call is repeated in vain once everything has healed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import txnclient
from simulation.clients.draining import WorkloadDrain, read_all, take_all
from simulation.clients.life import LoggedLife
from simulation.clients.plan import TOPICS
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.received.message import Message
from txnclient.producing.producer import Producer
from txnclient.transactions.transaction import Transaction, TransactionState
from txnwire.errors import TxnError

T = TypeVar("T")

TOPIC = TOPICS[0]
COPIES = "topic://public/sim/copies"
SUBSCRIPTION = "obedient"
ORIGIN = "origin"
NAMED_SHARE = 0.3
TIMEOUTS_S = (1.0, 15.0)
LONG_SHARE = 0.05
"""Share of messages that take about as long as the shorter timeout of a transaction."""
AGAIN_S = 0.2
"""Mean pause before the same call again."""


@dataclass(slots=True)
class ObedientLog:
    """What the clients of a run know. `doing`: the call that each life is in, by its name; a life that has ended is not
    there. `inputs`, `left`: ids found at the end; `copies`: the origins of the copies found."""

    doing: dict[str, str] = field(default_factory=dict)
    committed: int = 0
    again: int = 0
    """How often a call was repeated."""
    aborted: int = 0
    restarted: int = 0
    inputs: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)

    def stranded(self) -> Iterator[str]:
        """Ask it once everything has healed and nobody takes up new work any more."""
        yield from (f"obedient: {name} is still in {what}" for name, what in self.doing.items())

    def findings(self) -> Iterator[str]:
        copies, inputs, left = Counter(self.copies), dict.fromkeys(self.inputs), dict.fromkeys(self.left)
        for origin, count in copies.items():
            if count > 1:
                yield f"obedient: {origin} was copied {count} times"
            if origin not in inputs:
                yield f"obedient: {origin} was copied and is not visible"
            if origin in left:
                yield f"obedient: {origin} was copied, and came at the end as well"
        for origin in inputs:
            if origin not in copies and origin not in left:
                yield f"obedient: {origin} was lost: it was not copied, and did not come at the end"


class ObedientLife(LoggedLife[ObedientLog]):
    """One life of one client. It ends after a while, or with a fatal error."""

    _may_connect_carelessly = False

    async def live(self) -> None:
        self._log.doing = {name: what for name, what in self._log.doing.items() if not self._is_former(name)}
        try:
            await super().live()
        finally:
            self._log.doing.pop(self._name, None)

    def _is_former(self, name: str) -> bool:
        return name.partition(".")[0] == self._name.partition(".")[0]

    def _ended_by(self, error: TxnError) -> None:
        self._met(error)
        self._log.restarted += 1
        if not (error.fatal or error.retriable):
            self._find(error)

    def _find(self, error: TxnError) -> None:
        self._plan.unexpected.append(f"{self._name}: no flag says how to obey {type(error).__name__}: {error}")

    async def _work(self, client: txnclient.Client) -> None:
        for topic in (TOPIC, COPIES):
            await self._obey("create_topic", partial(client.create_topic, topic, segments=self._plan.segments))
        producer = await self._obey("producer", lambda: client.producer(COPIES, linger_ms=self._random.choice((0, 5))))
        consumer = await self._obey("consumer", partial(self._open, client))
        until = self._now() + self._random.uniform(5.0, 60.0)
        while self._goes_on(until):
            await self._pause(4 * self._plan.pause_s)
            await self._batch(client, consumer, producer)

    async def _open(self, client: txnclient.Client) -> Consumer:
        name = self._name.partition(".")[0]
        return await client.consumer(TOPIC, SUBSCRIPTION, name=name, start="earliest")

    async def _obey(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Calls until it succeeds, or fails with an error that another call would not mend."""
        while True:
            self._log.doing[self._name] = what
            try:
                return await call()
            except TxnError as error:
                self._met(error)
                self._log.doing[self._name] = f"{what}, after {type(error).__name__}: {error}"
                if not error.retriable:
                    raise
            self._log.again += 1
            await self._pause(AGAIN_S)

    async def _batch(self, client: txnclient.Client, consumer: Consumer, producer: Producer) -> None:
        size = self._random.randrange(1, 8)
        messages = await self._obey("receive_many", lambda: consumer.receive_many(size, timeout=1.0))
        if not messages:
            return
        begin = partial(client.begin, timeout=self._random.choice(TIMEOUTS_S))
        if self._random.random() < NAMED_SHARE:
            begin = partial(begin, name=f"copy of {messages[0].id} by {self._name}")
        txn: Transaction = await self._obey("begin", begin)
        if txn.state is TransactionState.COMMITTED:
            return
        try:
            await self._copy(txn, consumer, producer, messages)
            self._log.committed += 1
        except TxnError as error:
            if error.fatal or not error.requires_abort:
                raise
            await self._obey("abort", txn.abort)
            self._log.aborted += 1
            consumer.rewind()

    async def _copy(self, txn: Transaction, consumer: Consumer, producer: Producer, messages: list[Message]) -> None:
        for message in messages:
            origin = {ORIGIN: str(message.id)}
            send = partial(producer.send, message.data, key=message.key, properties=origin, txn=txn)
            await self._obey("send", send)
            if self._random.random() < LONG_SHARE:
                await self._pause(TIMEOUTS_S[0])
        await self._obey("ack", partial(consumer.ack, messages, txn=txn))
        writers = None if txn.name is None else [txn.writer_id]
        await self._obey("commit", partial(txn.commit, writers=writers))


class ObedientDrain(WorkloadDrain[ObedientLog]):
    async def _read(self, client: txnclient.Client) -> None:
        log = self._log
        log.inputs += [str(message.id) for message in await read_all(client, TOPIC)]
        log.copies += [message.properties[ORIGIN] for message in await read_all(client, COPIES)]
        async with client.consumer(TOPIC, SUBSCRIPTION, name="drain", start="earliest") as consumer:
            log.left += [str(message.id) for message in await take_all(consumer, self._plan.lags)]
