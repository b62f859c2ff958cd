"""The subscriptions of one term of the controller: taken up from etcd, or created by their first consumer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import structlog

from segments.controller.membership import GroupMembership
from segments.controller.queue_group import QueueGroup
from segments.controller.stream_group import ConsumerLink, StreamGroup, unassigned
from segments.controller.term_work import no_controller
from segments.layout.directory import Directory
from segments.layout.subscription_records import LATEST, QUEUE, TIMESTAMP, check_type, plan_subscription, start_record
from segments.layout.topology import Topology
from txnstore import keys
from txnstore.election import Leadership
from txnstore.records import AssignmentRecord, SubscriptionRecord, TopicRecord, decode
from txnstore.store import KeyValue, MetadataStore
from txnwire.errors import Overloaded, SubscriptionNotFound, TopicNotFound, TxnError
from txnwire.ids import Position
from txnwire.named_locks import NamedLocks
from txnwire.names import TopicName
from txnwire.ports import Clock, Random
from txnwire.proto import txn_pb2 as pb
from txnwire.tasks import all_of

log = structlog.get_logger(__name__)

POSITIONS_AT_ONCE: Final = 16
"""Owners asked at the same time where a subscription starts."""

PositionLookup = Callable[[str, int, int], Awaitable[Position]]
"""(segment path, revision, 0) → the segment's `max_read_position` once its owner has followed decisions to that
revision: "latest" starts behind it (SCENARIOS V5). With a time in ms instead of 0: the position behind which that time
starts. Raises `NotOwner` while no broker owns it."""

GroupKey = tuple[str, str]
"""(topic path, subscription)"""


@dataclass(frozen=True, slots=True)
class GroupPorts:
    """The objects that all terms share."""

    store: MetadataStore
    directory: Directory
    clock: Clock
    random: Random
    segment_positions: PositionLookup


class StreamGroups:
    """Opens and drops groups by (topic path, subscription). `links`: consumers' connections, over all terms. An
    assigned consumer without one is given up `rejoin_s` seconds after its group was taken up."""

    def __init__(
        self,
        ports: GroupPorts,
        leadership: Leadership,
        links: dict[GroupKey, dict[str, ConsumerLink]],
        *,
        rejoin_s: float,
        on_deposed: Callable[[], None],
    ) -> None:
        self._ports = ports
        self._leadership = leadership
        self._links = links
        self._rejoin_s = rejoin_s
        self._on_deposed = on_deposed
        self._groups: dict[GroupKey, StreamGroup | QueueGroup] = {}
        self._types: dict[GroupKey, str] = {}
        self._lives: dict[GroupKey, int] = {}
        """Create revision of each subscription's record."""
        self._opening = NamedLocks()
        self._over: TxnError | None = None

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, key: GroupKey) -> StreamGroup | QueueGroup | None:
        return self._groups.get(key)

    def take_up(self, record: KeyValue) -> None:
        """Go on with a subscription whose assignment was found in etcd. A repeated call is harmless. Raises
        `DataCorrupt` for an unreadable record."""
        key = keys.topic_and_name(record.key)
        if key not in self._groups:
            self._make(key, record)

    def take_up_linked(self) -> None:
        """Tell consumers connected since an earlier term to join again if their subscription has no assignment in etcd.
        ▲ It may have been deleted while another process led: its standbys would wait for ever, and consumers of a queue
        would get no new layout, or count although they left."""
        for key in [key for key in self._links if key not in self._groups]:
            self._tell_to_join(key)

    async def open(
        self, key: GroupKey, asked: str, start: pb.Start, *, again: bool = False, life: int = 0
    ) -> StreamGroup | QueueGroup:
        """The group of a subscription, whose type must be the one `asked`. Creates the record, with `start`, if there
        is none. `again`: the consumer was a member before, in this `life` of the subscription (0: not known).

        Raises `InvalidArgument` (another type, a start in no segment of the topic), `TopicNotFound`,
        `SubscriptionNotFound` (`again`, and it was deleted, even if another exists now), `NotOwner`,
        `DataCorrupt`, `StoreUnavailable`, `OutcomeUnknown`.
        """
        async with self._opening.held(key):
            if key not in self._types:
                self._types[key] = await self._load(key, asked, start, again)
        check_type(key, self._types[key], asked)
        if again and life not in (0, self._lives[key]):
            # ▲ Otherwise a consumer that acked in the deleted one would go on in the next one of the name.
            raise SubscriptionNotFound(f"subscription {key[1]} of topic://{key[0]} was deleted, and made again since")
        return self._groups[key]

    def life(self, key: GroupKey) -> int:
        """The create revision of an opened subscription: distinguishes it from another one of its name."""
        return self._lives.get(key, 0)

    async def _load(self, key: GroupKey, asked: str, start: pb.Start, again: bool) -> str:
        """Load or create the subscription and make its group. Returns its type."""
        subscription_key = keys.subscription(*key)
        wanted = [subscription_key, keys.assignment(*key), keys.topic(key[0])]
        revision, (subscription, assignment, topic) = await self._ports.store.get_many(wanted)
        if topic is None or decode(TopicRecord, topic.value, key=topic.key).deleting_ms:
            raise TopicNotFound(f"topic://{key[0]} does not exist")
        if subscription is None and again:
            raise SubscriptionNotFound(f"subscription {key[1]} of topic://{key[0]} was deleted")
        found = subscription or await self._create(key, asked, start, revision, topic)
        if self._over is not None:
            raise self._over
        if isinstance(found, int):
            type, life = asked, found
        elif _deleting(found):
            raise Overloaded(f"subscription {key[1]} of topic://{key[0]} is being deleted: join it again in a moment")
        else:
            type, life = _type_of(found), found.create_revision
        self._lives[key] = life
        if type == QUEUE:
            if key not in self._groups:
                self._groups[key] = self._make_queue(key)
        elif key not in self._groups:
            self._make(key, assignment)
        return type

    def _make_queue(self, key: GroupKey) -> QueueGroup:
        links = self._links.setdefault(key, {})
        return QueueGroup(self._ports.directory, topic_path=key[0], subscription=key[1], links=links)

    async def _create(
        self, key: GroupKey, asked: str, wanted: pb.Start, revision: int, topic: KeyValue
    ) -> KeyValue | int:
        """Put the record, ▲ if `topic` is unchanged: not being deleted, and without new segments that have no start
        position. "latest" and a time become positions now, so a later crash does not move them. Returns the revision of
        this call's record, or the existing record if another call was first."""
        layout = decode(TopicRecord, topic.value, key=topic.key)
        topology = Topology(TopicName.from_path(key[0]), layout)
        start = start_record(wanted, topology)
        positions: dict[str, Position] = {}
        if start["kind"] in (LATEST, TIMESTAMP):
            positions = await self._positions(tuple(topology.paths.values()), revision, start.get("timestamp_ms", 0))
        commit = plan_subscription(
            *key,
            type=asked,
            start=start,
            positions=positions,
            still_held=self._leadership.still_held(),
            topic=topic,
            created_ms=self._ports.clock.wall_ms(),
        )
        result = await self._ports.store.commit(commit)
        if result.succeeded:
            return result.revision
        if result.reads[0]:
            return result.reads[0][0]
        if not result.reads[1] or result.reads[1][0].create_revision != self._leadership.epoch:
            self._on_deposed()
            raise no_controller()
        raise Overloaded(f"topic://{key[0]} changed while subscription {key[1]} was created: join it again")

    async def _positions(self, paths: Sequence[str], revision: int, time_ms: int) -> dict[str, Position]:
        """▲ Some at a time: a request has 10 s, and thousands of segments asked one by one would take longer."""
        found: dict[str, Position] = {}
        for at in range(0, len(paths), POSITIONS_AT_ONCE):
            some = paths[at : at + POSITIONS_AT_ONCE]
            asked = (self._lookup(path, revision, time_ms) for path in some)
            found.update(zip(some, await all_of(asked), strict=True))
        return found

    async def _lookup(self, path: str, revision: int, time_ms: int) -> Position:
        return await self._ports.segment_positions(path, revision, time_ms)

    def _make(self, key: GroupKey, assignment: KeyValue | None) -> None:
        record = None if assignment is None else decode(AssignmentRecord, assignment.value, key=assignment.key)
        gone_at = self._ports.clock.monotonic() + self._rejoin_s
        self._groups[key] = StreamGroup(
            self._ports.store,
            self._ports.directory,
            self._ports.clock,
            self._ports.random,
            topic_path=key[0],
            subscription=key[1],
            membership=GroupMembership(record, assignment.mod_revision if assignment else 0, gone_at=gone_at),
            links=self._links.setdefault(key, {}),
            leadership=self._leadership,
            on_deposed=self._on_deposed,
        )

    async def drop(self, key: GroupKey, error: TxnError) -> None:
        """The subscription is being deleted: fail waiting requests with `error`, and write no more assignments. ▲ One
        in flight is refused: it compares that the subscription's record exists."""
        async with self._opening.held(key):
            group = self._groups.pop(key, None)
            self._types.pop(key, None)
            self._lives.pop(key, None)
            if group is not None:
                await group.close(error)
            # ▲ No broker tells this to a standby, or to a consumer that has not attached to its assigned segment yet.
            self._tell_to_join(key)

    def _tell_to_join(self, key: GroupKey) -> None:
        """Tell all connected members to join again; one that left ignores it."""
        for consumer, link in self._links.pop(key, {}).items():
            link.push(pb.Command(assignment=unassigned(*key, consumer, epoch=0)))

    async def drop_topic(self, topic_path: str, error: TxnError) -> None:
        for key in dict.fromkeys((*self._groups, *self._links)):
            if key[0] == topic_path:
                await self.drop(key, error)

    def layouts_changed(self, topic_paths: Collection[str]) -> None:
        for (topic_path, _), group in self._groups.items():
            if topic_path in topic_paths:
                group.refresh()

    def drained_changed(self, names: Collection[str]) -> None:
        """`names`: `<topic path>/<subscription>/<segment id>`."""
        for name in dict.fromkeys(name.rpartition("/")[0] for name in names):
            topic_path, _, subscription = name.rpartition("/")
            if (group := self._groups.get((topic_path, subscription))) is not None:
                group.refresh()

    def links_changed(self) -> None:
        """Check for consumers that disconnected since their groups were taken up."""
        gone_at = self._ports.clock.monotonic() + self._rejoin_s
        for group in self._groups.values():
            if isinstance(group, StreamGroup):
                group.links_changed(gone_at=gone_at)

    async def close(self, error: TxnError) -> None:
        """The term is over: fail waiting requests with `error`, ▲ also those that wait for etcd: none may make a group
        later."""
        self._over = error
        async with AsyncExitStack() as ends:  # ▲ all of them, even if the caller is cancelled meanwhile
            for group in self._groups.values():
                ends.push_async_callback(group.close, error)


def _type_of(subscription: KeyValue) -> str:
    return decode(SubscriptionRecord, subscription.value, key=subscription.key).type


def _deleting(subscription: KeyValue) -> bool:
    return decode(SubscriptionRecord, subscription.value, key=subscription.key).deleting_ms != 0
