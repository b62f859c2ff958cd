"""A consumer of a stream subscription: in order per key, each segment with one consumer at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

from txnclient.deadlines import Deadline
from txnclient.feed import StreamFeed
from txnclient.membership import Membership
from txnclient.message import Message
from txnclient.receiver import Receiver
from txnclient.session import Session
from txnclient.starts import StartArgument, isolation_to_wire, start_to_wire, topics_of
from txnclient.tasks import OwnedTasks
from txnclient.transaction import Transaction
from txnwire.errors import InvalidArgument, NotAllowed, TxnError
from txnwire.names import validate_name
from txnwire.proto import txn_pb2 as pb


class Consumer:
    """Made by `client.consumer(topics, subscription)`.

    The controller assigns segments and may move them to other consumers at any time. Messages not acked by then, or
    acked in a transaction that aborts, are delivered again, to whoever holds the segment.
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
        on_closed: Callable[[Consumer], None],
    ) -> None:
        if type != "stream":
            offered = "is not offered by this version" if type == "queue" else "is unknown"
            raise InvalidArgument(f"subscription type {type!r} {offered}: use 'stream'")
        if prefetch < 1:
            raise InvalidArgument(f"prefetch is a positive number of messages, not {prefetch}")
        isolation_to_wire(isolation)
        self.subscription = validate_name(subscription, part="subscription")
        self.incarnation = session.random_u64()
        self.name = validate_name(name or f"consumer-{self.incarnation:016x}", part="consumer name")
        self.topics = topics_of(topics)
        self._tasks = OwnedTasks()
        self._session = session.with_tasks(self._tasks)
        self._prefetch = prefetch
        self._isolation = isolation_to_wire(isolation)
        self._receiver = Receiver(session, f"consumer {self.name}")
        self._feeds: dict[str, StreamFeed] = {}
        self._terms: dict[str, pb.Subscribe] = {}
        self._on_closed = on_closed
        self._closed = False
        self._memberships = [
            Membership(
                self._session,
                pb.JoinSubscription(
                    topic=topic,
                    subscription=subscription,
                    type=pb.SUBSCRIPTION_TYPE_STREAM,
                    start=start_to_wire(start),
                    consumer=self.name,
                    incarnation=self.incarnation,
                ),
                on_assignment=self._assigned,
                on_failed=self._receiver.fail,
            )
            for topic in self.topics
        ]

    async def open(self, deadline: Deadline) -> None:
        """Join every topic's subscription. Raises `TopicNotFound`, `NotAllowed`, `Timeout`."""
        for topic in self.topics:
            await self._session.directory.layout(topic, deadline)
        for membership in self._memberships:
            await membership.join(deadline)

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
            self._feeds.pop(path).close_with(
                NotAllowed(f"segment://{path} was assigned to another consumer, which gets what is not acked")
            )
        added = [path for path in mine if path not in self._feeds]
        window = max(1, self._prefetch // max(1, len(self._feeds) + len(added)))
        for feed in self._feeds.values():
            feed.set_window(window)
        for path in added:
            self._feeds[path] = StreamFeed(self._session, self._receiver, path, window, terms)

    def _new_terms(self) -> pb.Subscribe:
        return pb.Subscribe(
            subscription=self.subscription,
            type=pb.SUBSCRIPTION_TYPE_STREAM,
            isolation=self._isolation,
            consumer=self.name,
            incarnation=self.incarnation,
        )

    # ---- receiving --------------------------------------------------------------------------------------------------

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message. Raises `Timeout` when none has come within `timeout` seconds (None: the client's
        timeout)."""
        messages = await self.receive_many(1, timeout)
        if not messages:
            waited = self._session.timeout_s if timeout is None else timeout
            raise Deadline(self._session.clock, waited).expired(f"receiving on consumer {self.name}")
        return messages[0]

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> list[Message]:
        """What is there, at least one message and at most `max_messages`; an empty list when `timeout` seconds have
        passed."""
        deadline = self._session.deadline(timeout)
        while True:
            messages = self._receiver.take(max_messages)
            if messages or not await self._receiver.wait(deadline.remaining()):
                return messages

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        """Waits for as long as it takes; ends when the consumer is closed."""
        while True:
            messages = self._receiver.take(1)
            if messages:
                return messages[0]
            if self._closed:
                raise StopAsyncIteration
            await self._receiver.wait(None)

    # ---- acking -----------------------------------------------------------------------------------------------------

    async def ack(self, messages: Message | Iterable[Message], *, txn: Transaction | None = None) -> None:
        """Ack messages, at once or when `txn` commits.

        Raises `TxnConflict` (another transaction has acked one of them, or it is delivered anew: this one can only
        abort), `InvalidTxnState`, `NotAllowed` if a segment is not this consumer's any more, `Timeout`.
        """
        deadline = self._session.deadline()
        by_segment: dict[str, list[Message]] = {}
        for message in (messages,) if isinstance(messages, Message) else messages:
            by_segment.setdefault(message.entry.segment, []).append(message)
        if txn is not None:
            txn.check_open("ack")
        answers: list[asyncio.Future[None]] = []
        refused: TxnError | None = None
        for segment, group in by_segment.items():
            try:
                answers += self._feed(segment, txn).acks.ack(group, txn, deadline)
            except TxnError as error:
                refused = refused or error
        await _all_answered(answers)
        if refused is not None:
            raise refused

    async def ack_cumulative(self, message: Message, *, txn: Transaction | None = None) -> None:
        """Ack everything of the message's segment up to and including it. Raises as `ack` does."""
        if txn is not None:
            txn.check_open("ack")
        feed = self._feed(message.entry.segment, txn)
        await _all_answered([feed.acks.ack_cumulative(message, txn, self._session.deadline())])

    def _feed(self, segment: str, txn: Transaction | None) -> StreamFeed:
        if self._closed:
            raise InvalidArgument(f"consumer {self.name} is closed")
        feed = self._feeds.get(segment)
        if feed is None:
            error = NotAllowed(f"segment://{segment} is not, or no longer, assigned to consumer {self.name}")
            if txn is not None:
                txn.failed(error)
            raise error
        return feed

    def rewind(self) -> None:
        """Have everything delivered again that is not acked, from the earliest on, as after an aborted transaction.

        For messages that were received and then, after a failure, neither acked nor acked in a transaction.
        """
        for feed in self._feeds.values():
            feed.start_over()

    # ---- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Give the segments back and leave the subscription; bounded, idempotent. Acks under way fail."""
        if self._closed:
            return
        self._closed = True
        self._on_closed(self)
        self._receiver.close()
        for feed in self._feeds.values():
            feed.close_with(InvalidArgument(f"consumer {self.name} was closed before this ack was answered"))
        self._feeds.clear()
        try:
            await asyncio.gather(*(membership.leave() for membership in self._memberships))
        finally:
            await self._tasks.close()

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _all_answered(answers: list[asyncio.Future[None]]) -> None:
    """Wait for all, then raise the first failure. The futures are shared: a caller's cancellation leaves them alone."""
    if answers:
        await asyncio.wait(answers)
    for answer in answers:
        answer.result()
