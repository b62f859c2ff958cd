"""The deadline of one call, and the pauses between its attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from txnwire.errors import InvalidArgument, Timeout, TxnError
from txnwire.ports import Clock, Random

T = TypeVar("T")

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0


class Deadline:
    """A moment on the monotonic clock, made from a timeout."""

    __slots__ = ("_clock", "at", "timeout_s")

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        try:
            # ▲ A number of numpy's may have few bits: a moment counted with it is seconds off, or never comes.
            self.timeout_s = timeout_s.__float__()
        except (AttributeError, TypeError):
            raise InvalidArgument(f"a timeout is a number of seconds, not {timeout_s!r}") from None
        self.at = clock.monotonic() + self.timeout_s
        if self.at != self.at:  # it would never have passed
            raise InvalidArgument("a timeout is a number of seconds, not nan")

    def remaining(self) -> float:
        """Seconds, never negative."""
        return max(0.0, self.at - self._clock.monotonic())

    @property
    def passed(self) -> bool:
        return self._clock.monotonic() >= self.at

    def expired(self, what: str, last: TxnError | None = None) -> Timeout:
        """The error to raise when the time is up; `last`: the error of the latest attempt."""
        because = f"; the last attempt: {type(last).__name__}: {last}" if last is not None else ""
        return Timeout(f"{what}: not done within {self.timeout_s:g} s{because}")


async def within(work: Coroutine[object, object, T], timeout_s: float | None, what: str) -> T:
    """Run a call; cancel it and raise `Timeout` once the time is up. None: it has limits of its own. Raises
    `InvalidArgument` for what is no number of seconds, and then has not begun."""
    if timeout_s is None:
        return await work
    # ▲ nan would never pass.
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or timeout_s != timeout_s:
        work.close()
        raise InvalidArgument(f"a timeout is a number of seconds, not {timeout_s!r}")
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await work
    except TimeoutError as error:
        if isinstance(error, Timeout) or not limit.expired():
            raise  # the work's own, or of code of the caller's that it has run: a socket's timeout is one, too
        raise Timeout(f"{what}: not done within {timeout_s:g} s") from None


class Backoff:
    """Pauses that double from 20 ms to 1 s, each cut by up to a half at random to keep clients out of step."""

    def __init__(self, random: Random, *, first_s: float = FIRST_PAUSE_S, longest_s: float = LONGEST_PAUSE_S) -> None:
        self._random = random
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def next_s(self) -> float:
        pause = self._next_s
        self._next_s = min(self._longest_s, pause * 2)
        return pause * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._next_s = self._first_s
