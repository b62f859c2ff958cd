"""A reader: messages of whole topics without a subscription; the caller keeps the position (DESIGN §8,
"checkpoint")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic

from txnclient.deadlines import Deadline
from txnclient.feed import Feed
from txnclient.inbox import Inbox
from txnclient.message import Message, ReceivedEntry
from txnclient.receiver import Receiver
from txnclient.serializers import Serializer, V
from txnclient.session import Session
from txnclient.snapshot import Snapshot, Span
from txnclient.starts import StartArgument, check_prefetch, isolation_to_wire, start_to_wire, topics_of
from txnclient.tasks import OwnedTasks
from txnclient.topic_layout import SegmentInfo, TopicLayout
from txnwire.entry import txn_of
from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST, Position
from txnwire.proto import txn_pb2 as pb

POSITIONS_TIMEOUT_S = 5.0


LAST_INDEX = 0xFFFF_FFFF
"""Of an entry, however many messages it has."""


def behind(segment: str, position: Position) -> pb.Start:
    """The start right behind a whole entry."""
    ledger_id, entry_id = position
    return pb.Start(segment=segment, ledger_id=ledger_id, entry_id=entry_id, index=LAST_INDEX, after=True)


class EndOfStream(EOFError):
    """`receive` on a reader that has delivered everything up to its end."""


class ReaderFeed(Feed):
    """One segment of a reader. After a loss it goes on behind the last entry it got, which stays in the buffer."""

    def __init__(
        self,
        session: Session,
        receiver: Receiver,
        segment: str,
        inbox: Inbox,
        *,
        start: pb.Start,
        end: Position | None,
        isolation: pb.Isolation,
        span: Span | None,
        on_ended: Callable[[], None],
    ) -> None:
        self._start = start
        self._end = end
        self._isolation = isolation
        self._span = span
        self._on_ended = on_ended
        super().__init__(session, receiver, segment, inbox)
        if span is not None:
            self._min_revision = span.revision

    def _subscribe(self) -> pb.Subscribe:
        request = pb.Subscribe(start=self._start, isolation=self._isolation)
        if self._end is not None:
            request.end.ledger_id, request.end.entry_id = self._end
        return request

    def _wants(self, entry: ReceivedEntry) -> bool:
        metadata = entry.metadata
        return self._span is None or self._span.shows(self.segment, entry.position, txn_of(metadata), metadata.writer)

    def _on_entry(self, entry: ReceivedEntry) -> None:
        self._start = behind(self.segment, entry.position)

    def on_end_of_segment(self, sealed: bool) -> None:
        self._leave_broker()
        self._closed = True
        self._task.cancel()
        self._on_ended()

    def on_rewind(self) -> None:
        """Readers have no acks, so there is nothing to go back to."""


class Reader(Generic[V]):
    """Made by `client.reader(topics)`. A parent segment is read to its end before its children."""

    def __init__(
        self,
        session: Session,
        topics: str | Sequence[str],
        *,
        start: StartArgument | Snapshot,
        end: str | Snapshot | None,
        isolation: str,
        prefetch: int,
        prefetch_bytes: int,
        serializer: Serializer[V] | None,
        on_closed: Callable[[Reader[V]], None],
    ) -> None:
        if not isinstance(end, Snapshot) and end not in (None, "latest"):
            raise InvalidArgument(f"end {end!r}: expected None, 'latest' or a Snapshot")
        check_prefetch(prefetch, prefetch_bytes)
        self.topics = topics_of(topics)
        self._isolation = isolation_to_wire(isolation)
        self._start = start
        self._start_on_wire = pb.Start() if isinstance(start, Snapshot) else start_to_wire(start)
        self._bounded = end is not None
        self._end = end
        self._span = _span(start, end)
        if self._span is not None and self._isolation != pb.ISOLATION_READ_COMMITTED:
            raise InvalidArgument("what a snapshot holds was committed: read it with isolation 'read_committed'")
        self._prefetch = prefetch
        self._window = prefetch
        self._prefetch_bytes = prefetch_bytes
        self._window_bytes = prefetch_bytes
        self._tasks = OwnedTasks()
        self._session = session.with_tasks(self._tasks)
        self._receiver = Receiver(session, "reader", serializer)
        self._ends: dict[str, Position] = {}
        """Where each segment that is to be read ends, of a reader that has an end."""
        self._feeds: dict[str, ReaderFeed] = {}
        self._ended: dict[str, None] = {}
        """Paths of segments read to their end."""
        self._on_closed = on_closed
        self._closed = False

    def __repr__(self) -> str:
        return f"Reader({', '.join(self.topics)}{', closed' * self._closed})"

    async def open(self, deadline: Deadline) -> None:
        """Look up the topics and, for "latest", how far they reach now. Raises `TopicNotFound`, `Timeout`."""
        if self._span is not None:
            self._ends.update(self._span.ends(self.topics))
        layouts = [await self._session.directory.layout(topic, deadline) for topic in self.topics]
        segments = [segment for layout in layouts for segment in layout.segments.values()]
        active = max(1, sum(len(layout.active) for layout in layouts))
        self._window, self._window_bytes = self._prefetch // active, self._prefetch_bytes // active
        if isinstance(self._end, Snapshot):
            await self._wait_known(self._end, deadline)
        elif self._bounded or self._start == "latest":
            latest = await asyncio.gather(*(self._latest(segment, deadline) for segment in segments))
            for segment, position in zip(segments, latest, strict=True):
                self._ends[segment.path] = position
        self._advance()
        if not self._bounded:
            self._tasks.start(self._follow_layouts(), name="reader layouts")

    async def _wait_known(self, end: Snapshot, deadline: Deadline) -> None:
        """Until the layouts known here are not older than the snapshot. Raises `InvalidArgument` if a segment of it is
        no more: such a reader would never end."""
        for topic in self.topics:
            while (known := await self._session.directory.layout(topic, deadline)).epoch < end.topics[topic].epoch:
                if deadline.passed:
                    raise deadline.expired(f"waiting for layout {end.topics[topic].epoch} of {topic}")
                await self._session.directory.wait_change(deadline.remaining())
            for path in end.topics[topic].segments:
                if known.segment_by_path(path) is None:
                    raise InvalidArgument(f"{path} of the snapshot at revision {end.revision} does not exist any more")

    async def _latest(self, segment: SegmentInfo, deadline: Deadline) -> Position:
        """The last position of a segment that may be read now, this client's commits included."""

        async def ask() -> Position:
            link = await self._session.directory.owner_link(segment.path, deadline)
            known = 0 if self._span is None else self._span.revision
            request = pb.SegmentPositions(segment=segment.path, min_revision=max(self._session.commit_revision, known))
            reply = await link.call(
                pb.Command(segment_positions=request), timeout_s=min(POSITIONS_TIMEOUT_S, deadline.remaining())
            )
            position = reply.segment_positions_ok.max_read_position
            return Position(position.ledger_id, position.entry_id)

        return await self._session.repeat(f"asking how far {segment.name} reaches", deadline, ask)

    # ---- the segments -----------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Begin every segment whose parents have been read to their end."""
        for layout in self._layouts():
            # In id order, so parents first: one that has nothing to read lets its children begin at once.
            for segment in sorted(layout.segments.values(), key=lambda one: one.segment_id):
                if self._may_begin(layout, segment):
                    self._begin(segment)
        self._receiver.stir()

    def _layouts(self) -> list[TopicLayout]:
        known = [self._session.directory.known_layout(topic) for topic in self.topics]
        return [layout for layout in known if layout is not None]

    def _may_begin(self, layout: TopicLayout, segment: SegmentInfo) -> bool:
        if segment.path in self._feeds or segment.path in self._ended:
            return False
        if self._bounded and segment.path not in self._ends:
            return False  # it came into being behind the end
        return all(
            layout.segments[parent].path in self._ended for parent in segment.parents if parent in layout.segments
        )

    def _begin(self, segment: SegmentInfo) -> None:
        position = self._ends.get(segment.path)
        after = EARLIEST if self._span is None else self._span.after(segment.path)
        if self._bounded and (position is None or position <= after or self._start == "latest"):
            self._ended[segment.path] = None
            return
        start = self._start_on_wire if after <= EARLIEST else behind(segment.path, after)
        if self._start == "latest" and position is not None:
            # Fixed when the reader was opened, so that a lost connection skips nothing.
            start = behind(segment.path, position)
        self._feeds[segment.path] = ReaderFeed(
            self._session,
            self._receiver,
            segment.path,
            Inbox(max(1, self._window), keeps_holds=False, window_bytes=self._window_bytes),
            start=start,
            end=position if self._bounded else None,
            isolation=pb.ISOLATION_SNAPSHOT if isinstance(self._end, Snapshot) else self._isolation,
            span=self._span,
            on_ended=lambda: self._segment_ended(segment.path),
        )

    def _segment_ended(self, path: str) -> None:
        self._ended[path] = None
        self._advance()

    async def _follow_layouts(self) -> None:
        while True:
            await self._session.directory.wait_change(60.0)
            self._advance()

    @property
    def ended(self) -> bool:
        """Whether everything up to the end has been delivered and handed out."""
        return self._bounded and all(path in self._ended for path in self._ends) and not self._buffered()

    def _buffered(self) -> bool:
        return any(feed.buffered for feed in self._feeds.values())

    # ---- receiving --------------------------------------------------------------------------------------------------

    async def receive(self, timeout: float | None = None) -> Message[V]:
        """The next message. Raises `Timeout` (None: after the client's timeout), `EndOfStream` behind the end."""
        messages = await self.receive_many(1, timeout)
        if messages:
            return messages[0]
        if self.ended:
            raise EndOfStream("the reader has delivered everything up to its end")
        waited = self._session.timeout_s if timeout is None else timeout
        raise Deadline(self._session.clock, waited).expired("receiving on a reader")

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> list[Message[V]]:
        """At least one message and at most `max_messages`; an empty list when the time is up or the end is reached."""
        deadline = self._session.deadline(timeout)
        while True:
            messages = self._receiver.take_many(max_messages)
            if messages or self.ended or not await self._receiver.wait(deadline.remaining()):
                return messages

    def __aiter__(self) -> Reader[V]:
        return self

    async def __anext__(self) -> Message[V]:
        """Waits for as long as it takes; ends behind the end, or when the reader is closed."""
        while True:
            messages = self._receiver.take(1)
            if messages:
                return messages[0]
            if self._closed or self.ended:
                raise StopAsyncIteration
            await self._receiver.wait(None)

    async def close(self) -> None:
        """Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._on_closed(self)
        self._receiver.close()
        for feed in self._feeds.values():
            feed.close()
        await self._tasks.close()

    async def __aenter__(self) -> Reader[V]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _span(start: StartArgument | Snapshot, end: str | Snapshot | None) -> Span | None:
    since, until = (one if isinstance(one, Snapshot) else None for one in (start, end))
    if until is not None and start == "latest":
        raise InvalidArgument("start 'latest' lies behind every snapshot: begin at 'earliest' or at an older snapshot")
    return None if since is None and until is None else Span(since, until)
