"""Splits, merges, sends, acks, transactions and restarts in any order against a simple model: per key the list of what
was sent and what became of it, per subscription the set of what was acked.

The production code runs in this process, in virtual time, over the store in memory and the simulated network and disk.
A layout change or a kill may hit in the midst of whatever comes next. `LAYOUT_EXAMPLES` sets how many runs there are
(`make machine EXAMPLES=…`).

Leaves out: several consumers of a subscription
(`test_a_consumer_that_dies_while_it_drains_a_parent_leaves_it_to_another`), nacks
(`test_a_queue_reads_parents_and_children_at_once_and_leaves_what_is_drained`), cumulative acks
(`test_p2_s7_a_cumulative_ack_over_a_pending_one_drains_a_parent_once_that_is_decided`), seeks
(`test_a_seek_over_a_layout_reads_drained_parents_again_and_their_children_behind_them`), values in pieces
(`test_a7_s1_a_value_in_pieces_over_a_split_comes_once_and_what_is_left_of_it_in_the_parent_holds_nothing_up`),
retention and pruning (`test_s9_changes_without_end_leave_nothing_behind`), topics and subscriptions that are deleted
(`test_s8_a_topic_is_deleted_amid_its_changes_and_leaves_nothing`,
`test_p9_a_subscription_made_anew_reads_what_the_one_before_it_had_drained`), faults of etcd and of disks (the
simulation).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import txnclient
from simulation.world.guards import forbidden
from simulation.world.loop import SimLoop
from simulation.world.servers import broker_settings, serve, server_settings
from simulation.world.sim_transport import SimTransport
from simulation.world.world import SimClock, World
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.received.message import Message
from txnclient.transactions.transaction import Transaction
from txnwire.errors import InvalidArgument, NotAllowed, Timeout, TxnConflict

T = TypeVar("T")

TOPIC = "topic://public/machine/in"
KEYS = [f"key-{number}" for number in range(5)]
BROKERS = ("broker-1", "broker-2")
EXAMPLES = int(os.environ.get("LAYOUT_EXAMPLES", "6"))
SILENCE_S = 8.0
"""Longer than a killed broker's lease: after it nothing more comes."""

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


@dataclass
class Sent:
    """One value of one key, in the order in which they were sent."""

    value: str
    txn: int | None

    state: str = COMMITTED


