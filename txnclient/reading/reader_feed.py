"""Reads one segment for a reader: subscribes, filters by the span, detects the end."""

from __future__ import annotations

from collections.abc import Callable

from txnclient.connection.session import Session
from txnclient.connection.topic_layout import topic_of_segment
from txnclient.consuming.feeds.feed import Feed
from txnclient.consuming.feeds.inbox import Inbox
from txnclient.consuming.feeds.receiver import Receiver
from txnclient.consuming.received.message import ReceivedEntry
from txnclient.reading.snapshot import Span
from txnwire.entry import txn_of
from txnwire.errors import TopicNotFound, TxnError
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb

LAST_INDEX = 0xFFFF_FFFF
"""An index at or above every message's index in an entry."""


def behind(segment: str, position: Position) -> pb.Start:
    """The start right after a whole entry."""
    ledger_id, entry_id = position
    return pb.Start(segment=segment, ledger_id=ledger_id, entry_id=entry_id, index=LAST_INDEX, after=True)


class ReaderFeed(Feed):
    """Feeds one segment to a reader. After a loss it goes on after the last entry received, which stays in the buffer,
    or after entries that the broker reported as hidden. `on_end` is called whenever it may be at its end: `told_end`,
    or `gone`."""

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
        on_end: Callable[[], None],
    ) -> None:
        self.told_end = False
        """The broker has reported the end. ▲ If the seal is undone because its split or merge was given up, the broker
        simply delivers more."""
        self.received = False
        """Whether anything has come since the reader was opened."""
        self._start = start
        self._end = end
        self._isolation = isolation
        self._span = span
        self._on_end = on_end
        super().__init__(session, receiver, segment, inbox)
        # ▲ No older than what this client has seen: a lagging owner would hide the rest of a transaction.
        self._min_revision = session.told_revision if span is None or span.end is None else 0
        if span is not None:
            self._min_revision = max(self._min_revision, span.revision)

    @property
    def gone(self) -> bool:
        """Whether the topic exists without this segment: retention has deleted all of it."""
        topic = topic_of_segment(self.segment)
        layout = self._session.directory.known_layout(topic)
        return layout is not None and layout.segment_by_path(self.segment) is None

    @property
    def begun(self) -> Position | None:
        """See `Inbox.begun`."""
        return self._inbox.begun

    def _subscribe(self) -> pb.Subscribe:
        request = pb.Subscribe(start=self._start, isolation=self._isolation, tells_passed=True)
        if self._end is not None:
            request.end.ledger_id, request.end.entry_id = self._end
        if self._span is not None:
            request.store = self._span.store
        return request

    def _wants(self, entry: ReceivedEntry) -> bool:
        metadata = entry.metadata
        return self._span is None or self._span.shows(self.segment, entry.position, txn_of(metadata), metadata.writer)

    def _on_entry(self, entry: ReceivedEntry) -> None:
        self._start = behind(self.segment, entry.position)
        self.received = True
        self.told_end = False

    def _on_nothing(self, through: Position) -> None:
        # ▲ A reader of messages before any snapshot keeps its start "earliest" until the first message has come: the
        # broker would refuse an explicit position once retention has trimmed past it.
        if not self._start.earliest or self._span is None:
            self._start = behind(self.segment, through)

    def on_end_of_segment(self, sealed: bool) -> None:
        self.told_end = True
        self._on_end()

    def on_rewind(self) -> None:
        """Nothing to do: readers have no acks."""

    def _retries(self, error: TxnError) -> bool:
        # The segment has left its topic or is about to: the layout decides. A deleted topic has no layout.
        if not isinstance(error, TopicNotFound):
            return False
        if self.gone:
            self._on_end()
        return self._session.directory.known_layout(topic_of_segment(self.segment)) is not None
