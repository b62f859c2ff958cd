"""Careless use of the client, beside the workload (SCENARIOS C1 to C5, C8): many sends at once into a producer with a
small buffer, followed at once by a commit; bulk sends that are cancelled or whose iterator raises; blocks that are left
early; sends whose result is never checked.

Everything goes into the history with each call's promise (`Operation.calls`). Each step has its own producers and
counts as a process of its own, because order holds within one producer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import txnclient
from simulation.clients.careless import Careless, GivenUp, Mistake
from simulation.clients.recorder import Draft, Recorder, key_of
from simulation.judges.let_go import Lifetimes
from txnclient.producing.producer import Producer
from txnclient.transactions.transaction import Transaction
from txnwire.errors import ProducerFenced, TxnError, WouldBlock
from txnwire.ids import MessageId

ROOM_BYTES = (300, 1500, 6000)
"""Size of a producer's buffer: less than what is sent at once."""
BULK_BYTES = (0, 0, 0, 200, 1200)
"""Sizes of a message besides its value: some fit into a buffer that others do not."""
FORGETFUL_SHARE = 0.5
"""Share of callers that commit although a call in the transaction has failed."""
EARLY_SHARE = 0.2
"""Share of blocks left by an exception of the user's."""
RIVAL_SHARE = 0.5
"""Share of blocks with a second producer of the same name (C8)."""

