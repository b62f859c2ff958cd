"""Implements a reader: reads topics without a subscription; the caller keeps the position (DESIGN §8, "checkpoint")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.connection.tasks import OwnedTasks
from txnclient.connection.topic_layout import ACTIVE, SegmentInfo, TopicLayout, topic_of_segment
from txnclient.consuming.feeds.inbox import Inbox
from txnclient.consuming.feeds.receiver import Receiver
from txnclient.consuming.places.positions import NextMessage, Positions, TopicPositions, layout_with, start_in
from txnclient.consuming.places.reader_ends import latest_ends, starts_by_time
from txnclient.consuming.places.starts import StartArgument, check_topic_of, start_to_wire, topics_of
from txnclient.consuming.received.message import Message
from txnclient.reading.cuts import SharedCuts
from txnclient.reading.reader_feed import ReaderFeed, behind
from txnclient.reading.reading_range import DividedPrefetch, ReadingRange, check_bounds
from txnclient.reading.snapshot import Snapshot, Span
from txnclient.reading.standing import HandedOut, named_by
from txnclient.serializers import Serializer, V
from txnwire.errors import DataTrimmed, InvalidArgument, TopicNotFound
from txnwire.ids import EARLIEST, MessageId, Position
from txnwire.names import SegmentName
from txnwire.proto import txn_pb2 as pb

BEGINNING = Position(0, 0)
"""No ledger has this id: before all of a segment."""


class EndOfStream(EOFError):
    """Raised by `receive` when the reader has delivered everything up to its end."""


class ReaderImpl(Generic[V]):
    """Implements one `Reader`, which documents the public calls: reads each segment to its end, parents first."""

    def __init__(
        self,
        session: Session,
        topics: str | Sequence[str],
        *,
        start: StartArgument | Snapshot,
        end: str | Snapshot | None,
        at_least: int,
        cuts: SharedCuts,
        isolation: str,
        prefetch: int,
        prefetch_bytes: int,
        serializer: Serializer[V] | None,
        on_closed: Callable[[ReaderImpl[V]], None],
    ) -> None:
        check_bounds(end, at_least, prefetch, prefetch_bytes)
        self.topics = topics_of(topics)
        self._range = ReadingRange.asked(self.topics, start=start, end=end, at_least=at_least, isolation=isolation)
        self._prefetch = DividedPrefetch(prefetch, prefetch_bytes)
        self._cuts = cuts
        self._tasks = OwnedTasks()
        self._session = session.with_tasks(self._tasks)
        self._receiver = Receiver(session, "reader", serializer)
        self._ends: dict[str, Position] = {}
        """The end of each segment to read, for a reader with an end."""
        self._since: dict[str, Position | None] = {}
        """The position after which each segment known at the opening begins, for a reader that starts by time."""
        self._lives: dict[str, int] = {}
        """Tell its topics from later ones of their names."""
        self._feeds: dict[str, ReaderFeed] = {}
        """Segments being read; each leaves it once it is handed out to its end."""
        self._ending: dict[str, None] = {}
        """The members of `_feeds` that may be at their end."""
        self._ended: dict[str, None] = {}
        """Paths of finished segments. ▲ Handed out, not only received: only then may their children begin."""
        self._standing = HandedOut()
        self._at_close: Positions | None = None
        self._on_closed = on_closed
        self._closed = False

    def __repr__(self) -> str:
        return f"Reader({', '.join(self.topics)}{', closed' * self._closed})"

    async def open(self, deadline: Deadline) -> None:
        """Look up the topics and, for "latest", their current ends; for a start by time, the start positions. Raises
        `TopicNotFound`, `Timeout`; `InvalidArgument` if part of the span or the start message's segment is gone."""
        await self._check_start(self._range.start, deadline)
        self._lives = {layout.topic: layout.life for layout in self._layouts()}
        if self._range.span is not None:
            await self._wait_known(self._range.span, deadline)
        if self._range.end == "latest" and self._range.committed:
            # ▲ One cut over all segments: of owners asked separately, one may know a commit that another does not, and
            # the reader would read part of a transaction.
            cut = await self._cuts.take(self.topics, self._range.at_least, deadline)
            await self._wait_known(self._range.end_at(cut), deadline)
        if self._range.cut is not None and self._range.span is not None:
            self._ends.update(self._range.span.ends(self.topics))
        elif self._range.end == "latest" or self._range.start == "latest":
            self._ends = await self._latest_ends(deadline)
        self._since = await self._starts_by_time(self._range.start_on_wire, deadline)
        self._share_window()
        self._advance()
        self._tasks.start(self._follow_layouts(), name="reader layouts", on_failed=self._receiver.fail)

    async def _check_start(self, start: StartArgument | Snapshot, deadline: Deadline) -> None:
        """Raises `TopicNotFound`, and `InvalidArgument` if the start is in a topic or segment that is gone."""
        for topic in self.topics:
            if isinstance(start, Positions):
                await layout_with(self._session, topic, start, deadline)
            else:
                _check_there(start, await self._session.directory.layout(topic, deadline))

    async def _latest_ends(self, deadline: Deadline) -> dict[str, Position]:
        return await latest_ends(
            self._session,
            self.topics,
            committed=self._range.committed,
            min_revision=self._range.at_least if self._range.span is None else self._range.span.revision,
            deadline=deadline,
        )

    async def _starts_by_time(self, start: pb.Start, deadline: Deadline) -> dict[str, Position | None]:
        if not start.timestamp_ms:
            return {}
        return await starts_by_time(self._session, self.topics, timestamp_ms=start.timestamp_ms, deadline=deadline)

    async def _wait_known(self, span: Span, deadline: Deadline) -> None:
        """Wait until the known layouts are at least as new as the snapshots. Raises `InvalidArgument` if a segment that
        holds part of the span is gone."""
        for topic in self.topics:
            while (known := await self._session.directory.layout(topic, deadline)).epoch < span.epoch(topic):
                if (former := span.of_former_topic(topic, known.epoch, known.has_lost)) is not None:
                    raise _lost(former)
                if deadline.passed:
                    raise deadline.expired(f"waiting for layout {span.epoch(topic)} of {topic}")
                await self._session.directory.wait_change(deadline.remaining())
            paths = {segment.path for segment in known.segments.values()}
            if (lost := span.lost(topic, paths.__contains__, known.lost_id)) is not None:
                raise _lost(lost)

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that the reader ends at; None without an end, and with isolation "read_uncommitted"."""
        return self._range.cut

    # ---- the segments -----------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Begin every segment whose parents have been handed out to their end; none after a failure."""
        self._check_topics()
        if self._receiver.failed:
            return
        for layout in self._layouts():
            taken = self._taken_ancestors(layout)
            # In id order, so parents first: a parent with nothing to read lets its children begin at once.
            for segment in sorted(layout.segments.values(), key=lambda one: one.segment_id):
                if self._may_begin(layout, segment) and not any(_is_before(one, segment) for one in taken):
                    self._begin(layout, segment)
        for path in self._ends:
            if path not in self._feeds and path not in self._ended and self._is_gone(path):
                self._ended[path] = None  # before it was begun: nothing of it is kept
                if self._continues(path) and self._after(path) < self._ends[path]:
                    self._receiver.fail(_lost(path))  # ▲ it held part of transactions whose rest is shown
        self._receiver.wake()

    def _check_topics(self) -> None:
        """▲ Fail if a topic is gone: its segments that have not begun would look read, or the reader would go on in the
        next topic of the name. Not if everything up to the end was handed out: then the topic is read."""
        for topic in self.topics:
            layout = self._session.directory.known_layout(topic)
            if layout is None or layout.is_another(self._lives.get(topic, 0)):
                left = [path for path in self._ends if topic_of_segment(path) == topic and path not in self._ended]
                if left or not self._range.bounded:
                    self._receiver.fail(TopicNotFound(f"{topic} was deleted while it was read"))

    def _layouts(self) -> list[TopicLayout]:
        known = [self._session.directory.known_layout(topic) for topic in self.topics]
        return [layout for layout in known if layout is not None]

    def _is_gone(self, path: str) -> bool:
        return all(layout.segment_by_path(path) is None for layout in self._layouts())

    def _may_begin(self, layout: TopicLayout, segment: SegmentInfo) -> bool:
        if segment.path in self._feeds or segment.path in self._ended:
            return False
        if self._range.bounded and segment.path not in self._ends:
            return False  # it was created after the end
        parents = [layout.segments[parent].path for parent in segment.parents if parent in layout.segments]
        if self._range.bounded:  # a parent without an end is empty and about to leave the graph
            parents = [path for path in parents if path in self._ends]
        return all(path in self._ended for path in parents)

    def _taken_ancestors(self, layout: TopicLayout) -> list[SegmentName]:
        """▲ Segments that retention has taken, while messages of theirs may still be handed out here. The layout does
        not name them as parents any more, and those of their children would pass them, key by key."""
        return [
            SegmentName.from_path(path)
            for path, feed in self._feeds.items()
            if layout.segment_by_path(path) is None
            and topic_of_segment(path) == layout.topic
            and (feed.buffered or not feed.told_end)
        ]

    def _begin(self, layout: TopicLayout, segment: SegmentInfo) -> None:
        end = self._ends.get(segment.path) if self._range.bounded else None
        start = self._start_of(layout, segment)
        if start is None or (self._range.bounded and (end is None or end <= self._after(segment.path))):
            self._ended[segment.path] = None
            return
        self._feeds[segment.path] = ReaderFeed(
            self._session,
            self._receiver,
            segment.path,
            Inbox(max(1, self._prefetch.messages), keeps_holds=False, window_bytes=self._prefetch.bytes),
            start=start,
            end=end,
            isolation=self._range.isolation if self._range.cut is None else pb.ISOLATION_SNAPSHOT,
            span=self._range.span,
            on_end=lambda: self._may_be_ending(segment.path),
        )

    def _after(self, path: str) -> Position:
        """The position after which reading begins, as far as it is known here."""
        if self._range.start == "latest":
            return self._ends.get(path, EARLIEST)
        return EARLIEST if self._range.span is None else self._range.span.after(path)

    def _start_of(self, layout: TopicLayout, segment: SegmentInfo) -> pb.Start | None:
        """Where to begin in a segment; None if all of it lies before the reader's start."""
        if isinstance(self._range.start, Positions):
            found = start_in(self._range.start.topics.get(layout.topic), layout, segment)
            return found if found.segment in ("", segment.path) else None
        if isinstance(self._range.start, MessageId):
            # All messages of a parent are older than its children.
            positioned = layout.segment_by_path(self._range.start.segment)
            if positioned is not None and _is_ancestor(layout, segment, positioned):
                return None
        after = self._after(segment.path)
        if after > EARLIEST or self._continues(segment.path):
            # The start was fixed when the reader was opened, so a lost connection skips nothing. ▲ It is explicit even
            # at the beginning, so that the broker refuses the read if it has trimmed messages after it.
            return behind(segment.path, after)
        if self._range.start_on_wire.timestamp_ms:
            return self._start_by_time(segment.path)
        # ▲ A segment created since "latest" was looked up, or empty then, is read from its beginning.
        return pb.Start(earliest=True) if self._range.start == "latest" else self._range.start_on_wire

    def _start_by_time(self, path: str) -> pb.Start:
        """▲ The start was fixed when the reader was opened, so a lost connection skips nothing. A segment created since
        then is read from its beginning."""
        if path not in self._since:
            return pb.Start(earliest=True)
        before = self._since[path]
        if before is None:
            return self._range.start_on_wire
        return pb.Start(earliest=True) if before == EARLIEST else behind(path, before)

    def _may_be_ending(self, path: str) -> None:
        self._ending[path] = None
        self._settle()

    def _settle(self) -> None:
        """Leave segments that are handed out to their end, and begin their children."""
        ended = False
        for path in list(self._ending):
            feed = self._feeds.get(path)
            if feed is None or not (feed.told_end or feed.gone):
                del self._ending[path]
            elif not feed.buffered and self._is_final(feed):
                self._leave(path, feed)
                ended = True
        if ended:
            self._advance()

    def _is_final(self, feed: ReaderFeed) -> bool:
        """▲ A split or merge that is given up undoes its seal, and the segment goes on: only the topic's layout proves
        that it has ended."""
        segment = self._session.directory.segment(feed.segment)
        if segment is None:
            layout = self._session.directory.known_layout(topic_of_segment(feed.segment))
            return self._range.bounded or feed.gone or (layout is not None and layout.has_lost(feed.segment))
        return self._range.bounded or feed.gone or segment.state != ACTIVE

    def _leave(self, path: str, feed: ReaderFeed) -> None:
        del self._ending[path], self._feeds[path]
        self._ended[path] = None
        feed.close()
        if not feed.told_end and self._range.cut is not None and (feed.received or self._continues(path)):
            # ▲ Reading on after a gap would show part of a transaction.
            self._receiver.fail(_lost(path))

    def _continues(self, path: str) -> bool:
        return self._range.span is not None and self._range.span.continues(topic_of_segment(path))

    async def _follow_layouts(self) -> None:
        while True:
            await self._session.directory.wait_change(60.0)
            self._check_topics()
            for path, feed in self._feeds.items():
                if feed.gone:
                    self._ending[path] = None
            self._settle()
            self._share_window()
            self._advance()

    def _share_window(self) -> None:
        """Divide `prefetch` among the active segments."""
        active = max(1, sum(len(layout.active) for layout in self._layouts()))
        if self._prefetch.divide(active):
            for feed in self._feeds.values():
                feed.set_window(self._prefetch.messages, self._prefetch.bytes)

    @property
    def ended(self) -> bool:
        """Whether everything up to the end has been delivered and handed out: ▲ False after a failure."""
        return (
            self._range.bounded
            and not self._receiver.failed
            and all(path in self._ended for path in self._ends)
            and not self._buffered()
        )

    def _buffered(self) -> bool:
        return any(feed.buffered for feed in self._feeds.values())

    # ---- where it stands --------------------------------------------------------------------------------------------

    def positions(self) -> Positions:
        """See `Reader.positions`."""
        self._session.expect_here()
        if self._range.span is not None:
            # ▲ It goes past transactions that are open at the snapshot: a reader that starts behind them misses them.
            raise InvalidArgument("a reader of a snapshot has no positions: continue with start=reader.snapshot")
        if self._at_close is not None:
            return self._at_close
        topics = {}
        for layout in self._layouts():
            found = {segment.path: self._next_of(layout, segment) for segment in layout.segments.values()}
            named = {path: at for path, at in found.items() if at is not None}
            if not named and None not in self._since.values():
                # ▲ Nothing has come yet: a start refuses positions that name no segment. Not if an owner does not tell
                # the place of the start by time: the beginning would be another place.
                named = dict.fromkeys(found, NextMessage(BEGINNING))
            topics[layout.topic] = TopicPositions(layout.life, layout.epoch, named)
        return Positions(topics)

    def _next_of(self, layout: TopicLayout, segment: SegmentInfo) -> NextMessage | None:
        """Returns None if it begins at the earliest, or if a child of it has begun."""
        feed = self._feeds.get(segment.path)
        found = self._standing.at(segment.path, None if feed is None else feed.begun)
        if found is None and self._since.get(segment.path) == EARLIEST:
            # ▲ A producer's clock may put the start time after the first message of a child. A new reader would then
            # skip all of this segment if the positions did not name it.
            return NextMessage(BEGINNING)
        return found or named_by(self._start_of(layout, segment), segment.path)

    async def seek(self, start: StartArgument, *, timeout: float | None = None) -> None:
        """See `Reader.seek`."""
        await self._expect_open()
        if self._range.bounded or isinstance(self._range.start, Snapshot) or isinstance(start, Snapshot):
            raise InvalidArgument("a reader with an end, or of a snapshot, does not seek: open another one")
        on_wire, deadline = start_to_wire(start), self._session.deadline(timeout)
        check_topic_of(start, self.topics)
        await self._check_start(start, deadline)
        ends = await self._latest_ends(deadline) if start == "latest" else {}
        since = await self._starts_by_time(on_wire, deadline)
        await self._expect_open()
        # ▲ Nothing is awaited from here on: a caller that is cancelled has either moved or not.
        for feed in self._feeds.values():
            feed.close()
        for one in (self._feeds, self._ending, self._ended):
            one.clear()
        self._range.start, self._range.start_on_wire = start, on_wire
        self._ends, self._since = ends, since
        self._standing = HandedOut()
        self._advance()

    async def _expect_open(self) -> None:
        """Raises `InvalidArgument` if it is closed, and the error that it has failed with."""
        self._session.expect_here()
        if self._closed:
            await self._receiver.wait(0)
        if self._receiver.failed:
            while self._receiver.take(1000):
                continue  # the caller goes elsewhere and does not need the rest
            await self._receiver.wait(0)

    # ---- receiving --------------------------------------------------------------------------------------------------

    async def receive(self, timeout: float | None = None) -> Message[V]:
        """See `Reader.receive`."""
        messages = await self.receive_many(1, timeout)
        if messages:
            return messages[0]
        if self.ended:
            raise EndOfStream("the reader has delivered everything up to its end")
        raise self._session.deadline(timeout).expired("receiving on a reader")

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> list[Message[V]]:
        """See `Reader.receive_many`."""
        deadline = None if timeout is None else self._session.deadline(timeout)
        while True:
            messages = self._take(max_messages)
            if not messages and self.ended:
                await asyncio.sleep(0)  # a caller that keeps asking must not block the event loop
                return messages
            if messages or not await self._receiver.wait(None if deadline is None else deadline.remaining()):
                return messages

    def _take(self, max_messages: int) -> list[Message[V]]:
        messages = self._receiver.take_many(max_messages)
        self._standing.handed_out(messages)
        if self._ending:
            self._settle()
        return messages

    async def next(self) -> Message[V]:
        """Waits without limit; ends at the reader's end, or when it is closed."""
        while True:
            messages = self._take(1)
            if messages:
                return messages[0]
            if self._closed or self.ended:
                raise StopAsyncIteration
            try:
                await self._receiver.wait(None)
            except InvalidArgument:
                if not self._closed:  # it was closed meanwhile
                    raise

    async def close(self) -> None:
        """See `Reader.close`."""
        if self._closed:
            return
        self._session.expect_here()
        if self._range.span is None:
            self._at_close = self.positions()  # ▲ before the pieces of large values are dropped
        self._closed = True
        self._on_closed(self)
        self._receiver.close()
        for feed in self._feeds.values():
            feed.close()
        await self._tasks.close()


