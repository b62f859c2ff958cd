"""The controller role: creates topics and assigns segments to the consumers of stream subscriptions (DESIGN §8).

One process is elected on `/leader/controller`; every write compares its epoch. Its durable state is in etcd: topics,
subscriptions, assignments. Memory holds only which consumers are connected. A successor starts from the assignments:
the consumers named there have `failover_grace_s` to join again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog

from segments.controller.autoscaling import AutoscaleStatistics, Autoscaling
from segments.controller.deletions import Deletions, OwnerCalls, not_there
from segments.controller.layout_changes import LayoutChanges, LayoutStatistics, SealCalls
from segments.controller.pruning import PruneCalls, Pruning
from segments.controller.queue_group import QueueGroup
from segments.controller.snapshots import SegmentQuestions, Snapshots, SnapshotStatistics
from segments.controller.stream_group import ConsumerLink
from segments.controller.stream_groups import GroupKey, GroupPorts, PositionLookup, StreamGroups
from segments.controller.term_work import no_controller
from segments.controller.topic_users import TopicUsers
from segments.layout.assignment import consumer_id
from segments.layout.directory import CONTROLLER, Directory, DirectoryChange
from segments.layout.layout_transitions import LayoutChanged
from segments.layout.subscription_records import subscription_type
from segments.layout.topics import Created, parse_changes, parse_policies, plan_create, plan_policies, read_created
from txnstore import keys
from txnstore.access.paging import in_pages
from txnstore.election import Election, Leadership
from txnstore.records import TopicRecord, decode
from txnstore.store import MetadataStore
from txnstore.writes.deletion_transitions import read_step
from txnwire.errors import DataCorrupt, NotAllowed, NotOwner, OutcomeUnknown, Timeout, TopicNotFound, TxnError
from txnwire.names import SegmentName, TopicName, validate_name
from txnwire.ports import Clock, Random
from txnwire.proto import txn_pb2 as pb
from txnwire.snapshot import Snapshot
from txnwire.tasks import errand, restarted

log = structlog.get_logger(__name__)

_LOAD_RETRY_S = (0.1, 0.5)
ASSIGNMENTS_AT_ONCE: Final = 100
"""A page of records, each of which may name thousands of segments."""


class SegmentOwners(OwnerCalls, SealCalls, PruneCalls, Protocol):
    """The controller's calls to segments' owners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """All in seconds. `lease_ttl_s`: a dead controller is replaced after this at most. `consumer_grace_s`: a consumer
    whose connection dropped has this long to join again; `failover_grace_s`: the same after a change of controller;
    until then nothing older than the term is deleted without force. `request_timeout_s`: a request that the store has
    not confirmed by then fails with `Timeout`. `layout_patience_s`: a split or merge is given up if a parent cannot be
    sealed by then. `prune_s`: between searches for segments to prune. `autoscale_s`: between checks of the topics'
    load; 0: no automatic splits or merges."""

    lease_ttl_s: float = 10.0
    consumer_grace_s: float = 2.0
    failover_grace_s: float = 10.0
    request_timeout_s: float = 10.0
    layout_patience_s: float = 10.0
    prune_s: float = 60.0
    autoscale_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ControllerStatistics:
    leading: bool
    epoch: int
    subscriptions: int
    connected_consumers: int
    snapshots: SnapshotStatistics
    layouts: LayoutStatistics = field(default_factory=LayoutStatistics)
    autoscale: AutoscaleStatistics = field(default_factory=AutoscaleStatistics)
    pruned_segments: int = 0


@dataclass(frozen=True, slots=True)
class _Term:
    """The objects of one leadership: a request that outlives it acts on its own term's objects and is refused."""

    leadership: Leadership
    deposed: asyncio.Event
    groups: StreamGroups
    deletions: Deletions
    layouts: LayoutChanges
    autoscaling: Autoscaling
    pruning: Pruning


