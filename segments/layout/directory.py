"""Keeps a process's view of the cluster in memory: topics, owners, coordinators, brokers, leaders, assignments, and
the sealed segments that each subscription has drained.

One range read and one watch per prefix. The directory may lag behind etcd; writes that rely on it must compare.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from segments.layout.followed_table import FollowedTable
from segments.layout.topology import Topology
from txnstore import keys
from txnstore.records import (
    AssignmentRecord,
    BrokerRegistration,
    Drained,
    OwnerRecord,
    RegistrationRecord,
    TopicRecord,
    decode,
)
from txnstore.store import Event, EventKind, KeyValue, MetadataStore, WatchBatch
from txnwire.errors import InvalidArgument, Timeout, TxnError
from txnwire.names import TopicName
from txnwire.ports import Clock
from txnwire.tasks import restarted
from txnwire.turns import in_turns

log = structlog.get_logger(__name__)

T = TypeVar("T")

CONTROLLER = "controller"
"""The election whose holder creates topics and assigns segments: `/leader/controller`."""

_RETRY_S = 0.2
APPLIED_AT_ONCE: Final = 100
"""Records of a batch that are parsed without a pause."""


@dataclass(frozen=True, slots=True)
class OwnerInfo:
    """A segment's owner; `epoch` is the ownership epoch (the key's create revision)."""

    broker: str
    address: str
    epoch: int
    lease: int


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A registered broker, the coordinator of a TCID, the holder of an election; `epoch`: its key's create revision.
    `leaving`: the broker hands its segments over and claims no new ones."""

    id: str
    address: str
    epoch: int
    lease: int
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class DirectoryChange:
    """Lists what one batch changed: names behind the prefix, in order. Exactly one field is not empty."""

    topics: tuple[str, ...] = ()
    """topic paths"""
    owners: tuple[str, ...] = ()
    """segment paths"""
    coordinators: tuple[str, ...] = ()
    brokers: tuple[str, ...] = ()
    leaders: tuple[str, ...] = ()
    assignments: tuple[str, ...] = ()
    """`<topic path>/<subscription>`"""
    drained: tuple[str, ...] = ()
    """`<topic path>/<subscription>/<segment id>`"""


Listener = Callable[[DirectoryChange], None]


