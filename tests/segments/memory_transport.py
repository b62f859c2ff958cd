"""A transport within one process: commands are serialized and parsed again, frames hold what has gathered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from txnwire.errors import ConnectionLost
from txnwire.ports import Connection
from txnwire.proto.txn_pb2 import Command


class MemoryConnection:
    """One end. `pause` keeps the other end from getting anything; what it is sent then counts as pending."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.other: MemoryConnection = self
        self.paused = False
        self._inbox: list[Command] = []
        self._bytes = 0
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def pending_bytes(self) -> int:
        return self.other._bytes

    def send_nowait(self, command: Command) -> None:
        if self._closed:
            raise ConnectionLost(f"{self.peer}: closed")
        data = command.SerializeToString()
        self.other._inbox.append(Command.FromString(data))
        self.other._bytes += len(data)
        self.other._signal()

    async def drain(self, below_bytes: int) -> None:
        while self.pending_bytes > below_bytes:
            if self._closed:
                raise ConnectionLost(f"{self.peer}: closed")
            await self.other._changed.wait()

    async def receive(self) -> Sequence[Command]:
        while self.paused or not self._inbox:
            if self._closed:
                raise ConnectionLost(f"{self.peer}: closed")
            await self._changed.wait()
        commands, self._inbox, self._bytes = self._inbox, [], 0
        self._signal()
        return commands

    async def close(self) -> None:
        for end in (self, self.other):
            end._closed = True
            end._signal()

    def pause(self, paused: bool) -> None:
        self.paused = paused
        self._signal()

    def _signal(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class _MemoryListener:
    def __init__(
        self, transport: MemoryTransport, address: str, handler: Callable[[Connection], Awaitable[None]]
    ) -> None:
        self.address = address
        self._transport = transport
        self._handler = handler
        self._serving: dict[asyncio.Task[None], MemoryConnection] = {}

    def accept(self, connection: MemoryConnection) -> None:
        async def serve() -> None:
            try:
                await self._handler(connection)
            finally:
                await connection.close()

        task = asyncio.create_task(serve())
        self._serving[task] = connection
        task.add_done_callback(self._serving.pop)

    async def close(self, grace_s: float = 1.0) -> None:
        self._transport.listeners.pop(self.address, None)
        for connection in list(self._serving.values()):
            await connection.close()
        if self._serving:
            await asyncio.wait(list(self._serving), timeout=grace_s)


class MemoryTransport:
    def __init__(self) -> None:
        self.listeners: dict[str, _MemoryListener] = {}
        self.connections: list[MemoryConnection] = []
        """The connecting ends, oldest first."""
        self.mute = False
        """Whoever connects gets no answer."""

    async def connect(self, address: str, *, timeout_s: float) -> Connection:
        listener = self.listeners.get(address)
        if listener is None:
            raise ConnectionLost(f"nobody listens at {address}")
        near, far = MemoryConnection(address), MemoryConnection("client")
        near.other, far.other = far, near
        near.paused = self.mute
        self.connections.append(near)
        listener.accept(far)
        return near

    def go_mute(self) -> None:
        """Servers take what is sent to them, and nobody hears them any more."""
        self.mute = True
        for connection in self.connections:
            connection.pause(True)

    async def listen(self, address: str, handler: Callable[[Connection], Awaitable[None]]) -> _MemoryListener:
        listener = self.listeners[address] = _MemoryListener(self, address, handler)
        return listener
