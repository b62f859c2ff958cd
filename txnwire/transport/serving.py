"""Requests and replies over a `Connection`: the serving side. The calling side is `txnwire.transport.calls.Caller`.

Handlers that are plain functions are the hot path: one dictionary look-up and one call per request, and the reply is
gathered with other commands to that peer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Final, Protocol

import structlog

from txnwire.bounds import check_bounds
from txnwire.errors import (
    ConnectionLost,
    InternalError,
    InvalidArgument,
    MessageTooLarge,
    Overloaded,
    TxnError,
    to_wire,
)
from txnwire.ports import Clock, Connection
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_OUTSTANDING_REQUESTS, MAX_PENDING_BYTES, MAX_SESSION_ID_BYTES, PROTOCOL_VERSION

_log = structlog.get_logger(__name__)

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""Limit from a connection's acceptance to the end of its authentication."""

TASK_END_TIMEOUT_S: Final = 5.0
"""How long to wait for a disconnected peer's cancelled coroutine handlers."""

ANONYMOUS: Final = "anonymous"

Handler = Callable[["Peer", pb.Command], pb.Command | Coroutine[object, object, pb.Command | None] | None]
Authenticate = Callable[[pb.Hello], Awaitable[str]]
"""Returns the owner's name, or raises `Unauthorized`."""


class Service(Protocol):
    """The handlers of a role, by the name of the command's body field ("new_txn", "send", …).

    Handlers are called in order of arrival. A handler returns the reply, or None if it replies itself (or to a push,
    which has request id 0 and no reply), or a coroutine. The coroutine runs as a task owned by the connection, and is
    cancelled when that ends. An exception becomes the reply.
    """

    @property
    def handlers(self) -> Mapping[str, Handler]: ...

    def disconnected(self, peer: Peer) -> None:
        """Called once per peer, after its tasks have ended. Must not raise."""


class Peer:
    """The server's view of one connection. `reply`, `fail` and `push` do nothing once it has ended."""

    def __init__(self, connection: Connection, hello: pb.Hello, owner: str) -> None:
        self.session_id = hello.session_id
        self.client_name = hello.client_name
        self.owner = owner
        """The authenticated name; "anonymous" without authentication."""
        self.address = connection.peer
        self.closed = False
        """A bool: whether the connection has ended, or is being ended."""
        self.unanswered = 0
        """Number of received requests without a reply yet."""
        self._connection = connection
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Peer({self.client_name!r} at {self.address}, session {self.session_id.hex()})"

    @property
    def pending_bytes(self) -> int:
        return self._connection.pending_bytes

    def reply(self, request_id: int, command: pb.Command) -> None:
        """Answer a request; sets `command.request_id`. The command may be reused at once. No-op for request id 0.

        A reply too large for a frame is replaced by `MessageTooLarge`.
        """
        if not request_id:
            return
        self.unanswered -= 1
        command.request_id = request_id
        try:
            self._send(command)
        except MessageTooLarge as error:
            self._send(pb.Command(request_id=request_id, error=to_wire(error)))

    def fail(self, request_id: int, error: BaseException) -> None:
        """Answer a request with an error's wire form. No-op for request id 0."""
        self.reply(request_id, pb.Command(error=to_wire(error)))

    def push(self, command: pb.Command) -> None:
        """Send an unsolicited command (request id 0). Raises `MessageTooLarge`."""
        command.request_id = 0
        self._send(command)

    async def drain(self, below_bytes: int) -> None:
        """Wait until at most `below_bytes` are still unsent. Raises `ConnectionLost`."""
        await self._connection.drain(below_bytes)

    def disconnect(self, reason: TxnError) -> None:
        """End the connection from this side, log the reason, and send it to the client if still possible."""
        if self.closed:
            return
        _log.warning("peer_disconnected", peer=repr(self), reason=str(reason))
        goodbye = pb.Command(error=to_wire(reason))
        try:
            self._connection.send_nowait(goodbye)
        except ConnectionLost:
            _log.debug("peer_gone_before_goodbye", peer=repr(self))
        self.closed = True
        self._closing = asyncio.get_running_loop().create_task(self._connection.close(), name=f"closing {self.address}")

    async def wait_disconnected(self) -> None:
        """Close the connection, unless a close has begun, and wait until it is closed. Bounded."""
        self.closed = True
        if self._closing is not None:
            await asyncio.wait({self._closing})
        await self._connection.close()

    def _send(self, command: pb.Command) -> None:
        if self.closed:
            return
        try:
            self._connection.send_nowait(command)
        except ConnectionLost as lost:
            self.closed = True  # the receiving side also gets the error, and cleans up
            _log.debug("peer_gone", peer=repr(self), reason=str(lost))
            return
        if self._connection.pending_bytes > MAX_PENDING_BYTES:
            self.disconnect(not_reading(self._connection))


