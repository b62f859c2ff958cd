"""Deletes topics and subscriptions at the elected controller (DESIGN §5, §8; scenarios S8, P9).

A deletion is accepted once its record has the mark. It then continues until it is done, even if its caller leaves or
the controller changes: a new term takes up every mark it finds. `txnstore.writes.deletion_transitions` has the steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import structlog

from segments.controller.stream_groups import GroupKey, StreamGroups
from segments.controller.term_work import TermWork, end_of, no_controller
from segments.controller.topic_users import TopicUsers
from segments.layout.directory import Directory
from segments.layout.topology import Topology
from txnstore import keys, records
from txnstore.access.paging import in_pages
from txnstore.election import Leadership
from txnstore.records import SubscriptionRecord, TopicRecord
from txnstore.store import Commit, KeyValue, MetadataStore
from txnstore.writes.deletion_transitions import (
    plan_forget_subscription,
    plan_forget_topic,
    plan_mark_subscription,
    plan_mark_topic,
)
from txnwire.errors import DataCorrupt, NotAllowed, Overloaded, SubscriptionNotFound, TopicNotFound, TxnError
from txnwire.names import TopicName
from txnwire.ports import Clock, Random
from txnwire.tasks import errand

log = structlog.get_logger(__name__)
K = TypeVar("K")

RETRY_S: Final = (0.05, 0.2)
LONGEST_RETRY_S: Final = 2.0
DAMAGED_RETRY_S: Final = 10.0
"""Pause after unreadable data was found."""
LOOKS_AT_USERS: Final = 5
LOOK_PAUSE_S: Final = 0.1
TOPICS_AT_ONCE: Final = 32
"""A page of records, each of which may hold thousands of segments."""
SUBSCRIPTIONS_AT_ONCE: Final = 1000
SEGMENTS_AT_ONCE: Final = 16
"""Owners asked at the same time."""


class OwnerCalls(Protocol):
    """The controller's calls to a segment's owner. Both raise `NotOwner` if no broker owns it now."""

    async def users(self, segment: str, subscription: str | None) -> tuple[int, int]:
        """Numbers of connected producers, and of consumers and readers; with `subscription`, only its consumers."""

    async def drop_subscription(self, segment: str, subscription: str) -> None:
        """Stop a marked subscription and erase its records in the segment. ▲ After it returns no further write of this
        ownership epoch can land."""


class Deletions:
    """Runs the deletions of one term. `grace_s`: how long users may take to register again at a new controller.
    `on_deposed`: called when a write shows that another process leads."""

    def __init__(
        self,
        store: MetadataStore,
        directory: Directory,
        clock: Clock,
        random: Random,
        owners: OwnerCalls,
        *,
        leadership: Leadership,
        groups: StreamGroups,
        users: TopicUsers,
        grace_s: float,
        on_deposed: Callable[[], None],
    ) -> None:
        self._store = store
        self._directory = directory
        self._clock = clock
        self._owners = owners
        self._leadership = leadership
        self._groups = groups
        self._users = users
        self._grace_s = grace_s
        self._since = clock.monotonic()
        self._work = TermWork("deletion", store, random, leadership, on_deposed)
        self._topics: dict[str, asyncio.Task[None]] = {}
        self._subscriptions: dict[GroupKey, asyncio.Task[None]] = {}
        self._marking: dict[asyncio.Task[bool], None] = {}
        self._over = False
        self._again: dict[tuple[str, str], asyncio.TimerHandle] = {}
        """Deletions that wait for the repair of unreadable data."""

    # ---- life -------------------------------------------------------------------------------------------------------

    async def take_up(self) -> None:
        """Go on with the deletions that earlier terms began. Raises `StoreUnavailable`; a repeated call is harmless."""
        self._since = self._clock.monotonic()
        async for page in self._pages(keys.TOPIC, TOPICS_AT_ONCE):
            for record in page:
                if _found_marked(record, TopicRecord):
                    self._go_on_topic(record.key[len(keys.TOPIC) :].decode())
        async for page in self._pages(keys.SUBSCRIPTION, SUBSCRIPTIONS_AT_ONCE):
            for record in page:
                if _found_marked(record, SubscriptionRecord):
                    topic_path, name = keys.topic_and_name(record.key)
                    self._go_on_subscription((topic_path, name))

    async def _pages(self, prefix: bytes, at_once: int) -> AsyncIterator[tuple[KeyValue, ...]]:
        async for page in in_pages(self._store, prefix, keys.prefix_end(prefix), at_once=at_once):
            yield page
            await asyncio.sleep(0)

    async def close(self) -> None:
        """The term is over: the next one takes the deletions up."""
        self._over = True
        tasks = [*self._topics.values(), *self._subscriptions.values(), *self._marking]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:  # ▲ even if the caller is cancelled: otherwise each timer would continue a deletion for ever
            for timer in self._again.values():
                timer.cancel()
            self._again.clear()

    # ---- topics -----------------------------------------------------------------------------------------------------

    async def topic_life(self, topic: TopicName) -> int:
        """Create revision of its record. Raises `TopicNotFound`, `StoreUnavailable`."""
        record = await self._store.get(keys.topic(topic.path))
        if record is None:
            raise TopicNotFound(f"{topic} does not exist")
        return record.create_revision

    async def delete_topic(self, topic: TopicName, *, force: bool, life: int = 0) -> None:
        """Mark the topic and wait until it is erased; a repeated call waits for the same deletion.

        ▲ `life`: of the topic that is meant; 0: any. A request that lands late, or again, would delete the next topic
        of the name. Raises `TopicNotFound`, also if another life of the name is there; `NotAllowed` (it has users, and
        not `force`), `NotOwner`, `StoreUnavailable`."""
        key = keys.topic(topic.path)
        under_way = self._topics.get(topic.path)
        marked = 0
        # ▲ Read the record again after the end: the deletion may have been that of an earlier topic of the name.
        while (record := await self._store.get(key)) is not None and (marked or life) in (0, record.create_revision):
            mark = plan_mark_topic(record, still_held=self._leadership.still_held(), now_ms=self._clock.wall_ms())
            if mark is not None:
                use = None if force else _Use(_topology_of(topic, record), None, record.create_revision)
                if not await self._mark(topic.path, mark, use, lambda: self._go_on_topic(topic.path)):
                    continue
                log.info("topic_deletion_begun", topic=str(topic), force=force)
            marked = record.create_revision
            await end_of(self._go_on_topic(topic.path))
        if not marked and under_way is None:
            raise not_there(topic, record)

    async def wait_topic(self, topic_path: str) -> None:
        """Wait until a topic that is being deleted is gone."""
        await end_of(self._go_on_topic(topic_path))

    def _go_on_topic(self, path: str) -> asyncio.Task[None]:
        return self._go_on(self._topics, path, lambda: self._forget_topic(path), name="deletion of a topic", of=path)

    async def _forget_topic(self, path: str) -> bool:
        """Returns whether the topic is gone. The segments' owners follow the mark and erase; this only checks that they
        are done, ▲ in the commit itself."""
        _, (record, ids) = await self._store.get_many([keys.topic(path), keys.SEGMENT_IDS])
        if record is None or not _marked(record, TopicRecord):
            return True  # ▲ without the mark it is the next topic's
        await self._groups.drop_topic(path, TopicNotFound(f"topic://{path} is being deleted"))
        if any(self._directory.owner(segment) for segment in self._paths(path, record)):
            return False
        done = await self._work.step(plan_forget_topic(path, record, ids, still_held=self._leadership.still_held()))
        if done:
            log.info("topic_deleted", topic=path)
        return done

    def _paths(self, topic_path: str, record: KeyValue) -> tuple[str, ...]:
        topic = records.decode(TopicRecord, record.value, key=record.key)
        return tuple(Topology(TopicName.from_path(topic_path), topic).paths.values())

    # ---- subscriptions ----------------------------------------------------------------------------------------------

    async def subscription_life(self, topic: TopicName, name: str) -> int:
        """As `topic_life`; also raises `SubscriptionNotFound`."""
        _, (of_topic, record) = await self._store.get_many(
            [keys.topic(topic.path), keys.subscription(topic.path, name)]
        )
        if of_topic is None:
            raise TopicNotFound(f"{topic} does not exist")
        if record is None:
            raise SubscriptionNotFound(f"{topic} has no subscription {name}")
        return record.create_revision

    async def delete_subscription(self, topic: TopicName, name: str, *, force: bool, life: int = 0) -> None:
        """As `delete_topic`; also raises `SubscriptionNotFound`."""
        key = (topic.path, name)
        under_way = self._subscriptions.get(key)
        marked = 0
        while True:
            _, (topic_record, record) = await self._store.get_many([keys.topic(topic.path), keys.subscription(*key)])
            gone = record is None or (marked or life) not in (0, record.create_revision)
            if gone and (marked or under_way is not None):
                return
            if topic_record is None or _marked(topic_record, TopicRecord):
                raise TopicNotFound(f"{topic} does not exist")
            if record is None:
                raise SubscriptionNotFound(f"{topic} has no subscription {name}")
            if gone:
                raise SubscriptionNotFound(f"subscription {name} of {topic} is another one by now")
            mark = plan_mark_subscription(
                record, still_held=self._leadership.still_held(), now_ms=self._clock.wall_ms()
            )
            if mark is not None:
                use = None if force else _Use(_topology_of(topic, topic_record), name, record.create_revision)
                if not await self._mark(topic.path, mark, use, lambda: self._go_on_subscription(key)):
                    continue
                log.info("subscription_deletion_begun", topic=str(topic), subscription=name, force=force)
            marked = record.create_revision
            await end_of(self._go_on_subscription(key))

    def _go_on_subscription(self, key: GroupKey) -> asyncio.Task[None]:
        what = "deletion of a subscription"
        return self._go_on(
            self._subscriptions, key, lambda: self._forget_subscription(key), name=what, of="/".join(key)
        )

    async def _forget_subscription(self, key: GroupKey) -> bool:
        """Have every segment's owner erase it, then delete the record. ▲ The segments are read together with the
        record: a later segment holds nothing of a subscription marked before."""
        topic_path, name = key
        _, (topic, record) = await self._store.get_many([keys.topic(topic_path), keys.subscription(*key)])
        if record is None or not _marked(record, SubscriptionRecord):
            return True  # ▲ without the mark it is the next subscription's
        await self._groups.drop(key, SubscriptionNotFound(f"subscription {name} of topic://{topic_path} is deleted"))
        paths = () if topic is None else self._paths(topic_path, topic)
        if topic is not None and _marked(topic, TopicRecord):
            return False  # the topic's deletion erases it
        await _all(SEGMENTS_AT_ONCE, paths, lambda path: self._owners.drop_subscription(path, name))
        done = await self._work.step(
            plan_forget_subscription(topic_path, record, still_held=self._leadership.still_held())
        )
        if done:
            log.info("subscription_deleted", topic=topic_path, subscription=name)
        return done

    # ---- inside -----------------------------------------------------------------------------------------------------

    async def _mark(
        self, topic_path: str, mark: Commit, use: _Use | None, go_on: Callable[[], asyncio.Task[None]]
    ) -> bool:
        """Returns whether it put the mark. `use`: refused while it has users; None: forced. `go_on`: with the deletion.

        ▲ The caller may be cancelled while the mark is on its way, because its client left: a marked deletion still
        continues, because nothing else in this term would finish it."""
        if use is not None:
            await self._refuse_if_used(use)
        marking = errand(self._put_mark(topic_path, mark, use, go_on), name="mark of a deletion", of=topic_path)
        self._marking[marking] = None
        marking.add_done_callback(self._marking.pop)
        return await end_of(marking)

    async def _put_mark(
        self, topic_path: str, mark: Commit, use: _Use | None, go_on: Callable[[], asyncio.Task[None]]
    ) -> bool:
        with self._users.marking(topic_path):
            if use is not None:
                self._refuse(use, *self._known_users(use))  # ▲ users that came while the owners were asked
            marked = await self._work.step(mark)
        if marked:
            go_on()
        return marked

    async def _refuse_if_used(self, use: _Use) -> None:
        """Raises `NotAllowed` while users are connected, `Overloaded` while that is unknown. Counts several times: the
        close of a user may still be on its way to the segment's owner."""
        producers, consumers, ownerless = await self._count_users(use)
        for _ in range(LOOKS_AT_USERS - 1):
            if not producers and not consumers and not ownerless:
                break
            await asyncio.sleep(LOOK_PAUSE_S)
            producers, consumers, ownerless = await self._count_users(use)
        self._refuse(use, producers, consumers)
        if ownerless:
            # ▲ Only the owner knows its readers, and the producers and consumers of older clients.
            raise Overloaded(
                f"segment://{ownerless[0]} has no owner at the moment, so the users of {use} are not known: ask "
                "again, or delete with force"
            )
        left_s = self._since + self._grace_s - self._clock.monotonic()
        if use.created_at < self._leadership.epoch and left_s > 0:
            # ▲ Users registered at the previous controller may not have registered here yet.
            raise Overloaded(
                f"the controller has changed: the users of {use} are known in {left_s:.0f} s; ask again, or delete "
                "with force"
            )

    def _refuse(self, use: _Use, producers: int, consumers: int) -> None:
        if producers or consumers:
            raise NotAllowed(
                f"{use} is in use: {producers} producers and {consumers} consumers or readers of its segments are "
                "connected; close them first, or delete with force"
            )

    async def _count_users(self, use: _Use) -> tuple[int, int, list[str]]:
        """Producers and consumers over all segments, and the segments without an owner. Takes the larger of the owners'
        and the controller's counts, as a user may be in both."""
        found: list[tuple[int, int]] = []
        ownerless: list[str] = []

        async def ask(path: str) -> None:
            if self._directory.owner(path) is not None:
                found.append(await self._owners.users(path, use.subscription))
            else:
                ownerless.append(path)

        paths = (path for id, path in use.topology.paths.items() if not use.topology.is_going(id))
        await _all(SEGMENTS_AT_ONCE, tuple(paths), ask)
        producers, consumers = self._known_users(use)
        return max(producers, sum(one for one, _ in found)), max(consumers, sum(one for _, one in found)), ownerless

    def _known_users(self, use: _Use) -> tuple[int, int]:
        """Numbers of registered producers, and of members, also idle ones."""
        topic_path = use.topology.topic.path
        producers = 0 if use.subscription is not None else self._users.producers(topic_path, use.created_at)
        return producers, self._users.consumers(topic_path, use.subscription)

    async def _repeat(self, attempt: Callable[[], Awaitable[bool]]) -> None:
        """Repeat `attempt` until it succeeds; other errors pass. Ends with the term, and with `DataCorrupt`."""
        pauses = self._work.pauses(RETRY_S, LONGEST_RETRY_S)
        while True:
            try:
                if await attempt():
                    return
            except DataCorrupt:
                raise  # the callers receive it, as it needs a repair
            except TxnError as error:
                self._work.waits(error)
            await pauses.pause()

    def _go_on(
        self, tasks: dict[K, asyncio.Task[None]], key: K, attempt: Callable[[], Awaitable[bool]], *, name: str, of: str
    ) -> asyncio.Task[None]:
        """The task of a deletion; starts it if there is none. Raises `NotOwner`."""
        if self._over:  # ▲ for a request that has outlived the term: `close` would not cancel its task
            raise no_controller()

        def ended(task: asyncio.Task[None]) -> None:
            del tasks[key]
            self._work.report_end(task)
            if not task.cancelled() and isinstance(task.exception(), DataCorrupt):
                self._later((name, of), lambda: self._go_on(tasks, key, attempt, name=name, of=of))

        if (task := tasks.get(key)) is None:
            task = tasks[key] = errand(self._repeat(attempt), name=name, of=of)
            task.add_done_callback(ended)
        return task

    def _later(self, what: tuple[str, str], go_on: Callable[[], object]) -> None:
        """▲ Try again later: the repair of an unreadable record or a damaged segment does not restart the deletion, and
        nothing else would during this term."""

        def now() -> None:
            del self._again[what]
            go_on()

        if what not in self._again:  # one timer for all calls meanwhile
            self._again[what] = asyncio.get_running_loop().call_later(DAMAGED_RETRY_S, now)


