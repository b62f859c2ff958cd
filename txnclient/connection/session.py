"""What everything opened in one client shares."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

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
from txnwire.ports import Clock, Random

T = TypeVar("T")

TRANSIENT = (ConnectionLost, NotOwner, StoreUnavailable, Overloaded, Timeout)
"""What a call waits out within its timeout. `StoreFull` is not among it: that passes in minutes, so the caller is
told."""

_DEFINITE = (StoreUnavailable, Overloaded, NotOwner)
"""Transient errors that say nothing was done; raised as they are when the time is up."""


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
    """Of every call that is given none of its own."""
    tasks: OwnedTasks
    links: Links
    directory: ClientDirectory
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    pid: int = field(default_factory=os.getpid)
    _shared: _Shared = field(default_factory=_Shared)

    @property
    def commit_revision(self) -> int:
        """Highest revision of a commit, or abort, this client knows of: its reads wait for it, so a client reads its
        own commits, also behind what it has aborted."""
        return self._shared.commit_revision

    @property
    def told_revision(self) -> int:
        """Highest revision this client has been told of: by its commits and aborts, by what it was delivered, and by
        the application. What it opens to read is never older."""
        return max(self._shared.commit_revision, self._shared.told_revision)

    @property
    def closed(self) -> bool:
        return self._shared.closed

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in the event loop that everything of this client belongs to."""
        return asyncio.events._get_running_loop() is self.loop

    def expect_here(self) -> None:
        """▲ C7: raises `InvalidArgument` to whoever calls from another loop, another thread or a forked child, who
        would wait for ever, or break what goes on in the loop."""
        if asyncio.events._get_running_loop() is not self.loop:
            raise self.elsewhere()

    def elsewhere(self) -> InvalidArgument:
        """What to raise there."""
        return for_good(InvalidArgument(self._where()))

    def _where(self) -> str:
        if os.getpid() != self.pid:
            return (
                f"this client was opened by process {self.pid}, from which this one ({os.getpid()}) was forked: "
                "connect in the children only, or start them by 'spawn' or 'forkserver'"
            )
        if self.loop.is_closed():
            return "the event loop that this client was opened in has ended: connect again, once in each asyncio.run()"
        return (
            "this client was opened in another event loop than it is called from: connect in each loop, or use "
            "txnclient.sync, whose clients may be called from any thread"
        )

    def close(self) -> None:
        """Calls that wait to try again give up."""
        self._shared.closed = True
        self.directory.stir()

    def with_tasks(self, tasks: OwnedTasks) -> Session:
        """The same session, with background tasks owned by one thing opened in it."""
        return replace(self, tasks=tasks)

    def next_id(self) -> int:
        """For producers and consumers of segments; unique over all connections of this client."""
        self._shared.last_id += 1
        return self._shared.last_id

    def deadline(self, timeout_s: float | None = None) -> Deadline:
        return Deadline(self.clock, self.timeout_s if timeout_s is None else timeout_s)

    def random_u64(self) -> int:
        """For incarnations and attempts; never 0."""
        return self.random.getrandbits(64) or 1

    def committed_at(self, revision: int) -> None:
        if revision > self._shared.commit_revision:
            self._shared.commit_revision = revision

    def told(self, revision: int) -> None:
        """▲ Only of a revision that the metadata store has come to: readers wait for it."""
        if revision > self._shared.told_revision:
            self._shared.told_revision = revision

    async def repeat(self, what: str, deadline: Deadline, attempt: Callable[[], Awaitable[T]]) -> T:
        """Run `attempt` until it succeeds, fails with what waiting cannot cure, or the deadline has passed.

        A change in what is known of the cluster ends a pause early: it may be what was waited for.
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
        """The error when time is up: the last one if it says that nothing was done, else a `Timeout` that quotes it."""
        return last if isinstance(last, _DEFINITE) else deadline.expired(what, last)
