"""One segment of a reader: what it subscribes to, what of it is shown, and when it is through."""

from __future__ import annotations

from collections.abc import Callable

from txnclient.connection.session import Session
from txnclient.connection.topic_layout import topic_of_segment
from txnclient.consuming.feed import Feed
from txnclient.consuming.inbox import Inbox
from txnclient.consuming.message import ReceivedEntry
from txnclient.consuming.receiver import Receiver
from txnclient.reading.snapshot import Span
from txnwire.entry import txn_of
from txnwire.errors import TopicNotFound, TxnError
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb

LAST_INDEX = 0xFFFF_FFFF
"""Of an entry, however many messages it has."""


def behind(segment: str, position: Position) -> pb.Start:
    """The start right behind a whole entry."""
    ledger_id, entry_id = position
    return pb.Start(segment=segment, ledger_id=ledger_id, entry_id=entry_id, index=LAST_INDEX, after=True)


class ReaderFeed(Feed):
    """After a loss it goes on behind the last entry it got, which stays in the buffer, or behind what the broker says
    that shows nothing. `on_end` is called whenever it may have come to its end: `told_end`, or `gone`."""

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
        """Nothing follows what has come, the broker says. ▲ Of a segment that was sealed for a split or merge that is
        given up it takes that back, without a word, by delivering more."""
        self.received = False
        """Whether anything has come since the reader was opened."""
        self._start = start
        self._end = end
        self._isolation = isolation
        self._span = span
        self._on_end = on_end
        super().__init__(session, receiver, segment, inbox)
        # ▲ No older than what this client has been shown: by an owner that lags it would not see the rest of that.
        self._min_revision = session.told_revision if span is None or span.end is None else 0
        if span is not None:
            self._min_revision = max(self._min_revision, span.revision)

    @property
    def gone(self) -> bool:
        """Whether the topic stands and has this segment no more: retention took all of it."""
        topic = topic_of_segment(self.segment)
        layout = self._session.directory.known_layout(topic)
        return layout is not None and layout.segment_by_path(self.segment) is None

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
        # ▲ What lies before any snapshot is read as far as it is kept, until something of it has come: from a place
        # that is named it would be refused where retention takes something behind that meanwhile.
        if not self._start.earliest or self._span is None:
            self._start = behind(self.segment, through)

    def on_end_of_segment(self, sealed: bool) -> None:
        self.told_end = True
        self._on_end()

    def on_rewind(self) -> None:
        """Readers have no acks, so there is nothing to go back to."""

    def _retries(self, error: TxnError) -> bool:
        # Of a segment that has gone from its topic, or is about to: whether it has is for the layout to tell. One that
        # was deleted has no layout.
        if not isinstance(error, TopicNotFound):
            return False
        if self.gone:
            self._on_end()
        return self._session.directory.known_layout(topic_of_segment(self.segment)) is not None
