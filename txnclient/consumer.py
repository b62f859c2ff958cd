"""A consumer of a stream subscription."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from txnclient.message import Message
from txnclient.transaction import Transaction


class Consumer:
    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def segments(self) -> list[str]:
        """Paths of the segments assigned to this consumer now."""
        raise NotImplementedError

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message; raises `Timeout`. None: the client's timeout."""
        raise NotImplementedError

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> list[Message]:
        """What is there, at least one and at most `max_messages`; an empty list when the timeout has passed."""
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[Message]:
        raise NotImplementedError

    async def ack(self, messages: Message | Iterable[Message], *, txn: Transaction | None = None) -> None:
        raise NotImplementedError

    async def ack_cumulative(self, message: Message, *, txn: Transaction | None = None) -> None:
        """Everything of the message's segment up to and including it."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
