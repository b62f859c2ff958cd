"""Mixes acks of every kind on one stream subscription: in transactions and outside, single and cumulative, of whole
entries and of parts of them, over segments that split and merge (SCENARIOS P1, P2, P8; DESIGN §6, "Pending acks"). A
cumulative ack means everything handed out to this consumer before, in every segment.

One process does all the work, so that it knows everything. Under all faults this must be true:

- messages that a committed transaction has acked, singly or up to a message, do not come again;
- messages that an aborted one has acked come again, before anything behind them in their segment;
- everything else comes in the end, unless it was acked outside of transactions. Such an ack has no effect on values
  pending in a transaction; a cumulative one acks all others that it covers. The latter is checked at the end, when
  there are no more faults: a killed server may forget plain acks.

An ack outside surely met an open transaction only if the transaction is found open after the ack's answer and no
connection was opened meanwhile: over a new connection the ack may have been repeated, and land again at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import txnclient
from simulation.clients.draining import WorkloadDrain, outcomes_of, read_all, take_all
from simulation.clients.life import LoggedLife
from simulation.clients.plan import ClientPorts, Plan
from simulation.clients.recorder import place_of
from simulation.judges.history import Place
from txnclient.connection.opening import Opening
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.received.message import Message
from txnclient.producing.producer import Producer
from txnclient.transactions.transaction import Transaction
from txnwire.errors import TxnError
from txnwire.ports import Connection, Listener

TOPIC = "topic://public/sim/acking"
SUBSCRIPTION = "acking"
SEGMENTS = 2
KEYS = 12
ABORTED_SHARE = 0.6


class NamedAck(NamedTuple):
    """The targets of one ack: some values, and, if cumulative, everything up to a place in each segment. It may cover
    less: values that came again, or that nobody has got yet, are skipped."""

    values: tuple[str, ...] = ()
    up_to: tuple[Place, ...] = ()

    def may_name(self, value: str, place: Place) -> bool:
        return value in self.values or any(at[0] == place[0] and place <= at for at in self.up_to)


@dataclass(slots=True)
class Outside:
    """An ack outside of transactions. `dropped`: values that it surely did not ack, because they were pending in a
    transaction."""

    named: NamedAck
    dropped: tuple[NamedAck, ...] = ()


@dataclass(slots=True)
class AckingLog:
    """What was done over all lives. `left` and `visible`: values with their places, as found at the end."""

    within: list[tuple[str, NamedAck]] = field(default_factory=list)
    """(transaction, what it acked or tried to)"""
    outside: list[Outside] = field(default_factory=list)
    dropped: int = 0
    """Acks outside that met pending values."""
    aborted: dict[str, None] = field(default_factory=dict)
    """Transactions that surely ended so."""
    owed: dict[str, Place] = field(default_factory=dict)
    """Values that must come again."""
    breaches: list[str] = field(default_factory=list)
    left: dict[str, Place] = field(default_factory=dict)
    visible: dict[str, Place] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)

    def received(self, messages: Sequence[Message]) -> None:
        for message in messages:
            value, place = message.value.decode(), place_of(message.id)
            self.owed.pop(value, None)
            for missing in [one for one, at in self.owed.items() if at[0] == place[0] and at < place]:
                self.breaches.append(
                    f"acking: {missing} at {self.owed.pop(missing)} was aborted; {value} at {place} came"
                )

    def has_aborted(self, txn_id: str, messages: Sequence[Message]) -> None:
        """Its acked `messages` are owed, unless something else may have acked them."""
        self.aborted[txn_id] = None
        held = [named for one, named in self.within if one == txn_id]
        others = [named for one, named in self.within if one not in self.aborted]
        for message in messages:
            value, place = message.value.decode(), place_of(message.id)
            if not any(value in named.values for named in held):
                continue
            if not any(named.may_name(value, place) for named in others) and not self._acked_outside(value, place):
                self.owed[value] = place

    def findings(self) -> Iterator[str]:
        yield from self.breaches
        committed = [(txn_id, named) for txn_id, named in self.within if self.outcomes.get(txn_id) == "COMMITTED"]
        for value, place in self.visible.items():
            by = [txn_id for txn_id, named in committed if value in named.values]
            may_be = any(named.may_name(value, place) for _, named in committed)
            if value in self.left and by:
                yield f"acking: {value} at {place} came at the end although {by[0]} had committed its ack"
            elif value not in self.left and not may_be and not self._acked_outside(value, place):
                yield f"acking: {value} at {place} was lost: nobody acked it for good, and it did not come at the end"
        yield from (
            f"acking: {value} came at the end and is not visible" for value in self.left if value not in self.visible
        )

    def _acked_outside(self, value: str, place: Place) -> bool:
        return any(
            one.named.may_name(value, place) and not any(value in held.values for held in one.dropped)
            for one in self.outside
        )


class AckingLife(LoggedLife[AckingLog]):
    """One life of the process. It ends after a while."""

    def __init__(self, ports: ClientPorts, plan: Plan, log: AckingLog) -> None:
        super().__init__(ports, plan, log)
        self._connections = _Connections(ports)
        self._handed: dict[int, Place] = {}
        """How far each segment was handed out to this consumer."""
        self._unacked: dict[str, None] = {}
        """Values handed out since all unacked ones last came again, and not acked."""

    def _connect(self) -> Opening[txnclient.Client]:
        return self._plan.connect(self._ports, transport=self._connections)

    async def _work(self, client: txnclient.Client) -> None:
        await client.create_topic(TOPIC, segments=SEGMENTS)
        until = self._now() + self._random.uniform(5.0, 40.0)
        consuming = client.consumer(TOPIC, SUBSCRIPTION, name="acking", start="earliest")
        async with (
            self._careless.within(client.producer(TOPIC, linger_ms=5)) as producer,
            self._careless.within(consuming) as consumer,
        ):
            while self._goes_on(until):
                await self._pause(0.2 + 8 * self._plan.pause_s)
                await self._turn(client, producer, consumer)

    async def _turn(self, client: txnclient.Client, producer: Producer, consumer: Consumer) -> None:
        values = [self._value() for _ in range(self._random.randrange(1, 6))]
        await asyncio.gather(*[producer.send_nowait(one, key=f"k{self._random.randrange(KEYS)}") for one in values])
        messages = await self._receive(consumer)
        if not messages:
            return
        if self._random.random() < 0.2:
            return  # a later cumulative ack means them too
        if self._random.random() < 0.15:
            await self._ack_outside(consumer, messages)
            return
        txn = await self._careless.call(client.begin(timeout=15.0))
        try:
            await self._ack_within(client, consumer, txn, messages)
        except TxnError:
            await self._careless.call(txn.abort())
            raise

    async def _receive(self, consumer: Consumer) -> list[Message]:
        opened = self._connections.opened
        messages = await self._careless.call(consumer.receive_many(self._random.randrange(1, 9), timeout=1.0))
        self._log.received(messages)
        if self._connections.opened != opened:
            self._unacked.clear()
        for message in messages:
            place = place_of(message.id)
            self._handed[place[0]] = max(place, self._handed.get(place[0], place))
        self._unacked.update(dict.fromkeys(_values(messages)))
        return messages

    def _all_handed(self) -> NamedAck:
        """▲ Acking the message handed out last acks everything handed out before, in every segment."""
        named = NamedAck(tuple(self._unacked), tuple(self._handed.values()))
        self._unacked.clear()
        return named

    def _value(self) -> bytes:
        return self._plan.value(self._name).encode()

    async def _ack_within(
        self, client: txnclient.Client, consumer: Consumer, txn: Transaction, messages: Sequence[Message]
    ) -> None:
        if self._random.random() < 0.3:
            held = self._all_handed()
            self._log.within.append((str(txn.id), held))
            await self._careless.call(consumer.ack_cumulative(messages[-1], txn=txn))
        else:
            some = [message for message in messages if self._random.random() < 0.6] or messages[:1]
            held = self._named(some)
            self._log.within.append((str(txn.id), held))
            await self._careless.call(consumer.ack(some, txn=txn))
        if self._random.random() < 0.6:
            await self._ack_outside(consumer, messages, still_held=lambda: self._is_open(client, txn), held=held)
        if self._random.random() >= ABORTED_SHARE:
            await self._careless.call(txn.commit())
            return
        await self._careless.call(txn.abort())
        self._unacked.clear()
        self._log.has_aborted(str(txn.id), messages)

    def _named(self, messages: Sequence[Message]) -> NamedAck:
        values = _values(messages)
        for value in values:
            self._unacked.pop(value, None)
        return NamedAck(values)

    async def _is_open(self, client: txnclient.Client, txn: Transaction) -> bool:
        return (await client.outcomes([txn.id]))[txn.id] == "OPEN"

    async def _ack_outside(
        self,
        consumer: Consumer,
        messages: Sequence[Message],
        *,
        still_held: Callable[[], Awaitable[bool]] | None = None,
        held: NamedAck | None = None,
    ) -> None:
        opened = self._connections.opened
        if self._random.random() < 0.5:
            ack = Outside(self._all_handed())
            self._log.outside.append(ack)
            await self._careless.call(consumer.ack_cumulative(messages[-1]))
        else:
            ack = Outside(self._named(messages))
            self._log.outside.append(ack)
            await self._careless.call(consumer.ack(messages))
        if held is not None and still_held is not None and await still_held() and self._connections.opened == opened:
            ack.dropped = (held,)
            self._log.dropped += 1


def _values(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple(message.value.decode() for message in messages)


def _places(messages: Sequence[Message]) -> dict[str, Place]:
    return {message.value.decode(): place_of(message.id) for message in messages}


class _Connections:
    """The process' transport, counted."""

    def __init__(self, ports: ClientPorts) -> None:
        self._transport = ports.transport
        self.opened = 0

    async def connect(self, address: str, *, timeout_s: float) -> Connection:
        self.opened += 1
        return await self._transport.connect(address, timeout_s=timeout_s)

    async def listen(self, address: str, handler: Callable[[Connection], Awaitable[None]]) -> Listener:
        return await self._transport.listen(address, handler)


