"""A real transport that loses chosen replies: the connection ends just before the application would hear of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from txnwire.errors import ConnectionLost
from txnwire.ports import Connection, Listener, Transport
from txnwire.proto.txn_pb2 import Command


class LossyConnection:
    def __init__(self, real: Connection, transport: LossyTransport) -> None:
        self._real = real
        self._transport = transport
        self._lose = transport.lose

    @property
    def peer(self) -> str:
        return self._real.peer

    @property
    def pending_bytes(self) -> int:
        return self._real.pending_bytes

    def send_nowait(self, command: Command) -> None:
        body = command.WhichOneof("body") or ""
        if body in self._transport.hold:
            self._transport.held.append((self._real, command))
        else:
            self._real.send_nowait(command)
        self._transport.sent[body] += 1

    async def drain(self, below_bytes: int) -> None:
        await self._real.drain(below_bytes)

    async def receive(self) -> Sequence[Command]:
        commands = await self._real.receive()
        for command in commands:
            body = command.WhichOneof("body") or ""
            if self._lose[body]:
                self._lose[body] -= 1
                await self._real.close()
                raise ConnectionLost(f"{self.peer}: cut before {body} arrived")
        return commands

    async def close(self) -> None:
        await self._real.close()


class LossyTransport:
    """`lose["send_ok"] = 2` loses the next two frames that hold a `send_ok`, each with its connection. `sent` counts
    what the application has sent; commands in `hold` are sent by `release`."""

    def __init__(self, real: Transport) -> None:
        self._real = real
        self.lose: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.hold: set[str] = set()
        self.held: list[tuple[Connection, Command]] = []

    def release(self) -> None:
        self.hold.clear()
        for connection, command in self.held:
            with suppress(ConnectionLost):  # it was lost with its connection
                connection.send_nowait(command)
        self.held.clear()

    async def connect(self, address: str, *, timeout_s: float) -> Connection:
        return LossyConnection(await self._real.connect(address, timeout_s=timeout_s), self)

    async def listen(self, address: str, handler: Callable[[Connection], Awaitable[None]]) -> Listener:
        return await self._real.listen(address, handler)
