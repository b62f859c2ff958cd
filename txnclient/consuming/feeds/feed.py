"""Attaches to one consumed segment's owner, again after every loss, and puts its deliveries into an inbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txnclient.connection.deadlines import LONGEST_PAUSE_S, Backoff, Deadline
from txnclient.connection.links import Link
from txnclient.connection.moved_segments import MovedSegment
from txnclient.connection.session import TRANSIENT, Session
from txnclient.connection.topic_layout import topic_of_segment
from txnclient.consuming.feeds.acks import FeedAcks
from txnclient.consuming.feeds.inbox import UNBOUNDED_BYTES, Inbox
from txnclient.consuming.feeds.receiver import FeedReceiver
from txnclient.consuming.received.delivered import UpTo
from txnclient.consuming.received.message import Message, ReceivedEntry, Under
from txnwire.errors import (
    ConnectionLost,
    DataCorrupt,
    NotAllowed,
    Overloaded,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
    TxnError,
    for_good,
)
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_PERMITS

ATTACH_TIMEOUT_S = 10.0
SOON_S = LONGEST_PAUSE_S
"""If a broker closes the consumer sooner than this after it attached, the feed pauses as after a refusal."""

_log = logging.getLogger("txnclient")


class Feed:
    """Keeps one segment attached; the base of consumers' and readers' feeds. A subclass defines how to subscribe and
    what a loss means."""

    def __init__(self, session: Session, receiver: FeedReceiver, segment: str, inbox: Inbox) -> None:
        """`segment` is its path; `inbox` decides how much to keep in flight and in the buffer."""
        self.segment = segment
        self._session = session
        self._receiver = receiver
        self._inbox = inbox
        self._link: Link | None = None
        self._consumer_id = 0
        self._attached = False
        self._unlisten: Callable[[], None] | None = None
        self._moved: MovedSegment | None = None
        self._lost = asyncio.Event()
        self._at_once = False
        """Attach again without a pause: the feed left on purpose, or its target is gone, which the next answer
        tells."""
        self._min_revision = 0
        self.paused = False
        """Whether what it has buffered is not handed out for now. It stays attached, and keeps its place."""
        self._closed = False
        self._last: TxnError | None = None
        """Why it does not try again once it cannot attach."""
        self._broken = False
        """▲ An entry cannot be handed out, so nothing behind it is: that would be a gap, and half a transaction."""
        self._task = session.tasks.start(self._stay_attached(), name=f"feed of {segment}", on_failed=self._failed)

    # ---- what differs -----------------------------------------------------------------------------------------------

    def _subscribe(self) -> pb.Subscribe:
        """The request, without consumer id, segment and revision."""
        raise NotImplementedError

    def _on_subscribed(self, ok: pb.SubscribeOk) -> None:
        """The broker has answered; nothing is delivered or acked before this."""

    def _on_attached(self, link: Link, consumer_id: int) -> None:
        """Deliveries may come from now on."""

    def _on_detached(self) -> None:
        """No more deliveries come."""

    def _wants(self, entry: ReceivedEntry) -> bool:
        """Whether a delivered entry is to be handed out."""
        return True

    def _on_entry(self, entry: ReceivedEntry) -> None:
        """An entry has been put into the inbox."""

    def _on_passed(self, pieces: list[Position]) -> None:
        """Pieces of large values were delivered that will never be complete."""

    def _on_nothing(self, through: Position) -> None:
        """No entry between the last delivered one and `through` will ever be delivered."""

    def _on_failed(self, error: TxnError) -> None:
        """The feed has given up attaching."""

    def _retries(self, error: TxnError) -> bool:
        """Whether to try again after the broker refused with an error that is not transient."""
        return False

    @property
    def _sharing(self) -> int:
        """The broker's last word on other consumers, see `Deliver.sharing`; 0: none."""
        return 0

    # ---- attaching --------------------------------------------------------------------------------------------------

    async def _stay_attached(self) -> None:
        backoff = Backoff(self._session.random)
        while not self._closed:
            try:
                await self._attach()
                if not await self._lost_soon():
                    backoff.reset()
                    continue
                if self._at_once:
                    continue
            except TxnError as error:
                if self._last is not None or not (isinstance(error, TRANSIENT) or self._retries(error)):
                    self._failed(self._last or error)
                    return
                _log.debug("attaching to segment://%s: %s", self.segment, error)
            await self._session.directory.wait_change(backoff.next_s())

    def hold_on(self, error: TxnError) -> None:
        """Its consumer is told of no further assignment, because of `error`: the feed keeps its broker while that has
        it, and fails with `error` once it cannot attach. ▲ It would ask for ever, and acks would wait for it."""
        self._last = error

    def _failed(self, error: TxnError) -> None:
        self._receiver.fail(error)
        self._on_failed(error)

    async def _lost_soon(self) -> bool:
        """Wait for the loss; whether it came soon. ▲ A successful attach proves nothing: a broker with a failing disk
        answers, then closes the consumer at the first read."""
        attached_s = self._session.clock.monotonic()
        await self._lost.wait()
        return self._session.clock.monotonic() - attached_s < SOON_S

    async def _attach(self) -> None:
        session = self._session
        deadline = Deadline(session.clock, ATTACH_TIMEOUT_S)
        link = await session.directory.owner_link(self.segment, deadline)
        request = self._subscribe()
        request.consumer_id = consumer_id = session.next_id()
        request.segment = self.segment
        request.min_revision = max(session.commit_revision, self._min_revision)
        self._link, self._consumer_id = link, consumer_id
        self._moved = MovedSegment(session, self.segment, link, self._leave_broker)
        self._at_once = False
        self._lost.clear()  # ▲ only now: a leave requested before attaching must not cause a second attach
        link.consumers[consumer_id] = self
        try:
            reply = await link.call(pb.Command(subscribe=request), timeout_s=deadline.remaining())
        except Timeout:
            self._leave_broker()  # ▲ the broker may have attached it, or may do so later
            raise
        except BaseException:
            self._detach()
            raise
        if self._link is not link or self._consumer_id != consumer_id:
            raise ConnectionLost("closed by the broker as soon as it was attached")
        self._on_subscribed(reply.subscribe_ok)
        self._attached = True
        self._unlisten = link.when_lost(self._detach)
        self._grant(self._inbox.attached())
        self._on_attached(link, consumer_id)

    def _detach(self) -> None:
        link = self._link
        if link is not None:
            link.consumers.pop(self._consumer_id, None)
            self._link = None
            self._consumer_id = 0
            self._attached = False
            if self._unlisten is not None:
                self._unlisten()
                self._unlisten = None
            if self._moved is not None:
                self._moved.stop()
                self._moved = None
            self._on_detached()
        self._lost.set()

    def _leave_broker(self) -> None:
        """Close the consumer at the broker, if it has one."""
        link, consumer_id = self._link, self._consumer_id
        if link is not None:
            self._at_once = True
        self._detach()
        if link is not None:
            link.push_if_open(pb.Command(close_consumer=pb.CloseConsumer(consumer_id=consumer_id)))

    def close(self) -> None:
        """Leave the broker and hand out nothing more."""
        self._closed = True
        self._leave_broker()
        self._inbox.drop_buffer()
        self._task.cancel()

    # ---- pushes -----------------------------------------------------------------------------------------------------

    def on_deliver(self, deliver: pb.Deliver) -> None:
        inbox = self._inbox
        self._session.told(deliver.revision)
        for delivered in () if self._broken else deliver.entries:
            position = Position(delivered.ledger_id, delivered.entry_id)
            try:
                entry = self._received(position, delivered)
                if self._wants(entry):
                    inbox.arrived(entry, delivered.skip)
                else:
                    inbox.left_out(entry, delivered.skip)
            except (DataCorrupt, Overloaded) as error:
                self._broken = True
                self._receiver.fail(type(error)(f"segment://{self.segment} at {position}: {error}"))
                break
            self._on_entry(entry)
        if deliver.HasField("passed") and not self._broken:
            self._on_nothing(Position(deliver.passed.ledger_id, deliver.passed.entry_id))
        self._pass_over()
        if inbox.buffered:
            self._receiver.ready(self)
        self._replenish()

    def _received(self, position: Position, delivered: pb.DeliveredEntry) -> ReceivedEntry:
        """Raises `DataCorrupt`."""
        return ReceivedEntry(
            self.segment,
            position,
            delivered.entry,
            delivered.redelivery_count,
            self._inbox,
            self._receiver.serializer,
        )

    def _pass_over(self) -> None:
        if passed := self._inbox.take_passed():
            self._on_passed(passed)

    def on_rewind(self) -> None:
        self._inbox.rewound()
        self._replenish()

    def on_end_of_segment(self, sealed: bool) -> None:
        """No new entries follow, only redeliveries."""
        if sealed:
            self._inbox.ended()
            self._pass_over()

    def on_consumer_closed(self, error: TxnError) -> None:
        _log.debug("closed by the broker of segment://%s: %s", self.segment, error)
        self._at_once = isinstance(error, SubscriptionNotFound | TopicNotFound)
        self._detach()

    # ---- handing out ------------------------------------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        return self._inbox.buffered

    def pause(self, paused: bool) -> None:
        self.paused = paused
        if not paused and self.buffered:
            self._receiver.ready(self)

    def take(self, at_most: int) -> list[Message[Any]]:
        messages = self._inbox.take(at_most)
        self._replenish()
        return messages

    def resume(self) -> None:
        """See `FeedSource`."""

    def set_window(self, window: int, window_bytes: int = UNBOUNDED_BYTES) -> None:
        self._inbox.set_window(max(1, window), window_bytes)
        self._replenish()

    def _replenish(self) -> None:
        if self._attached and (due := self._inbox.permits_due()):
            self._grant(due)

    def _grant(self, permits: int) -> None:
        """Grant permits. ▲ None after a failure: the receiver raises it as soon as the buffers are empty."""
        link = None if self._receiver.failed else self._link
        while link is not None and permits > 0:
            granted = min(permits, MAX_PERMITS)
            permits -= granted
            flow = pb.Flow(
                consumer_id=self._consumer_id,
                permits=granted,
                min_revision=self._session.commit_revision,
                sharing=self._sharing,
            )
            link.push_if_open(pb.Command(flow=flow))


