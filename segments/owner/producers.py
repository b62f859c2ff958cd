"""The session of one producer on one connection to a segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from segments.log.dedup import NOTHING_STORED
from segments.log.sending import IncomingEntry, ProducerLine, SendReply
from txnwire.errors import NotOwner, TxnError

if TYPE_CHECKING:
    from segments.owner.segment import Segment


OnClosed = Callable[[TxnError, int], None]
"""Called with the error that ended the session and, after a seal, the producer's last sequence id stored here."""


class ProducerSession:
    """Passes on one producer's sends. Calls `on_closed` once when the session ends, unless the client closes it."""

    def __init__(self, segment: Segment, name: str, token: int, line: ProducerLine, on_closed: OnClosed) -> None:
        self._segment = segment
        self._name = name
        self._token = token
        self.line = line
        self._on_closed: OnClosed | None = on_closed
        self.error: TxnError | None = None

    def send(self, entry: IncomingEntry, reply: SendReply) -> None:
        """See `Pipeline.send`. Raises the error that ended the session."""
        if self.error is not None:
            raise self.error
        self._segment.pipeline.send(self.line, self._token, entry, reply)

    def end(self, error: TxnError, last_sequence_id: int = NOTHING_STORED) -> None:
        """End the session from the segment's side: fenced, the segment is gone, or it is sealed. After a seal
        `last_sequence_id` is this producer's last one stored here, for good."""
        on_closed, self._on_closed, self.error = self._on_closed, None, error
        if on_closed is not None:
            on_closed(error, last_sequence_id)

    def close(self) -> None:
        """End the session from the client's side. Sends in flight go on."""
        if self._on_closed is not None:
            self._on_closed = None
            self.error = NotOwner(f"producer {self._name} was closed: open it again")
            self._segment.producer_closed(self._token, self.line)
