"""Careless callers, like users (SCENARIOS C1 to C5): any call may be cancelled at any of its awaits, and a user's own
code may raise during it.

Every work calls the client through `Careless.call`. How often calls are cancelled is drawn once per run; in some runs
it never happens.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from txnclient.connection.opening import Closable
from txnwire.errors import TxnError

T = TypeVar("T")
C = TypeVar("C", bound=Closable)

SHARES = (0.0, 0.01, 0.05, 0.2)
"""Shares of calls that may be cancelled, one of them for each run."""
MEAN_AWAITS = 4
"""Mean number of awaits of a call before it is cancelled."""
WAITS_S = (0.0, 0.0, 0.001, 0.02, 0.3)
"""Time at that await before it is cancelled."""


class GivenUp(TxnError):
    """Raised in place of a call's result: the work itself has cancelled the call."""


class Mistake(Exception):
    """Error of a user's own code during a call of ours, or within a block of ours."""


def share_of(seed: int) -> float:
    """How careless the callers of a run are."""
    return random.Random(f"{seed}/careless").choice(SHARES)


class Careless:
    """One caller. `share`: of its calls that may be cancelled. Calls `cut` for each that was."""

    def __init__(self, chance: random.Random, share: float, cut: Callable[[], None] = lambda: None) -> None:
        self._random = chance
        self._share = share
        self._cut = cut

    def slips(self, weight: float = 1.0) -> bool:
        """Whether to do something careless now. `weight`: how much likelier than usual that is."""
        return self._share > 0 and self._random.random() < self._share * weight

    async def call(self, call: Awaitable[T], *, weight: float = 1.0, awaits: int = MEAN_AWAITS) -> T:
        """Returns the call's result; sometimes cancels it at one of its awaits, on average at number `awaits`. Raises
        `GivenUp` then."""
        if not self.slips(weight):
            return await call
        at = 1 + int(self._random.expovariate(1 / (awaits - 1)))
        wait_s = self._random.choice(WAITS_S)
        scope = asyncio.timeout(None)
        try:
            async with scope:
                return await _Watched(call, at, lambda: _end_soon(scope, wait_s))
        except TimeoutError:
            if not scope.expired():
                raise
            self._cut()
            raise GivenUp(f"cancelled at its await {at}, {wait_s:g} s later") from None

    @asynccontextmanager
    async def within(self, opening: Awaitable[C]) -> AsyncIterator[C]:
        """The block of the context manager from `opening`; opening and closing may be cancelled as well."""
        thing = await self.call(opening)
        try:
            yield thing
        finally:
            await self.call(thing.close())

    def stumbling(self, items: Iterable[T], count: int) -> Iterator[T]:
        """Yields some of `count` items, then raises `Mistake`."""
        left = self._random.randrange(count + 1)
        for item in items:
            if not left:
                break
            left -= 1
            yield item
        raise Mistake("the iterator of the caller raises")


def _end_soon(scope: asyncio.Timeout, wait_s: float) -> None:
    scope.reschedule(asyncio.get_running_loop().time() + wait_s)


class _Watched(Generic[T]):
    """Awaits `call`, and reports when it suspends for the `at`th time."""

    def __init__(self, call: Awaitable[T], at: int, reached: Callable[[], None]) -> None:
        self._call = call
        self._at = at
        self._reached = reached

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._call.__await__()
        step: Callable[[Any], Any] = steps.send
        given: Any = None
        while True:
            try:
                waits_for = step(given)
            except StopIteration as end:
                result: T = end.value
                return result
            self._at -= 1
            if not self._at:
                self._reached()
            try:
                step, given = steps.send, (yield waits_for)
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:  # noqa: BLE001  whatever it is, the call gets it
                step, given = steps.throw, error
