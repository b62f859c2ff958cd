"""One consumer of the subscription under seeks: it receives and acks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress

import txnclient
from simulation.clients.careless import Careless
from simulation.clients.recorder import place_of
from simulation.judges.history import Place
from simulation.seeking.seek_model import AckedWithin, SeekLog, out_of_order
from txnclient.consuming.consumer import Consumer, consumer_impl
from txnclient.consuming.received.message import Message
from txnwire.errors import InvalidArgument, NotAllowed, TxnConflict, TxnError

ABORTED_SHARE = 0.3
KEPT_SHARE = 0.2
"""Share of receipts that are not acked at first."""


def seen_of(messages: Sequence[Message]) -> list[tuple[str, Place, str]]:
    return [((one.key or b"").decode(), place_of(one.id), one.value.decode()) for one in messages]


class SeekMember:
    """One consumer of the subscription, through one of its lives. Reports breaches to `found`."""

    def __init__(
        self,
        client: txnclient.Client,
        consumer: Consumer,
        log: SeekLog,
        chance: random.Random,
        careless: Careless,
        kept: list[tuple[Message, int]],
    ) -> None:
        """`kept`: messages received before, with their numbers; it adds its own receipts."""
        self.consumer = consumer
        self._client = client
        self._log = log
        self._random = chance
        self._careless = careless
        self._unacked: dict[str, int] = {}
        """Values that a cumulative ack may ack, with their numbers."""
        self._sure: dict[str, None] = {}
        """Values that it surely acks, if it is answered: they cannot have been delivered again since."""
        self._kept = kept
        self.times_ms: list[int] = []

    async def work(self) -> None:
        """Receives once, and does something with it."""
        messages = await self._receive()
        if not messages:
            return
        drawn = self._random.random()
        if drawn < KEPT_SHARE:
            return
        if drawn < 0.3:
            self._log.acks(self._named(messages))
            for answer in consumer_impl(self.consumer).ack_nowait(messages):
                answer.add_done_callback(_heard)  # a seek may overtake it
        elif drawn < 0.5:
            self._log.acks(self._all_named())
            await self._careless.call(self.consumer.ack_cumulative(messages[-1]))
        elif drawn < 0.75:
            await self._ack_within(messages)
        else:
            self._log.acks(self._named(messages))
            await self._careless.call(self.consumer.ack(messages))

    async def _receive(self) -> list[Message]:
        receiving = self.consumer.receive_many(self._random.choice((3, 20, 500)), timeout=1.0)
        messages = await self._careless.call(receiving)
        for message in messages:
            value = message.value.decode()
            self._log.came(value)
            self._unacked[value] = self._log.begun
            if self._log.begun == self._log.answered:
                self._sure[value] = None
            self._kept.append((message, self._log.begun))
        del self._kept[:-60]
        self.times_ms = [*self.times_ms, *(one.publish_time_ms for one in messages)][-200:]
        self._log.ids = [*self._log.ids, *(str(one.id) for one in messages)][-60:]
        for text in out_of_order(seen_of(messages)):
            self._log.breaches.append(f"sought: {self.consumer.name}: {text}")
        return messages

    def _named(self, messages: Sequence[Message]) -> dict[str, int]:
        values = [message.value.decode() for message in messages]
        return {value: self._unacked.pop(value, self._log.begun) for value in values}

    def _all_named(self) -> dict[str, int]:
        """▲ Acking the message handed out last acks everything handed out before, in every segment."""
        named, self._unacked = self._unacked, {}
        return named

    async def _ack_within(self, messages: Sequence[Message]) -> None:
        """Acks cumulatively or singly; sometimes a cumulative ack outside follows, around what is pending."""
        txn = await self._careless.call(self._client.begin(timeout=10.0))
        try:
            cumulative = self._random.random() < 0.5
            named = self._all_named() if cumulative else self._named(messages)
            acked = [AckedWithin(str(txn.id), value, number) for value, number in named.items()]
            self._log.within += acked
            if cumulative:
                await self._careless.call(self.consumer.ack_cumulative(messages[-1], txn=txn))
            else:
                await self._careless.call(self.consumer.ack(messages, txn=txn))
            for one in acked:
                one.answered = one.value in self._sure
            if self._random.random() < 0.3 and (more := await self._receive()):
                self._log.acks(self._all_named())
                await self._careless.call(self.consumer.ack_cumulative(more[-1]))
            if self._random.random() >= ABORTED_SHARE:
                await self._careless.call(txn.commit())
                return
            self._sure.clear()  # all of it comes again
            await self._careless.call(txn.abort())
        except TxnError:
            self._sure.clear()
            await self._careless.call(txn.abort())
            raise

    def rewind(self) -> None:
        self._unacked, self._sure = {}, {}
        self.consumer.rewind()

    async def ack_late(self) -> None:
        """▲ Acks messages received before a seek, even from a segment that left this consumer and came back, or by a
        former subscription of the name: the acks count for nothing, and the messages must come again."""
        late = [message for message, number in self._kept if number < self._log.answered]
        if not late:
            return
        self._log.late += 1
        self._sure.clear()  # what has left this consumer is skipped from now on
        with suppress(NotAllowed, TxnConflict, InvalidArgument):
            if self._random.random() < 0.5:
                await self._careless.call(self.consumer.ack(late))
            else:
                await self._careless.call(self.consumer.ack_cumulative(late[-1]))


def _heard(answer: asyncio.Future[None]) -> None:
    """Ignores the result: the next ack, or the end of this life, shows it as well."""
    if not answer.cancelled():
        answer.exception()
