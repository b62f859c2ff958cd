"""Requests and replies over a `Connection`: the calling side. The serving side is in `txnwire.transport.serving`.

Hot: no task, no timer and no await per request. A request is serialized at once and sent with the other gathered
commands; one sweep per `Caller` checks deadlines.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Final

from txnwire.errors import ConnectionLost, InvalidArgument, Overloaded, Timeout, TxnError, from_wire
from txnwire.ports import Clock, Connection, Transport
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_OUTSTANDING_REQUESTS, MAX_PENDING_BYTES, PROTOCOL_VERSION
from txnwire.transport.serving import Authenticate, Handler, Peer, Service, not_reading, serve_connection

__all__ = ["Authenticate", "Caller", "Handler", "Peer", "Service", "serve_connection"]

_log = logging.getLogger("txnclient.wire")

_MIN_SWEEP_S: Final = 0.01
"""One sweep handles deadlines closer together than this."""

_HELLO_REQUEST_ID: Final = 1

_Waiting = tuple["asyncio.Future[pb.Command]", float, float]
"""The future of a reply, its deadline (monotonic seconds), and its original timeout."""


class Caller:
    """The calling side of one connection. Made by `Caller.open`."""

    def __init__(
        self,
        connection: Connection,
        hello_ok: pb.HelloOk,
        *,
        clock: Clock,
        on_push: Callable[[pb.Command], None],
        on_closed: Callable[[TxnError], None] | None,
    ) -> None:
        self.hello_ok = hello_ok
        """The server's answer to the handshake."""
        self._connection = connection
        self._clock = clock
        self._on_push = on_push
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._last_request_id = _HELLO_REQUEST_ID
        self._waiting: dict[int, _Waiting] = {}
        self._due = math.inf
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._reason: TxnError | None = None
        self._ended = asyncio.Event()
        self._receiving: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

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

        `on_push` gets every command without a request id, in order; if it raises, that is logged and the connection
        ends. `on_closed` is called once, with the reason, when the connection has ended for any reason but `close()`.
        `hello.protocol_version` is filled in where it is 0.
        Raises `ConnectionLost`, or the server's handshake error (`InvalidArgument`, `Unauthorized`).
        """
        deadline = clock.monotonic() + timeout_s
        connection = await transport.connect(address, timeout_s=timeout_s)
        try:
            async with asyncio.timeout(max(deadline - clock.monotonic(), 0.0)):
                hello_ok, behind = await _shake_hands(connection, hello)
        except TimeoutError:
            await connection.close()
            raise ConnectionLost(f"{address} did not answer the handshake within {timeout_s:g} s") from None
        except BaseException:
            await connection.close()
            raise
        caller = Caller(connection, hello_ok, clock=clock, on_push=on_push, on_closed=on_closed)
        caller._receiving = caller._loop.create_task(caller._receive(behind), name=f"replies from {address}")
        return caller

    @property
    def address(self) -> str:
        return self._connection.peer

    @property
    def closed(self) -> bool:
        """A bool: whether the connection has ended. `await wait_closed()` waits for it."""
        return self._reason is not None

    @property
    def reason(self) -> TxnError | None:
        """Why the connection has ended, None while it lives."""
        return self._reason

    @property
    def outstanding(self) -> int:
        """Number of requests not answered yet."""
        return len(self._waiting)

    @property
    def pending_bytes(self) -> int:
        return self._connection.pending_bytes

    def call_nowait(self, command: pb.Command, *, timeout_s: float) -> asyncio.Future[pb.Command]:
        """Send a request; the future resolves to the reply command.

        Sets `command.request_id`; the command may be reused at once. The future fails with the server's error, with
        `Timeout` after `timeout_s`, with `ConnectionLost` when the connection ends. It may be cancelled. Raises
        `ConnectionLost` if the connection has ended, `Overloaded` past `MAX_OUTSTANDING_REQUESTS`, `MessageTooLarge`.
        """
        if len(self._waiting) >= MAX_OUTSTANDING_REQUESTS:
            raise Overloaded(f"{MAX_OUTSTANDING_REQUESTS} requests to {self.address} are unanswered: wait for some")
        self._last_request_id = request_id = self._last_request_id + 1
        command.request_id = request_id
        self._send(command)
        future: asyncio.Future[pb.Command] = self._loop.create_future()
        deadline = self._clock.monotonic() + timeout_s
        self._waiting[request_id] = (future, deadline, timeout_s)
        if deadline < self._due:
            self._sweep_at(deadline)
        return future

    async def call(self, command: pb.Command, *, timeout_s: float = 10.0) -> pb.Command:
        """`call_nowait`, awaited."""
        return await self.call_nowait(command, timeout_s=timeout_s)

    def push(self, command: pb.Command) -> None:
        """Send a command that has no reply. Raises `ConnectionLost`, `MessageTooLarge`."""
        command.request_id = 0
        self._send(command)

    async def drain(self, below_bytes: int) -> None:
        """Wait until at most `below_bytes` are still unsent. Raises `ConnectionLost`."""
        await self._connection.drain(below_bytes)

    async def wait_closed(self) -> None:
        await self._ended.wait()

    async def close(self) -> None:
        """Fail unanswered requests with `ConnectionLost` and end the connection. Idempotent, bounded, never raises."""
        self._on_closed = None
        self._end(ConnectionLost(f"connection with {self.address}: closed here"))
        tasks = [task for task in (self._receiving, self._closing) if task is not None and not task.done()]
        if tasks:
            await asyncio.wait(tasks)

    # ---- inside ----

    def _send(self, command: pb.Command) -> None:
        if self._reason is not None:
            raise ConnectionLost(str(self._reason))
        self._connection.send_nowait(command)
        if self._connection.pending_bytes > MAX_PENDING_BYTES:
            reason = not_reading(self._connection)
            _log.warning("%s does not read its connection: %s", self.address, reason)
            self._end(reason)
            raise ConnectionLost(str(self._reason))

    async def _receive(self, commands: Sequence[pb.Command]) -> None:
        """Receive commands until the connection ends."""
        try:
            while self._reason is None:
                self._take(commands)
                commands = await self._connection.receive()
        except ConnectionLost as lost:
            self._end(lost)
        except Exception as error:  # noqa: BLE001 - `on_push` failed: its state may be incomplete
            _log.exception("a push of %s could not be handled", self.address)
            self._end(ConnectionLost(f"connection with {self.address}: a push could not be handled: {error!r}"))

    def _take(self, commands: Sequence[pb.Command]) -> None:
        waiting = self._waiting
        for command in commands:
            request_id = command.request_id
            if request_id:
                waiter = waiting.pop(request_id, None)
                if waiter is None or waiter[0].done():
                    continue  # its deadline has passed, or it was cancelled
                if command.HasField("error"):
                    _fail(waiter[0], from_wire(command.error))
                else:
                    waiter[0].set_result(command)
            elif command.HasField("error"):
                self._end(ConnectionLost(f"connection with {self.address}: ended by it: {from_wire(command.error)}"))
                return
            else:
                self._on_push(command)

    def _end(self, reason: TxnError) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        waiting, self._waiting = self._waiting, {}
        for future, _, _ in waiting.values():
            if not future.done():
                _fail(future, ConnectionLost(str(reason)))
        self._ended.set()
        self._closing = self._loop.create_task(self._connection.close(), name=f"closing {self.address}")
        if self._on_closed is not None:
            self._on_closed(reason)

    def _sweep_at(self, deadline: float) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._due = deadline
        delay = max(deadline - self._clock.monotonic(), _MIN_SWEEP_S)
        self._sweep_timer = self._loop.call_later(delay, self._sweep)

    def _sweep(self) -> None:
        """Fail overdue requests; run again at the earliest remaining deadline.

        If all requests have one timeout, it runs about once per timeout, for any number of requests.
        """
        now = self._clock.monotonic()
        overdue = [request_id for request_id, (_, deadline, _) in self._waiting.items() if deadline <= now]
        for request_id in overdue:
            future, _, timeout_s = self._waiting.pop(request_id)
            if not future.done():
                _fail(future, Timeout(f"{self.address} did not answer request {request_id} within {timeout_s:.3g} s"))
        self._due = math.inf
        self._sweep_timer = None
        if self._waiting:
            self._sweep_at(min(deadline for _, deadline, _ in self._waiting.values()))


async def _shake_hands(connection: Connection, hello: pb.Hello) -> tuple[pb.HelloOk, Sequence[pb.Command]]:
    """Send Hello; returns the server's answer, and the commands right after it."""
    request = pb.Command(request_id=_HELLO_REQUEST_ID, hello=hello)
    request.hello.protocol_version = hello.protocol_version or PROTOCOL_VERSION
    connection.send_nowait(request)
    commands: Sequence[pb.Command] = ()
    while not commands:
        commands = await connection.receive()
    reply = commands[0]
    if reply.HasField("error"):
        raise from_wire(reply.error)
    if reply.request_id != _HELLO_REQUEST_ID or not reply.HasField("hello_ok"):
        raise InvalidArgument(
            f"{connection.peer} answered hello with {reply.WhichOneof('body')}: it is no server of ours"
        )
    if reply.hello_ok.protocol_version != PROTOCOL_VERSION:
        version = reply.hello_ok.protocol_version
        raise InvalidArgument(f"{connection.peer} speaks protocol version {version}, this client {PROTOCOL_VERSION}")
    return reply.hello_ok, commands[1:]


def _fail(answer: asyncio.Future[pb.Command], error: TxnError) -> None:
    """Fail the future. ▲ Its caller may be gone, cancelled while it waited without `await`: asyncio would then print
    that the error was never retrieved, as if the user's program had a bug."""
    answer.set_exception(error)
    answer.exception()
