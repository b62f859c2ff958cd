"""A producer: one name and incarnation, writing to the active segments of one topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from txnclient.transaction import Transaction
from txnwire.ids import MessageId


class Producer:
    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id known to be stored, -1 for none."""
        raise NotImplementedError

    async def send(
        self,
        value: bytes,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        txn: Transaction | None = None,
    ) -> MessageId:
        """Send one message and wait until it is stored. Waits while the buffer is full."""
        raise NotImplementedError

    def send_nowait(
        self,
        value: bytes,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        txn: Transaction | None = None,
    ) -> asyncio.Future[MessageId]:
        """Queue one message. Raises `WouldBlock` when the buffer is full."""
        raise NotImplementedError

    async def send_many(
        self, messages: Iterable[tuple[str | bytes | None, bytes]], *, txn: Transaction | None = None
    ) -> list[MessageId]:
        """Send (key, value) pairs and wait until all are stored."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Wait until everything sent so far is stored; raises the first failure among it."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
