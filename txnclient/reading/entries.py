"""Bulk reads of a range of one segment: whole entries, or only their heads (DESIGN §10; Spark uses it)."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable
from operator import index
from typing import Final, NamedTuple

from txnclient.connection.deadlines import Deadline
from txnclient.connection.opening import Closable
from txnclient.connection.session import Session
from txnclient.connection.tasks import OwnedTasks
from txnclient.connection.topic_layout import ACTIVE, TopicLayout, topic_of_segment
from txnclient.consuming.feeds.inbox import Inbox
from txnclient.consuming.feeds.receiver import FeedSource, Receiver
from txnclient.consuming.places.starts import check_count, isolation_to_wire
from txnclient.consuming.received.message import ReceivedEntry
from txnclient.reading.entry_heads import EntryHead, PieceHead, heads_of
from txnclient.reading.reader_feed import ReaderFeed, behind
from txnclient.reading.snapshot import Span
from txnclient.reading.unfinished import Unfinished
from txnwire.block import Block
from txnwire.entry import piece_of, txn_of
from txnwire.errors import DataCorrupt, DataTrimmed, InvalidArgument, NotOwner, TopicNotFound
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.names import SegmentName
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import KIB, MIB

__all__ = ["EntryHead", "PieceHead", "WholeEntry", "read_entries", "scan_entries"]

BATCH_BYTES: Final = 4 * MIB
"""About the most block bytes handed out at once; a larger block comes alone."""

LARGEST_WINDOW_BYTES: Final = 256 * MIB
"""Upper limit of bytes in flight and in the buffer."""

SCAN_TIMEOUT_S: Final = 10.0
"""Timeout of the request for one page."""

SCAN_ENTRIES: Final = 10_000
"""Most heads of a page."""

_TRIMMED: Final = {"fail": pb.TRIMMED_DATA_REFUSE, "skip": pb.TRIMMED_DATA_SKIP}


class WholeEntry(NamedTuple):
    """One entry with all its messages, of one transaction (None: none) and writer. `sequence_id` belongs to the first
    message, and later ones count up, within one `incarnation` of the producer name. A large value sent in pieces is one
    entry with one message, at the position of its first piece."""

    position: Position
    txn_id: TxnId | None
    writer: int
    producer: str
    sequence_id: int
    publish_time_ms: int
    block: Block
    incarnation: int = 0


def read_entries(
    session: Session,
    segment: str,
    *,
    after: Position,
    end: Position,
    span: Span | None,
    isolation: str,
    prefetch_bytes: int,
    trimmed: str,
    timeout: float | None,
    keep: Callable[[Closable], object],
    forget: Callable[[Closable], None],
) -> AsyncGenerator[list[WholeEntry], None]:
    """See `Client.read_entries`. Raises wrong arguments at once."""
    path = SegmentName.from_path(segment).path
    wire_isolation = isolation_to_wire(isolation)
    if span is not None and wire_isolation != pb.ISOLATION_READ_COMMITTED:
        raise InvalidArgument("a snapshot has only committed messages: read it with isolation 'read_committed'")
    check_count(prefetch_bytes, "prefetch_bytes", "bytes")
    bounds = _Bounds(path, after, end, span, _trimmed(trimmed))
    timeout_s = session.timeout_s if timeout is None else timeout
    reading = _EntriesReading(session, bounds, wire_isolation, prefetch_bytes, timeout_s)

    async def entries() -> AsyncGenerator[list[WholeEntry], None]:
        if after >= end:
            return
        keep(reading)
        try:
            await reading.open()
            while batch := await reading.next_batch():
                yield batch
        finally:
            forget(reading)
            await reading.close()

    return Unfinished(entries())


class _Bounds(NamedTuple):
    segment: str
    after: Position
    end: Position
    span: Span | None
    trimmed: pb.TrimmedData

    @property
    def from_anywhere(self) -> bool:
        """▲ Ranges that a start snapshot covers are read whole or refused; before any snapshot, only what is kept."""
        return (
            self.after == EARLIEST and self.span is not None and not self.span.continues(topic_of_segment(self.segment))
        )


class _Arrivals(Receiver):
    """The receiver of one feed that hands out entries."""

    def ready(self, source: FeedSource) -> None:
        self.wake()


class _EntryInbox(Inbox):
    """Buffers and hands out entries instead of messages. ▲ Its permits are KiB, which bounds memory for entries of any
    size."""

    def __init__(self, window_bytes: int) -> None:
        super().__init__(max(1, window_bytes // KIB), keeps_holds=False)
        self._entries: deque[tuple[ReceivedEntry, int]] = deque()
        """Each entry with the permits it holds."""

    def arrived(self, entry: ReceivedEntry, skip: bytes) -> None:
        permits = _permits(entry)
        piece = piece_of(entry.metadata)
        if piece is not None:
            # A piece frees its permits at once, or a value larger than the window could never complete. `Pieces` has
            # its own bound for incomplete values.
            whole = self._pieces.add(entry, piece)
            if whole is None:
                self._spent += permits
                return
            entry = whole
        self._entries.append((entry, permits))
        self._buffered += permits

    def left_out(self, entry: ReceivedEntry, skip: bytes) -> None:
        self._spent += _permits(entry)

    def take_entries(self, block_bytes: int) -> list[ReceivedEntry]:
        """Take at most `block_bytes` of decompressed blocks, but at least one entry if there is any."""
        taken: list[ReceivedEntry] = []
        room = block_bytes
        while self._entries:
            entry, permits = self._entries[0]
            room -= max(entry.metadata.block_bytes, entry.stored_bytes)
            if taken and room < 0:
                break
            self._entries.popleft()
            self._buffered -= permits
            self._spent += permits
            taken.append(entry)
        return taken

    def drop_buffer(self) -> None:
        super().drop_buffer()
        self._entries.clear()


def _permits(entry: ReceivedEntry) -> int:
    return (len(entry.raw) + KIB - 1) // KIB


class _EntryFeed(ReaderFeed):
    """Feeds entries. `reached`: the last position that has come, or up to which nothing will come."""

    def __init__(
        self,
        session: Session,
        arrivals: _Arrivals,
        inbox: _EntryInbox,
        bounds: _Bounds,
        isolation: pb.Isolation,
    ) -> None:
        self.reached = bounds.after
        self.sealed = False
        self._entries = inbox
        self._trimmed = bounds.trimmed
        anywhere = bounds.from_anywhere
        super().__init__(
            session,
            arrivals,
            bounds.segment,
            inbox,
            start=pb.Start(earliest=True) if anywhere else behind(bounds.segment, bounds.after),
            end=bounds.end,
            isolation=isolation,
            span=bounds.span,
            on_end=arrivals.wake,
        )

    def _subscribe(self) -> pb.Subscribe:
        request = super()._subscribe()
        request.permits_are_kib = True
        if not request.start.earliest or self._trimmed == pb.TRIMMED_DATA_SKIP:
            request.trimmed = self._trimmed
        return request

    def _on_entry(self, entry: ReceivedEntry) -> None:
        super()._on_entry(entry)
        self.reached = entry.position
        self.sealed = False

    def _on_nothing(self, through: Position) -> None:
        super()._on_nothing(through)
        self.reached = through

    def on_end_of_segment(self, sealed: bool) -> None:
        self.sealed = sealed
        super().on_end_of_segment(sealed)

    def take_entries(self) -> list[ReceivedEntry]:
        taken = self._entries.take_entries(BATCH_BYTES)
        self._replenish()
        return taken


class _EntriesReading:
    """Runs one `read_entries` call over its feed."""

    def __init__(
        self, session: Session, bounds: _Bounds, isolation: pb.Isolation, prefetch_bytes: int, timeout_s: float
    ) -> None:
        self._bounds = bounds
        to_snapshot = bounds.span is not None and bounds.span.end is not None
        self._isolation = pb.ISOLATION_SNAPSHOT if to_snapshot else isolation
        self._inbox = _EntryInbox(min(index(prefetch_bytes), LARGEST_WINDOW_BYTES))
        self._timeout_s = timeout_s
        self._tasks = OwnedTasks()
        self._session = session.with_tasks(self._tasks)
        self._arrivals = _Arrivals(session, f"reading segment://{bounds.segment}")
        self._feed: _EntryFeed | None = None
        self._unlisten: Callable[[], None] = lambda: None
        self._life = 0
        """Tells its topic from later ones of the name."""

    async def open(self) -> None:
        """Wait for the segment's layout, then start the feed."""
        span, segment = self._bounds.span, self._bounds.segment
        epoch = 0 if span is None else span.epoch(topic_of_segment(segment))
        layout = await _known(self._session, segment, epoch, self._session.deadline(self._timeout_s))
        if layout.epoch < epoch and self._bounds.trimmed != pb.TRIMMED_DATA_SKIP:
            raise _gone(segment)  # ▲ of an earlier topic of the name: a range from the earliest on would look empty
        self._life = layout.life
        self._feed = _EntryFeed(self._session, self._arrivals, self._inbox, self._bounds, self._isolation)
        self._unlisten = self._session.directory.listen(self._arrivals.wake)

    async def next_batch(self) -> list[WholeEntry]:
        """The next entries; empty at the end."""
        feed = self._feed
        assert feed is not None
        reached, deadline = feed.reached, self._session.deadline(self._timeout_s)
        while not (entries := feed.take_entries()):
            # ▲ A broken entry is raised even if the broker reports the end: its range would look whole otherwise.
            if not self._arrivals.failed and self._is_through(feed):
                return []
            if not await self._arrivals.wait(deadline.remaining()) and feed.reached == reached:
                raise deadline.expired(f"reading segment://{self._bounds.segment} after {feed.reached}")
            if feed.reached != reached:  # only hidden entries came: keep waiting
                reached, deadline = feed.reached, self._session.deadline(self._timeout_s)
        return [self._shown(entry) for entry in entries]

    def _is_through(self, feed: _EntryFeed) -> bool:
        """Whether the range is read to its end. Raises `DataTrimmed` if the rest is gone, `TopicNotFound` if that is so
        because its topic was deleted."""
        if feed.told_end and self._is_final(feed):
            return True
        if not feed.gone:
            return False
        _check_life(self._session, self._bounds.segment, self._life)
        if self._bounds.trimmed == pb.TRIMMED_DATA_SKIP or (self._bounds.from_anywhere and not feed.received):
            return True
        raise _gone(self._bounds.segment)

    def _is_final(self, feed: _EntryFeed) -> bool:
        """▲ A split or merge that is given up undoes its seal, and the segment goes on: only the topic's layout proves
        that it has ended before the requested end."""
        if not feed.sealed:
            return True
        segment = self._session.directory.segment(feed.segment)
        return segment is None or segment.state != ACTIVE

    def _shown(self, entry: ReceivedEntry) -> WholeEntry:
        metadata = entry.metadata
        try:
            block = entry.block
        except DataCorrupt as error:
            raise DataCorrupt(f"segment://{self._bounds.segment} at {entry.position}: {error}") from error
        return WholeEntry(
            entry.position,
            txn_of(metadata),
            metadata.writer,
            metadata.producer,
            metadata.sequence_id,
            metadata.publish_time_ms,
            block,
            metadata.incarnation,
        )

    async def close(self) -> None:
        self._unlisten()
        self._arrivals.close()
        if self._feed is not None:
            self._feed.close()
        await self._tasks.close()