@dataclass(frozen=True, slots=True)
class _Use:
    """A topic or subscription to delete unless it has users. `created_at`: the create revision of its record."""

    topology: Topology
    subscription: str | None
    created_at: int

    def __str__(self) -> str:
        topic = str(self.topology.topic)
        return topic if self.subscription is None else f"subscription {self.subscription} of {topic}"


def not_there(topic: TopicName, record: KeyValue | None) -> TopicNotFound:
    """`record`: of another topic of the name; None: there is none."""
    return TopicNotFound(f"{topic} does not exist" if record is None else f"{topic} is another one by now")


def _topology_of(topic: TopicName, record: KeyValue) -> Topology:
    return Topology(topic, records.decode(TopicRecord, record.value, key=record.key))


def _marked(record: KeyValue, kind: type[TopicRecord] | type[SubscriptionRecord]) -> bool:
    return records.decode(kind, record.value, key=record.key).deleting_ms != 0


def _found_marked(record: KeyValue, kind: type[TopicRecord] | type[SubscriptionRecord]) -> bool:
    """As `_marked`; False for an unreadable record, which must not stop a controller from leading."""
    try:
        return _marked(record, kind)
    except DataCorrupt as error:
        log.error("record_unreadable", error=str(error))
        return False


async def _all(limit: int, paths: tuple[str, ...], call: Callable[[str], Awaitable[None]]) -> None:
    """`call` for every path, `limit` at a time; raises the first error."""
    for at in range(0, len(paths), limit):
        found = await asyncio.gather(*(call(path) for path in paths[at : at + limit]), return_exceptions=True)
        for error in found:
            if error is not None:
                raise error