class Controller:
    """Stands for election, and acts as the controller while elected. `start()`, then `close()`."""

    def __init__(
        self,
        store: MetadataStore,
        directory: Directory,
        clock: Clock,
        random: Random,
        settings: ControllerSettings | None = None,
        *,
        id: str,
        address: str,
        segment_positions: PositionLookup,
        segment_questions: SegmentQuestions,
        owner_calls: SegmentOwners,
    ) -> None:
        self._store = store
        self._directory = directory
        self._clock = clock
        self._random = random
        self._settings = settings or ControllerSettings()
        self._election = Election(
            store, random, what=CONTROLLER, id=id, address=address, lease_ttl_s=self._settings.lease_ttl_s
        )
        self._address = address
        self._ports = GroupPorts(store, directory, clock, random, segment_positions)
        self._owner_calls = owner_calls
        self._snapshots = Snapshots(store, segment_questions, clock, random)
        self._term: _Term | None = None
        self._leading = asyncio.Event()
        self._links: dict[GroupKey, dict[str, ConsumerLink]] = {}
        self._joined: dict[ConsumerLink, dict[tuple[GroupKey, str], None]] = {}
        self._joining: dict[tuple[GroupKey, str], object] = {}
        """By consumer: its latest join that has not reached its group."""
        self._users = TopicUsers(self._links, self._joining)
        self._task: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] = lambda: None

    # ---- life and terms ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Stand for election in the background."""
        self._unlisten = self._directory.add_listener(self._directory_changed)
        self._task = restarted(self._run, name="controller")

    async def close(self) -> None:
        """Resign if elected, and fail waiting requests with `NotOwner`. Idempotent, bounded."""
        self._unlisten()
        if (task := self._task) is not None:
            self._task = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def leading(self) -> bool:
        return self._term is not None

    async def wait_leading(self, *, timeout_s: float) -> None:
        """Wait until this process is elected and has taken over. Raises `Timeout`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._leading.wait()
        except TimeoutError as error:
            raise Timeout(f"this process was not elected controller within {timeout_s} s") from error

    def statistics(self) -> ControllerStatistics:
        term = self._term
        return ControllerStatistics(
            leading=term is not None,
            epoch=term.leadership.epoch if term else 0,
            subscriptions=len(term.groups) if term else 0,
            connected_consumers=sum(len(links) for links in self._links.values()),
            snapshots=self._snapshots.statistics(),
            layouts=term.layouts.statistics() if term else LayoutStatistics(),
            autoscale=term.autoscaling.statistics() if term else AutoscaleStatistics(),
            pruned_segments=term.pruning.pruned if term else 0,
        )

    async def _run(self) -> None:
        while True:
            await self._lead(self._new_term(await self._election.campaign()))

    def _new_term(self, leadership: Leadership) -> _Term:
        deposed = asyncio.Event()
        groups = StreamGroups(
            self._ports, leadership, self._links, rejoin_s=self._settings.failover_grace_s, on_deposed=deposed.set
        )
        deletions = Deletions(
            self._store,
            self._directory,
            self._clock,
            self._random,
            self._owner_calls,
            leadership=leadership,
            groups=groups,
            users=self._users,
            grace_s=self._settings.failover_grace_s,
            on_deposed=deposed.set,
        )
        layouts = LayoutChanges(
            self._store,
            self._clock,
            self._random,
            self._owner_calls,
            leadership=leadership,
            patience_s=self._settings.layout_patience_s,
            on_deposed=deposed.set,
        )
        autoscaling = Autoscaling(
            self._store, self._directory, self._clock, layouts, every_s=self._settings.autoscale_s
        )
        pruning = Pruning(
            self._store,
            self._directory,
            self._owner_calls,
            leadership=leadership,
            pause_s=self._settings.prune_s,
            on_deposed=deposed.set,
        )
        return _Term(leadership, deposed, groups, deletions, layouts, autoscaling, pruning)

    async def _lead(self, term: _Term) -> None:
        """Run one term, from the election to its loss."""
        log.info("controller_elected", epoch=term.leadership.epoch)
        lost = errand(term.leadership.wait_lost(), name="controller leadership")
        lost.add_done_callback(lambda _: term.deposed.set())
        try:
            await self._take_over(term)
            await term.deposed.wait()
        finally:
            self._term = None
            self._leading.clear()
            log.info("controller_deposed", epoch=term.leadership.epoch)
            await self._end(term, lost)

    async def _take_up_groups(self, term: _Term) -> None:
        end = keys.prefix_end(keys.ASSIGNMENT)
        async for page in in_pages(self._store, keys.ASSIGNMENT, end, at_once=ASSIGNMENTS_AT_ONCE):
            for record in page:
                try:
                    term.groups.take_up(record)
                except DataCorrupt as error:
                    log.error("assignment_unreadable", error=str(error))
            await asyncio.sleep(0)

    async def _take_over(self, term: _Term) -> None:
        """Take up every assignment in etcd: consumers named there have `failover_grace_s` to join again. ▲ Before any
        deletion, which drops groups: a group made after that would serve the next subscription of the name, with no
        record in etcd."""
        loads = (
            self._take_up_groups,
            _tell_unassigned,
            lambda term: term.deletions.take_up(),
            lambda term: term.layouts.take_up(),
        )
        for load in loads:
            while not term.deposed.is_set():
                try:
                    await load(term)
                    break
                except TxnError as error:
                    log.warning("controller_load_retry", error=str(error))
                    await asyncio.sleep(self._random.uniform(*_LOAD_RETRY_S))
            else:
                return
        term.pruning.start()
        self._term = term
        # ▲ Changes since the groups were taken up reached no group, as `_term` was not set.
        term.groups.links_changed()
        term.groups.layouts_changed(self._directory.topics())
        term.autoscaling.start()
        self._leading.set()

    async def _end(self, term: _Term, lost: asyncio.Task[None]) -> None:
        """▲ End every part, even if this process is closed meanwhile: a part left out would run for ever."""
        over = no_controller()
        async with AsyncExitStack() as ends:
            ends.push_async_callback(term.leadership.resign)
            ends.push_async_callback(term.groups.close, over)
            for part in (term.pruning, term.layouts, term.deletions, term.autoscaling):
                ends.push_async_callback(part.close)
            lost.cancel()
            await asyncio.gather(lost, return_exceptions=True)

    def _directory_changed(self, change: DirectoryChange) -> None:
        if self._term is not None and change.topics:
            self._term.groups.layouts_changed(dict.fromkeys(change.topics))
            topologies = self._directory.topics()
            for topology in (topologies[name] for name in change.topics if name in topologies):
                self._term.layouts.follow(topology)
        if self._term is not None and change.drained:
            self._term.groups.drained_changed(change.drained)

    def _require_term(self) -> _Term:
        term = self._term
        if term is not None and term.leadership.valid() and not term.deposed.is_set():
            return term
        leader = self._directory.leader(CONTROLLER)
        if leader is None or leader.address == self._address:  # its own key, of a term that is over or not yet begun
            raise NotOwner("no controller is elected at the moment; try again")
        raise NotOwner(f"the controller is at {leader.address}")

    @asynccontextmanager
    async def _request(self, what: str) -> AsyncIterator[_Term]:
        """Yield the current term, within a time limit. Requests may be repeated, so `OutcomeUnknown` becomes
        `Timeout`."""
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                yield self._require_term()
        except OutcomeUnknown as error:
            raise Timeout(f"{what}: the metadata store has not confirmed it yet; repeat it") from error
        except Timeout:
            raise
        except TimeoutError as error:
            raise Timeout(f"{what}: not confirmed within {self._settings.request_timeout_s} s; repeat it") from error

    # ---- topics -----------------------------------------------------------------------------------------------------

    async def create_topic(self, topic: TopicName, segments: int, policies_json: str) -> None:
        """Create `topic`; succeeds if it exists with the same shape already.

        Raises `TopicExists` (another shape), `InvalidArgument`, `NotOwner`, `StoreUnavailable`, `Timeout`.
        """
        policies = parse_policies(policies_json)
        async with self._request(f"creating {topic}") as term:
            while (created := await self._create_topic(term, topic, segments, policies)) is not Created.DONE:
                if created is Created.NOT_LEADING:
                    term.deposed.set()
                    raise no_controller()
                if created is Created.DELETING:
                    await term.deletions.wait_topic(topic.path)

    async def _create_topic(self, term: _Term, topic: TopicName, segments: int, policies: dict[str, Any]) -> Created:
        commit = plan_create(
            topic,
            segments,
            policies,
            await self._store.get(keys.SEGMENT_IDS),
            still_held=term.leadership.still_held(),
            created_ms=self._clock.wall_ms(),
        )
        return read_created(topic, segments, policies, commit, await self._store.commit(commit))

    async def update_topic(self, topic: TopicName, policies_json: str, *, life: int = 0) -> None:
        """Change the named policies. Raises `TopicNotFound`, `InvalidArgument`, `NotOwner`, `Timeout`."""
        changes = parse_changes(policies_json)
        async with self._request(f"changing {topic}") as term:
            while True:
                record = await self._store.get(keys.topic(topic.path))
                if record is None or life not in (0, record.create_revision):
                    raise not_there(topic, record)
                commit = plan_policies(record, changes, still_held=term.leadership.still_held())
                if commit is None or read_step(commit, await self._store.commit(commit)):
                    return

    async def delete_topic(self, topic: TopicName, *, force: bool, life: int = 0) -> None:
        """Returns once the topic is erased; see `Deletions.delete_topic`. Raises `Timeout` while it goes on."""
        async with self._request(f"deleting {topic}") as term:
            await term.deletions.delete_topic(topic, force=force, life=life)

    async def topic_life(self, topic: TopicName) -> int:
        """Raises `TopicNotFound`, `NotOwner`, `Timeout`."""
        async with self._request(f"asking for {topic}") as term:
            return await term.deletions.topic_life(topic)

    async def delete_subscription(self, topic: TopicName, name: str, *, force: bool, life: int = 0) -> None:
        """As `delete_topic`, for a subscription."""
        async with self._request(f"deleting subscription {name} of {topic}") as term:
            await term.deletions.delete_subscription(topic, name, force=force, life=life)

    async def subscription_life(self, topic: TopicName, name: str) -> int:
        """Raises `TopicNotFound`, `SubscriptionNotFound`, `NotOwner`, `Timeout`."""
        async with self._request(f"asking for subscription {name} of {topic}") as term:
            return await term.deletions.subscription_life(topic, name)

    # ---- producers --------------------------------------------------------------------------------------------------

    async def register_producer(self, request: pb.RegisterProducer, link: ConsumerLink) -> int:
        """Count a connection as one with producers of a topic, until it reports that it has none, or ends. Returns the
        topic's life; if the request names another one, it counts nothing. A repeated call is harmless.

        Raises `InvalidArgument`, `TopicNotFound`, `NotOwner`, `StoreUnavailable`, `Timeout`.
        """
        topic = TopicName.parse(request.topic)
        if request.over:
            self._users.leave(topic.path, link, request.life)
            return request.life
        async with self._request(f"registering a producer of {topic}"):
            # ▲ Count it before the first await: otherwise it could slip between a deletion's last count and its mark.
            coming = self._users.comes(topic.path, link, request.life)
            life: int | None = None
            try:
                await self._users.wait_marked(topic.path)
                record = await self._store.get(keys.topic(topic.path))
                if record is None or decode(TopicRecord, record.value, key=record.key).deleting_ms:
                    raise TopicNotFound(f"{topic} does not exist")
                life = record.create_revision if request.life in (0, record.create_revision) else None
                return record.create_revision
            finally:
                self._users.came(coming, life)

    # ---- layouts ----------------------------------------------------------------------------------------------------

    async def split_segment(self, segment: SegmentName, at: int | None) -> LayoutChanged:
        """Returns once the new layout is stored. Raises as `LayoutChanges.split`; `Timeout` while the split goes on."""
        async with self._request(f"splitting {segment}") as term:
            return await term.layouts.split(segment, at)

    async def merge_segments(self, segment_a: SegmentName, segment_b: SegmentName) -> LayoutChanged:
        """As `split_segment`."""
        async with self._request(f"merging {segment_a} and {segment_b}") as term:
            return await term.layouts.merge(segment_a, segment_b)

    # ---- snapshots --------------------------------------------------------------------------------------------------

    async def take_snapshot(self, topics: Sequence[TopicName], *, at_least: int = 0) -> Snapshot:
        """A cut over `topics` (DESIGN §10) that holds everything committed before the call, at revision `at_least` or
        later. It changes nothing, so a former controller's cut is right too; one process takes all cuts to keep the
        load off the others.

        Raises `TopicNotFound`, `DataCorrupt`, `NotOwner`, `Timeout`.
        """
        self._require_term()
        return await self._snapshots.take(topics, at_least=at_least, timeout_s=self._settings.request_timeout_s)

    # ---- subscriptions ----------------------------------------------------------------------------------------------

    async def join(self, request: pb.JoinSubscription, link: ConsumerLink) -> pb.Assignment:
        """Add a consumer to a subscription, which its first consumer creates. For a stream it returns once an
        assignment in etcd names it. Repeating a join is harmless. Pushes later changes to `link`.

        Raises `InvalidArgument`, `TopicNotFound`, `SubscriptionNotFound` (it was a member before, and the subscription
        was deleted), `NotAllowed` (replaced by another of its name), `NotOwner`, `Overloaded`, `StoreUnavailable`,
        `Timeout`.
        """
        topic, name, consumer = _parse_member(request)
        asked = subscription_type(request.type)
        key = (topic.path, name)
        attempt = self._joining[key, consumer] = object()
        try:
            async with self._request(f"joining {name} of {topic}") as term:
                await self._users.wait_marked(topic.path)
                topology = await self._directory.fetch_topic(topic.path)
                if topology is None or topology.deleting:
                    raise TopicNotFound(f"{topic} does not exist")
                again, life = request.again, request.life
                group = await term.groups.open(key, asked, request.start, again=again, life=life)
                if self._joining.get((key, consumer)) is not attempt:
                    # ▲ The consumer has left meanwhile: if it were added now, its segments would stay unread as long as
                    # its client is connected.
                    raise NotAllowed(f"consumer {consumer} left, or joined once more, while it joined")
                self._joined.setdefault(link, {})[key, consumer] = None
                if isinstance(group, QueueGroup):
                    isolation = request.isolation if request.HasField("isolation") else None
                    assignment = await group.join(consumer, link, again=again, isolation=isolation)
                else:
                    assignment = await group.join(consumer, link, again=again)
                assignment.life = term.groups.life(key)
                return assignment
        finally:
            if self._joining.get((key, consumer)) is attempt:
                del self._joining[key, consumer]

    async def leave(self, request: pb.LeaveSubscription, link: ConsumerLink) -> None:
        """Remove a consumer, if it is a member; returns once no assignment names it. Raises as `join`."""
        topic, name, consumer = _parse_member(request)
        key = (topic.path, name)
        self._joining.pop((key, consumer), None)
        self._joined.get(link, {}).pop((key, consumer), None)
        self._links.get(key, {}).pop(consumer, None)
        async with self._request(f"leaving {name} of {topic}") as term:
            if (group := term.groups.get(key)) is not None:
                await group.leave(consumer)

    def disconnected(self, link: ConsumerLink) -> None:
        """A connection is gone: its consumers have `consumer_grace_s` to join again over another one, and its producers
        no longer count."""
        self._users.disconnected(link)
        for key, consumer in self._joined.pop(link, {}):
            links = self._links.get(key, {})
            if links.get(consumer) is not link:
                continue
            del links[consumer]
            if self._term is not None and (group := self._term.groups.get(key)) is not None:
                group.disconnected(consumer, grace_s=self._settings.consumer_grace_s)


async def _tell_unassigned(term: _Term) -> None:
    term.groups.take_up_linked()


def _parse_member(request: pb.JoinSubscription | pb.LeaveSubscription) -> tuple[TopicName, str, str]:
    """(topic, subscription, consumer id) of a request; raises `InvalidArgument` naming the wrong part."""
    topic = TopicName.parse(request.topic)
    subscription = validate_name(request.subscription, part="subscription")
    consumer = validate_name(request.consumer, part="consumer")
    return topic, subscription, consumer_id(consumer, request.incarnation)
