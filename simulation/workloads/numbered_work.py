"""A source that numbers what it reads, and a numbered producer that sends it: killed, fenced by a second process of the
same name, its layout changed under it (DESIGN §7, "Numbered producers").

Whatever happens, no item of the source is stored twice, and each is stored once a life has sent everything from where
its producer said that it may go on. A life knows as stored, from its opening on, whatever was acked before.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import txnclient
from simulation.clients.draining import WorkloadDrain, read_all
from simulation.clients.life import LoggedLife
from simulation.clients.plan import ClientPorts, Plan
from txnclient.consuming.received.message import Message
from txnclient.producing.channels.source_ids import Standing
from txnclient.producing.producer import Producer, producer_impl
from txnwire.errors import InvalidArgument, ProducerFenced, TopicNotFound, TxnError, WouldBlock

TOPIC = "topic://public/sim/numbered"
NAME = "importer"
MOST_AGAIN = 40
"""Items that a life sends again, at most, though its producer knows them as stored."""
LAST_AT_ONCE = 100
"""Items that the last life sends at once."""


class SourceItem(NamedTuple):
    sequence_id: int
    key: str | None
    value: bytes


def source(chance: random.Random, count: int) -> list[SourceItem]:
    """Items whose ids have gaps, and some of which have no key."""
    steps = [chance.choice((1, 1, 1, 2, 1000)) for _ in range(count)]
    return [
        SourceItem(one, None if chance.random() < 0.2 else f"k{chance.randrange(12)}", b"%d" % one)
        for one in accumulate(steps, initial=0)
    ]


@dataclass(slots=True)
class NumberedLog:
    """What all lives of all processes have done. `hasty`: they cancel sends, and call them again."""

    items: Sequence[SourceItem]
    hasty: bool
    lives: int = 0
    fenced: int = 0
    again: int = 0
    """Sends of items that had been told as stored."""
    behind_another: int = 0
    """Openings at which the life before had left items that it did not know the outcome of."""
    left: int = 0
    """Sends that the lives before the present one have ended without an answer."""
    breaches: list[str] = field(default_factory=list)
    acked: dict[int, None] = field(default_factory=dict)
    stored: list[Message] = field(default_factory=list)

    def opened(self, acked: Iterable[int], standing: Callable[[int], Standing]) -> None:
        """A life has opened its producer: `acked` were stored before it began to."""
        missing = [one for one in acked if standing(one) is not Standing.STORED]
        if missing:
            self.breaches.append(
                f"numbered: {len(missing)} items that were acked, the first of them {missing[0]}, are not told as "
                f"stored to life {self.lives}"
            )

    def findings(self) -> Iterator[str]:
        yield from self.breaches
        found = Counter(message.value for message in self.stored)
        for item in self.items:
            if found[item.value] != 1:
                told = "acked" if item.sequence_id in self.acked else "never acked"
                yield f"numbered: item {item.sequence_id} ({told}) is stored {found[item.value]} times"
        for message in self.stored:
            if message.value != b"%d" % message.sequence_id:
                yield f"numbered: item {message.value.decode()} has the sequence id {message.sequence_id}"
        if not self.hasty:
            yield from self._out_of_order()

    def _out_of_order(self) -> Iterator[str]:
        last: dict[bytes, int] = {}
        for message in self.stored:
            if message.key is not None:
                if last.get(message.key, -1) > message.sequence_id:
                    yield f"numbered: item {message.sequence_id} stands behind {last[message.key]} of its key"
                last[message.key] = message.sequence_id


class SourceLife(LoggedLife[NumberedLog]):
    """One life of one process."""

    def __init__(self, ports: ClientPorts, plan: Plan, log: NumberedLog, *, last: bool = False) -> None:
        """`last`: it sends all that is left, and reads everything."""
        super().__init__(ports, plan, log)
        self._last = last
        self._may_connect_carelessly = not last
        self._pause_s = 4 * plan.pause_s

    async def _work(self, client: txnclient.Client) -> None:
        log, chance = self._log, self._random
        await client.create_topic(TOPIC, segments=self._plan.segments)
        log.lives += 1
        acked = tuple(log.acked)
        async with client.producer(
            TOPIC,
            name=NAME,
            sequence_id=-1,
            linger_ms=chance.choice((0, 5, 50)),
            batch_bytes=chance.choice((40, 400, 4000)),
            buffer_bytes=chance.choice((60, 2000, 1_000_000)),
        ) as producer:
            life = producer_impl(producer).life
            if life is not None:
                log.opened(acked, life.ids.standing)
            log.behind_another += log.left > 0
            log.left = 0
            until = float("inf") if self._last else self._now() + chance.uniform(1.0, 12.0)
            await self._send_on(producer, until)
        if self._last:
            log.stored = await read_all(client, TOPIC)

    def _ended_by(self, error: TxnError) -> None:
        if isinstance(error, ProducerFenced):
            self._log.fenced += 1
        elif not isinstance(error, TopicNotFound):
            super()._ended_by(error)

    async def _send_on(self, producer: Producer, until: float) -> None:
        items, chance = self._log.items, self._random
        at = sum(1 for item in items if item.sequence_id <= producer.last_sequence_id)
        at -= min(at, chance.choice((0, 1, chance.randrange(MOST_AGAIN), len(items))))
        while at < len(items) and (self._last or self._goes_on(until)):
            if not self._last:
                await self._pause(self._pause_s)
            some = items[at : at + (LAST_AT_ONCE if self._last else chance.choice((1, 1, 5, 20)))]
            try:
                self._log.left += len(some)
                await self._send_some(producer, some)
                self._log.left -= len(some)
            except TxnError as error:
                self._go_on_unless_fatal(error)
                continue  # the same once more, in the same life
            for item in some:
                self._log.acked[item.sequence_id] = None
            at += len(some)

    def _go_on_unless_fatal(self, error: TxnError) -> None:
        if isinstance(error, ProducerFenced | InvalidArgument):
            raise error
        super()._go_on_unless_fatal(error)

    async def _send_some(self, producer: Producer, items: Sequence[SourceItem]) -> None:
        self._log.again += sum(item.sequence_id in self._log.acked for item in items)
        if self._random.random() < 0.5:
            for item in items:
                await self._send(producer, item)
            return
        sends = [self._send(producer, item) for item in items]
        for outcome in await asyncio.gather(*sends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _send(self, producer: Producer, item: SourceItem) -> None:
        number, key, value = item
        if self._random.random() < 0.3:
            try:
                await producer.send_nowait(value, key=key, sequence_id=number)
                return
            except WouldBlock:
                pass
        if self._log.hasty and self._random.random() < 0.2:
            try:
                async with asyncio.timeout(self._random.uniform(0.0, 0.1)):
                    await producer.send(value, key=key, sequence_id=number)
                    return
            except TimeoutError:
                pass  # (f): the same call again
        await producer.send(value, key=key, sequence_id=number)


class NumberedDrain(WorkloadDrain[NumberedLog]):
    async def run(self) -> None:
        if self._log.lives:
            await SourceLife(self._ports, self._plan, self._log, last=True).live()
