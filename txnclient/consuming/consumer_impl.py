"""Implements the consumer of a subscription: of a stream (in order per key, each segment with one consumer at a time)
or of a queue (any message to any consumer)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic

from txnclient.connection.deadlines import Backoff, Deadline
from txnclient.connection.session import Session
from txnclient.connection.tasks import OwnedTasks
from txnclient.connection.topic_changes import delete_subscription
from txnclient.consuming.assigned_feeds import AssignedFeeds, ConsumerIdentity, ConsumerSettings, check_delay
from txnclient.consuming.feeds.dead_letters import DeadLetterPolicy, DeadLetters, Services
from txnclient.consuming.feeds.feed import SubscriptionFeed
from txnclient.consuming.feeds.inbox import Inbox
from txnclient.consuming.feeds.queue_feed import QueueFeed
from txnclient.consuming.feeds.receiver import Receiver
from txnclient.consuming.places import seeking
from txnclient.consuming.places.lag import Lag, subscription_lag, subscription_positions
from txnclient.consuming.places.positions import Positions
from txnclient.consuming.places.starts import StartArgument
from txnclient.consuming.received.by_segment import (
    all_answered,
    answered_by,
    by_segment,
    no_message,
    of_segment,
    share_bytes,
)
from txnclient.consuming.received.delivered import DeliveryOrder, place_of
from txnclient.consuming.received.message import Message
from txnclient.consuming.topic_pattern import FollowedTopics, TopicPattern
from txnclient.serializers import Serializer, V
from txnclient.transactions.outcome import TransactionState
from txnclient.transactions.transaction import Transaction, transaction_impl
from txnclient.transactions.transaction_impl import FENCED_LIKE, TransactionImpl, check_transaction, reason_of
from txnclient.transactions.whole import failure_in
from txnwire.errors import (
    InvalidArgument,
    NotAllowed,
    SubscriptionNotFound,
    TopicNotFound,
    TxnError,
    for_good,
)
from txnwire.names import validate_name

_log = logging.getLogger("txnclient")


class ConsumerImpl(Generic[V]):
    """Implements one `Consumer`, which documents the public calls."""

    def __init__(
        self,
        session: Session,
        settings: ConsumerSettings,
        *,
        services: Services,
        dead_letters: DeadLetterPolicy | None,
        serializer: Serializer[V] | None,
        on_closed: Callable[[ConsumerImpl[V]], None],
    ) -> None:
        """`services`: for `processing`, which works for the consumer."""
        if dead_letters is not None and settings.type != "queue":
            raise InvalidArgument("max_redeliveries is for queue subscriptions: a stream goes on only behind a message")
        self.type, self.subscription = settings.type, settings.subscription
        self.incarnation = session.random_u64()
        self.name = validate_name(settings.name or f"consumer-{self.incarnation:016x}", part="consumer name")
        self.services = services
        self._tasks = OwnedTasks()
        self._client = session
        self._session = session.with_tasks(self._tasks)
        self._redelivery_delay = settings.redelivery_delay
        self._receiver = Receiver(session, f"consumer {self.name}", serializer)
        self._order = DeliveryOrder()
        self._dead_letters: DeadLetters | None = None
        if dead_letters is not None:
            dead_letters.check(settings.topics, self.subscription)
            self._dead_letters = DeadLetters(
                self._session,
                dead_letters,
                self.subscription,
                redelivery_delay_s=settings.redelivery_delay,
                on_failed=self._receiver.fail,
            )
        identity = ConsumerIdentity(self.name, self.incarnation)
        self._assigned = AssignedFeeds(
            self._session, settings, identity, self._receiver, self._order, self._dead_letters, outliving=session.tasks
        )
        self._feeds = self._assigned.by_path
        self._policy = dead_letters
        self._followed: FollowedTopics | None = None
        self._following: asyncio.Task[None] | None = None
        if settings.topics_pattern is not None:
            pattern = TopicPattern(settings.topics_pattern, left_out=self._is_dead_letter_topic)
            self._followed = FollowedTopics(self._session, pattern, self)
            self._assigned.on_left = self._followed.left
        self._on_closed = on_closed
        self._closed = False
        self._all_closed = asyncio.Event()

    def __repr__(self) -> str:
        what = f"{self.subscription}: {self.type} of {', '.join(self.topics)}"
        return f"Consumer({what}, {self.name}{', closed' * self._closed})"

    async def open(self, deadline: Deadline) -> None:
        """Join every topic's subscription. Raises `TopicNotFound`, `NotAllowed`, `Timeout`."""
        await self._assigned.join(deadline)
        if self._followed is not None:
            await self._followed.join(deadline)
            self._following = self._tasks.start(
                self._follow(self._followed), name="topics of a consumer", on_failed=self._receiver.fail
            )

    # ---- topics by a pattern ----------------------------------------------------------------------------------------

    @property
    def topics(self) -> list[str]:
        return self._assigned.topics

    def check_topic(self, topic: str) -> None:
        """See `topic_pattern.JoinedTopics`."""
        if self._policy is not None:
            self._policy.check([topic], self.subscription)

    async def join_topic(self, topic: str, deadline: Deadline, *, later: bool) -> None:
        """See `topic_pattern.JoinedTopics`."""
        await self._assigned.join_topic(topic, deadline, later=later)

    async def _follow(self, followed: FollowedTopics) -> None:
        try:
            await followed.follow()
        except TxnError as error:
            self._receiver.fail(error)

    def _is_dead_letter_topic(self, topic: str) -> bool:
        """▲ A pattern may match where dead letters go: they would come back to the consumer for ever."""
        named = self._policy is not None and topic == self._policy.topic
        return named or topic.endswith(f"-{self.subscription}-DLQ")

    @property
    def has_buffered(self) -> bool:
        """Whether there is something to receive without waiting."""
        return any(feed.buffered and not feed.paused for feed in self._feeds.values())

    @property
    def session(self) -> Session:
        return self._session

    @property
    def segments(self) -> list[str]:
        """Paths of the segments assigned to this consumer now."""
        return sorted(self._feeds)

    async def lag(self) -> Lag:
        """See `Consumer.lag`."""
        await self._expect_open()
        by_pattern = self._followed is not None
        return await subscription_lag(self._session, self.topics, self.subscription, by_pattern=by_pattern)

    async def positions(self) -> Positions:
        """See `Consumer.positions`."""
        await self._expect_open()
        return await subscription_positions(self._session, self.topics, self.subscription)

    def pause(self, segments: Iterable[str] | None = None) -> None:
        """See `Consumer.pause`."""
        self._session.expect_here()
        self._assigned.pauses.pause(segments)
        self._assigned.apply_pauses()

    def resume(self, segments: Iterable[str] | None = None) -> None:
        """See `Consumer.resume`."""
        self._session.expect_here()
        self._assigned.pauses.resume(segments)
        self._assigned.apply_pauses()

    @property
    def paused(self) -> list[str]:
        """Paths of its segments that are paused."""
        return sorted(path for path, feed in self._feeds.items() if feed.paused)

    # ---- receiving --------------------------------------------------------------------------------------------------

    async def receive(self, timeout: float | None = None) -> Message[V]:
        """See `Consumer.receive`."""
        messages = await self.receive_many(1, timeout)
        if not messages:
            raise self._session.deadline(timeout).expired(f"receiving on consumer {self.name}")
        return messages[0]

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> list[Message[V]]:
        """See `Consumer.receive_many`."""
        deadline = None if timeout is None else self._session.deadline(timeout)
        while True:
            messages = self._receiver.take_many(max_messages)
            if messages or not await self._receiver.wait(None if deadline is None else deadline.remaining()):
                return messages

    async def receive_batch(
        self, max_messages: int, max_bytes: int, timeout: float | None, *, at_once: int = 1
    ) -> list[Message[V]]:
        """As `receive_many`, with about `max_bytes`; a timeout of None waits without limit. `at_once`: how many the
        application works on together."""
        self._receiver.at_once = at_once
        deadline = None if timeout is None else self._session.deadline(timeout)
        while not (taken := self._receiver.take(1, of=max_messages)):
            if not await self._receiver.wait(None if deadline is None else deadline.remaining()):
                return []
        size = share_bytes(taken[0])
        while len(taken) < max_messages and size < max_bytes:
            # As many as fit if they have the average size of those so far.
            fitting = max(1, (max_bytes - size) * len(taken) // max(1, size))
            more = self._receiver.take_on(min(max_messages - len(taken), fitting))
            if not more:
                break
            taken += more
            size += sum(share_bytes(message) for message in more)
        return taken

    async def next(self) -> Message[V]:
        """Waits without limit; ends when the consumer is closed."""
        self._receiver.at_once = 1
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

    async def ack(self, messages: Message[Any] | Iterable[Message[Any]], *, txn: TransactionImpl | None = None) -> None:
        """See `Consumer.ack`."""
        await self._expect_open()
        await self._acked(txn, lambda: all_answered(self.ack_nowait(messages, txn=txn)))

    async def _acked(self, txn: TransactionImpl | None, start: Callable[[], Awaitable[None]]) -> None:
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
        self, messages: Message[Any] | Iterable[Message[Any]], *, txn: TransactionImpl | None = None
    ) -> list[asyncio.Future[None]]:
        """As `ack`, without waiting for the answers. Callers may share the futures: do not cancel them. In a
        transaction they may be ignored: its commit waits for them and raises their failure."""
        self._session.expect_here()
        deadline = self._session.deadline()
        if txn is not None:
            check_transaction(txn, "ack")
        answers: list[asyncio.Future[None]] = []
        refused: TxnError | None = None
        for segment, group in by_segment(messages).items():
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

    async def ack_cumulative(self, message: Message[Any], *, txn: TransactionImpl | None = None) -> None:
        """See `Consumer.ack_cumulative`."""
        await self._expect_open()
        if self.type == "queue":
            raise InvalidArgument("a queue subscription has no order to ack up to: ack its messages one by one")
        if not isinstance(message, Message):
            raise no_message(message)
        await self._acked(txn, lambda: self._ack_up_to(message, txn))

    async def _ack_up_to(self, message: Message[Any], txn: TransactionImpl | None) -> None:
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
        # ▲ Acks the others even if one segment refuses: an abort must redeliver all that the transaction was to ack, or
        # the next cumulative ack covers unprocessed messages. Outside one, the other segments would not move on.
        for path in dict.fromkeys((segment, *self._feeds)):
            try:
                if path == segment:
                    answers[path] = self._feed(path, txn).acks.ack_cumulative(message, txn, deadline)
                elif (up_to := self._feeds[path].delivered_before(place)) is not None:
                    answers[path] = self._feeds[path].acks.ack_up_to(up_to, txn, deadline)
            except TxnError as error:
                refused = refused or of_segment(path, error)
        if refused is not None and txn is not None:
            txn.failed(refused)
        await answered_by(answers)
        if refused is not None:
            raise refused

    async def _expect_open(self) -> None:
        """Raises `InvalidArgument` if it is closed or belongs to another event loop. ▲ C6: a caller that ignores the
        error and calls again must not block the event loop."""
        if self._closed or not self._session.is_here:
            await asyncio.sleep(0)
            self._session.expect_here()
            raise for_good(InvalidArgument(f"consumer {self.name} is closed"))

    def _feed(self, segment: str, txn: TransactionImpl | None) -> SubscriptionFeed:
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
        """See `Consumer.nack`."""
        await self._expect_open()
        if self.type != "queue":
            raise InvalidArgument("a stream delivers in order: rewind() gets all unacked messages delivered again")
        delay_s = self._redelivery_delay if delay is None else delay
        check_delay(delay_s, "a delay")
        answers: list[asyncio.Future[None]] = []
        refused: TxnError | None = None
        for segment, group in by_segment(messages).items():
            try:
                feed = self._feed(segment, None)
            except TxnError as error:
                # ▲ Still give back the other segments' messages: otherwise they would stay held here unprocessed.
                refused = refused or error
                continue
            assert isinstance(feed, QueueFeed)
            answers += feed.nack_nowait(group, delay_s)
        await all_answered(answers)
        if refused is not None:
            raise refused

    async def seek(self, start: StartArgument, *, timeout: float | None = None) -> None:
        """See `Consumer.seek`."""
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
        """See `Consumer.rewind`."""
        self._session.expect_here()
        for feed in self._feeds.values():
            feed.start_over()
        self._order.forget_lost()

    # ---- messages of one transaction --------------------------------------------------------------------------------

    async def begin_with(self, messages: Sequence[Message[Any]], timeout_s: float) -> Transaction:
        """Begin a transaction that acks `messages`; if that fails, give them back."""
        await self._expect_open()
        by_segment(messages)
        try:
            txn = await self.services.begin(timeout=timeout_s)
        except BaseException:
            await self._give_back(messages)
            raise
        try:
            self.ack_nowait(messages, txn=transaction_impl(txn))
        except BaseException as error:
            await self.undo_with(txn, messages, error)
            raise
        return txn

    async def commit_with(self, txn: Transaction, messages: Sequence[Message[Any]]) -> None:
        """Commit, or give the messages back and raise why."""
        try:
            await txn.commit()
        except BaseException as error:
            committed = await self.undo_with(txn, messages, error)
            if not committed or not isinstance(error, TxnError):
                raise

    async def undo_with(self, txn: Transaction, messages: Sequence[Message[Any]], error: BaseException) -> bool:
        """Abort because of `error` and give the messages back; True: it has committed, so they stay acked.

        ▲ A stream starts over only once the outcome is definite, or the transaction has certainly timed out: while it
        is open, its acked messages are not redelivered, and messages behind them would be handled first. A closed
        consumer does not start over, and the client may no longer be able to ask."""
        impl = transaction_impl(txn)
        try:
            await impl.abort_because(error)
            if self.type == "stream" and isinstance(error, Exception):
                backoff = Backoff(self._session.random)
                while impl.undecided and not self._closed and self._session.clock.monotonic() <= impl.expires_at:
                    await asyncio.sleep(backoff.next_s())
                    await self._abort_again(impl)
        finally:
            transaction_impl(txn).settle_later()
            committed = txn.state is TransactionState.COMMITTED
            if not committed:
                await self._give_back(messages)
        return committed

    async def _abort_again(self, txn: TransactionImpl) -> None:
        try:
            await txn.abort()
        except TxnError as failure:
            _log.debug("the abort of %s is asked for again: %s", txn.id, failure)

    async def _give_back(self, messages: Sequence[Message[Any]]) -> None:
        """▲ A message neither acked nor given back is skipped for as long as the consumer lives, and later ones of its
        key go on without it."""
        if self._closed:
            return  # its messages are given back already
        try:
            if self.type == "stream":
                self.rewind()
            else:
                await self.nack(messages, delay=0)
        except TxnError as error:
            _log.debug("giving messages back: %s", error)

    # ---- closing ----------------------------------------------------------------------------------------------------

    async def unsubscribe(self, *, force: bool = False) -> None:
        """See `Consumer.unsubscribe`."""
        await self.close()
        if self._session.closed:
            await asyncio.sleep(0)  # ▲ C6: as `_expect_open`
            raise for_good(InvalidArgument(f"consumer {self.name} is closed with its client: connect anew"))
        for topic in self.topics:
            try:
                await delete_subscription(self._client, topic, self.subscription, force=force)
            except (SubscriptionNotFound, TopicNotFound) as error:
                _log.debug("%s has left %s already: %s", self.subscription, topic, error)

    async def close(self) -> None:
        """See `Consumer.close`."""
        if self._closed:
            if self._session.is_here:
                await self._all_closed.wait()  # its caller may end the loop, or the connections
            return
        self._session.expect_here()
        self._closed = True
        self._assigned.take_no_more()
        if self._following is not None:
            self._following.cancel()  # ▲ a topic joined from now on would never be left
        self._receiver.close()
        try:
            if self._dead_letters is not None:
                await self._dead_letters.close()
        finally:
            try:
                await self._assigned.leave(f"consumer {self.name} was closed before this ack was answered")
            finally:
                try:
                    await self._tasks.close()
                finally:
                    self._all_closed.set()
                    self._on_closed(self)  # ▲ not before: a client closing meanwhile waits for it, too
