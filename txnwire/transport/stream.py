"""A `Connection` over any ordered stream of frames: gathering, backpressure, bounded closing.

▲ DESIGN §11: a stream has exactly one writer task and one reader task, both made here. A second concurrent write or
read kills a gRPC stream, and a timeout around a read would cancel the whole call. So no other code touches the stream:
`receive` waits on the reader's inbox, and may be cancelled or timed out without harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from txnwire.errors import ConnectionLost, InternalError, InvalidArgument
from txnwire.proto.txn_pb2 import Command
from txnwire.protocol import MIB
from txnwire.transport.frames import FrameOutbox, parse_frame

_log = logging.getLogger("txnclient.wire")
"""The client library uses this module, so it logs through `logging`, below the library's own logger. A server shows it
too (`txnctl.process.logs`)."""

CLOSE_TIMEOUT_S: Final = 1.0
"""Limit for sending queued commands and for the other end's goodbye, together."""

INBOX_FRAMES: Final = 8
INBOX_BYTES: Final = 8 * MIB
"""The reader stops reading above either limit, so the stream's flow control slows the sender."""


class FrameStream(Protocol):
    """A transport's stream: whole frames both ways, one read and one write at a time."""

    async def read(self) -> bytes | None:
        """The next frame; None at an orderly end. Raises `ConnectionLost` with the reason, if known."""

    async def write(self, frame: bytes) -> None:
        """Return once the stream has taken the frame. Raises `ConnectionLost`."""

    async def finish(self) -> None:
        """Tell the other end that nothing follows. Called once, after the last write."""

    def abort(self, reason: Exception | None) -> None:
        """End the stream at once; send `reason` (None: orderly) to the other end if still possible."""

    async def release(self) -> None:
        """Release the stream's resources; nothing is called after this."""


