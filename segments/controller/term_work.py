"""Work of one controller term that continues after its caller leaves, and ends with the term: layout changes and
deletions. A record holds the request, so the next term takes it up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from txnstore.election import Leadership
from txnstore.store import Commit, MetadataStore
from txnstore.writes.deletion_transitions import read_step
from txnwire.errors import DataCorrupt, NotOwner, TxnError
from txnwire.ports import Random

GROWTH: Final = 1.5
"""Factor from one pause to the next."""

log = structlog.get_logger(__name__)
T = TypeVar("T")


class TermWork:
    """One kind of such work. `what`: its name in log events. `on_deposed`: called when a write shows that another
    process leads."""

    def __init__(
        self, what: str, store: MetadataStore, random: Random, leadership: Leadership, on_deposed: Callable[[], None]
    ) -> None:
        self._what = what
        self._store = store
        self._random = random
        self._leadership = leadership
        self._on_deposed = on_deposed

    async def step(self, commit: Commit) -> bool:
        """Returns whether it was applied: False if a record has changed. Raises `NotOwner`, `StoreUnavailable`."""
        try:
            return read_step(commit, await self._store.commit(commit))
        except NotOwner:
            self._on_deposed()
            raise

    def pauses(self, first_s: tuple[float, float], longest_s: float) -> RetryPauses:
        return RetryPauses(self._random.uniform(*first_s), longest_s)

    def waits(self, error: TxnError, **of: str) -> None:
        """An attempt has failed, and another one follows. Raises `NotOwner` if the term is over."""
        log.info(f"{self._what}_waits", **of, error=str(error))
        if not self._leadership.valid():
            raise no_controller() from error

    def report_end(self, task: asyncio.Task[T]) -> None:
        """Call it when a piece of the work has ended. Errors are the callers'; data that needs a repair is logged as an
        error, because its callers may have left."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, NotOwner):  # the term is over: the next controller goes on
            log.info(f"{self._what}_left", task=task.get_name())
        elif isinstance(error, DataCorrupt):
            log.error(f"{self._what}_stopped", task=task.get_name(), error=repr(error))
        else:
            log.info(f"{self._what}_stopped", task=task.get_name(), error=repr(error))


class RetryPauses:
    """Growing pauses between the attempts of one piece of work."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._next_s = first_s
        self._longest_s = longest_s

    async def pause(self) -> None:
        pause_s, self._next_s = self._next_s, min(self._longest_s, self._next_s * GROWTH)
        await asyncio.sleep(pause_s)


def no_controller() -> NotOwner:
    return NotOwner("this process is the controller no longer; look it up again")


async def end_of(task: asyncio.Task[T]) -> T:
    """Wait for a piece of the work, which goes on if the caller is cancelled. Raises `NotOwner` if the term ends
    before."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        current = asyncio.current_task()
        assert current is not None
        # ▲ A caller that is cancelled as the term ends goes too: with an error to retry on it would stay.
        if task.cancelled() and not current.cancelling():
            raise no_controller() from None
        raise