End = Callable[[Draft, Transaction], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class CarelessNames:
    """What it uses of the workload: topics, the current keys, and unique values."""

    topics: tuple[str, ...]
    key: Callable[[], str]
    value: Callable[[], str]


class _Accepted(NamedTuple):
    draft: Draft
    value: str
    stored: asyncio.Future[MessageId]


class CarelessWork:
    """One client's share. `commit` and `abort` end a transaction as the workload does. Calls `met` with errors that end
    nothing."""

    def __init__(
        self,
        careless: Careless,
        recorder: Recorder,
        process: str,
        chance: random.Random,
        names: CarelessNames,
        lifetimes: Lifetimes,
        *,
        commit: End,
        abort: End,
        met: Callable[[TxnError], None],
    ) -> None:
        self._careless = careless
        self._recorder = recorder
        self._process = process
        self._random = chance
        self._names = names
        self._lifetimes = lifetimes
        self._commit = commit
        self._abort = abort
        self._met = met
        self._steps = 0

    async def step(self, client: txnclient.Client) -> None:
        """Does one of the steps. Raises the error that ended it, once all its work under way is over."""
        self._steps += 1
        process = f"{self._process}/careless-{self._steps}"
        steps = (self._burst, self._plain_burst, self._bulk, self._bulk, self._producer_block, self._block)
        await self._random.choice(steps)(client, process)

    def _producer(self, client: txnclient.Client, name: str | None = None) -> Awaitable[Producer]:
        return client.producer(
            self._random.choice(self._names.topics),
            name=name,
            linger_ms=self._random.choice((0, 2, 10)),
            buffer_bytes=self._random.choice(ROOM_BYTES),
            batch_bytes=self._random.choice((200, 1000, 131_072)),
        )

    def _properties(self) -> dict[str, str] | None:
        size = self._random.choice(BULK_BYTES)
        return {"bulk": self._random.randbytes(size // 2).hex()} if size else None

    async def _begin(self, client: txnclient.Client, draft: Draft) -> Transaction:
        lifetime_s = self._lifetimes.next_s()
        try:
            txn = await self._careless.call(client.begin(timeout=lifetime_s), weight=2)
        except GivenUp:
            self._lifetimes.end(lifetime_s, self._recorder.now())
            raise
        draft.begun(txn.id)
        return txn

    # ---- C2, C3: more than there is room for ----

    async def _burst(self, client: txnclient.Client, process: str) -> None:
        """▲ C2: all of these sends have been called before the commit, and most wait for room."""
        async with self._careless.within(self._producer(client)) as producer:
            draft = self._recorder.begin(process, "txn")
            txn = await self._begin(client, draft)
            sends = [self._send_in(draft, producer, txn) for _ in range(self._random.randrange(2, 25))]
            tasks = [asyncio.ensure_future(send) for send in sends]
            await asyncio.sleep(0)  # each of them has called
            if self._random.random() < 0.3:
                await asyncio.sleep(self._random.expovariate(1 / 0.02))
            try:
                await (self._abort if self._random.random() < 0.1 else self._commit)(draft, txn)
            finally:
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._abort(draft, txn)

    async def _send_in(self, draft: Draft, producer: Producer, txn: Transaction) -> None:
        key, value = self._names.key(), self._names.value()
        draft.sending(key_of(producer.topic, key.encode()), value)
        send = producer.send(value.encode(), key=key, properties=self._properties(), txn=txn)
        with draft.call("send", [value]):
            draft.stored(value, await self._careless.call(send, weight=0.1))

    async def _plain_burst(self, client: txnclient.Client, process: str) -> None:
        """▲ C3: sends of one key are stored in the order in which they were called, whichever of them has to wait for
        room."""
        async with self._careless.within(self._producer(client)) as producer:
            tasks = [
                asyncio.ensure_future(self._send_plain(process, producer)) for _ in range(self._random.randrange(2, 25))
            ]
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome

    async def _send_plain(self, process: str, producer: Producer) -> None:
        draft = self._recorder.begin(process, "send")
        key, value = self._names.key(), self._names.value()
        draft.sending(key_of(producer.topic, key.encode()), value)
        send = producer.send(value.encode(), key=key, properties=self._properties())
        draft.stored(value, await self._careless.call(send, weight=0.1))
        self._recorder.end(draft, "ok")

    # ---- C1: bulk sends that come to a bad end ----

    async def _bulk(self, client: txnclient.Client, process: str) -> None:
        """▲ C1: unless it succeeds, no part of it may ever be read, even if its caller commits."""
        async with self._careless.within(self._producer(client)) as producer:
            draft = self._recorder.begin(process, "txn")
            txn = await self._begin(client, draft)
            pairs = [(self._names.key(), self._names.value()) for _ in range(self._random.randrange(1, 80))]
            for key, value in pairs:
                draft.sending(key_of(producer.topic, key.encode()), value)
            messages = [(key, value.encode()) for key, value in pairs]
            given = self._careless.stumbling(messages, len(messages)) if self._careless.slips(3) else messages
            try:
                with draft.call("send_many", [value for _, value in pairs]):
                    await self._careless.call(producer.send_many(given, txn=txn), weight=3)
            except (Mistake, TxnError):
                await (self._commit if self._random.random() < FORGETFUL_SHARE else self._abort)(draft, txn)
                return
            await self._commit(draft, txn)

    # ---- C4, C8: messages that nobody asks after ----

    async def _producer_block(self, client: txnclient.Client, process: str) -> None:
        """▲ C4: `flush` or the end of the block reports messages that were accepted and lost."""
        draft = self._recorder.begin(process, "producer")
        name = process.replace("/", ".")
        accepted: list[_Accepted] = []
        producer = await self._careless.call(self._producer(client, name))
        try:
            with suppress(ProducerFenced):
                for _ in range(self._random.randrange(1, 40)):
                    await self._accept_or_flush(draft, process, producer, accepted)
                    if self._random.random() < EARLY_SHARE / 10:
                        break
                if self._random.random() < RIVAL_SHARE:
                    await self._meet_a_rival(client, draft, process, producer, accepted)
            await self._called(draft, "close", self._careless.call(producer.close()))
        except ProducerFenced:
            pass  # its rival has come
        finally:
            self._look_at(accepted)
            self._recorder.end(draft, "ok")

    async def _accept_or_flush(self, draft: Draft, process: str, producer: Producer, accepted: list[_Accepted]) -> None:
        drawn = self._random.random()
        try:
            if drawn < 0.85:
                accepted.append(self._accept(draft, process, producer))
            elif drawn < 0.9:
                await self._called(draft, "flush", self._careless.call(producer.flush(), weight=3))
        except ProducerFenced:
            if self._random.random() < 0.5:
                raise
        except TxnError as error:
            self._met(error)
        if drawn > 0.8:
            await asyncio.sleep(self._random.expovariate(1 / 0.05))

    def _accept(self, draft: Draft, process: str, producer: Producer) -> _Accepted:
        key, value = self._names.key(), self._names.value()
        sent = self._recorder.begin(process, "send")
        sent.sending(key_of(producer.topic, key.encode()), value)
        with draft.call("accept", [value]):
            return _Accepted(sent, value, producer.send_nowait(value.encode(), key=key, properties=self._properties()))

    def _look_at(self, accepted: Sequence[_Accepted]) -> None:
        """▲ Only after the producer is closed: the result of none was checked before."""
        for one in accepted:
            if one.stored.done() and not one.stored.cancelled() and one.stored.exception() is None:
                one.draft.stored(one.value, one.stored.result())
                self._recorder.end(one.draft, "ok")

    async def _called(self, draft: Draft, what: str, call: Awaitable[None]) -> None:
        with draft.call(what):
            await call

    async def _meet_a_rival(
        self,
        client: txnclient.Client,
        draft: Draft,
        process: str,
        producer: Producer,
        accepted: list[_Accepted],
    ) -> None:
        """▲ C8: a second producer of this name fences the first one while accepted messages of the first are under way:
        it gets an error, or all are stored."""
        async with client.producer(producer.topic, name=producer.name) as rival:
            rivals = [asyncio.ensure_future(self._send_plain(f"{process}-rival", rival)) for _ in range(4)]
            try:
                await asyncio.sleep(self._random.expovariate(1 / 0.002))
                with suppress(WouldBlock):
                    for _ in range(self._random.randrange(1, 8)):
                        accepted.append(self._accept(draft, process, producer))
            finally:
                await asyncio.gather(*rivals, return_exceptions=True)

    # ---- C5: blocks of transactions ----

    async def _block(self, client: txnclient.Client, process: str) -> None:
        """▲ C5: however the block ends, its transaction does not stay open."""
        draft = self._recorder.begin(process, "txn")
        lifetime_s = self._lifetimes.next_s()
        try:
            async with self._careless.within(self._producer(client)) as producer:
                block = self._in_block(client, draft, producer, lifetime_s)
                await self._careless.call(block, weight=4, awaits=self._random.choice((2, 12)))
        except Mistake:
            self._lifetimes.end(lifetime_s, self._recorder.now())
        except TxnError:
            self._lifetimes.end(lifetime_s, self._recorder.now())
            if not draft.asked:
                self._recorder.end(draft, "failed")
            raise
        else:
            draft.reported("committed")
            self._recorder.end(draft, "ok")

    async def _in_block(self, client: txnclient.Client, draft: Draft, producer: Producer, lifetime_s: float) -> None:
        async with client.transaction(timeout=lifetime_s) as txn:
            draft.begun(txn.id)
            for _ in range(self._random.randrange(1, 6)):
                if self._random.random() < EARLY_SHARE / 4:
                    self._recorder.end(draft, "failed")
                    raise Mistake
                if self._random.random() < 0.5:
                    await self._send_in(draft, producer, txn)
                else:
                    self._leave_to_the_commit(draft, producer, txn)
            draft.asked = True

    def _leave_to_the_commit(self, draft: Draft, producer: Producer, txn: Transaction) -> None:
        """The commit waits for it, and may be cancelled meanwhile, before a request to commit was sent."""
        key, value = self._names.key(), self._names.value()
        with suppress(WouldBlock):
            stored = producer.send_nowait(value.encode(), key=key, properties=self._properties(), txn=txn)
            draft.sending(key_of(producer.topic, key.encode()), value)
            stored.add_done_callback(lambda future: _remember(draft, value, future))


def _remember(draft: Draft, value: str, stored: asyncio.Future[MessageId]) -> None:
    if not stored.cancelled() and stored.exception() is None:
        draft.stored(value, stored.result())