def scan_entries(
    session: Session,
    segment: str,
    *,
    after: Position,
    end: Position,
    min_revision: int,
    trimmed: str,
    page_entries: int,
    timeout: float | None,
) -> AsyncGenerator[list[EntryHead], None]:
    """See `Client.scan_entries`. Raises wrong arguments at once."""
    path = SegmentName.from_path(segment).path
    check_count(page_entries, "page_entries", "entries")
    if page_entries > SCAN_ENTRIES:
        raise InvalidArgument(f"page_entries {page_entries}: expected 1 to {SCAN_ENTRIES}")
    wire_trimmed = _trimmed(trimmed)

    async def pages() -> AsyncGenerator[list[EntryHead], None]:
        at, life = after, 0
        while at < end:
            deadline = session.deadline(timeout)
            layout = await _known(session, path, 0, deadline)
            life = life or layout.life
            request = pb.ScanEntries(
                segment=path, min_revision=min_revision, max_entries=page_entries, trimmed=wire_trimmed, columns=True
            )
            request.after.ledger_id, request.after.entry_id = at
            request.end.ledger_id, request.end.entry_id = end
            page = await _scan_page(session, request, deadline)
            if page is None:
                _check_life(session, path, life)
                if wire_trimmed == pb.TRIMMED_DATA_SKIP:
                    return
                raise _gone(path)
            at = Position(page.through.ledger_id, page.through.entry_id)
            if heads := heads_of(page):
                yield heads
            if page.ended:
                return

    return Unfinished(pages())