def _is_ancestor(layout: TopicLayout, segment: SegmentInfo, of: SegmentInfo) -> bool:
    """Whether `of` came from `segment`, over any number of splits and merges."""
    frontier, seen = list(of.parents), dict[int, None]()
    while frontier:
        reached = frontier.pop()
        if reached == segment.segment_id:
            return True
        if reached not in seen and reached in layout.segments:
            seen[reached] = None
            frontier.extend(layout.segments[reached].parents)
    return False


def _is_before(one: SegmentName, segment: SegmentInfo) -> bool:
    """Whether `segment` was made after `one` and has keys of its range."""
    low, high = segment.range
    return one.segment_id < segment.segment_id and one.lo <= high and low <= one.hi


def _lost(path: str) -> DataTrimmed:
    return DataTrimmed(
        f"{path} no longer exists: its messages were trimmed, or its topic was deleted and created again; take a "
        "snapshot and read it from the earliest message"
    )


def _check_there(start: object, layout: TopicLayout) -> None:
    """Raises `InvalidArgument` for a message of a segment that has left the topic. A segment id above all known ones
    may be newer: its broker decides."""
    if not isinstance(start, MessageId) or topic_of_segment(start.segment) != layout.topic:
        return
    segment_id = SegmentName.from_path(start.segment).segment_id
    if layout.segment_by_path(start.segment) is None and segment_id <= max(layout.segments, default=-1):
        raise InvalidArgument(
            f"cannot start at message {start}: {layout.topic} has no such segment: it belonged to a deleted topic of "
            "this name, or all its messages were trimmed; start by time, or at 'earliest'"
        )