def _nothing() -> None:
    return None


class SubscriptionFeed(Feed):
    """Feeds one segment of a subscription, and acks its messages."""

    def __init__(
        self,
        session: Session,
        receiver: FeedReceiver,
        segment: str,
        inbox: Inbox,
        terms: pb.Subscribe,
        life: Callable[[], int],
    ) -> None:
        """`terms`: the consumer's subscribe request; the consumer keeps its assignment epoch up to date. `life`: the
        revision at which the subscription was created, 0 if it is not known."""
        super().__init__(session, receiver, segment, inbox)
        self._terms = terms
        self._life = life
        self._after_abort = False
        """The feed left its broker because of an abort."""
        self._retiring: tuple[TxnError, Callable[[], None]] | None = None
        self.before_attaching: Callable[[], None] = _nothing
        """Called each time; the topic's layout has the segment by then."""
        self.acks = FeedAcks(session, segment, inbox, self, subscription=terms.subscription)

    # As `acks.AckOwner`. A stream redelivers everything unacked, and only in order.

    def aborted(self, revision: int) -> None:
        raise NotImplementedError

    def not_acked(self, bits: Mapping[Position, int], counts: Mapping[Position, int]) -> None:
        """Nothing to do: the application acks again, and a transaction's abort redelivers."""

    def refused(self, messages: Sequence[Message[Any]]) -> None:
        """Nothing to do: the transaction's abort redelivers them."""

    def start_over(self, min_revision: int = 0) -> None:
        """Request redelivery of everything unacked, once the broker has followed decisions to `min_revision`."""
        self._min_revision = max(self._min_revision, min_revision)
        self._inbox.rewound(given_back_s=self._session.clock.monotonic())
        self._leave_broker()

    def _subscribe(self) -> pb.Subscribe:
        self.before_attaching()
        request = pb.Subscribe()
        request.CopyFrom(self._terms)
        request.after_abort = self._after_abort
        return request

    def _on_subscribed(self, ok: pb.SubscribeOk) -> None:
        """▲ Acks of messages received before a seek are void, also those resent after the seek cut their connection or
        another consumer held the segment. So the subscription counts its seeks, and every message carries the count."""
        under = Under(self._terms.subscription, ok.seeks)
        if self._inbox.under is not None and under != self._inbox.under:
            self._inbox.sought()
        self._inbox.under = under
        self._after_abort = False
        self.acks.void_but(under)

    def _retries(self, error: TxnError) -> bool:
        # Assignments and layouts arrive by different ways: a drained, pruned segment soon leaves the assignment too. A
        # deleted topic has no layout.
        # ▲ Unless the error is about an earlier topic of the name: this client may hear of its deletion after it has
        # joined the next topic's subscription, and a consumer that gave up would never get the next topic's messages.
        directory, topic = self._session.directory, topic_of_segment(self.segment)
        heard_late = 0 < directory.absent_through(topic) < self._life()
        return isinstance(error, TopicNotFound) and (directory.known_layout(topic) is not None or heard_late)

    def _on_failed(self, error: TxnError) -> None:
        self.acks.close(for_good(error))  # C6: otherwise they would wait for their timeout

    def _on_attached(self, link: Link, consumer_id: int) -> None:
        self.acks.attached(link, consumer_id)

    def _on_passed(self, pieces: list[Position]) -> None:
        # No other consumer can complete them either, and they would hold the cursor back for ever.
        self.acks.ack_passed(pieces, self._session.deadline())

    @property
    def attachment(self) -> int:
        """A number that changes after each loss."""
        return self._consumer_id

    def on_deliver(self, deliver: pb.Deliver) -> None:
        if self._retiring is None:
            super().on_deliver(deliver)

    def delivered_before(self, place: int) -> UpTo | None:
        """How far the segment was handed out, unacked, before that place in the consumer's order."""
        delivered = self._inbox.delivered
        return None if delivered is None else delivered.before(place)

    def retire(self, error: TxnError, on_retired: Callable[[], None]) -> None:
        """The segment has left this consumer: hand out nothing more, and wait for acks under way: the last of them may
        have drained the segment. If the broker closes the consumer or is lost, they fail with `error`."""
        self._retiring = error, on_retired
        self._inbox.drop_buffer()
        self.acks.when_answered(self._retired)
        self._inbox.left()
        if self._link is None:
            self._retired()

    def _retired(self) -> None:
        if self._retiring is not None:
            (error, on_retired), self._retiring = self._retiring, None
            self.close_with(error)
            on_retired()

    def _detach(self) -> None:
        super()._detach()
        self._retired()

    def close_with(self, error: TxnError) -> None:
        """The segment has left this consumer: fail its acks with `error`."""
        self.close()
        self.acks.close(error)


class StreamFeed(SubscriptionFeed):
    """Feeds a segment assigned to a consumer of a stream subscription."""

    def aborted(self, revision: int) -> None:
        self._after_abort = True
        self.start_over(revision)

    def _on_detached(self) -> None:
        if self.acks.in_named:
            # ▲ Another client may end a named transaction. Only the broker's rewind announces that redelivery, and it
            # is lost with the connection: old messages would then come among newer ones, as if in order.
            self._inbox.rewound()
        else:
            self._inbox.drop_buffer()
        self.acks.detached()

    def _retries(self, error: TxnError) -> bool:
        # Broker or client may not have seen the newest assignment yet, or a parent must be drained first.
        return isinstance(error, NotAllowed) or super()._retries(error)