class AckingDrain(WorkloadDrain[AckingLog]):
    async def _read(self, client: txnclient.Client) -> None:
        log = self._log
        await client.create_topic(TOPIC, segments=SEGMENTS)
        log.outcomes = await outcomes_of(client, list(dict.fromkeys(txn_id for txn_id, _ in log.within)))
        log.visible |= _places(await read_all(client, TOPIC))
        async with client.consumer(TOPIC, SUBSCRIPTION, name="drain", start="earliest") as consumer:
            log.left |= _places(await take_all(consumer, self._plan.lags))
        await self._ack_around(client)

    async def _ack_around(self, client: txnclient.Client) -> None:
        """Sends a cumulative ack over pending acks, in every segment, after a split or merge; then decides the
        transaction."""
        values = [self._plan.value(self._ports.owner.name) for _ in range(8)]
        some = sorted(self._ports.random.sample(range(7), 3))
        committed = self._ports.random.random() < 0.5
        async with client.consumer(TOPIC, SUBSCRIPTION, name="around", start="earliest") as consumer:
            async with client.producer(TOPIC) as producer:
                for number, value in enumerate(values):
                    await producer.send(value.encode(), key=f"k{number}")
            messages = [await consumer.receive(timeout=30.0) for _ in values]
            values = [message.value.decode() for message in messages]
            txn = await client.begin(timeout=60.0)
            await consumer.ack([messages[index] for index in some], txn=txn)
            await self._change_layout(client)
            await consumer.ack_cumulative(messages[-1])
            await (txn.commit() if committed else txn.abort())
        async with client.consumer(TOPIC, SUBSCRIPTION, name="left", start="earliest") as consumer:
            left = list(_values(await take_all(consumer)))
        expected = [] if committed else [values[index] for index in some]
        if sorted(left) != sorted(expected):
            self._log.breaches.append(
                f"acking: {values} acked up to the last, {some} of them in a transaction that has "
                f"{'committed' if committed else 'aborted'}: {left} came again, expected {expected}"
            )

    async def _change_layout(self, client: txnclient.Client) -> None:
        """A layout change may seal segments with pending acks: they stay with their consumer until all is acked."""
        active = (await client.describe_topic(TOPIC)).active
        with suppress(txnclient.NotAllowed, txnclient.InvalidArgument):
            if self._ports.random.random() < 0.5:
                await client.split(self._ports.random.choice(active).name)
            elif len(active) > 2:
                await client.merge(active[0].name, active[1].name)