def not_reading(connection: Connection) -> Overloaded:
    """The reason to end a connection whose other end does not read."""
    waiting = connection.pending_bytes
    return Overloaded(f"{connection.peer} does not read: {waiting} bytes wait for it, the limit is {MAX_PENDING_BYTES}")


async def serve_connection(
    connection: Connection,
    services: Sequence[Service],
    *,
    server_id: str,
    roles: Sequence[str],
    incarnation: str,
    clock: Clock,
    authenticate: Authenticate | None = None,
    refusal: TxnError | None = None,
) -> None:
    """Serve one accepted connection until it ends: handshake first, then commands to their services' handlers.
    `refusal`: answer its Hello with this error, and serve nothing.

    Raises `InternalError` if two services claim one command.
    """
    greeting = pb.HelloOk(protocol_version=PROTOCOL_VERSION, server_id=server_id, roles=roles, incarnation=incarnation)
    handlers = _handlers_of(services)
    accepted = await _accept(connection, greeting, authenticate, refusal)
    if accepted is None:
        await connection.close()
        return
    peer, behind = accepted
    serving = _Serving(connection, peer, handlers)
    connected = clock.monotonic()
    try:
        await serving.run(behind)
    finally:
        peer.closed = True
        await serving.end_tasks()
        for service in services:
            _tell_disconnected(service, peer)
        await peer.wait_disconnected()
        _log.debug("peer_left", peer=repr(peer), after_s=round(clock.monotonic() - connected, 3))


def _handlers_of(services: Sequence[Service]) -> dict[str, Handler]:
    handlers: dict[str, Handler] = {"ping": _pong}
    for service in services:
        for name, handler in service.handlers.items():
            if name in handlers:
                raise InternalError(f"two services handle {name!r}: {type(service).__name__} is the second")
            handlers[name] = handler
    return handlers


def _pong(_peer: Peer, _command: pb.Command) -> pb.Command:
    return pb.Command(ok=pb.Ok())


def _tell_disconnected(service: Service, peer: Peer) -> None:
    try:
        service.disconnected(peer)
    except Exception:  # noqa: BLE001 - the other services must still be called
        _log.exception("disconnected_failed", service=type(service).__name__, peer=repr(peer))


# ---- the handshake ----------------------------------------------------------------------------------------------


async def _accept(
    connection: Connection, greeting: pb.HelloOk, authenticate: Authenticate | None, refusal: TxnError | None
) -> tuple[Peer, Sequence[pb.Command]] | None:
    """Shake hands; returns the peer, and the commands right after its Hello. None if it was refused, or has gone."""
    request_id = 0
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            commands: Sequence[pb.Command] = ()
            while not commands:
                commands = await connection.receive()
            request_id = commands[0].request_id
            hello = _checked_hello(commands[0])
            if refusal is not None:
                raise refusal
            owner = ANONYMOUS if authenticate is None else await authenticate(hello)
        connection.send_nowait(pb.Command(request_id=request_id, hello_ok=greeting))
        return Peer(connection, hello, owner), commands[1:]
    except ConnectionLost as lost:
        _log.debug("client_gone_before_handshake", peer=connection.peer, reason=str(lost))
    except TimeoutError:
        _refuse(connection, request_id, InvalidArgument(f"no hello within {HANDSHAKE_TIMEOUT_S:g} s"))
    except TxnError as error:
        _refuse(connection, request_id, error)
    return None