class StreamConnection:
    """`ports.Connection` over a `FrameStream`."""

    def __init__(self, stream: FrameStream, peer: str) -> None:
        self._stream = stream
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._outbox = FrameOutbox()
        self._inbox: deque[tuple[Sequence[Command], int]] = deque()
        self._inbox_bytes = 0
        self._ended: ConnectionLost | None = None
        self._closing: asyncio.Task[None] | None = None
        self._idle_writer: asyncio.Future[None] | None = None
        self._idle_reader: asyncio.Future[None] | None = None
        self._receiver: asyncio.Future[None] | None = None
        self._drainers: list[tuple[int, asyncio.Future[None]]] = []
        self._writer = self._loop.create_task(self._write_loop(), name=f"writer to {peer}")
        self._reader = self._loop.create_task(self._read_loop(), name=f"reader from {peer}")
        for task in (self._writer, self._reader):
            task.add_done_callback(self._task_done)

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def pending_bytes(self) -> int:
        return self._outbox.pending_bytes

    def send_nowait(self, command: Command) -> None:
        """See `ports.Connection`; raises `MessageTooLarge` for a command no frame can carry."""
        if self._ended is not None or self._closing is not None:
            raise self._lost()
        self._outbox.add(command)
        if self._idle_writer is not None:
            _wake(self._idle_writer)
            self._idle_writer = None

    async def drain(self, below_bytes: int) -> None:
        if self._ended is not None:
            raise self._lost()
        if self._outbox.pending_bytes <= below_bytes:
            return
        drained = self._loop.create_future()
        self._drainers.append((below_bytes, drained))
        await drained

    async def receive(self) -> Sequence[Command]:
        """See `ports.Connection`. A cancel loses no frame. It always yields to the event loop, so a receiver with much
        input does not block the writer's replies."""
        if self._inbox:
            await asyncio.sleep(0)
        while not self._inbox:
            if self._ended is not None:
                raise self._lost()
            if self._receiver is not None:
                raise InternalError(f"two receivers on the connection to {self._peer}: there must be exactly one")
            self._receiver = self._loop.create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None
        commands, size = self._inbox.popleft()
        self._inbox_bytes -= size
        if self._idle_reader is not None:
            _wake(self._idle_reader)
        return commands

    async def close(self) -> None:
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name=f"closing {self._peer}")
        await asyncio.shield(self._closing)

    def end(self, reason: Exception) -> None:
        """End at once, without sending queued commands. The first reason counts and is sent to the other end."""
        if self._ended is None:
            said = "closed here" if self._closing else reason
            self._end(ConnectionLost(f"connection with {self._peer}: {said}"), reason)

    async def wait_stopped(self) -> None:
        """Wait until neither task will touch the stream again. Only after `end` or while closing."""
        tasks = [task for task in (self._writer, self._reader) if not task.done()]
        if tasks:
            await asyncio.wait(tasks)

    # ---- inside ----

    def _lost(self) -> ConnectionLost:
        """A new exception: raising one object in many places would mix their tracebacks."""
        return ConnectionLost(str(self._ended) if self._ended else f"connection with {self._peer}: closed here")

    def _end(self, lost: ConnectionLost, reason: Exception | None) -> None:
        self._ended = lost
        self._stream.abort(reason)
        current = asyncio.current_task()
        for task in (self._writer, self._reader):
            if task is not current:
                task.cancel()
        for waiter in (self._receiver, *(drained for _, drained in self._drainers)):
            if waiter is not None and not waiter.done():
                if waiter is self._receiver:
                    waiter.set_result(None)  # it delivers what has arrived before it raises
                else:
                    waiter.set_exception(self._lost())
        self._drainers.clear()

    def _task_done(self, task: asyncio.Task[None]) -> None:
        """Check a loop's end: unless it returned or was cancelled, it is a bug, and the connection must end too."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the task %s of a connection failed", task.get_name(), exc_info=error)
            self.end(InternalError(f"{type(error).__name__}: {error}"))

    async def _write_loop(self) -> None:
        while True:
            gathered = self._outbox.next_frame()
            if gathered is None:
                if self._closing is not None:
                    return
                self._idle_writer = self._loop.create_future()
                await self._idle_writer
                continue
            frame, command_bytes = gathered
            try:
                await self._stream.write(frame)
            except ConnectionLost as lost:
                # The reader learns why the stream ended, a failed write only that it did: let the reader go first.
                await asyncio.wait({self._reader}, timeout=CLOSE_TIMEOUT_S)
                self.end(lost)
                return
            self._outbox.sent(command_bytes)
            if self._drainers:
                self._wake_drainers()

    def _wake_drainers(self) -> None:
        pending = self._outbox.pending_bytes
        for below, drained in self._drainers:
            if pending <= below:
                _wake(drained)
        self._drainers = [waiting for waiting in self._drainers if not waiting[1].done()]

    async def _read_loop(self) -> None:
        try:
            while (data := await self._stream.read()) is not None:
                await self._deliver(data)
            self.end(ConnectionLost("the other end has closed it"))
        except ConnectionLost as lost:
            self.end(lost)
        except InvalidArgument as malformed:
            _log.warning("malformed frame from %s: %s", self._peer, malformed)
            self.end(malformed)

    async def _deliver(self, data: bytes) -> None:
        if self._closing is not None:
            return  # drop it, but go on reading to see the end of the stream
        self._inbox.append((parse_frame(data), len(data)))
        self._inbox_bytes += len(data)
        if self._receiver is not None:
            _wake(self._receiver)
        while (len(self._inbox) >= INBOX_FRAMES or self._inbox_bytes >= INBOX_BYTES) and self._closing is None:
            self._idle_reader = self._loop.create_future()
            try:
                await self._idle_reader
            finally:
                self._idle_reader = None

    async def _close(self) -> None:
        if self._ended is None:
            await self._say_goodbye()
        if self._ended is None:
            self._end(ConnectionLost(f"connection with {self._peer}: closed here"), None)
        self._inbox.clear()
        await self.wait_stopped()
        await self._stream.release()

    async def _say_goodbye(self) -> None:
        """Send queued commands, then finish in order, all within `CLOSE_TIMEOUT_S`."""
        for idle in (self._idle_writer, self._idle_reader):
            if idle is not None:
                _wake(idle)
        finished = self._loop.create_task(self._finish(), name=f"goodbye to {self._peer}")
        _, late = await asyncio.wait({finished}, timeout=CLOSE_TIMEOUT_S)
        for task in late:
            task.cancel()
            await asyncio.wait({task})

    async def _finish(self) -> None:
        await asyncio.wait({self._writer})
        if self._ended is None:
            await self._stream.finish()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
