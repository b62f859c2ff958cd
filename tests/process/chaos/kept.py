"""What a worker of chaos knows, kept on disk: its process is killed, and its knowledge must not be."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from simulation.seeking.seek_model import SeekLog
from simulation.workloads.acking_work import AckingLog
from simulation.workloads.dead_work import DeadLog
from simulation.workloads.large_work import LargeLog
from simulation.workloads.passing_work import PassingLog
from simulation.workloads.queue_work import Taken
from txnwire.ports import Connection, Listener, Transport
from txnwire.proto.txn_pb2 import Command

Log = TypeVar("Log")

LOGS: dict[str, type[Any]] = {
    "passing": PassingLog,
    "seeking": SeekLog,
    "acking": AckingLog,
    "large": LargeLog,
    "dead": DeadLog,
}
"""Of works of which there is one client, which knows of everything: what it knows over all its lives."""


class WriteAheadConnection:
    """▲ What a client knows is on disk before a server can hear of it."""

    def __init__(self, real: Connection, before_sending: Callable[[], None]) -> None:
        self._real = real
        self._before_sending = before_sending

    @property
    def peer(self) -> str:
        return self._real.peer

    @property
    def pending_bytes(self) -> int:
        return self._real.pending_bytes

    def send_nowait(self, command: Command) -> None:
        self._before_sending()
        self._real.send_nowait(command)

    async def drain(self, below_bytes: int) -> None:
        await self._real.drain(below_bytes)

    async def receive(self) -> Sequence[Command]:
        return await self._real.receive()

    async def close(self) -> None:
        await self._real.close()


class WriteAheadTransport:
    def __init__(self, real: Transport, before_sending: Callable[[], None]) -> None:
        self._real = real
        self._before_sending = before_sending

    async def connect(self, address: str, *, timeout_s: float) -> Connection:
        return WriteAheadConnection(await self._real.connect(address, timeout_s=timeout_s), self._before_sending)

    async def listen(self, address: str, handler: Callable[[Connection], Awaitable[None]]) -> Listener:
        return await self._real.listen(address, handler)


class Kept(Generic[Log]):
    """One log, as it was left by the life before."""

    def __init__(self, path: Path, kind: type[Log]) -> None:
        self._path = path
        self._written = b""
        self.log = read_kept(path, kind)

    def write(self) -> None:
        now = msgspec.json.encode(self.log)
        if now != self._written:
            beside = self._path.with_suffix(".new")
            beside.write_bytes(now)
            os.replace(beside, self._path)  # whole or not at all; no sync, for it is processes that die here
            self._written = now


def read_kept(path: Path, kind: type[Log]) -> Log:
    return msgspec.json.decode(path.read_bytes(), type=kind) if path.exists() else kind()


class TakenOnDisk(list[Taken]):
    """`QueueLog.taken` of a process that may be killed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def append(self, taken: Taken) -> None:
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(taken) + b"\n")
        super().append(taken)


def read_taken(path: Path) -> list[Taken]:
    """A last line that a kill has cut is left out: its worker had acked nothing of it."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line, type=Taken) for line in lines]