async def _scan_page(session: Session, request: pb.ScanEntries, deadline: Deadline) -> pb.ScanEntriesOk | None:
    """Scan one page; None if the segment has left its topic. Raises `Timeout`, `DataTrimmed`, `TopicNotFound`."""

    async def ask() -> pb.ScanEntriesOk | None:
        directory = session.directory
        try:
            link = await directory.owner_link(request.segment, deadline)
            reply = await link.call(
                pb.Command(scan_entries=request), timeout_s=min(SCAN_TIMEOUT_S, deadline.remaining())
            )
        except TopicNotFound as error:
            if directory.known_layout(topic_of_segment(request.segment)) is None:
                raise
            if directory.segment(request.segment) is not None:
                raise NotOwner(f"{error}; its topic's layout here is another") from error  # look it up again
            return None
        return reply.scan_entries_ok

    return await session.repeat(f"scanning segment://{request.segment}", deadline, ask)


async def _known(session: Session, segment: str, epoch: int, deadline: Deadline) -> TopicLayout:
    """The layout, once it is at least as new as the segment and `epoch`. Raises `TopicNotFound`, `Timeout`.

    ▲ It does not wait for a segment that is gone for good: a topic that was made again may never reach the former one's
    epoch."""
    segment_id = SegmentName.from_path(segment).segment_id
    while True:
        layout = await session.directory.layout(topic_of_segment(segment), deadline)
        if layout.has_lost(segment) or (layout.epoch >= epoch and segment_id <= max(layout.segments, default=-1)):
            return layout
        if deadline.passed:
            raise deadline.expired(f"waiting for a layout of epoch {epoch} that has segment://{segment}")
        await session.directory.wait_change(deadline.remaining())


def _check_life(session: Session, segment: str, life: int) -> None:
    """Checks a segment that has gone, of the topic of that life. ▲ Raises `TopicNotFound` if another topic has the name
    now: retention has not emptied the segment, and a range that held messages would look empty."""
    topic = topic_of_segment(segment)
    layout = session.directory.known_layout(topic)
    if layout is not None and layout.is_another(life):
        raise TopicNotFound(f"{topic} was deleted while segment://{segment} was read")


def _trimmed(trimmed: str) -> pb.TrimmedData:
    found = _TRIMMED.get(trimmed)
    if found is None:
        raise InvalidArgument(f"trimmed {trimmed!r}: expected 'fail' or 'skip'")
    return found


def _gone(segment: str) -> DataTrimmed:
    return DataTrimmed(
        f"segment://{segment} is no longer in its topic: retention has deleted all of it, or the topic was deleted "
        "and created again"
    )
