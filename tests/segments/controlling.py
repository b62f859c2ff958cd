"""A controller process for tests: its own store client, directory and controller, over one shared etcd in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from segments.controller.controller import Controller, ControllerSettings
from segments.controller.cut import Resolved, Tail
from segments.layout.directory import Directory
from segments.layout.layout_transitions import Seal
from tests.segments.virtual_time import LoopClock
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore
from txnstore.records import AssignmentRecord, SubscriptionRecord, decode
from txnstore.store import MetadataStore
from txnwire.errors import DataCorrupt, NotOwner
from txnwire.ids import Position
from txnwire.names import TopicName
from txnwire.proto import txn_pb2 as pb

TOPIC = TopicName("public", "nyc", "flights")
SETTINGS = ControllerSettings(lease_ttl_s=5.0, consumer_grace_s=2.0, failover_grace_s=10.0)


class Inbox:
    """A consumer's connection: keeps what is pushed to it."""

    def __init__(self) -> None:
        self.pushed: list[pb.Assignment] = []

    def push(self, command: pb.Command) -> None:
        self.pushed.append(command.assignment)


class Fates:
    """Scripted faults: the next commits meet these, everything else goes well; watches lag by `watch_lag_s` seconds."""

    def __init__(self) -> None:
        self.commits: list[Fate] = []
        self.watch_lag_s = 0.0

    def fate(self, request: str, client: str) -> Fate:
        return self.commits.pop(0) if request == "commit" and self.commits else NO_FAULT

    def watch_delay_s(self, client: str) -> float:
        return self.watch_lag_s


class Positions:
    """What the segments' owners answer. `asked` keeps (segment, revision)."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.answers: dict[str, Position] = {}
        self.connected: dict[str, tuple[int, int]] = {}
        self.times: list[int] = []
        self.dropped: list[tuple[str, str]] = []
        self.damaged: dict[str, DataCorrupt] = {}
        self.pause_s = 0.0

    async def __call__(self, segment: str, min_revision: int, timestamp_ms: int = 0) -> Position:
        self.asked.append((segment, min_revision))
        self.times.append(timestamp_ms)
        await asyncio.sleep(self.pause_s)
        if segment not in self.answers:
            raise NotOwner(f"{segment} has no owner")
        return self.answers[segment]

    async def resolved(self, segment: str) -> Resolved:
        return Resolved(1, await self(segment, 0))

    async def users(self, segment: str, subscription: str | None) -> tuple[int, int]:
        return self.connected.get(segment, (0, 0))

    async def drop_subscription(self, segment: str, subscription: str) -> None:
        await self(segment, 0)
        if segment in self.damaged:
            raise self.damaged[segment]
        self.dropped.append((segment, subscription))

    async def seal(self, segment: str, change_id: str) -> Seal:
        raise NotOwner(f"{segment} has no owner that seals")

    async def forgotten(self, segment: str) -> bool:
        raise NotOwner(f"{segment} has no owner that knows")

    async def tail(self, segment: str, revision: int, resolved: Position) -> Tail:
        return Tail(1, await self(segment, revision))


class Process:
    """One process with the controller role. Its directory has a store client of its own, so that it can lag alone."""

    def __init__(self, etcd: MemoryEtcd, name: str, settings: ControllerSettings = SETTINGS) -> None:
        clock = LoopClock()
        self.fates = Fates()
        self.directory_fates = Fates()
        self.positions = Positions()
        self.store = MemoryStore(etcd, clock, random.Random(name), name=name, faults=self.fates)
        self._directory_store = MemoryStore(etcd, clock, random.Random(name), name=name, faults=self.directory_fates)
        self.directory = Directory(self._directory_store, clock)
        self.controller = Controller(
            self.store,
            self.directory,
            clock,
            random.Random(name),
            settings,
            id=name,
            address=f"{name}:1",
            segment_positions=self.positions,
            segment_questions=self.positions,
            owner_calls=self.positions,
        )

    async def start(self) -> Process:
        await self.directory.start()
        await self.controller.start()
        return self

    def kill(self) -> None:
        """Cut it off for good: nothing is given back, nothing more arrives."""
        self.store.memory_backend.disconnect()
        self._directory_store.memory_backend.disconnect()

    def lag(self, seconds: float) -> None:
        """It hears of every change so much later."""
        self.fates.watch_lag_s = self.directory_fates.watch_lag_s = seconds

    async def close(self) -> None:
        await self.controller.close()
        await self.directory.close()
        await self._directory_store.close()
        await self.store.close()


@asynccontextmanager
async def running(etcd: MemoryEtcd, *names: str) -> AsyncIterator[list[Process]]:
    """Controller processes, the first of them elected; closed at the end whatever happened."""
    processes: list[Process] = []
    try:
        for name in names:
            processes.append(await Process(etcd, name).start())
            await processes[0].controller.wait_leading(timeout_s=10.0)
        yield processes
    finally:
        for process in processes:
            await process.close()


def joining(
    consumer: str,
    incarnation: int = 1,
    *,
    subscription: str = "s",
    topic: str = str(TOPIC),
    start: pb.Start | None = None,
    type: int = pb.SUBSCRIPTION_TYPE_STREAM,
) -> pb.JoinSubscription:
    return pb.JoinSubscription(
        topic=topic, subscription=subscription, type=type, start=start, consumer=consumer, incarnation=incarnation
    )


def leaving(consumer: str, incarnation: int = 1) -> pb.LeaveSubscription:
    return pb.LeaveSubscription(topic=str(TOPIC), subscription="s", consumer=consumer, incarnation=incarnation)


async def assignment_of(store: MetadataStore, subscription: str = "s") -> AssignmentRecord:
    key = keys.assignment(TOPIC.path, subscription)
    record = await store.get(key)
    assert record is not None
    return decode(AssignmentRecord, record.value, key=key)


async def subscription_of(store: MetadataStore, subscription: str = "s") -> SubscriptionRecord:
    key = keys.subscription(TOPIC.path, subscription)
    record = await store.get(key)
    assert record is not None
    return decode(SubscriptionRecord, record.value, key=key)


def names_of(record: AssignmentRecord) -> Sequence[str]:
    return [consumer.partition("@")[0] for consumer in record.consumers]


async def with_topic(process: Process, segments: int = 4) -> None:
    await process.controller.create_topic(TOPIC, segments, "")
