"""`Reader`, as applications use it; `ReaderImpl` does the work."""

from __future__ import annotations

from types import TracebackType
from typing import Generic

from txnclient.consuming.places.positions import Positions
from txnclient.consuming.places.starts import StartArgument
from txnclient.consuming.received.message import Message
from txnclient.reading.reader_feed import behind
from txnclient.reading.reader_impl import EndOfStream, ReaderImpl
from txnclient.reading.snapshot import Snapshot
from txnclient.serializers import V

__all__ = ["EndOfStream", "Reader", "behind", "reader_impl"]


class Reader(Generic[V]):
    """Reads topics without acks; made by `client.reader(topics)`. It reads a parent segment to its end before the
    children."""

    def __init__(self, impl: ReaderImpl[V]) -> None:
        self._impl = impl

    def __repr__(self) -> str:
        return repr(self._impl)

    @property
    def topics(self) -> list[str]:
        return self._impl.topics

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that the reader ends at; None without an end, and with isolation "read_uncommitted"."""
        return self._impl.snapshot

    @property
    def ended(self) -> bool:
        """Whether everything up to the end has been delivered and handed out: ▲ False after a failure."""
        return self._impl.ended

    async def receive(self, timeout: float | None = None) -> Message[V]:
        """The next message. Raises `Timeout` when none has come within `timeout` seconds (None: waits without limit),
        `EndOfStream` at the end, `TopicNotFound`, `DataTrimmed`, `DataCorrupt`."""
        return await self._impl.receive(timeout)

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> list[Message[V]]:
        """At least one message and at most `max_messages`; an empty list at the end, or when none has come within
        `timeout` seconds (None: waits without limit). Raises what `receive` does otherwise."""
        return await self._impl.receive_many(max_messages, timeout)

    def __aiter__(self) -> Reader[V]:
        return self

    async def __anext__(self) -> Message[V]:
        """Waits without limit; ends at the reader's end, or when it is closed."""
        return await self._impl.next()

    def positions(self) -> Positions:
        """Where it stands: in each segment behind the last message that was handed out.

        For `start=` of another reader or of a new subscription, and for `seek`; `to_json` makes text of it. Pieces of
        a large value are never left apart: messages handed out between them come again from there. A closed reader
        tells where it stood. Raises `InvalidArgument` for a reader of a snapshot, or up to one, which goes on from it.
        """
        return self._impl.positions()

    async def seek(self, start: StartArgument, *, timeout: float | None = None) -> None:
        """Go on at `start` in all segments, as a reader opened there would; nothing received but not handed out comes.

        For readers without an end that did not begin at a snapshot; others raise `InvalidArgument`, as does a start
        that is no such. Raises `TopicNotFound`, `Timeout`; it has not moved then.
        """
        await self._impl.seek(start, timeout=timeout)

    async def close(self) -> None:
        """Idempotent."""
        await self._impl.close()

    async def __aenter__(self) -> Reader[V]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def reader_impl(reader: Reader[V]) -> ReaderImpl[V]:
    """The implementation, for the other parts of the client."""
    return reader._impl
