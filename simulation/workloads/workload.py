"""The clients of a cluster, simulated or of real processes (SCENARIOS, "Workload shape"): transactions of sends, polls
and acks that rotate over keys, one in ten aborted on purpose at any step, random pauses, and clients that die and come
back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import txnclient
from simulation.faults.damage import invents_a_failure, names_a_file
from simulation.judges.history import Ack
from simulation.judges.let_go import Lifetimes
from simulation.workloads.careless import Careless, GivenUp
from simulation.workloads.careless_work import CarelessNames, CarelessWork
from simulation.workloads.recorder import Draft, Positions, Recorder, key_of
from simulation.workloads.shared_work import SharedParts, SharedWork, ask_shared
from simulation.workloads.snapshot_work import SnapshotWork
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.message import Message
from txnclient.producing.producer import Producer
from txnclient.reading.reader import Reader
from txnclient.transactions.transaction import Transaction, TransactionState
from txnwire.errors import (
    ConnectionLost,
    DataCorrupt,
    InvalidTxnState,
    NotAllowed,
    NotOwner,
    Overloaded,
    StoreFull,
    StoreUnavailable,
    Timeout,
    TxnConflict,
    TxnError,
    WouldBlock,
)
from txnwire.ids import MessageId, TxnId
from txnwire.ports import Clock, Transport

TOPICS = ("topic://public/sim/in", "topic://aborted/watermark/out")
"""The second topic's names look like parts of keys."""
SUBSCRIPTION = "workers"
KEYS = 6
ABORT_SHARE = 0.1
FORGETFUL_SHARE = 0.5
"""Share of cancelled acks after which the caller aborts; otherwise it goes on and commits."""
COMMIT_TRIES = 3
TXN_TIMEOUT_S = 15.0
DRAIN_SILENCE_S = 8.0
UNEVEN_SHARE = 0.4
"""Share of bursts of plain sends that have long messages among short ones."""
LONG_BYTES = 1500
"""Size of a long message: brokers with the smallest ledgers take in only a few at once."""


EXPECTED = (InvalidTxnState, TxnConflict, NotAllowed, WouldBlock, NotOwner, StoreUnavailable, StoreFull, Overloaded,
            ConnectionLost, Timeout, GivenUp)  # fmt: skip
"""Errors that clients may meet during faults. Any other is a finding: corrupt data, internal errors, lost ids."""


@dataclass(slots=True)
class Plan:
    """Shared by one run's clients. `active`: they stop taking up new work once it is False."""

    url: str
    recorder: Recorder
    segments: int = 2
    """Initial segments of each topic."""
    subscriptions: tuple[tuple[str, str], ...] = ((TOPICS[0], SUBSCRIPTION),)
    """(topic, stream subscription) of everything in the history."""
    pause_s: float = 0.15
    """Mean pause of a client between two operations."""
    active: bool = True
    careless: float = 0.0
    """Share of calls that clients cancel (`simulation.workloads.careless`)."""
    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    cut: int = 0
    """Number of cancelled calls."""
    next_value: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """How often clients met which error, for the report."""
    unexpected: list[str] = field(default_factory=list)
    damaged: Callable[[], bool] = lambda: False
    """Whether bits have flipped on some disk: then clients may get errors about damaged files."""
    unreadable: Callable[[], Container[str]] = tuple
    """Files that some disk has failed to read: then clients may get errors about these."""
    resolved: int = 0
    """Transactions whose outcome only the final question showed."""
    shared: SharedParts = field(init=False)

    def __post_init__(self) -> None:
        self.shared = SharedParts(self.recorder)

    def value(self, process: str) -> str:
        self.next_value += 1
        return f"{process}-{self.next_value}"

    def caller(self, chance: random.Random) -> Careless:
        return Careless(chance, self.careless, self._was_cut)

    def _was_cut(self) -> None:
        self.cut += 1

    def met(self, process: str, error: TxnError) -> None:
        name = type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1
        if isinstance(error, DataCorrupt) and self.damaged() and names_a_file(str(error)):
            return
        if not isinstance(error, EXPECTED) or invents_a_failure(str(error), self.unreadable()):
            self.unexpected.append(f"{self.recorder.now():.3f} {process}: {name}: {error}")


class NamedDraft(Protocol):
    @property
    def name(self) -> str: ...


class ClientPorts(Protocol):
    """A client process' ports. `owner.name` is the process', unique for each of its lives."""

    @property
    def owner(self) -> NamedDraft: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def random(self) -> random.Random: ...


