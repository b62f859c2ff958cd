"""Writes the plans of `watchers.clean_up_plans` for all participants of a process (DESIGN §5, §6).

▲ One unanswered commit per participant: only it writes its keys, so no late old value can overwrite a new one. The
store coalesces commits of different participants. Clean-up may lag without harm, so the first item waits a little for
others, which turns many small commits into few.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

import structlog

from txnstore.store import CommitVerdict, MetadataStore
from txnwire.errors import NotOwner, OutcomeUnknown, StoreFull, StoreUnavailable, Timeout, TxnError
from txnwire.ports import Clock
from watchers.clean_up_plans import AckCleanUp, CleanUpPlan, CleanUpTarget, WriteCleanUp

__all__ = [
    "AckCleanUp",
    "CleanUp",
    "CleanUpPlan",
    "CleanUpSettings",
    "CleanUpStatistics",
    "CleanUpTarget",
    "WriteCleanUp",
]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanUpSettings:
    """`linger_s`: how long the first item waits for others; it does not wait once `full_batch` have gathered behind a
    commit. `retry_s`: pause after the store was unavailable, or a compare was lost twice in a row. `max_in_flight`:
    bound on commits in flight, ignored while all of them together write less than `small_keys`."""

    linger_s: float = 0.02
    full_batch: int = 32
    retry_s: float = 0.5
    max_in_flight: int = 8
    small_keys: int = 128


@dataclass(frozen=True, slots=True)
class CleanUpStatistics:
    """`backlog`: decisions applied but not cleaned, summed over participants. `commits` (answered), `cleaned`
    (decisions) and `lost_compares` count since the start."""

    backlog: int
    in_flight: int
    commits: int
    cleaned: int
    lost_compares: int


class _Registered:
    """`flush`: timer for writes without clean-up to travel with. `retry`: timer of the pause after a refusal. `drains`:
    waiters for the commit in flight."""

    __slots__ = ("busy", "drains", "error", "flush", "lost_in_a_row", "retired", "retry", "target")

    def __init__(self, target: CleanUpTarget) -> None:
        self.target = target
        self.busy = False
        self.flush: asyncio.TimerHandle | None = None
        self.retry: asyncio.TimerHandle | None = None
        self.lost_in_a_row = 0
        self.error: TxnError | None = None
        self.drains: list[asyncio.Future[None]] = []
        self.retired: asyncio.Future[None] | None = None


class CleanUp:
    """Sends clean-up commits. One per process. Writes only between `start` and `close`."""

    def __init__(self, store: MetadataStore, clock: Clock, settings: CleanUpSettings | None = None) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings or CleanUpSettings()
        self._registered: dict[CleanUpTarget, _Registered] = {}
        self._due: dict[_Registered, None] = {}
        self._turn: asyncio.TimerHandle | None = None
        self._in_flight = self._keys_in_flight = 0
        self._running = False
        self._commits = self._cleaned = self._lost_compares = 0

    async def start(self) -> None:
        self._running = True
        for target in self._registered:
            self.wake(target)

    async def close(self) -> None:
        """Stop; a commit in flight may still land, which is harmless."""
        self._running = False
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        for target in list(self._registered):
            self.remove(target)

    def add(self, target: CleanUpTarget) -> None:
        self._registered[target] = _Registered(target)

    def remove(self, target: CleanUpTarget) -> None:
        """Stop writes and calls for `target`. Idempotent. A commit in flight is not withdrawn."""
        registered = self._registered.pop(target, None)
        if registered is None:
            return
        self._due.pop(registered, None)
        for timer in (registered.flush, registered.retry):
            if timer is not None:
                timer.cancel()
        registered.error = registered.error or NotOwner(f"clean-up of the {target.name} has been stopped")
        self._wake_drains(registered)

    async def retire(self, target: CleanUpTarget) -> None:
        """As `remove`, but returns only after its commit in flight has been answered."""
        registered = self._registered.get(target)
        self.remove(target)
        if registered is not None and registered.busy:
            registered.retired = asyncio.get_running_loop().create_future()
            await registered.retired

    def wake(self, target: CleanUpTarget) -> None:
        """`target` has something to write: clean-up was queued, its cursor or read position moved. O(1), callable at
        any rate; ignores unknown targets."""
        registered = self._registered.get(target)
        if registered is None or not self._running or (registered.flush is not None and not target.backlog):
            return
        if registered.retry is not None:
            return  # ▲ the pause counts for all that is queued meanwhile: a full etcd logs each refused request
        self._due[registered] = None
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_later(self._settings.linger_s, self._take_turn)

    async def drain(self, target: CleanUpTarget, *, timeout_s: float) -> None:
        """Write all that `target` has, watermark and cursor included (graceful hand-over). Raises `Timeout`,
        `NotOwner`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while (registered := self._registered.get(target)) is not None:
                    if not registered.busy and not self._send(registered, everything=True):
                        if registered.error is not None:
                            raise registered.error
                        return
                    landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    registered.drains.append(landed)
                    await landed
                    if registered.error is not None:
                        raise registered.error
        except TimeoutError:
            raise Timeout(
                f"the {target.name} were not cleaned up within {timeout_s} s: {target.backlog} left"
            ) from None

    def statistics(self) -> CleanUpStatistics:
        return CleanUpStatistics(
            backlog=sum(target.backlog for target in self._registered),
            in_flight=self._in_flight,
            commits=self._commits,
            cleaned=self._cleaned,
            lost_compares=self._lost_compares,
        )

    # ---- turns

    def _take_turn(self) -> None:
        """Send for every due target, up to the bound."""
        self._turn = None
        # A transaction of a thousand segments is a thousand commits of two keys. Eight at a time would take 128
        # requests to etcd, and twice the work on both sides.
        for registered in list(self._due):
            if self._in_flight >= self._settings.max_in_flight and self._keys_in_flight >= self._settings.small_keys:
                return  # an answer takes the next turn
            del self._due[registered]
            if not registered.busy:
                self._send(registered)

    def _send(self, registered: _Registered, *, everything: bool = False) -> bool:
        """Returns whether a commit is in flight."""
        target = registered.target
        plan = target.plan(self._clock.monotonic(), everything=everything)
        if plan is None:
            self._flush_later(registered)
            return False
        try:
            future = self._store.commit_nowait(plan.commit)
        except TxnError as error:  # malformed; any other refusal comes as an answer does
            # ▲ Report it at once: otherwise clean-up would never be stored, while acks are still answered.
            self._lose(registered, error)
            return False
        registered.busy = True
        self._in_flight += 1
        self._keys_in_flight += _keys_written(plan)
        future.add_done_callback(partial(self._answered, registered, plan))
        return True

    def _flush_later(self, registered: _Registered) -> None:
        due_s = registered.target.next_flush_s()
        if due_s is not None and registered.flush is None and self._running:
            delay_s = max(due_s - self._clock.monotonic(), self._settings.linger_s)
            registered.flush = asyncio.get_running_loop().call_later(delay_s, self._flush, registered)

    def _flush(self, registered: _Registered) -> None:
        registered.flush = None
        self.wake(registered.target)

    def _retry(self, registered: _Registered) -> None:
        """Try again after a pause; drains wait for that too."""
        if self._running and registered.error is None and registered.retry is None:
            registered.retry = asyncio.get_running_loop().call_later(
                self._settings.retry_s, self._try_again, registered
            )

    def _try_again(self, registered: _Registered) -> None:
        registered.retry = None
        self._wake_drains(registered)
        self.wake(registered.target)

    # ---- answers

    def _answered(self, registered: _Registered, plan: CleanUpPlan, future: asyncio.Future[CommitVerdict]) -> None:
        registered.busy = False
        self._in_flight -= 1
        self._keys_in_flight -= _keys_written(plan)
        if registered.retired is not None and not registered.retired.done():
            registered.retired.set_result(None)
        if registered.error is None and self._registered.get(registered.target) is registered:
            self._take_answer(registered, plan, future)
        # ▲ Also if no target takes this answer: other targets wait for its place in flight.
        if self._due and self._turn is None and self._running:
            self._turn = asyncio.get_running_loop().call_later(0, self._take_turn)

    def _take_answer(self, registered: _Registered, plan: CleanUpPlan, future: asyncio.Future[CommitVerdict]) -> None:
        try:
            self._settle(registered, plan, future.result())
        except (StoreUnavailable, StoreFull, OutcomeUnknown) as error:
            # ▲ Unknown, too: unless the store is closing, etcd has denied a repetition. Nothing else may ever wake
            # this target. It plans again and compares, whether or not the write landed.
            log.info("clean_up_waits", target=registered.target.name, error=str(error))
            self._retry(registered)
        except TxnError as error:
            self._lose(registered, error)  # NotOwner, a corrupt record, or a bug: clean-up cannot go on here

    def _settle(self, registered: _Registered, plan: CleanUpPlan, result: CommitVerdict) -> None:
        target = registered.target
        self._commits += 1
        if not target.settle(plan, result, self._clock.monotonic()):
            self._lost_compares += 1
            registered.lost_in_a_row += 1
            log.warning("clean_up_compare_lost", target=target.name, in_a_row=registered.lost_in_a_row)
            if registered.lost_in_a_row > 1:
                self._retry(registered)
                return
        else:
            registered.lost_in_a_row = 0
            self._cleaned += len(plan.writes) + len(plan.acks)
        self._wake_drains(registered)
        if target.backlog >= self._settings.full_batch and not registered.busy:
            self._send(registered)
        elif target.backlog:
            self.wake(target)
        else:
            self._flush_later(registered)

    def _lose(self, registered: _Registered, error: TxnError) -> None:
        registered.error = error
        self.remove(registered.target)
        registered.target.lost(error)

    def _wake_drains(self, registered: _Registered) -> None:
        drains, registered.drains = registered.drains, []
        for drain in drains:
            if not drain.done():
                drain.set_result(None)


def _keys_written(plan: CleanUpPlan) -> int:
    return len(plan.commit.puts) + len(plan.commit.deletes)
