"""The segments assigned to one consumer, with a feed for each: follows the controllers' assignments."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.connection.tasks import OwnedTasks
from txnclient.connection.topic_layout import topic_of_segment
from txnclient.consuming.dead_letters import DeadLetters
from txnclient.consuming.delivered import Delivered, DeliveryOrder
from txnclient.consuming.feed import StreamFeed, SubscriptionFeed
from txnclient.consuming.inbox import Inbox, QueueInbox
from txnclient.consuming.membership import ConsumerMembership
from txnclient.consuming.queue_feed import QueueFeed
from txnclient.consuming.receiver import Receiver
from txnclient.consuming.starts import StartArgument, check_prefetch, isolation_to_wire, start_to_wire
from txnwire.errors import InvalidArgument, NotAllowed
from txnwire.names import validate_name
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_DELAY_MS

_TYPES = {"stream": pb.SUBSCRIPTION_TYPE_STREAM, "queue": pb.SUBSCRIPTION_TYPE_QUEUE}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The arguments of `client.consumer` that shape a subscription and its feeds. Raises `InvalidArgument`."""

    topics: list[str]
    subscription: str
    type: str
    start: StartArgument
    isolation: str
    name: str | None
    prefetch: int
    prefetch_bytes: int
    redelivery_delay: float
    """In seconds."""

    def __post_init__(self) -> None:
        if self.type not in _TYPES:
            raise InvalidArgument(f"subscription type {self.type!r} is unknown: use 'stream' or 'queue'")
        check_delay(self.redelivery_delay, "redelivery_delay")
        check_prefetch(self.prefetch, self.prefetch_bytes)
        isolation_to_wire(self.isolation)
        validate_name(self.subscription, part="subscription")


class ConsumerIdentity(NamedTuple):
    """What brokers and controllers know one consumer by."""

    name: str
    incarnation: int


class AssignedFeeds:
    """Joins the subscription of every topic, and opens and leaves feeds as segments come and go."""

    def __init__(
        self,
        session: Session,
        settings: ConsumerSettings,
        identity: ConsumerIdentity,
        receiver: Receiver,
        order: DeliveryOrder,
        dead_letters: DeadLetters | None,
        *,
        outliving: OwnedTasks,
    ) -> None:
        """`outliving`: runs what goes on after the consumer is closed."""
        self.by_path: dict[str, SubscriptionFeed] = {}
        self._session = session
        self._settings = settings
        self._identity = identity
        self._receiver = receiver
        self._order = order
        self._dead_letters = dead_letters
        self._retiring: dict[SubscriptionFeed, None] = {}
        """Feeds of segments that have left this consumer, with acks under way."""
        self._terms: dict[str, pb.Subscribe] = {}
        self._closed = False
        self._memberships = [self._membership(topic, outliving) for topic in settings.topics]

    def _membership(self, topic: str, outliving: OwnedTasks) -> ConsumerMembership:
        join = pb.JoinSubscription(
            topic=topic,
            subscription=self._settings.subscription,
            type=_TYPES[self._settings.type],
            start=start_to_wire(self._settings.start),
            consumer=self._identity.name,
            incarnation=self._identity.incarnation,
            isolation=isolation_to_wire(self._settings.isolation),
        )
        return ConsumerMembership(
            self._session, join, on_assignment=self._assigned, on_failed=self._receiver.fail, outliving=outliving
        )

    async def join(self, deadline: Deadline) -> None:
        """Raises `TopicNotFound`, `NotAllowed`, `Timeout`."""
        for topic in self._settings.topics:
            await self._session.directory.layout(topic, deadline)
        for membership in self._memberships:
            await membership.join(deadline)

    def _assigned(self, assignment: pb.Assignment) -> None:
        if self._closed:
            return
        terms = self._terms.setdefault(assignment.topic, self._new_terms())
        terms.assignment_epoch = assignment.epoch
        mine = dict.fromkeys(assignment.segments)
        prefix = assignment.topic.partition("://")[2] + "/"
        for path in [path for path in self.by_path if path.startswith(prefix) and path not in mine]:
            self._retire(self.by_path.pop(path))
        added = [path for path in mine if path not in self.by_path]
        feeds = max(1, len(self.by_path) + len(added))
        window, window_bytes = max(1, self._settings.prefetch // feeds), max(1, self._settings.prefetch_bytes // feeds)
        for feed in self.by_path.values():
            feed.set_window(window, window_bytes)
        for path in added:
            self.by_path[path] = self._new_feed(path, window, window_bytes, terms)

    def _retire(self, feed: SubscriptionFeed) -> None:
        self._retiring[feed] = None
        feed.retire(
            NotAllowed(f"segment://{feed.segment} is drained, or another consumer's, which gets what is not acked"),
            lambda: self._retiring.pop(feed, None) and None,
        )

    def _new_feed(self, path: str, window: int, window_bytes: int, terms: pb.Subscribe) -> SubscriptionFeed:
        life = partial(self._life_of, topic_of_segment(path))
        if self._settings.type == "queue":
            queue = QueueInbox(window, window_bytes=window_bytes)
            return QueueFeed(self._session, self._receiver, path, queue, terms, life, self._dead_letters)
        delivered = Delivered(self._order, path)
        inbox = Inbox(window, keeps_holds=True, window_bytes=window_bytes, delivered=delivered)
        return StreamFeed(self._session, self._receiver, path, inbox, terms, life)

    def _life_of(self, topic: str) -> int:
        """The revision at which the subscription was created on a topic; 0 before the controller has said."""
        return max((one.life for one in self._memberships if one.topic == topic), default=0)

    def _new_terms(self) -> pb.Subscribe:
        return pb.Subscribe(
            subscription=self._settings.subscription,
            type=_TYPES[self._settings.type],
            isolation=isolation_to_wire(self._settings.isolation),
            consumer=self._identity.name,
            incarnation=self._identity.incarnation,
        )

    # ---- leaving ----------------------------------------------------------------------------------------------------

    def take_no_more(self) -> None:
        """Ignore assignments from now on."""
        self._closed = True

    async def leave(self, why: str) -> None:
        """Give the segments back; acks under way fail with `why`. ▲ C5: send every close and leave before the first
        await: a cancelled close would leave segments and messages with a closed consumer for as long as the client is
        connected."""
        for feed in [*self.by_path.values(), *self._retiring]:
            feed.close_with(InvalidArgument(why))
        self.by_path.clear()
        answers = [answer for membership in self._memberships if (answer := membership.leave_nowait()) is not None]
        await asyncio.gather(*answers, return_exceptions=True)


def check_delay(delay_s: object, what: str) -> None:
    """Raises `InvalidArgument`. ▲ Before any message is given back: one that brokers refuse would belong to no
    consumer."""
    if not isinstance(delay_s, int | float) or not 0 <= delay_s <= MAX_DELAY_MS / 1000:
        raise InvalidArgument(f"{what} is a number of seconds, 0 to {MAX_DELAY_MS // 1000}, not {delay_s!r}")
