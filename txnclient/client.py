"""`connect` and `Client`: one session with a cluster, and everything that is opened in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from txnclient.consumer import Consumer
from txnclient.opening import Opening
from txnclient.producer import Producer
from txnclient.reader import Reader
from txnclient.topic_layout import TopicLayout
from txnclient.transaction import Transaction
from txnwire.ids import MessageId, TxnId
from txnwire.ports import Clock, Random, Transport


def connect(
    url: str,
    *,
    token: str | None = None,
    tls: object | None = None,
    transaction_key: str | None = None,
    timeout: float = 30.0,
    client_name: str = "txnclient",
    transport: Transport | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
) -> Opening[Client]:
    """Open a client: `async with connect(url) as client`, or `client = await connect(url)`.

    `url` is `txn://host:port[,host:port…]`, any servers of the cluster; `timeout` in seconds bounds every call that has
    no timeout of its own. `transport`, `clock` and `random` are for the simulation.
    Raises `InvalidArgument`, `Timeout` if no server answers in time, `Unauthorized`.
    """
    raise NotImplementedError


class Client:
    """One session. Belongs to the event loop it was opened in."""

    @property
    def session_id(self) -> bytes:
        raise NotImplementedError

    async def create_topic(
        self,
        topic: str,
        *,
        segments: int = 1,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        autoscale: str | dict[str, Any] = "off",
    ) -> TopicLayout:
        """Ok if it exists with the same shape; `TopicExists` if with another."""
        raise NotImplementedError

    async def describe_topic(self, topic: str) -> TopicLayout:
        """Raises `TopicNotFound`."""
        raise NotImplementedError

    async def list_topics(self, prefix: str = "") -> list[str]:
        """Names of topics; `prefix` is `""`, `"tenant/"` or `"tenant/namespace/"`."""
        raise NotImplementedError

    def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        linger_ms: float = 5,
        batch_bytes: int = 131_072,
        compression: str | None = "zstd",
        buffer_bytes: int = 64 * 1024 * 1024,
    ) -> Opening[Producer]:
        """`await` it, or `async with` it. `compression` is `"zstd"` or None."""
        raise NotImplementedError

    def consumer(
        self,
        topics: str | Sequence[str],
        subscription: str,
        *,
        type: str = "stream",
        start: str | int | MessageId = "earliest",
        isolation: str = "read_committed",
        name: str | None = None,
        prefetch: int = 1000,
    ) -> Opening[Consumer]:
        raise NotImplementedError

    def reader(
        self,
        topics: str | Sequence[str],
        *,
        start: str | int | MessageId = "earliest",
        end: str | None = None,
        isolation: str = "read_committed",
        prefetch: int = 1000,
    ) -> Opening[Reader]:
        """A reader keeps its own position. With `end="latest"` it ends behind what is readable now."""
        raise NotImplementedError

    async def begin(self, *, timeout: float = 60.0) -> Transaction:
        """Begin a transaction, which is aborted by the service if it is open for longer than `timeout` seconds."""
        raise NotImplementedError

    @asynccontextmanager
    async def transaction(self, *, timeout: float = 60.0) -> AsyncIterator[Transaction]:
        """Commit on success, abort on an exception."""
        raise NotImplementedError
        yield

    async def transaction_info(self, txn_id: TxnId | str) -> dict[str, Any]:
        """Header, operations and outcome of a transaction; needs the right to administer."""
        raise NotImplementedError

    async def outcomes(self, txn_ids: Iterable[TxnId | str]) -> dict[TxnId, str]:
        """`"OPEN"`, `"COMMITTED"`, `"ABORTED"` or `"UNKNOWN"` by id."""
        raise NotImplementedError

    async def admin(self, what: str, **args: Any) -> dict[str, Any]:
        """One administrator's question, e.g. `admin("transactions.list", state="OPEN")`, answered by any server."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