class ClientLife:
    """One life of one client process: runs until it is killed, unfit, or the plan ends."""

    def __init__(self, ports: ClientPorts, plan: Plan, *, subscription: str = SUBSCRIPTION) -> None:
        self._ports = ports
        self._plan = plan
        self._random = ports.random
        self._name = ports.owner.name
        self._now = ports.clock.monotonic
        self._subscription = subscription
        self._positions = Positions(self._now, subscription)
        self._failures = 0
        self._careless = plan.caller(self._random)
        self._shared = SharedWork(plan.shared, self._name, self._random, self._now, plan.met, self._careless)
        self._thoughtless = CarelessWork(
            self._careless,
            plan.recorder,
            self._name,
            self._random,
            CarelessNames(TOPICS, self._key, lambda: plan.value(self._name)),
            plan.lifetimes,
            commit=self._commit,
            abort=self._abort,
            met=lambda error: plan.met(self._name, error),
        )

    async def live(self) -> None:
        """Returns when it cannot go on: the process is then restarted, as under a supervisor."""
        try:
            opening = txnclient.connect(
                self._plan.url,
                client_name=self._name.partition(".")[0],
                timeout=self._random.uniform(3.0, 12.0),
                transport=self._ports.transport,
                clock=self._ports.clock,
                random=self._ports.random,
            )
            async with self._careless.within(opening) as client:
                await self._work(client)
        except TxnError as error:
            self._plan.met(self._name, error)

    async def _work(self, client: txnclient.Client) -> None:
        for topic in TOPICS:
            await self._careless.call(client.create_topic(topic, segments=self._plan.segments))
        beside = [asyncio.ensure_future(self._follow(client)), asyncio.ensure_future(self._take_snapshots(client))]
        try:
            await self._transact(client)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
        for task in beside:
            if not task.cancelled():
                task.result()

    # --- a reader beside the worker ---

    async def _follow(self, client: txnclient.Client) -> None:
        """A READ_COMMITTED reader from the beginning: what it sees is in order, whole and committed."""
        process = f"{self._name}/reader"
        while self._plan.active:
            positions = Positions(self._now, None)
            try:
                async with self._careless.within(client.reader(list(TOPICS), start="earliest")) as reader:
                    await self._follow_one(process, reader, positions, until=self._now() + self._random.uniform(5, 60))
            except TxnError as error:
                self._plan.met(self._name, error)
                await asyncio.sleep(0.5)
            process += "'"

    async def _follow_one(self, process: str, reader: Reader, positions: Positions, *, until: float) -> None:
        while self._plan.active and self._now() < until:
            messages = await self._careless.call(reader.receive_many(50, timeout=1.0), weight=0.3)
            if messages:
                draft = self._plan.recorder.begin(process, "read")
                draft.polled(positions.polls(messages))
                self._plan.recorder.end(draft, "ok")

    async def _take_snapshots(self, client: txnclient.Client) -> None:
        work = SnapshotWork(
            self._plan.recorder,
            self._name,
            self._random,
            topics=TOPICS,
            keys=[key_of(topic, b"k%d" % number) for topic in TOPICS for number in range(2 * KEYS)],
            found=self._plan.unexpected.append,
            careless=self._careless,
        )
        await work.go_on(client, lambda: self._plan.active, lambda error: self._plan.met(self._name, error))

    # --- the worker ---

    async def _transact(self, client: txnclient.Client) -> None:
        producers = [await client.producer(topic, linger_ms=self._random.choice((0, 2, 10))) for topic in TOPICS]
        consumer = await client.consumer(
            TOPICS[0],
            self._subscription,
            name=self._name.partition(".")[0],
            start="earliest",
            prefetch=self._random.choice((2, 20, 1000)),
        )
        while self._plan.active:
            await asyncio.sleep(self._random.expovariate(1 / self._plan.pause_s))
            step = self._random.random()
            try:
                if step < 0.1:
                    await self._plain_sends(producers, 1)
                elif step < 0.2:
                    await self._plain_sends(producers, self._random.randrange(2, 20))
                elif step < 0.25:
                    await self._plain_ack(consumer)
                elif step < 0.37:
                    await self._thoughtless.step(client)
                elif step < 0.49:
                    await self._shared.take_part(client, partial(self._step, producers=producers, consumer=consumer))
                else:
                    await self._transaction(client, producers, consumer)
                self._failures = 0
            except TxnError as error:
                self._plan.met(self._name, error)
                self._judge_fitness(error)
                consumer.rewind()

    def _judge_fitness(self, error: TxnError) -> None:
        """Raises `error` if this client cannot go on, or has failed too often in a row."""
        if isinstance(error, GivenUp):
            return
        self._failures += 1
        if self._failures > 8 or (error.fatal and not isinstance(error, NotAllowed)):
            raise error

    def _key(self) -> str:
        """Keys rotate: a few at a time are in use."""
        generation = int(self._now() // 10)
        return f"k{(generation + self._random.randrange(KEYS)) % (2 * KEYS)}"

    async def _plain_sends(self, producers: list[Producer], count: int) -> None:
        """Sends one after another without waiting: many may be under way when a connection is lost. ▲ If one is too
        long for its segment's room, a short one behind it would fit in, and must not pass it (L8)."""
        producer = self._random.choice(producers)
        long_share = 0.5 if count > 1 and self._random.random() < UNEVEN_SHARE else 0.0
        stored: list[asyncio.Future[MessageId]] = []
        try:
            for _ in range(count):
                draft = self._plan.recorder.begin(self._name, "send")
                key, value = self._key(), self._plan.value(self._name)
                draft.sending(key_of(producer.topic, key.encode()), value)
                bulk = self._random.randbytes(LONG_BYTES // 2).hex() if self._random.random() < long_share else ""
                properties = {"bulk": bulk} if bulk else None
                stored.append(producer.send_nowait(value.encode(), key=key, properties=properties))
                stored[-1].add_done_callback(self._finish_send(draft, value))
                if self._random.random() < 0.5:
                    await asyncio.sleep(self._random.expovariate(1 / 0.003))
        finally:
            if stored:
                await asyncio.wait(stored)
        for future in stored:
            future.result()

    def _finish_send(self, draft: Draft, value: str) -> Callable[[asyncio.Future[MessageId]], None]:
        def finished(future: asyncio.Future[MessageId]) -> None:
            if not future.cancelled() and future.exception() is None:
                draft.stored(value, future.result())
                self._plan.recorder.end(draft, "ok")

        return finished

    async def _plain_ack(self, consumer: Consumer) -> None:
        draft = self._plan.recorder.begin(self._name, "ack")
        receiving = consumer.receive_many(self._random.randrange(1, 5), timeout=3 * self._plan.pause_s)
        messages = await self._careless.call(receiving)
        draft.polled(self._positions.polls(messages))
        if messages:
            # Its outcome stays unknown, because a crash may forget plain acks (DESIGN §6).
            draft.acking(self._acks(messages))
            await self._careless.call(consumer.ack(messages))

    async def _transaction(self, client: txnclient.Client, producers: list[Producer], consumer: Consumer) -> None:
        draft = self._plan.recorder.begin(self._name, "txn")
        txn = await self._careless.call(client.begin(timeout=self._random.choice((1.0, TXN_TIMEOUT_S))))
        draft.begun(txn.id)
        try:
            for _ in range(self._random.randrange(1, 5)):
                if self._random.random() < ABORT_SHARE / 3:
                    break
                await self._step(draft, txn, producers, consumer)
                if self._random.random() < 0.2:
                    await asyncio.sleep(self._random.expovariate(1 / 0.3))
            else:
                if self._random.random() >= ABORT_SHARE:
                    await self._commit(draft, txn)
                    return
        except TxnError:
            await self._abort(draft, txn)
            raise
        await self._abort(draft, txn)

    async def _step(self, draft: Draft, txn: Transaction, producers: list[Producer], consumer: Consumer) -> None:
        if self._random.random() < 0.5:
            await self._send(draft, txn, producers)
            return
        receiving = consumer.receive_many(self._random.randrange(1, 6), timeout=2 * self._plan.pause_s)
        messages = await self._careless.call(receiving)
        draft.polled(self._positions.polls(messages))
        if messages:
            draft.acking(self._acks(messages))
            try:
                with draft.call("ack", [message.value.decode() for message in messages]):
                    await self._careless.call(consumer.ack(messages, txn=txn))
            except GivenUp:
                if self._random.random() < FORGETFUL_SHARE:
                    raise
                # ▲ C1: its caller goes on without it: the commit must be refused, or it is a finding.

    def _acks(self, messages: list[Message]) -> list[Ack]:
        at = self._now()
        return [Ack(subscription=self._subscription, value=message.value.decode(), at=at) for message in messages]

    async def _send(self, draft: Draft, txn: Transaction, producers: list[Producer]) -> None:
        """Awaits some sends, and leaves others for the commit to await."""
        producer, key, value = self._random.choice(producers), self._key(), self._plan.value(self._name)
        draft.sending(key_of(producer.topic, key.encode()), value)
        stored = producer.send_nowait(value.encode(), key=key, txn=txn)
        stored.add_done_callback(_remember(draft, value))
        if self._random.random() < 0.6:
            await asyncio.wait([stored])

    async def _commit(self, draft: Draft, txn: Transaction) -> None:
        """Repeats the commit while its outcome is unknown; after some tries it stays so."""
        draft.asked = True
        failure: TxnError | None = None
        for _ in range(COMMIT_TRIES):
            try:
                await self._careless.call(txn.commit())
            except GivenUp as error:
                failure = error
                if self._random.random() < 0.5:
                    break
            except InvalidTxnState:
                if isinstance(failure, GivenUp) and txn.state is not TransactionState.ABORTED:
                    raise  # the outcome of the cancelled one is unknown
                draft.reported("aborted")
                self._plan.recorder.end(draft, "failed")
                raise
            except TxnError as error:
                if failure is None and txn.state is not TransactionState.COMMITTING:
                    self._plan.recorder.end(draft, "failed")  # it failed before a request to commit it was sent
                    raise
                failure = error
                self._plan.met(self._name, error)
            else:
                draft.reported("committed")
                self._plan.recorder.end(draft, "ok")
                return
        if failure is not None:
            raise failure

    async def _abort(self, draft: Draft, txn: Transaction) -> None:
        """No request to commit it was sent, so it has failed whether or not the abort is answered."""
        if draft.completed is not None or draft.asked:
            return
        draft.left = True  # until it is known to be aborted
        self._plan.recorder.end(draft, "failed")
        await self._careless.call(txn.abort())
        draft.left = False
        draft.aborted(self._now())


def _remember(draft: Draft, value: str) -> Callable[[asyncio.Future[MessageId]], None]:
    def stored(future: asyncio.Future[MessageId]) -> None:
        if not future.cancelled() and future.exception() is None:
            draft.stored(value, future.result())

    return stored


class Drain:
    """At the end, when everything has healed: reads both topics and the subscriptions to their ends, and asks for
    unknown outcomes of transactions."""

    def __init__(self, ports: ClientPorts, plan: Plan) -> None:
        self._ports = ports
        self._plan = plan
        self._now = ports.clock.monotonic
        self.finished = False

    async def run(self) -> None:
        ports = self._ports
        async with txnclient.connect(
            self._plan.url, timeout=30.0, transport=ports.transport, clock=ports.clock, random=ports.random
        ) as client:
            await self._ask_outcomes(client)
            await self._read_all(client)
            for topic, subscription in self._plan.subscriptions:
                await self._drain_subscription(client, topic, subscription)
        self.finished = True

    async def _ask_outcomes(self, client: txnclient.Client) -> None:
        """Asks about every transaction: an acknowledged outcome must still be the same, and unknown ones become
        known."""
        every = self._plan.recorder.drafts
        self._plan.unexpected += await ask_shared(client, every, self._told)
        drafts = {draft.name.partition(" ")[2]: draft for draft in every if not draft.shared}
        ids = [TxnId.parse(text) for text in drafts if text]
        for start in range(0, len(ids), 200):
            outcomes = await client.outcomes(ids[start : start + 200])
            for txn_id, outcome in outcomes.items():
                self._told(drafts[str(txn_id)], outcome)

    def _told(self, draft: Draft, outcome: str) -> None:
        if outcome not in ("COMMITTED", "ABORTED"):
            self._plan.unexpected.append(f"{draft.process}: {draft.name} is {outcome} after everything has healed")
            return
        draft.reported("committed" if outcome == "COMMITTED" else "aborted")
        if draft.outcome == "unknown":
            self._plan.resolved += 1
            draft.outcome = "ok" if outcome == "COMMITTED" else "failed"

    async def _read_all(self, client: txnclient.Client) -> None:
        positions = Positions(self._now, None)
        async with client.reader(list(TOPICS), start="earliest", end="latest") as reader:
            draft = self._plan.recorder.begin("drain", "read all")
            async for message in reader:
                draft.polled(positions.polls([message]))
            self._plan.recorder.end(draft, "ok")

    async def _drain_subscription(self, client: txnclient.Client, topic: str, subscription: str) -> None:
        """Acks everything, because children come once their parents are drained. These acks are not in the history: its
        rules ask what became of the others."""
        positions = Positions(self._now, subscription)
        async with client.consumer(topic, subscription, name="drain", start="earliest") as consumer:
            draft = self._plan.recorder.begin("drain/consumer", "drain")
            while messages := await consumer.receive_many(100, timeout=DRAIN_SILENCE_S):
                draft.polled(positions.polls(messages))
                await consumer.ack(messages)
            self._plan.recorder.end(draft, "ok")
