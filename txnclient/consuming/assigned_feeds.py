"""The segments assigned to one consumer, with a feed for each: follows the controllers' assignments."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import NamedTuple

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.connection.tasks import OwnedTasks
from txnclient.connection.topic_layout import topic_of_segment
from txnclient.consuming.feeds.dead_letters import DeadLetters
from txnclient.consuming.feeds.feed import StreamFeed, SubscriptionFeed
from txnclient.consuming.feeds.inbox import Inbox, QueueInbox
from txnclient.consuming.feeds.queue_feed import QueueFeed
from txnclient.consuming.feeds.receiver import Receiver, TopicReceiver
from txnclient.consuming.membership import ConsumerMembership
from txnclient.consuming.pauses import PausedSegments
from txnclient.consuming.places.positions import Positions
from txnclient.consuming.places.starts import (
    StartArgument,
    check_prefetch,
    check_topic_of,
    isolation_to_wire,
    start_of_subscription,
)
from txnclient.consuming.received.delivered import Delivered, DeliveryOrder
from txnwire.errors import InvalidArgument, NotAllowed, SubscriptionNotFound, TopicNotFound, TxnError, for_good
from txnwire.ids import MessageId
from txnwire.names import validate_name
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_DELAY_MS

_TYPES = {"stream": pb.SUBSCRIPTION_TYPE_STREAM, "queue": pb.SUBSCRIPTION_TYPE_QUEUE}


LEAST_ACK_TIMEOUT_S = 0.1


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
    topics_pattern: str | re.Pattern[str] | None = None
    """Instead of `topics`."""
    ack_timeout: float | None = None
    """In seconds."""

    def __post_init__(self) -> None:
        if bool(self.topics) == (self.topics_pattern is not None):
            raise InvalidArgument("a consumer names its topics, or a topics_pattern, and not both")
        if self.type not in _TYPES:
            raise InvalidArgument(f"subscription type {self.type!r} is unknown: use 'stream' or 'queue'")
        check_delay(self.redelivery_delay, "redelivery_delay")
        _check_ack_timeout(self.ack_timeout, self.type)
        check_prefetch(self.prefetch, self.prefetch_bytes)
        isolation_to_wire(self.isolation)
        if isinstance(self.start, Positions) and self.topics:
            check_topic_of(self.start, self.topics)
        validate_name(self.subscription, part="subscription")


class ConsumerIdentity(NamedTuple):
    """Identifies one consumer to brokers and controllers."""

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
        self.pauses = PausedSegments(lambda: self.topics)
        self._retiring: dict[SubscriptionFeed, None] = {}
        """Feeds of segments that have left this consumer, with acks under way."""
        self._terms: dict[str, pb.Subscribe] = {}
        self._closed = False
        self._outliving = outliving
        self.on_left: Callable[[str, TxnError], None] | None = None
        """Called with a topic that was left because it, or its subscription, is gone; None: that fails the consumer."""
        self._memberships = {topic: self._membership(topic, settings.start) for topic in settings.topics}
        self._leaving: dict[str, ConsumerMembership] = {}
        """Former memberships, by topic, whose leave is not answered yet."""

    @property
    def topics(self) -> list[str]:
        return list(self._memberships)

    def _membership(self, topic: str, start: StartArgument) -> ConsumerMembership:
        join = pb.JoinSubscription(
            topic=topic,
            subscription=self._settings.subscription,
            type=_TYPES[self._settings.type],
            start=start_of_subscription(start, topic),
            consumer=self._identity.name,
            incarnation=self._identity.incarnation,
            isolation=isolation_to_wire(self._settings.isolation),
        )
        return ConsumerMembership(
            self._session,
            join,
            on_assignment=self._assigned,
            on_failed=lambda error: self._membership_failed(topic, error),
            outliving=self._outliving,
        )

    def _receiver_of(self, topic: str) -> TopicReceiver:
        return TopicReceiver(self._receiver, lambda error: self._topic_failed(topic, error))

    async def join(self, deadline: Deadline) -> None:
        """Raises `TopicNotFound`, `NotAllowed`, `Timeout`."""
        for topic in self._settings.topics:
            await self._session.directory.layout(topic, deadline)
        for membership in self._memberships.values():
            await membership.join(deadline)

    async def join_topic(self, topic: str, deadline: Deadline, *, later: bool) -> None:
        """See `topic_pattern.JoinedTopics`. A topic that has appeared since holds only messages newer than the
        consumer, so it begins at the earliest one, even if the other topics begin at the latest or at a message."""
        await self._session.directory.layout(topic, deadline)
        if (former := self._leaving.get(topic)) is not None:
            # ▲ Its leave names the same consumer: a leave that arrives after the new join would end the new
            # membership, and the consumer would not learn of it.
            await former.wait_left(deadline)
        start = self._settings.start
        anew = later and (start == "latest" or isinstance(start, MessageId | Positions))
        membership = self._membership(topic, "earliest" if anew else start)
        self._memberships[topic] = membership
        try:
            await membership.join(deadline)
        except BaseException:
            # ▲ The caller was cancelled: the join may still arrive, and a close does not know of it. Segments may
            # already be assigned: their feeds would keep the terms of this ended membership, also in the next one.
            self._drop(topic, membership, NotAllowed(f"{topic} was not joined after all: its messages come again"))
            raise

    def _membership_failed(self, topic: str, error: TxnError) -> None:
        for path, feed in self.by_path.items():
            if topic_of_segment(path) == topic:
                feed.hold_on(error)
        self._topic_failed(topic, error)

    def _topic_failed(self, topic: str, error: TxnError) -> None:
        if self.on_left is None or not isinstance(error, TopicNotFound | SubscriptionNotFound):
            self._receiver.fail(error)
        elif not self._closed and (membership := self._memberships.get(topic)) is not None:
            # Later, as a feed may be telling this from its own task, which leaving it cancels.
            self._session.loop.call_soon(self._leave_topic, topic, membership, error)

    def _leave_topic(self, topic: str, membership: ConsumerMembership, error: TxnError) -> None:
        if not self._closed and self._drop(topic, membership, for_good(error)) and self.on_left is not None:
            self.on_left(topic, error)

    def _drop(self, topic: str, membership: ConsumerMembership, error: TxnError) -> bool:
        """Leave the topic, and close its feeds with `error`. Whether it was the topic's membership: ▲ the topic may
        have been joined anew meanwhile."""
        membership.leave_nowait()
        if self._memberships.get(topic) is not membership:
            return False
        del self._memberships[topic]
        self._terms.pop(topic, None)
        self._keep_leaving(topic, membership)
        for path in [path for path in self.by_path if topic_of_segment(path) == topic]:
            self.by_path.pop(path).close_with(error)
        return True

    def _keep_leaving(self, topic: str, membership: ConsumerMembership) -> None:
        leaving = {**self._leaving, topic: membership}
        self._leaving = {name: one for name, one in leaving.items() if not one.has_left}

    def _assigned(self, assignment: pb.Assignment) -> None:
        if self._closed or assignment.topic not in self._memberships:
            return
        terms = self._terms.setdefault(assignment.topic, self._new_terms())
        terms.assignment_epoch = assignment.epoch
        mine = dict.fromkeys(assignment.segments)
        prefix = assignment.topic.partition("://")[2] + "/"
        for path in [path for path in self.by_path if path.startswith(prefix) and path not in mine]:
            self._retire(self.by_path.pop(path))
        added = [path for path in mine if path not in self.by_path]
        feeds = max(1, len(self.by_path) + len(added))
        # ▲ Numbers of numpy's may have few bits: permits counted with them would run out.
        prefetch, prefetch_bytes = index(self._settings.prefetch), index(self._settings.prefetch_bytes)
        window, window_bytes = max(1, prefetch // feeds), max(1, prefetch_bytes // feeds)
        for feed in self.by_path.values():
            feed.set_window(window, window_bytes)
        for path in added:
            self.by_path[path] = self._new_feed(path, window, window_bytes, terms)
            self.by_path[path].before_attaching = partial(self._comes, path)
            self._comes(path)

    def _comes(self, path: str) -> None:
        self.pauses.comes(path, self._session.directory.known_layout(topic_of_segment(path)))
        if (feed := self.by_path.get(path)) is not None:
            feed.pause(self.pauses.is_paused(path))

    def apply_pauses(self) -> None:
        """`pauses` have changed."""
        for path, feed in self.by_path.items():
            feed.pause(self.pauses.is_paused(path))

    def _retire(self, feed: SubscriptionFeed) -> None:
        self._retiring[feed] = None
        feed.retire(
            NotAllowed(f"segment://{feed.segment} is drained, or another consumer's, which gets what is not acked"),
            lambda: self._retiring.pop(feed, None) and None,
        )

    def _new_feed(self, path: str, window: int, window_bytes: int, terms: pb.Subscribe) -> SubscriptionFeed:
        life = partial(self._life_of, topic_of_segment(path))
        receiver = self._receiver_of(topic_of_segment(path))
        if self._settings.type == "queue":
            queue = QueueInbox(window, window_bytes=window_bytes)
            timeout_s = self._settings.ack_timeout
            return QueueFeed(self._session, receiver, path, queue, terms, life, self._dead_letters, timeout_s)
        delivered = Delivered(self._order, path)
        inbox = Inbox(window, keeps_holds=True, window_bytes=window_bytes, delivered=delivered)
        return StreamFeed(self._session, receiver, path, inbox, terms, life)

    def _life_of(self, topic: str) -> int:
        """The revision at which the subscription was created on a topic; 0 before the controller has said."""
        membership = self._memberships.get(topic)
        return 0 if membership is None else membership.life

    def _new_terms(self) -> pb.Subscribe:
        return pb.Subscribe(
            subscription=self._settings.subscription,
            type=_TYPES[self._settings.type],
            isolation=isolation_to_wire(self._settings.isolation),
            consumer=self._identity.name,
            incarnation=self._identity.incarnation,
            shares=self._settings.type == "queue",
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
        memberships = self._memberships.values()
        answers = [answer for membership in memberships if (answer := membership.leave_nowait()) is not None]
        await asyncio.gather(*answers, return_exceptions=True)


def check_delay(delay_s: object, what: str) -> None:
    """Raises `InvalidArgument`. ▲ Call it before any message is given back: a message that brokers refuse would belong
    to no consumer."""
    if not isinstance(delay_s, int | float) or not 0 <= delay_s <= MAX_DELAY_MS / 1000:
        raise InvalidArgument(f"{what} is a number of seconds, 0 to {MAX_DELAY_MS // 1000}, not {delay_s!r}")


def _check_ack_timeout(ack_timeout: object, type: str) -> None:
    """Raises `InvalidArgument`."""
    if ack_timeout is None:
        return
    if type != "queue":
        raise InvalidArgument("ack_timeout is for queue subscriptions: a stream goes on only behind a message")
    most = MAX_DELAY_MS / 1000
    if not isinstance(ack_timeout, int | float) or not LEAST_ACK_TIMEOUT_S <= ack_timeout <= most:
        raise InvalidArgument(
            f"ack_timeout is None or a number of seconds, {LEAST_ACK_TIMEOUT_S} to {most:.0f}, not {ack_timeout!r}"
        )