@dataclass
class Subscription:
    """`firm`: acked by a transaction that committed. `pending`: → the open one. `weak`: acked outside of any, which a
    killed broker may forget, or whose answer was lost."""

    consumer: Consumer
    firm: set[str] = field(default_factory=set)
    pending: dict[str, int] = field(default_factory=dict)
    weak: set[str] = field(default_factory=set)

    def ended(self, txn: int, *, committed: bool) -> None:
        ended = [value for value, holder in self.pending.items() if holder == txn]
        for value in ended:
            del self.pending[value]
            if committed:
                self.firm.add(value)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        structlog.configure(processors=[_drop], cache_logger_on_first_use=False)
        self.loop = SimLoop(0, max_steps=20_000_000)  # type: ignore[abstract]
        self.world = World(self.loop, 0)
        self.keys: dict[str, list[Sent]] = {key: [] for key in KEYS}
        self.txns: dict[int, Transaction] = {}
        self.last_txn = 0
        self.last_value = 0
        self.disturbances: list[tuple[float, Coroutine[Any, Any, None]]] = []

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """`doing` to its end, and whatever is to disturb it."""

        async def both() -> T:
            disturbances, self.disturbances = self.disturbances, []
            disturbing = [asyncio.ensure_future(_later(delay_s, action)) for delay_s, action in disturbances]
            async with asyncio.timeout(300.0):
                result = await doing
                await asyncio.gather(*disturbing)
            return result

        with forbidden(self.loop.time):
            return self.loop.run_until_complete(both())

    # ---- the cluster ------------------------------------------------------------------------------------------------

    @initialize(segments=st.integers(1, 3), linger_ms=st.sampled_from((0, 5)), roll=st.sampled_from((2048, 1 << 20)))
    def start(self, segments: int, linger_ms: int, roll: int) -> None:
        control = server_settings("control", "coordinator,controller,admin", "control:6650")
        self.world.add("control", partial(serve, settings=control))
        for name in BROKERS:
            settings = server_settings(name, "broker", f"{name}:6650")
            self.world.add(name, partial(serve, settings=settings, brokers=broker_settings(roll)), disk="data")
        for process in self.world.processes.values():
            process.start()
        self.run(self._open(segments, linger_ms))

    async def _open(self, segments: int, linger_ms: int) -> None:
        self.client = await txnclient.connect(
            "txn://control:6650",
            timeout=120.0,
            transport=SimTransport(self.world.network, self.loop.world, "tester"),
            clock=SimClock(self.loop),
            random=random.Random(0),
        )
        await self.client.create_topic(TOPIC, segments=segments)
        self.producer = await self.client.producer(TOPIC, linger_ms=linger_ms)
        self.stream = Subscription(await self.client.consumer(TOPIC, "stream", start="earliest"))
        self.queue = Subscription(await self.client.consumer(TOPIC, "queue", type="queue", start="earliest"))

    # ---- disturbances -----------------------------------------------------------------------------------------------

    def _disturb(self, delay_ms: int | None, action: Coroutine[Any, Any, None]) -> None:
        """At once, or so long after the next rule has begun that is not one itself."""
        if delay_ms is None:
            self.run(action)
        else:
            self.disturbances.append((delay_ms / 1000, action))

    delays_ms = st.one_of(st.none(), st.integers(0, 30))

    @rule(delay_ms=delays_ms, index=st.integers(0, 9), at=st.one_of(st.none(), st.integers(1, 0xFFFF)))
    def split(self, delay_ms: int | None, index: int, at: int | None) -> None:
        self._disturb(delay_ms, self._split(index, at))

    async def _split(self, index: int, at: int | None) -> None:
        active = (await self.client.describe_topic(TOPIC)).active
        parent = active[index % len(active)]
        inside = at is not None and parent.range[0] < at <= parent.range[1]
        if len(active) < 8 and parent.range[0] < parent.range[1]:
            await self._change(self.client.split(parent.name, at=at if inside else None))

    @rule(delay_ms=delays_ms, index=st.integers(0, 9))
    def merge(self, delay_ms: int | None, index: int) -> None:
        self._disturb(delay_ms, self._merge(index))

    async def _merge(self, index: int) -> None:
        active = (await self.client.describe_topic(TOPIC)).active
        if len(active) > 1:
            lower = index % (len(active) - 1)
            await self._change(self.client.merge(active[lower].name, active[lower + 1].name))

    async def _change(self, change: Coroutine[Any, Any, object]) -> None:
        """One that cannot be made, or was given up as an owner was away, has changed nothing that matters here."""
        try:
            await change
        except (InvalidArgument, NotAllowed, Timeout):
            return

    @rule(
        delay_ms=delays_ms,
        name=st.sampled_from(("control", *BROKERS, *BROKERS)),
        down_s=st.sampled_from((0.01, 1.0, 7.0)),
    )
    def restart(self, delay_ms: int | None, name: str, down_s: float) -> None:
        self._disturb(delay_ms, self._restart(name, down_s))

    async def _restart(self, name: str, down_s: float) -> None:
        process = self.world.processes[name]
        process.kill()
        await asyncio.sleep(down_s)
        process.start()

    @rule(delay_ms=st.integers(0, 30), name=st.sampled_from(BROKERS), after_s=st.sampled_from((0.005, 0.05, 1.0)))
    def mute(self, delay_ms: int, name: str, after_s: float) -> None:
        """What a broker does is not heard of until its connections are lost."""
        self._disturb(delay_ms, self._mute(name, after_s))

    async def _mute(self, name: str, after_s: float) -> None:
        for link in self.world.network.links():
            if link.ends[1].host == name:
                link.lose_replies(1, after_s)

    @rule(delay_ms=st.integers(0, 30), name=st.sampled_from(BROKERS), for_s=st.sampled_from((0.1, 1.0)))
    def cut(self, delay_ms: int, name: str, for_s: float) -> None:
        """What a broker says comes late: the client hears of layouts from others first."""
        self._disturb(delay_ms, self._cut(name, for_s))

    async def _cut(self, name: str, for_s: float) -> None:
        self.world.network.cut(name, "tester")
        await asyncio.sleep(for_s)
        self.world.network.heal()

    @rule(seconds=st.sampled_from((0.1, 1.5, 10.0)))
    def wait(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    # ---- transactions and sends -------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.txns) < 3)
    @rule()
    def begin(self) -> None:
        self.last_txn += 1
        self.txns[self.last_txn] = self.run(self._begin())

    async def _begin(self) -> Transaction:
        return await self.client.begin(timeout=3600.0)

    @precondition(lambda self: bool(self.txns))
    @rule(which=st.integers(0, 2), committed=st.booleans())
    def end(self, which: int, committed: bool) -> None:
        self._end(sorted(self.txns)[which % len(self.txns)], committed=committed)

    def _end(self, number: int, *, committed: bool) -> None:
        txn = self.txns.pop(number)
        self.run(txn.commit() if committed else txn.abort())
        for sent in (one for found in self.keys.values() for one in found if one.txn == number):
            sent.state = COMMITTED if committed else ABORTED
        for subscription in (self.stream, self.queue):
            subscription.ended(number, committed=committed)

    def _drawn_txn(self, which: int | None) -> int | None:
        return None if which is None or not self.txns else sorted(self.txns)[which % len(self.txns)]

    which_txn = st.one_of(st.none(), st.integers(0, 2))

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=8), which=which_txn)
    def send(self, keys: list[str], which: int | None) -> None:
        number = self._drawn_txn(which)
        sent = []
        for key in keys:
            self.last_value += 1
            sent.append((key, Sent(str(self.last_value), number, OPEN if number else COMMITTED)))
        self.run(self._send(sent, None if number is None else self.txns[number]))
        for key, one in sent:
            self.keys[key].append(one)

    async def _send(self, sent: list[tuple[str, Sent]], txn: Transaction | None) -> None:
        stored = [self.producer.send_nowait(one.value.encode(), key=key, txn=txn) for key, one in sent]
        await asyncio.gather(*stored)

    # ---- subscriptions ----------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(("stream", "queue")), most=st.integers(1, 12), which=which_txn)
    def consume(self, name: str, most: int, which: int | None) -> None:
        subscription: Subscription = getattr(self, name)
        number = self._drawn_txn(which)
        messages = self.run(self._receive(subscription, most))
        self._judge(name, subscription, messages)
        if not messages:
            return
        values = [message.value.decode() for message in messages]
        try:
            self.run(self._ack(subscription, messages, None if number is None else self.txns[number]))
        except (NotAllowed, TxnConflict) as error:
            # The answer was lost, and the segment has gone meanwhile, as it is drained or another's: acked, or not. In
            # a transaction the client knows before it asks that its owner is another one, who delivers again.
            assert number is not None or isinstance(error, NotAllowed)
            if number is not None:
                self._end(number, committed=False)  # what was refused comes again with its abort
                return
        if number is None:
            subscription.weak |= set(values)
        else:
            subscription.weak -= set(values)
            subscription.pending |= dict.fromkeys(values, number)

    async def _receive(self, subscription: Subscription, most: int, timeout_s: float = 0.3) -> list[Message]:
        return await subscription.consumer.receive_many(most, timeout=timeout_s)

    async def _ack(self, subscription: Subscription, messages: list[Message], txn: Transaction | None) -> None:
        await subscription.consumer.ack(messages, txn=txn)

    def _judge(self, name: str, subscription: Subscription, messages: list[Message]) -> None:
        """What came was committed, and is not acked; of a stream, behind everything that stands before it."""
        given: set[str] = set()
        for message in messages:
            value = message.value.decode()
            key = (message.key or b"").decode()
            index = next(number for number, one in enumerate(self.keys[key]) if one.value == value)
            assert self.keys[key][index].state == COMMITTED, f"{name} was given {value}, {self.keys[key][index]}"
            assert value not in subscription.firm, f"{name} was given {value}, which a committed transaction acked"
            assert value not in subscription.pending, f"{name} was given {value}, whose ack is pending"
            if name == "stream":
                for before in self.keys[key][:index]:
                    passed = before.state == ABORTED or before.value in (
                        subscription.firm | subscription.pending.keys() | subscription.weak | given
                    )
                    assert passed, f"{value} of {key} came before {before}"
            given.add(value)

    # ---- readers ----------------------------------------------------------------------------------------------------

    @rule()
    def read(self) -> None:
        """Per key what was committed, in order, up to where an open transaction holds; all of it where none is open."""
        found = self.run(self._read("latest"))
        for key, sent in self.keys.items():
            committed = [one.value for one in sent if one.state == COMMITTED]
            assert found[key] == committed[: len(found[key])], key
            assert self.txns or found[key] == committed, key

    @rule()
    def take_snapshot(self) -> None:
        """Everything that was committed by then, beside whatever is open."""
        found = self.run(self._read_snapshot())
        for key, sent in self.keys.items():
            assert found[key] == [one.value for one in sent if one.state == COMMITTED], key

    async def _read_snapshot(self) -> dict[str, list[str]]:
        return await self._read(await self.client.snapshot(TOPIC))

    async def _read(self, end: Any) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {key: [] for key in KEYS}
        async with self.client.reader(TOPIC, start="earliest", end=end) as reader:
            async for message in reader:
                found[(message.key or b"").decode()].append(message.value.decode())
        return found

    @invariant()
    def nothing_failed_unseen(self) -> None:
        assert self.loop.unhandled == []
        assert self.world.broken == []

    # ---- at the end -------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if hasattr(self, "queue"):
                self._finish()
        finally:
            for _, action in self.disturbances:
                action.close()
            with forbidden(self.loop.time):
                self.loop.close()
            structlog.reset_defaults()

    def _finish(self) -> None:
        for number in sorted(self.txns):
            self._end(number, committed=number % 2 == 0)
        self.read()
        for name in ("stream", "queue"):
            subscription: Subscription = getattr(self, name)
            while messages := self.run(self._receive(subscription, 500, SILENCE_S)):
                self._judge(name, subscription, messages)
                with suppress(NotAllowed):  # as above
                    self.run(self._ack(subscription, messages, None))
                subscription.weak |= {message.value.decode() for message in messages}
            for sent in self.keys.values():
                for one in sent:
                    came = one.value in subscription.firm | subscription.weak
                    assert came == (one.state == COMMITTED), f"{name}: {one}"


async def _later(delay_s: float, action: Coroutine[Any, Any, None]) -> None:
    await asyncio.sleep(delay_s)
    await action


def _drop(*_: object) -> Any:
    raise structlog.DropEvent


Machine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLayoutMachine = Machine.TestCase
TestLayoutMachine.pytestmark = [
    pytest.mark.leaves("budgets", "clients and servers of processes that were killed"),
    pytest.mark.leaves("leases", "its servers are never stopped"),
]
