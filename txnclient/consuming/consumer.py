"""A consumer of a subscription: of a stream (in order per key, each segment with one consumer at a time) or of a queue
(any message to any consumer)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.connection.tasks import OwnedTasks
from txnclient.connection.topic_layout import topic_of_segment
from txnclient.consuming import seeking
from txnclient.consuming.dead_letters import DeadLetterPolicy, DeadLetters, Services
from txnclient.consuming.delivered import Delivered, DeliveryOrder, place_of
from txnclient.consuming.feed import StreamFeed, SubscriptionFeed
from txnclient.consuming.inbox import Inbox, QueueInbox
from txnclient.consuming.membership import ConsumerMembership
from txnclient.consuming.message import Message
from txnclient.consuming.pace import QueuePace
from txnclient.consuming.queue_feed import QueueFeed
from txnclient.consuming.receiver import Receiver
from txnclient.consuming.starts import StartArgument, check_prefetch, isolation_to_wire, start_to_wire, topics_of
from txnclient.serializers import Serializer, V
from txnclient.transactions.transaction import FENCED_LIKE, Transaction, check_transaction, reason_of
from txnclient.transactions.whole import failure_in
from txnwire.errors import InvalidArgument, NotAllowed, TxnError, again, for_good
from txnwire.ids import MessageId
from txnwire.names import validate_name
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_DELAY_MS

_TYPES = {"stream": pb.SUBSCRIPTION_TYPE_STREAM, "queue": pb.SUBSCRIPTION_TYPE_QUEUE}


class Consumer(Generic[V]):
    """Receives and acks messages of a subscription; made by `client.consumer(topics, subscription)`.

    For a stream the controller assigns segments, and may move them to other consumers at any time. Messages not acked
    by then, or acked in a transaction that aborts, are delivered again to the segment's current consumer. For a queue
    every consumer is attached to all segments, and unacked messages are delivered again to any of them.
    """

    def __init__(
        self,
        session: Session,
        topics: str | Sequence[str],
        subscription: str,
        *,
        type: str,
        start: StartArgument,
        isolation: str,
        name: str | None,
        prefetch: int,
        prefetch_bytes: int,
        redelivery_delay: float,
        services: Services,
        dead_letters: DeadLetterPolicy | None,
        serializer: Serializer[V] | None,
        on_closed: Callable[[Consumer[V]], None],
    ) -> None:
        if type not in _TYPES:
            raise InvalidArgument(f"subscription type {type!r} is unknown: use 'stream' or 'queue'")
        if dead_letters is not None and type != "queue":
            raise InvalidArgument("max_redeliveries is for queue subscriptions: a stream goes on only behind a message")
        _check_delay(redelivery_delay, "redelivery_delay")
        check_prefetch(prefetch, prefetch_bytes)
        self.type = type
        isolation_to_wire(isolation)
        self.subscription = validate_name(subscription, part="subscription")
        self.incarnation = session.random_u64()
        self.name = validate_name(name or f"consumer-{self.incarnation:016x}", part="consumer name")
        self.topics = topics_of(topics)
        if dead_letters is not None:
            dead_letters.check(self.topics, self.subscription)
        self._tasks = OwnedTasks()
        self._session = session.with_tasks(self._tasks)
        self.services = services
        """For `processing`, which works for the consumer."""
        self._prefetch = prefetch
        self._prefetch_bytes = prefetch_bytes
        self._redelivery_delay = redelivery_delay
        self._isolation = isolation_to_wire(isolation)
        self._receiver = Receiver(session, f"consumer {self.name}", serializer)
        self._order = DeliveryOrder()
        self._feeds: dict[str, SubscriptionFeed] = {}
        self._retiring: dict[SubscriptionFeed, None] = {}
        """Feeds of segments that have left this consumer, with acks under way."""
        self._terms: dict[str, pb.Subscribe] = {}
        self._dead_letters = (
            None
            if dead_letters is None
            else DeadLetters(
                self._session,
                dead_letters,
                self.subscription,
                redelivery_delay_s=redelivery_delay,
                on_failed=self._receiver.fail,
            )
        )
        self._on_closed = on_closed
        self._closed = False
        self._memberships = [
            ConsumerMembership(
                self._session,
                pb.JoinSubscription(
                    topic=topic,
                    subscription=subscription,
                    type=_TYPES[type],
                    start=start_to_wire(start),
                    consumer=self.name,
                    incarnation=self.incarnation,
                    isolation=self._isolation,
                ),
                on_assignment=self._assigned,
                on_failed=self._receiver.fail,
                outliving=session.tasks,
            )
            for topic in self.topics
        ]

    def __repr__(self) -> str:
        what = f"{self.subscription}: {self.type} of {', '.join(self.topics)}"
        return f"Consumer({what}, {self.name}{', closed' * self._closed})"

    async def open(self, deadline: Deadline) -> None:
        """Join every topic's subscription. Raises `TopicNotFound`, `NotAllowed`, `Timeout`."""
        for topic in self.topics:
            await self._session.directory.layout(topic, deadline)
        for membership in self._memberships:
            await membership.join(deadline)

    @property
    def has_buffered(self) -> bool:
        """Whether there is something to receive without waiting."""
        return any(feed.buffered for feed in self._feeds.values())

    @property
    def session(self) -> Session:
        return self._session

    @property
    def segments(self) -> list[str]:
        """Paths of the segments assigned to this consumer now."""
        return sorted(self._feeds)

    # ---- assignment -------------------------------------------------------------------------------------------------

    def _assigned(self, assignment: pb.Assignment) -> None:
        if self._closed:
            return
        terms = self._terms.setdefault(assignment.topic, self._new_terms())
        terms.assignment_epoch = assignment.epoch
        mine = dict.fromkeys(assignment.segments)
        prefix = assignment.topic.partition("://")[2] + "/"
        for path in [path for path in self._feeds if path.startswith(prefix) and path not in mine]:
            self._retire(self._feeds.pop(path))
        added = [path for path in mine if path not in self._feeds]
        feeds = max(1, len(self._feeds) + len(added))
        window, window_bytes = max(1, self._prefetch // feeds), max(1, self._prefetch_bytes // feeds)
        for feed in self._feeds.values():
            feed.set_window(window, window_bytes)
        for path in added:
            self._feeds[path] = self._new_feed(path, window, window_bytes, terms)

    def _retire(self, feed: SubscriptionFeed) -> None:
        self._retiring[feed] = None
        feed.retire(
            NotAllowed(f"segment://{feed.segment} is drained, or another consumer's, which gets what is not acked"),
            lambda: self._retiring.pop(feed, None) and None,
        )

    def _new_feed(self, path: str, window: int, window_bytes: int, terms: pb.Subscribe) -> SubscriptionFeed:
        life = partial(self._life_of, topic_of_segment(path))
        if self.type == "queue":
            queue = QueueInbox(window, window_bytes=window_bytes, pace=QueuePace(window))
            return QueueFeed(self._session, self._receiver, path, queue, terms, life, self._dead_letters)
        delivered = Delivered(self._order, path)
        inbox = Inbox(window, keeps_holds=True, window_bytes=window_bytes, delivered=delivered)
        return StreamFeed(self._session, self._receiver, path, inbox, terms, life)

    def _life_of(self, topic: str) -> int:
        """The revision at which the subscription was created on a topic; 0 before the controller has said."""
        return max((one.life for one in self._memberships if one.topic == topic), default=0)

    def _new_terms(self) -> pb.Subscribe:
        return pb.Subscribe(
            subscription=self.subscription,
            type=_TYPES[self.type],
            isolation=self._isolation,
            consumer=self.name,
            incarnation=self.incarnation,
        )

    # ---- receiving --------------------------------------------------------------------------------------------------

    async def receive(self, timeout: float | None = None) -> Message[V]:
        """The next message. Raises `Timeout` when none has come within `timeout` seconds (None: the client's
        timeout)."""
        messages = await self.receive_many(1, timeout)
        if not messages:
            waited = self._session.timeout_s if timeout is None else timeout
            raise Deadline(self._session.clock, waited).expired(f"receiving on consumer {self.name}")
        return messages[0]

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> list[Message[V]]:
        """The buffered messages, at least one and at most `max_messages`; an empty list when `timeout` seconds have
        passed."""
        deadline = self._session.deadline(timeout)
        while True:
            messages = self._receiver.take_many(max_messages)
            if messages or not await self._receiver.wait(deadline.remaining()):
                return messages

    async def receive_batch(
        self, max_messages: int, max_bytes: int, timeout: float | None, *, at_once: int = 1, more: bool = False
    ) -> list[Message[V]]:
        """As `receive_many`, with about `max_bytes`; a timeout of None waits without limit. `at_once`: how many the
        application works on together; `more`: see `Receiver.take`."""
        self._receiver.at_once = at_once
        deadline = None if timeout is None else self._session.deadline(timeout)
        while not (taken := self._receiver.take(1, more=more)):
            if not await self._receiver.wait(None if deadline is None else deadline.remaining()):
                return []
        size = share_bytes(taken[0])
        while len(taken) < max_messages and size < max_bytes:
            # As many as fit if they have the average size of those so far.
            fitting = max(1, (max_bytes - size) * len(taken) // max(1, size))
            further = self._receiver.take(min(max_messages - len(taken), fitting), more=True)
            if not further:
                break
            taken += further
            size += sum(share_bytes(message) for message in further)
        return taken

    def __aiter__(self) -> Consumer[V]:
        return self

    async def __anext__(self) -> Message[V]:
        """Waits without limit; ends when the consumer is closed."""
        while True:
            messages = self._receiver.take(1)
            if messages:
                return messages[0]
            if self._closed:
                raise StopAsyncIteration
            try:
                await self._receiver.wait(None)
            except InvalidArgument:
                if not self._closed:  # it was closed meanwhile
                    raise

    # ---- acking -----------------------------------------------------------------------------------------------------

    async def ack(self, messages: Message[Any] | Iterable[Message[Any]], *, txn: Transaction | None = None) -> None:
        """Ack messages, at once or when `txn` commits.

        Raises `TxnConflict` (another transaction has acked one of them, or it is delivered again: this one can only
        abort), `InvalidTxnState`, `NotAllowed` if a segment has left this consumer, `Timeout`; a fenced client raises
        `ExpiredTransaction` instead. A transaction in which an ack has failed or was cancelled can only abort.
        """
        await self._expect_open()
        await self._acked(txn, lambda: _all_answered(self.ack_nowait(messages, txn=txn)))

    async def _acked(self, txn: Transaction | None, start: Callable[[], Awaitable[None]]) -> None:
        """▲ C1: a caller may take a cancelled ack for not done and ack the messages in another way."""
        if txn is not None:
            check_transaction(txn, "ack")
        try:
            await start()
        except BaseException as error:
            if txn is not None:
                txn.failed(failure_in(txn, "an ack", error))
            if isinstance(error, FENCED_LIKE):
                raise await reason_of(error, txn) from error.__cause__
            raise

    def ack_nowait(
        self, messages: Message[Any] | Iterable[Message[Any]], *, txn: Transaction | None = None
    ) -> list[asyncio.Future[None]]:
        """As `ack`, without waiting for the answers. Callers may share the futures: do not cancel them. In a
        transaction they may be ignored: its commit waits for them and raises their failure."""
        self._session.expect_here()
        deadline = self._session.deadline()
        if txn is not None:
            check_transaction(txn, "ack")
        answers: list[asyncio.Future[None]] = []
        refused: TxnError | None = None
        for segment, group in _by_segment(messages).items():
            try:
                answers += self._feed(segment, txn).acks.ack(group, txn, deadline)
            except TxnError as error:
                refused = refused or error
        if refused is not None:
            if txn is not None:
                txn.failed(refused)  # ▲ C1: it would commit without this ack, since callers may ignore answers
            failed: asyncio.Future[None] = self._session.loop.create_future()
            failed.set_exception(refused)
            failed.exception()
            answers.append(failed)
        return answers

    async def ack_cumulative(self, message: Message[Any], *, txn: Transaction | None = None) -> None:
        """For a stream: ack `message` and every message this consumer received before it, in every segment.

        It skips unacked messages of a segment that has left the consumer since, or that is delivered again after an
        abort: they come again, here or elsewhere. In a transaction that raises `TxnConflict`. It skips messages from
        before a `rewind` or a `seek`. Raises as `ack` does, naming the segment; the acks of the others stand, and the
        call may be repeated.
        """
        await self._expect_open()
        if self.type == "queue":
            raise InvalidArgument("a queue subscription has no order to ack up to: ack its messages one by one")
        if not isinstance(message, Message):
            raise _no_message(message)
        await self._acked(txn, lambda: self._ack_up_to(message, txn))

    async def _ack_up_to(self, message: Message[Any], txn: Transaction | None) -> None:
        segment, holder, deadline = message.entry.segment, message.entry.holder, self._session.deadline()
        by_us = isinstance(holder, Inbox) and holder.delivered is not None and holder.delivered.order is self._order
        place = place_of(message) if by_us else 0
        answers: dict[str, list[asyncio.Future[None]]] = {}
        refused: TxnError | None = None
        try:
            # ▲ A transaction has processed the messages handed out before: if it committed without their ack, they
            # would be processed twice.
            if txn is None:
                self._order.forget_lost(place)
            else:
                self._order.check_nothing_lost(place, begun_s=txn.begun_s)
        except TxnError as error:
            refused = error
        # ▲ Also if one segment refuses: an abort must redeliver all that the transaction was to ack, or the next
        # cumulative ack would include unprocessed messages. Outside one, the other segments would not move on.
        for path in dict.fromkeys((segment, *self._feeds)):
            try:
                if path == segment:
                    answers[path] = self._feed(path, txn).acks.ack_cumulative(message, txn, deadline)
                elif (up_to := self._feeds[path].delivered_before(place)) is not None:
                    answers[path] = self._feeds[path].acks.ack_up_to(up_to, txn, deadline)
            except TxnError as error:
                refused = refused or _of_segment(path, error)
        if refused is not None and txn is not None:
            txn.failed(refused)
        await _answered_by(answers)
        if refused is not None:
            raise refused

    async def _expect_open(self) -> None:
        """Raises `InvalidArgument` if it is closed or belongs to another event loop. ▲ C6: a caller that ignores the
        error and calls again must not block the event loop."""
        if self._closed or not self._session.is_here:
            await asyncio.sleep(0)
            self._session.expect_here()
            raise for_good(InvalidArgument(f"consumer {self.name} is closed"))

    def _feed(self, segment: str, txn: Transaction | None) -> SubscriptionFeed:
        if self._closed:
            raise for_good(InvalidArgument(f"consumer {self.name} is closed"))
        feed = self._feeds.get(segment)
        if feed is None:
            error = NotAllowed(
                f"segment://{segment} is not, or no longer, assigned to consumer {self.name}: its messages come again, "
                "to whoever has it; go on receiving"
            )
            if txn is not None:
                txn.failed(error)
            raise error
        return feed

    async def nack(self, messages: Message[Any] | Iterable[Message[Any]], *, delay: float | None = None) -> None:
        """For a queue: request redelivery after `delay` seconds (None: the consumer's redelivery_delay), to any
        consumer, with a redelivery_count of one more.

        Skips messages no longer held (acked, given back, received over a lost connection).
        """
        await self._expect_open()
        if self.type != "queue":
            raise InvalidArgument("a stream goes on in order: rewind() has all delivered again that is not acked")
        delay_s = self._redelivery_delay if delay is None else delay
        _check_delay(delay_s, "a delay")
        answers: list[asyncio.Future[None]] = []
        refused: TxnError | None = None
        for segment, group in _by_segment(messages).items():
            try:
                feed = self._feed(segment, None)
            except TxnError as error:
                # ▲ Give back the rest all the same: otherwise it would stay held here unprocessed.
                refused = refused or error
                continue
            assert isinstance(feed, QueueFeed)
            answers += feed.nack_nowait(group, delay_s)
        await _all_answered(answers)
        if refused is not None:
            raise refused

    async def seek(self, start: StartArgument, *, timeout: float | None = None) -> None:
        """Move the subscription, for all its consumers, to `start` in all segments: "earliest", "latest", a timestamp
        in ms, an aware datetime, or a MessageId. With a MessageId other segments start at their earliest message, and
        ancestors of its segment are skipped.

        Acked messages from `start` on are delivered again; messages received before the seek can no longer be acked
        (`NotAllowed`). Waits for open transactions that have acked. Raises `Timeout` or another retriable error: some
        segments may have been moved, repeat it.
        """
        await self._expect_open()
        attachments = {path: feed.attachment for path, feed in self._feeds.items()}
        await seeking.seek(self._session, self.topics, self.subscription, start, self._session.deadline(timeout))
        for path, feed in self._feeds.items():
            # The broker closes the consumer before it answers, so no older message is handed out, unless the close
            # was lost.
            if feed.attachment and attachments.get(path) == feed.attachment:
                feed.start_over()
        self._order.forget_lost()

    def rewind(self) -> None:
        """For a stream: request redelivery of all unacked messages from the earliest on, as after an aborted
        transaction. For a queue: give back all held messages, as after a lost connection.

        Use it for messages that were received but, after a failure, not acked in any way.
        """
        self._session.expect_here()
        for feed in self._feeds.values():
            feed.start_over()
        self._order.forget_lost()

    # ---- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Give the segments back and leave the subscription; bounded, idempotent. Acks under way fail."""
        if self._closed:
            return
        self._session.expect_here()
        self._closed = True
        self._on_closed(self)
        self._receiver.close()
        try:
            if self._dead_letters is not None:
                await self._dead_letters.close()
        finally:
            await self._leave()

    async def _leave(self) -> None:
        """▲ C5: send every close and leave before the first await: a cancelled close would leave segments and messages
        with a closed consumer for as long as the client is connected."""
        for feed in [*self._feeds.values(), *self._retiring]:
            feed.close_with(InvalidArgument(f"consumer {self.name} was closed before this ack was answered"))
        self._feeds.clear()
        answers = [answer for membership in self._memberships if (answer := membership.leave_nowait()) is not None]
        try:
            await asyncio.gather(*answers, return_exceptions=True)
        finally:
            await self._tasks.close()

    async def __aenter__(self) -> Consumer[V]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _by_segment(messages: Message[Any] | Iterable[Message[Any]]) -> dict[str, list[Message[Any]]]:
    by_segment: dict[str, list[Message[Any]]] = {}
    message: object = messages
    try:
        for message in (messages,) if isinstance(messages, Message) else messages:
            by_segment.setdefault(message.entry.segment, []).append(message)
    except (AttributeError, TypeError) as error:
        if isinstance(message, Message):
            raise  # raised by the caller's iterable
        raise _no_message(messages if isinstance(messages, str | MessageId) else message) from error
    return by_segment


def _check_delay(delay_s: object, what: str) -> None:
    """Raises `InvalidArgument`. ▲ Before any message is given back: one that brokers refuse would belong to no
    consumer."""
    if not isinstance(delay_s, int | float) or not 0 <= delay_s <= MAX_DELAY_MS / 1000:
        raise InvalidArgument(f"{what} is a number of seconds, 0 to {MAX_DELAY_MS // 1000}, not {delay_s!r}")


def _no_message(found: object) -> InvalidArgument:
    return InvalidArgument(f"expected a message as it was received, or several, not {type(found).__name__}")


def share_bytes(message: Message[Any]) -> int:
    """About its size in bytes: its share of its entry."""
    return message.entry.stored_bytes // message.entry.count


def _of_segment(segment: str, error: TxnError) -> TxnError:
    """The error with its segment named."""
    if segment in str(error):
        return error
    named = again(error)
    named.args = (f"segment://{segment}: {error}",)
    return named


async def _answered_by(answers: Mapping[str, list[asyncio.Future[None]]]) -> None:
    """As `_all_answered`, for several segments."""
    futures = [answer for each in answers.values() for answer in each]
    if futures:
        await asyncio.wait(futures)
    for segment, each in answers.items():
        for answer in each:
            error = answer.exception()
            if error is not None:
                raise _of_segment(segment, error) if isinstance(error, TxnError) else error


async def _all_answered(answers: list[asyncio.Future[None]]) -> None:
    """Wait for all, then raise the first failure. The futures are shared: a caller's cancellation leaves them alone."""
    if answers:
        await asyncio.wait(answers)
    for answer in answers:
        answer.result()