class Directory:
    """Follows the cluster's records. `start()` before use, `close()` after it; all look-ups are synchronous."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._topics = FollowedTable(keys.TOPIC, _parse_topic)
        self._owners = FollowedTable(keys.OWNER, _parse_owner)
        self._coordinators = FollowedTable(keys.TC, _parse_member)
        self._brokers = FollowedTable(keys.BROKER, _parse_broker)
        self._leaders = FollowedTable(keys.LEADER, _parse_member)
        self._assignments = FollowedTable(keys.ASSIGNMENT, _parse_assignment)
        self._drained = FollowedTable(keys.DRAINED, _parse_drained)
        self._tables: dict[str, FollowedTable[Any]] = {
            "topics": self._topics,
            "owners": self._owners,
            "coordinators": self._coordinators,
            "brokers": self._brokers,
            "leaders": self._leaders,
            "assignments": self._assignments,
            "drained": self._drained,
        }
        self._layout_revisions: dict[str, int] = {}
        self._listeners: dict[int, Listener] = {}
        self._next_listener = 0
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # ---- life -------------------------------------------------------------------------------------------------------

    async def start(self, *, timeout_s: float = 30.0) -> None:
        """Load everything once, then follow it. `timeout_s` applies to each kind of record. Raises `Timeout` if the
        store does not answer in time."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                for field, table in self._tables.items():
                    limit.reschedule(loop.time() + timeout_s)
                    await self._load(table)
                    self._tasks.append(restarted(partial(self._follow, field, table), name="directory", of=field))
        except TimeoutError as error:
            await self.close()
            raise Timeout(f"the store did not answer the directory's first reading within {timeout_s} s") from error

    async def close(self) -> None:
        """Stop following. Idempotent; the view in memory stays readable."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _load(self, table: FollowedTable[Any]) -> None:
        while True:
            try:
                found = await self._store.range(table.prefix, keys.prefix_end(table.prefix))
                break
            except TxnError as error:
                log.warning("directory_load_retry", prefix=table.prefix.decode(), error=str(error))
                await asyncio.sleep(_RETRY_S)
        events = tuple(Event(EventKind.PUT, record) for record in found.records)
        await _apply(table, WatchBatch(found.revision, events, resync=True))

    async def _follow(self, field: str, table: FollowedTable[Any]) -> None:
        """Runs until the store closes. The watch survives lost connections; after an error it is opened again."""
        while True:
            watch = self._store.watch(table.prefix, keys.prefix_end(table.prefix), from_revision=table.revision + 1)
            try:
                async for batch in watch:
                    self._announce(field, table, await _apply(table, batch), batch.revision)
                return  # the store was closed
            except TxnError as error:
                log.error("directory_watch_failed", prefix=table.prefix.decode(), error=str(error))
            finally:
                await watch.close()
            await asyncio.sleep(_RETRY_S)

    def _announce(self, field: str, table: FollowedTable[Any], changed: tuple[str, ...], revision: int) -> None:
        for name in changed:
            if (error := table.broken.get(name)) is not None:
                log.error("directory_unreadable_record", error=str(error))
            if field in ("topics", "owners"):
                path = name if field == "topics" else topic_path_of(name)
                if name in table.entries or path in self._topics.entries:
                    self._layout_revisions[path] = max(self._layout_revisions.get(path, 0), revision)
                else:
                    self._layout_revisions.pop(path, None)  # the topic was deleted: its record, or an owner's
        self._changed.set()
        self._changed = asyncio.Event()
        if changed:
            change = DirectoryChange(**{field: changed})
            loop = asyncio.get_running_loop()
            for listener in self._listeners:
                loop.call_soon(self._notify, listener, change)

    def _notify(self, listener: int, change: DirectoryChange) -> None:
        if (callback := self._listeners.get(listener)) is not None:
            callback(change)

    # ---- changes ----------------------------------------------------------------------------------------------------

    def add_listener(self, callback: Listener) -> Callable[[], None]:
        """Call `callback` on the event loop soon after each change, in order; returns a function that unregisters it.

        By then the directory may already hold later changes, whose calls follow. An exception in `callback` goes to
        the event loop's exception handler and harms no other listener.
        """
        listener = self._next_listener
        self._next_listener += 1
        self._listeners[listener] = callback
        return lambda: self._listeners.pop(listener, None) and None

    async def wait_until(self, condition: Callable[[], T | None], *, timeout_s: float, what: str) -> T:
        """Return the first result of `condition` that is neither None nor False; evaluates it after every change.
        Raises `Timeout`, whose message names `what`."""
        try:
            async with asyncio.timeout(timeout_s):
                while (result := condition()) is None or result is False:
                    await self._changed.wait()
                return result
        except TimeoutError as error:
            raise Timeout(f"waited {timeout_s} s for {what}") from error

    async def wait_revision(self, revision: int, *, prefix: bytes = keys.TOPIC, timeout_s: float = 10.0) -> None:
        """Wait until the directory has followed `prefix` up to `revision`, so that the caller sees its own write.

        `revision` must be that of a change under `prefix`: the watch does not report other revisions. Raises
        `Timeout`.
        """
        table = next((table for table in self._tables.values() if table.prefix == prefix), None)
        if table is None:
            raise InvalidArgument(f"the directory does not follow {prefix!r}")
        await self.wait_until(
            lambda: table.revision >= revision,
            timeout_s=timeout_s,
            what=f"revision {revision} of {prefix.decode()}, at {table.revision}",
        )

    async def wait_topic(self, path: str, *, timeout_s: float = 10.0) -> Topology:
        return await self.wait_until(lambda: self.topic(path), timeout_s=timeout_s, what=f"topic {path}")

    async def wait_owner(self, segment: str, *, timeout_s: float = 10.0) -> OwnerInfo:
        return await self.wait_until(lambda: self.owner(segment), timeout_s=timeout_s, what=f"an owner of {segment}")

    # ---- look-ups ---------------------------------------------------------------------------------------------------

    def topic(self, path: str) -> Topology | None:
        """The layout of `tenant/namespace/name`. Raises `DataCorrupt` if its record cannot be read."""
        return self._topics.get(path)

    def is_gone(self, path: str) -> bool:
        """Whether no topic of this name is known, not even an unreadable one."""
        return path not in self._topics.entries and path not in self._topics.broken

    async def fetch_topic(self, path: str, *, timeout_s: float = 10.0) -> Topology | None:
        """As `topic`, but reads an unknown topic from the store, so that a new one is always found; ▲ also one that is
        being deleted: another may have its name by now. Raises `StoreUnavailable`, `DataCorrupt`."""
        if (known := self.topic(path)) is not None and not known.deleting:
            return known
        record = await self._store.get(keys.topic(path), timeout_s=timeout_s)
        if record is not None and self._topics.learn(record):
            self._announce("topics", self._topics, (path,), record.mod_revision)
        return self.topic(path)

    def topics(self) -> Mapping[str, Topology]:
        """Topic path → layout, without unreadable records."""
        return self._topics.entries

    def owner(self, segment: str) -> OwnerInfo | None:
        return self._owners.entries.get(segment)

    def owners(self) -> Mapping[str, OwnerInfo]:
        """Segment path → owner."""
        return self._owners.entries

    def coordinators(self) -> dict[int, MemberInfo]:
        """TCID → the coordinator that owns it, in TCID order."""
        return {int(name, 16): self._coordinators.entries[name] for name in sorted(self._coordinators.entries)}

    def brokers(self) -> dict[str, MemberInfo]:
        """The live brokers, including leaving ones, in order of their ids."""
        return dict(sorted(self._brokers.entries.items()))

    def leader(self, what: str) -> MemberInfo | None:
        return self._leaders.entries.get(what)

    def assignment(self, topic_path: str, subscription: str) -> AssignmentRecord | None:
        """The assignment of a stream subscription. Raises `DataCorrupt` if its record cannot be read."""
        return self._assignments.get(f"{topic_path}/{subscription}")

    def drained(self, topic_path: str, subscription: str) -> Container[int]:
        """Ids of the segments that a subscription has drained: a live view of the records followed so far.

        ▲ It may lag behind a seek, or a subscription created again: before serving the children of a drained segment,
        the owner reads the store (`SubscriptionTable.attach`).
        """
        return _Drained(self._drained.entries, f"{topic_path}/{subscription}/")

    def layout_revision(self, path: str) -> int:
        """Rises with every change seen here of this topic's layout or its segments' owners. Among layouts of one
        `topic_revision` from several processes, a client may keep the one with the highest."""
        return self._layout_revisions.get(path, min(self._topics.revision, self._owners.revision))

    def topic_revision(self, path: str) -> int:
        """The revision of the topic's record alone. ▲ The owners' watch may be far ahead of the topics' watch: by
        `layout_revision`, an old layout with new owners would replace a new one, and a reader would treat the segments
        that it lacks as gone, with all their messages (S7)."""
        return self._topics.as_of(path)

    def cluster_revision(self) -> int:
        """As `layout_revision`, for coordinators, brokers and leaders."""
        return max(table.revision for table in (self._coordinators, self._brokers, self._leaders))


class _Drained(Container[int]):
    def __init__(self, entries: Mapping[str, Drained], prefix: str) -> None:
        self._entries = entries
        self._prefix = prefix

    def __contains__(self, segment_id: object) -> bool:
        return f"{self._prefix}{segment_id}" in self._entries


async def _apply(table: FollowedTable[Any], batch: WatchBatch) -> tuple[str, ...]:
    """As `FollowedTable.apply`, but yields to other tasks during a long re-listing. ▲ Announces all changes together
    at the end: a layout with only some of its new owners must not get the revision of all of them."""
    changed: dict[str, None] = {}
    async for part in in_turns(batch.events, APPLIED_AT_ONCE):
        changed |= dict.fromkeys(table.apply_part(part))
    return table.apply_end(batch, changed)


def topic_path_of(segment: str) -> str:
    """The topic path of a segment path."""
    return segment.rpartition("/")[0]


def _parse_topic(record: KeyValue) -> Topology:
    name = TopicName.from_path(record.key[len(keys.TOPIC) :].decode())
    return Topology(name, decode(TopicRecord, record.value, key=record.key), life=record.create_revision)


def _parse_owner(record: KeyValue) -> OwnerInfo:
    owner = decode(OwnerRecord, record.value, key=record.key)
    return OwnerInfo(owner.broker, owner.address, record.create_revision, record.lease)


def _parse_member(record: KeyValue) -> MemberInfo:
    member = decode(RegistrationRecord, record.value, key=record.key)
    return MemberInfo(member.id, member.address, record.create_revision, record.lease)


def _parse_drained(record: KeyValue) -> Drained:
    return decode(Drained, record.value, key=record.key)


def _parse_broker(record: KeyValue) -> MemberInfo:
    broker = decode(BrokerRegistration, record.value, key=record.key)
    return MemberInfo(broker.id, broker.address, record.create_revision, record.lease, broker.leaving)


def _parse_assignment(record: KeyValue) -> AssignmentRecord:
    return decode(AssignmentRecord, record.value, key=record.key)
