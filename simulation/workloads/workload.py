"""The clients of a cluster, simulated or of real processes (SCENARIOS, "Workload shape"): transactions of sends, polls
and acks that rotate over keys, one in ten aborted on purpose at any step, random pauses, and clients that die and come
back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import txnclient
from simulation.clients.careless import GivenUp
from simulation.clients.draining import CALL_TIMEOUT_S, DRAIN_SILENCE_S
from simulation.clients.life import WorkloadLife, beside
from simulation.clients.plan import SUBSCRIPTION, TOPICS, ClientPorts, Plan
from simulation.clients.recorder import Draft, PolledPositions, key_of
from simulation.judges.history import Ack
from simulation.workloads.careless_work import CarelessNames, CarelessWork
from simulation.workloads.shared_work import SharedWork, ask_shared
from simulation.workloads.snapshot_work import SnapshotWork
from txnclient.connection.opening import Opening
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.received.message import Message
from txnclient.producing.producer import Producer
from txnclient.reading.reader import Reader
from txnclient.transactions.transaction import Transaction, TransactionState
from txnwire.errors import (
    InvalidTxnState,
    NotAllowed,
    TxnError,
)
from txnwire.ids import MessageId, TxnId

KEYS = 6
ABORT_SHARE = 0.1
FORGETFUL_SHARE = 0.5
"""Share of cancelled acks after which the caller aborts; otherwise it goes on and commits."""
COMMIT_TRIES = 3
TXN_TIMEOUT_S = 15.0
UNEVEN_SHARE = 0.4
"""Share of bursts of plain sends that have long messages among short ones."""
LONG_BYTES = 1500
"""Size of a long message: brokers with the smallest ledgers take in only a few at once."""


class ClientLife(WorkloadLife):
    """One life of one client process: runs until it is killed, unfit, or the plan ends."""

    def __init__(self, ports: ClientPorts, plan: Plan, *, subscription: str = SUBSCRIPTION) -> None:
        super().__init__(ports, plan)
        self._subscription = subscription
        self._positions = PolledPositions(self._now, subscription)
        self._failures = 0
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
            met=self._met,
        )

    def _connect(self) -> Opening[txnclient.Client]:
        client_name = self._name.partition(".")[0]
        return self._plan.connect(self._ports, client_name=client_name, timeout=self._random.uniform(3.0, 12.0))

    async def _work(self, client: txnclient.Client) -> None:
        for topic in TOPICS:
            await self._careless.call(client.create_topic(topic, segments=self._plan.segments))
        async with beside(self._follow(client), self._take_snapshots(client)):
            await self._transact(client)

    # --- a reader beside the worker ---

    async def _follow(self, client: txnclient.Client) -> None:
        """A READ_COMMITTED reader from the beginning: what it sees is in order, whole and committed."""
        process = f"{self._name}/reader"
        while self._plan.active:
            positions = PolledPositions(self._now, None)
            try:
                async with self._careless.within(client.reader(list(TOPICS), start="earliest")) as reader:
                    await self._follow_one(process, reader, positions, until=self._now() + self._random.uniform(5, 60))
            except TxnError as error:
                self._met(error)
                await asyncio.sleep(0.5)
            process += "'"

    async def _follow_one(self, process: str, reader: Reader, positions: PolledPositions, *, until: float) -> None:
        while self._goes_on(until):
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
        await work.go_on(client, lambda: self._plan.active, self._met)

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

        async def turn() -> None:
            await self._turn(client, producers, consumer)
            self._failures = 0

        await self._repeat(turn, pause_s=self._plan.pause_s, failed=partial(self._failed, consumer))

    async def _turn(self, client: txnclient.Client, producers: list[Producer], consumer: Consumer) -> None:
        step = self._random.random()
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

    def _failed(self, consumer: Consumer, error: TxnError) -> None:
        """Raises `error` if this client cannot go on, or has failed too often in a row."""
        self._met(error)
        if not isinstance(error, GivenUp):
            self._failures += 1
            if self._failures > 8 or (error.fatal and not isinstance(error, NotAllowed)):
                raise error
        consumer.rewind()

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
                self._met(error)
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
        async with self._plan.connect(self._ports, timeout=CALL_TIMEOUT_S) as client:
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
        positions = PolledPositions(self._now, None)
        async with client.reader(list(TOPICS), start="earliest", end="latest") as reader:
            draft = self._plan.recorder.begin("drain", "read all")
            async for message in reader:
                draft.polled(positions.polls([message]))
            self._plan.recorder.end(draft, "ok")

    async def _drain_subscription(self, client: txnclient.Client, topic: str, subscription: str) -> None:
        """Acks everything, because children come once their parents are drained. These acks are not in the history: its
        rules ask what became of the others."""
        positions = PolledPositions(self._now, subscription)
        async with client.consumer(topic, subscription, name="drain", start="earliest") as consumer:
            draft = self._plan.recorder.begin("drain/consumer", "drain")
            while messages := await consumer.receive_many(100, timeout=DRAIN_SILENCE_S):
                draft.polled(positions.polls(messages))
                await consumer.ack(messages)
            self._plan.recorder.end(draft, "ok")