def _checked_hello(command: pb.Command) -> pb.Hello:
    if not command.HasField("hello"):
        raise InvalidArgument(f"the first command is {command.WhichOneof('body')}: expected hello")
    check_bounds("hello", command)
    hello = command.hello
    if hello.protocol_version != PROTOCOL_VERSION:
        raise InvalidArgument(
            f"protocol version {hello.protocol_version} of client {hello.client_name!r}: this server speaks "
            f"{PROTOCOL_VERSION}; use a client of the server's version"
        )
    if not 0 < len(hello.session_id) <= MAX_SESSION_ID_BYTES:
        raise InvalidArgument(
            f"session id of {len(hello.session_id)} bytes: expected 1 to {MAX_SESSION_ID_BYTES}, random ones"
        )
    return hello


def _refuse(connection: Connection, request_id: int, refusal: TxnError) -> None:
    _log.info("client_refused", peer=connection.peer, reason=str(refusal))
    try:
        connection.send_nowait(pb.Command(request_id=request_id, error=to_wire(refusal)))
    except ConnectionLost as lost:
        _log.debug("client_gone_before_refusal", peer=connection.peer, reason=str(lost))


# ---- the requests -----------------------------------------------------------------------------------------------


class _Serving:
    """The receiver of one connection and the tasks it has started."""

    def __init__(self, connection: Connection, peer: Peer, handlers: Mapping[str, Handler]) -> None:
        self._connection = connection
        self._peer = peer
        self._handlers = handlers
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], Coroutine[object, object, pb.Command | None]] = {}

    async def run(self, commands: Sequence[pb.Command]) -> None:
        """Handle these and all that follow. Returns when the connection has ended."""
        try:
            while not self._peer.closed:
                for command in commands:
                    self._handle(command)
                if self._peer.unanswered > MAX_OUTSTANDING_REQUESTS:
                    self._peer.disconnect(Overloaded(f"{self._peer.unanswered} requests are unanswered"))
                commands = await self._connection.receive()
        except ConnectionLost as lost:
            _log.debug("peer_lost", peer=repr(self._peer), reason=str(lost))

    def _handle(self, command: pb.Command) -> None:
        peer = self._peer
        request_id = command.request_id
        if request_id:
            peer.unanswered += 1
        name = command.WhichOneof("body")
        handler = self._handlers.get(name or "")
        try:
            if handler is None:
                raise InvalidArgument(_unknown(name))
            check_bounds(str(name), command)  # ▲ before a handler computes anything from a peer's numbers
            outcome = handler(peer, command)
        except Exception as error:  # noqa: BLE001 - any exception becomes the reply
            self._fail(name, request_id, error)
            return
        if outcome is None:
            return
        if isinstance(outcome, pb.Command):
            peer.reply(request_id, outcome)
        else:
            task = self._loop.create_task(self._finish(name, request_id, outcome), name=f"{name} of {peer.address}")
            self._tasks[task] = outcome
            task.add_done_callback(self._task_done)

    async def _finish(
        self, name: str | None, request_id: int, outcome: Coroutine[object, object, pb.Command | None]
    ) -> None:
        try:
            reply = await outcome
        except Exception as error:  # noqa: BLE001 - any exception becomes the reply
            self._fail(name, request_id, error)
            return
        if reply is not None:
            self._peer.reply(request_id, reply)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task).close()  # it has not started if its task was cancelled at once

    def _fail(self, name: str | None, request_id: int, error: Exception) -> None:
        """Reply with an error. Logs a bug with its traceback, and briefly the failure of a push, which has no reply."""
        if not isinstance(error, TxnError | TimeoutError):
            _log.error("handler_failed", command=name, peer=repr(self._peer), exc_info=error)
        elif not request_id:
            _log.warning("push_refused", command=name, peer=repr(self._peer), reason=str(error))
        self._peer.fail(request_id, error)

    async def end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            _, stuck = await asyncio.wait(dict(self._tasks), timeout=TASK_END_TIMEOUT_S)
            for task in stuck:
                _log.error("handler_does_not_end", task=task.get_name(), within_s=TASK_END_TIMEOUT_S)


def _unknown(name: str | None) -> str:
    if name is None:
        return "the command has no body known to this version of txnstore"
    return f"command {name} is not served here: no role of this process handles it"
