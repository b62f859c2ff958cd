"""Requests and replies over a `Connection`: `Caller` on the asking side, `serve_connection` and `Peer` on the other.

Both are hot: no task, no timer and no await per request. A request is serialized at once and leaves with whatever else
has gathered; deadlines are kept by one sweep per `Caller`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Protocol

from txnwire.errors import TxnError
from txnwire.ports import Clock, Connection, Transport
from txnwire.proto import txn_pb2 as pb

Handler = Callable[["Peer", pb.Command], pb.Command | Coroutine[object, object, pb.Command | None] | None]
Authenticate = Callable[[pb.Hello], Awaitable[str]]
"""Returns the owner's name, or raises `Unauthorized`."""


class Caller:
    """The asking side of one connection."""

    hello_ok: pb.HelloOk
    """The server's answer to the handshake."""

    @staticmethod
    async def open(
        transport: Transport,
        address: str,
        hello: pb.Hello,
        *,
        clock: Clock,
        on_push: Callable[[pb.Command], None],
        on_closed: Callable[[TxnError], None] | None = None,
        timeout_s: float = 10.0,
    ) -> Caller:
        """Connect and shake hands, both within `timeout_s` seconds.

        `on_push` gets every command without a request id, in order; it must not raise. `on_closed` is called once,
        with the reason, when the connection has ended for any reason but `close()`. `hello.protocol_version` is filled in.
        Raises `ConnectionLost`, or what the server refused the handshake with (`InvalidArgument`, `Unauthorized`).
        """
        raise NotImplementedError

    @property
    def address(self) -> str:
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """A bool: whether the connection has ended. `await wait_closed()` waits for it."""
        raise NotImplementedError

    @property
    def reason(self) -> TxnError | None:
        """Why the connection has ended, None while it lives."""
        raise NotImplementedError

    @property
    def pending_bytes(self) -> int:
        raise NotImplementedError

    def call_nowait(self, command: pb.Command, *, timeout_s: float) -> asyncio.Future[pb.Command]:
        """Send a request; the future resolves to the reply command.

        Sets `command.request_id`; the command may be reused at once. The future fails with the error the server replied,
        with `Timeout` when `timeout_s` has passed, with `ConnectionLost` when the connection ends. It may be cancelled.
        Raises `ConnectionLost` if it has ended already, `Overloaded` past `MAX_OUTSTANDING_REQUESTS`, `MessageTooLarge`.
        """
        raise NotImplementedError

    async def call(self, command: pb.Command, *, timeout_s: float = 10.0) -> pb.Command:
        """`call_nowait`, awaited."""
        raise NotImplementedError

    def push(self, command: pb.Command) -> None:
        """Send a command that has no reply. Raises `ConnectionLost`, `MessageTooLarge`."""
        raise NotImplementedError

    async def drain(self, below_bytes: int) -> None:
        """Wait until at most `below_bytes` are still unsent. Raises `ConnectionLost`."""
        raise NotImplementedError

    async def wait_closed(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Fail what is unanswered with `ConnectionLost` and end the connection. Idempotent, bounded, never raises."""
        raise NotImplementedError


class Peer:
    """The server's view of one connection. `reply`, `fail` and `push` do nothing once it has ended."""

    session_id: bytes
    client_name: str
    owner: str
    """Who authenticated; "anonymous" without authentication."""

    @property
    def address(self) -> str:
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """A bool: whether the connection has ended."""
        raise NotImplementedError

    @property
    def pending_bytes(self) -> int:
        raise NotImplementedError

    def reply(self, request_id: int, command: pb.Command) -> None:
        """Answer a request; sets `command.request_id`. The command may be reused at once. No-op for request id 0."""
        raise NotImplementedError

    def fail(self, request_id: int, error: BaseException) -> None:
        """Answer a request with an error's wire form."""
        raise NotImplementedError

    def push(self, command: pb.Command) -> None:
        """Send a command nobody asked for (request id 0)."""
        raise NotImplementedError

    async def drain(self, below_bytes: int) -> None:
        """Wait until at most `below_bytes` are still unsent. Raises `ConnectionLost`."""
        raise NotImplementedError

    def disconnect(self, reason: TxnError) -> None:
        """End the connection from this side; logged, and told to the client as far as that is still possible."""
        raise NotImplementedError


class Service(Protocol):
    """What a role offers: handlers by the name of the command's body field ("new_txn", "send", …).

    A handler is called in order of arrival and returns the reply, or None if it replies itself (or if there is none:
    a push has request id 0), or a coroutine, which runs as a task owned by the connection and is cancelled when that
    ends. Whatever it raises is the reply.
    """

    @property
    def handlers(self) -> Mapping[str, Handler]: ...

    def disconnected(self, peer: Peer) -> None:
        """Called once per peer, after its tasks have ended. Must not raise."""


async def serve_connection(
    connection: Connection,
    services: Sequence[Service],
    *,
    server_id: str,
    roles: Sequence[str],
    incarnation: str,
    clock: Clock,
    authenticate: Authenticate | None = None,
) -> None:
    """Serve one accepted connection until it ends: handshake first, then commands to their services' handlers."""
    raise NotImplementedError
