"""The small interfaces for all I/O: clock, randomness, transport (DESIGN §2).

`MetadataStore` is in `txnstore.store`, `LedgerStore` in `segments.ledger.ledger`: in the lowest package that needs
them. All other code gets time, randomness and network from here, so the production code itself can run inside the
deterministic simulation. Sleeping goes through the event loop, which the simulation replaces.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from txnwire.proto.txn_pb2 import Command


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never stepped. The same time base as the event loop's `time()`."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; an operator or NTP may step it. Never used for a decision that a step
        could make wrong (DESIGN §5, deadlines)."""


class Random(Protocol):
    """The used part of `random.Random`."""

    def getrandbits(self, k: int, /) -> int: ...
    def random(self) -> float: ...
    def uniform(self, a: float, b: float) -> float: ...


class Connection(Protocol):
    """One ordered, bidirectional stream of commands between two processes.

    `send_nowait` serializes at once (the caller may reuse the command) and returns; the writer sends all gathered
    commands as one frame. There is exactly one receiver.
    """

    @property
    def peer(self) -> str:
        """The other end's address, for messages and logs."""

    @property
    def pending_bytes(self) -> int:
        """Bytes passed to `send_nowait` and not sent yet; bulk senders wait in `drain` above a bound."""

    def send_nowait(self, command: Command) -> None:
        """Queue one command. Raises `ConnectionLost` once the connection is closed."""

    async def drain(self, below_bytes: int) -> None:
        """Wait until `pending_bytes` is at most `below_bytes`. Raises `ConnectionLost`."""

    async def receive(self) -> Sequence[Command]:
        """The next frame's commands, in order. Raises `ConnectionLost` when the stream has ended in any way. A cancel
        or a timeout loses no frame."""

    async def close(self) -> None:
        """Send the queued commands within a second if possible, then end the stream. Idempotent, never raises."""


class Listener(Protocol):
    @property
    def address(self) -> str:
        """The bound `host:port` (the real port if 0 was requested)."""

    async def close(self, grace_s: float = 1.0) -> None:
        """Stop accepting, close every connection, wait at most `grace_s` for handlers to return."""


class Transport(Protocol):
    async def connect(self, address: str, *, timeout_s: float) -> Connection:
        """Open a connection to `host:port`. Raises `ConnectionLost` if it is not usable within `timeout_s`."""

    async def listen(self, address: str, handler: Callable[[Connection], Awaitable[None]]) -> Listener:
        """Serve `host:port`; `handler` runs once per accepted connection, which is closed when it returns."""
