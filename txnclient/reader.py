"""A reader: messages of whole topics without a subscription; the caller keeps the position."""

from __future__ import annotations

from collections.abc import AsyncIterator

from txnclient.message import Message


class EndOfStream(EOFError):
    """`receive` on a reader that has delivered everything up to its end."""


class Reader:
    async def receive(self, timeout: float | None = None) -> Message:
        """Raises `Timeout`; `EndOfStream` behind the end."""
        raise NotImplementedError

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> list[Message]:
        """At least one message, or an empty list when the timeout has passed or the end is reached (see `ended`)."""
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[Message]:
        """Ends by itself when the reader has an end."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
