"""The session: ports, connections and counters shared by everything opened in one client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from txnclient.connection.deadlines import Backoff, Deadline
from txnclient.connection.directory import ClientDirectory
from txnclient.connection.links import Links
from txnclient.connection.tasks import OwnedTasks
from txnwire.errors import (
    ConnectionLost,
    InvalidArgument,
    NotOwner,
    Overloaded,
    StoreUnavailable,
    Timeout,
    TxnError,
    for_good,
)
from txnwire.ids import Position
from txnwire.ports import Clock, Random

T = TypeVar("T")

TRANSIENT = (ConnectionLost, NotOwner, StoreUnavailable, Overloaded, Timeout)
"""Errors that a call retries within its timeout. Not `StoreFull`: it lasts for minutes, so the caller receives it."""

_DEFINITE = (StoreUnavailable, Overloaded, NotOwner)
"""Transient errors that prove nothing was done; raised unchanged when the time is up."""


@dataclass(slots=True)
class _Shared:
    commit_revision: int = 0
    told_revision: int = 0
    last_id: int = 0
    closed: bool = False


@dataclass(slots=True)
class Session:
    """One client's ports, connections, knowledge and counters."""

    clock: Clock
    random: Random
    timeout_s: float
    """Timeout of every call that has none of its own."""
    tasks: OwnedTasks
    links: Links
    directory: ClientDirectory
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    pid: int = field(default_factory=os.getpid)
    divided: WeakValueDictionary[tuple[str, Position], Any] = field(default_factory=WeakValueDictionary)
    """Entries of queues that consumers of this client divide among them: each is kept and decoded once."""
    _shared: _Shared = field(default_factory=_Shared)

    @property
    def commit_revision(self) -> int:
        """Highest revision of a commit or abort that this client knows: its reads wait for it, so a client reads its
        own commits, also behind its aborted messages."""
        return self._shared.commit_revision

    @property
    def told_revision(self) -> int:
        """Highest revision that this client knows: from its commits and aborts, its deliveries, and the application.
        Its new readers never read an older state."""
        return max(self._shared.commit_revision, self._shared.told_revision)

    @property
    def closed(self) -> bool:
        return self._shared.closed

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in this client's event loop."""
        return asyncio.events._get_running_loop() is self.loop

    def expect_here(self) -> None:
        """▲ C7: raises `InvalidArgument` in another loop, another thread or a forked child: such a call would wait for
        ever, or corrupt the loop's state."""
        if asyncio.events._get_running_loop() is not self.loop:
            raise self.elsewhere()

    def elsewhere(self) -> InvalidArgument:
        """The error for a caller outside the client's event loop."""
        return for_good(InvalidArgument(self._where()))

    def _where(self) -> str:
        if os.getpid() != self.pid:
            return forked_from(self.pid)
        if self.loop.is_closed():
            return "the event loop that this client was opened in has ended: connect again, once in each asyncio.run()"
        return (
            "this client was opened in another event loop than it is called from: connect in each loop, or use "
            "txnclient.sync, whose clients may be called from any thread"
        )

    def close(self) -> None:
        """Make calls that wait for a retry, or for news, give up."""
        self._shared.closed = True
        self.directory.end()

    def with_tasks(self, tasks: OwnedTasks) -> Session:
        """The same session, with background tasks owned by one object opened in it."""
        return replace(self, tasks=tasks)

    def next_id(self) -> int:
        """An id for a producer or consumer of a segment; unique over all connections of this client."""
        self._shared.last_id += 1
        return self._shared.last_id

    def deadline(self, timeout_s: float | None = None) -> Deadline:
        return Deadline(self.clock, self.timeout_s if timeout_s is None else timeout_s)

    def random_u64(self) -> int:
        """A random number for incarnations and attempts; never 0."""
        return self.random.getrandbits(64) or 1

    def committed_at(self, revision: int) -> None:
        if revision > self._shared.commit_revision:
            self._shared.commit_revision = revision

    def told(self, revision: int) -> None:
        """Note a revision. ▲ The metadata store must have reached it, because readers wait for it."""
        if revision > self._shared.told_revision:
            self._shared.told_revision = revision

    async def repeat(self, what: str, deadline: Deadline, attempt: Callable[[], Awaitable[T]]) -> T:
        """Run `attempt` until it succeeds, fails with a permanent error, or the deadline has passed.

        News of the cluster end a pause early, because they may remove the cause.
        """
        backoff = Backoff(self.random)
        while True:
            try:
                return await attempt()
            except TRANSIENT as error:
                last = error
            if self.closed:
                raise ConnectionLost(f"{what}: this client was closed meanwhile") from last
            await self.directory.wait_change(min(backoff.next_s(), deadline.remaining()))
            if deadline.passed and not self.closed:
                raise self.give_up(what, deadline, last)

    def give_up(self, what: str, deadline: Deadline, last: TxnError) -> TxnError:
        """The error when time is up: the last one if it proves that nothing was done, else a `Timeout` that quotes
        it."""
        return last if isinstance(last, _DEFINITE) else deadline.expired(what, last)


def forked_from(pid: int) -> str:
    return (
        f"this client was opened by process {pid}, from which this one ({os.getpid()}) was forked: connect in the "
        "children only, or start them by 'spawn' or 'forkserver'"
    )
