"""Large values in pieces, over segments that are split and merged by their load (SCENARIOS A7), under all faults: each
appears whole or not at all, once, with all of its transaction, and those of one key in order.

One process works on a topic of its own, so that it knows everything. Pieces are small here, because the test is about
their places and fate, not their size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import txnclient
from simulation.clients.careless import GivenUp
from simulation.clients.draining import WorkloadDrain, outcomes_of, read_all
from simulation.clients.life import LoggedLife, beside
from txnclient.consuming.received.message import Message
from txnclient.producing.large_values import send_large
from txnclient.producing.outgoing import checked
from txnclient.producing.producer import Producer, producer_impl
from txnclient.transactions.transaction import Transaction, transaction_impl
from txnwire.errors import TxnError

TOPIC = "topic://public/sim/large"
AUTOSCALE = {
    "split_messages_per_s": 2.0,
    "merge_messages_per_s": 0.7,
    "split_cooldown_s": 2.0,
    "merge_cooldown_s": 5.0,
    "max_segments": 6,
}
"""So low that the load of one process, which comes and goes, crosses both thresholds."""
PIECE_BYTES = 200
KEYS = 3


@dataclass(frozen=True, slots=True)
class LargeSend:
    txn_id: str
    key: str
    value: str
    """Its name; its bytes follow from it."""
    pieces: int


@dataclass(slots=True)
class LargeLog:
    """What the process sent over all its lives, in order; `found`: what readers got that differs from what was sent;
    `visible`: (key, value) at the end."""

    sends: list[LargeSend] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    visible: list[tuple[str, str]] = field(default_factory=list)
    outcomes: dict[str, str] = field(default_factory=dict)

    @property
    def in_pieces(self) -> int:
        return sum(1 for send in self.sends if send.pieces > 1)

    def findings(self) -> Iterator[str]:
        yield from self.found
        sent = {send.value: send for send in self.sends}
        for value in dict.fromkeys([*self.seen, *(value for _, value in self.visible)]):
            if value not in sent:
                yield f"large: {value} was read and never sent"
            elif (state := self.outcomes.get(sent[value].txn_id)) != "COMMITTED":
                yield f"large: {value} of {sent[value].txn_id}, which is {state}, was read"
        values = [value for _, value in self.visible]
        for value in dict.fromkeys(values):
            if values.count(value) > 1:
                yield f"large: {value} is there {values.count(value)} times"
        there = dict.fromkeys(values)
        committed = [send for send in self.sends if self.outcomes.get(send.txn_id) == "COMMITTED"]
        yield from (f"large: {one.value} of {one.txn_id} is lost" for one in committed if one.value not in there)
        for key in dict.fromkeys(send.key for send in committed):
            order = [value for found, value in self.visible if found == key]
            wanted = [send.value for send in committed if send.key == key and send.value in there]
            if order != wanted and sorted(order) == sorted(wanted):
                yield f"large: {key} holds {', '.join(order)}, sent in the order {', '.join(wanted)}"

    def received(self, messages: Sequence[Message]) -> list[tuple[str, str]]:
        """Records received messages; returns (key, value) of each."""
        came = []
        for message in messages:
            value = message.value.partition(b" ")[0].decode()
            sent = next((send for send in reversed(self.sends) if send.value == value), None)
            if sent is not None and message.value != content(value, sent.pieces):
                self.found.append(f"large: {value} came with other bytes than were sent")
            came.append(((message.key or b"").decode(), value))
        return came


def content(value: str, pieces: int) -> bytes:
    """The last piece is shorter; no two pieces of a value are alike."""
    length = max(len(value) + 1, PIECE_BYTES * pieces - 50)
    filler = "".join(f"{number}:{value}." for number in range(length // (len(value) + 3) + 1))
    return f"{value} {filler}".encode()[:length]


class LargeLife(LoggedLife[LargeLog]):
    """One life of the process."""

    async def _work(self, client: txnclient.Client) -> None:
        await self._careless.call(client.create_topic(TOPIC, segments=1, autoscale=AUTOSCALE))
        async with beside(self._follow(client)):
            room = self._random.choice((3 * PIECE_BYTES, 64 * 1024 * 1024))
            producing = client.producer(TOPIC, compression=None, buffer_bytes=room)
            async with self._careless.within(producing) as producer:
                while self._plan.active:
                    await self._phase(client, producer)

    async def _phase(self, client: txnclient.Client, producer: Producer) -> None:
        """Works, or is nearly idle, for a while: segments become hot and cold."""
        pause_s = self._random.choice((0.1, 0.1, 3.0))
        until = self._now() + self._random.uniform(3.0, 15.0)
        while self._goes_on(until):
            await self._pause(pause_s)
            try:
                txn = await self._careless.call(client.begin(timeout=self._random.choice((1.0, 15.0))))
            except GivenUp:
                continue
            try:
                await self._transaction(txn, producer)
            except TxnError as error:
                self._met(error)
                # ▲ A7: its caller may commit although this failed, and half a value must not be there then.
                forgetful = isinstance(error, GivenUp) and self._random.random() < 0.5
                await self._careless.call(txn.commit() if forgetful else txn.abort())
                if error.fatal:
                    raise

    async def _transaction(self, txn: Transaction, producer: Producer) -> None:
        for _ in range(self._random.randrange(1, 4)):
            key, pieces = f"k{self._random.randrange(KEYS)}", self._random.choice((1, 2, 3, 8))
            send = LargeSend(str(txn.id), key, self._plan.value("large"), pieces)
            self._log.sends.append(send)
            data = content(send.value, pieces)
            if pieces == 1:
                await self._careless.call(producer.send(data, key=key, txn=txn))
            else:
                head, overhead = checked(b"", key, None, None)
                sending = send_large(
                    producer_impl(producer), data, head, overhead, transaction_impl(txn), piece_bytes=PIECE_BYTES
                )
                await self._careless.call(sending, weight=3)
            if self._random.random() < 0.2:
                await asyncio.sleep(self._random.expovariate(1 / 0.3))
        await self._careless.call(txn.abort() if self._random.random() < 0.15 else txn.commit())

    async def _follow(self, client: txnclient.Client) -> None:
        """A reader during the work must see only committed, whole values."""
        while self._plan.active:
            try:
                async with self._careless.within(client.reader(TOPIC, start="latest")) as reader:
                    until = self._now() + self._random.uniform(5.0, 30.0)
                    while self._goes_on(until):
                        receiving = reader.receive_many(20, timeout=1.0)
                        came = self._log.received(await self._careless.call(receiving, weight=0.3))
                        self._log.seen += [value for _, value in came]
            except TxnError as error:
                self._met(error)
                await asyncio.sleep(0.5)


class LargeDrain(WorkloadDrain[LargeLog]):
    def _anything_done(self) -> bool:
        return bool(self._log.sends)

    async def _read(self, client: txnclient.Client) -> None:
        log = self._log
        log.outcomes = await outcomes_of(client, list(dict.fromkeys(send.txn_id for send in log.sends)))
        log.visible += log.received(await read_all(client, TOPIC))
