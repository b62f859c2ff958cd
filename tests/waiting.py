"""Waits for a condition: in real and in virtual time, never longer than a bound."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Sized
from typing import Final, TypeVar

T = TypeVar("T")

WITHIN_S: Final = 60.0
FIRST_POLL_S: Final = 0.001
LONGEST_POLL_S: Final = 0.016
MOST_TURNS: Final = 1_000_000


async def until(
    condition: Callable[[], object | Coroutine[object, object, object]],
    what: str | Callable[[], str] = "",
    *,
    within_s: float = WITHIN_S,
    longest_poll_s: float = LONGEST_POLL_S,
) -> float:
    """Return once `condition()`, which may be a coroutine, is true: the seconds that it took on the loop's clock.

    Raises `AssertionError` with `what` after `within_s`. `longest_poll_s`: the longest pause between two looks."""
    loop, poll_s = asyncio.get_running_loop(), min(FIRST_POLL_S, longest_poll_s)
    started = loop.time()
    try:
        async with asyncio.timeout(within_s):
            while not await _value(condition):
                await asyncio.sleep(poll_s)
                poll_s = min(2 * poll_s, longest_poll_s)
    except TimeoutError:
        raise AssertionError(f"not within {within_s} s: {(what() if callable(what) else what) or condition}") from None
    return loop.time() - started


async def _value(condition: Callable[[], object | Coroutine[object, object, object]]) -> object:
    found = condition()
    return await found if inspect.iscoroutine(found) else found


async def until_answer(
    ask: Callable[[], Awaitable[T]],
    wanted: Callable[[T], object],
    what: str,
    *,
    within_s: float = WITHIN_S,
    longest_poll_s: float = LONGEST_POLL_S,
) -> T:
    """Return the first answer that is `wanted`. Raises `AssertionError` with `what` and the last answer."""
    answers: list[T] = []

    async def answered() -> object:
        answers[:] = [await ask()]
        return wanted(answers[0])

    await until(answered, lambda: f"{what}; last: {answers}", within_s=within_s, longest_poll_s=longest_poll_s)
    return answers[0]


async def until_accepted(
    attempt: Callable[[], Awaitable[T]],
    refusal: type[Exception] | tuple[type[Exception], ...],
    what: str,
    *,
    within_s: float = WITHIN_S,
    longest_poll_s: float = LONGEST_POLL_S,
) -> T:
    """Repeat `attempt` as long as it raises `refusal`, and return its result. Raises `AssertionError` with `what` and
    the last refusal."""
    results: list[T] = []
    refusals: list[Exception] = []

    async def accepted() -> bool:
        try:
            results.append(await attempt())
        except refusal as error:
            refusals[:] = [error]
        return bool(results)

    await until(accepted, lambda: f"{what}; last: {refusals}", within_s=within_s, longest_poll_s=longest_poll_s)
    return results[0]


def grown(collection: Sized, by: int) -> Callable[[], bool]:
    """Whether it has grown by so many since this call."""
    wanted = len(collection) + by
    return lambda: len(collection) >= wanted


async def until_turn(condition: Callable[[], object], what: str, *, most_turns: int = MOST_TURNS) -> int:
    """Return in the first turn of the loop in which `condition()` is true: the number of turns that it took."""
    for turn in range(most_turns):
        if condition():
            return turn
        await asyncio.sleep(0)
    raise AssertionError(f"not within {most_turns} turns: {what}")


async def idle(turns: int = 50) -> None:
    """Let everything that can run without time or I/O run."""
    for _ in range(turns):
        await asyncio.sleep(0)


def wait_until(condition: Callable[[], object], what: str, *, within_s: float = WITHIN_S) -> None:
    """As `until` without a loop, for tests and Spark's tasks. Raises `TimeoutError` with `what`."""
    deadline, poll_s = time.monotonic() + within_s, FIRST_POLL_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {within_s} s for {what}")
        time.sleep(poll_s)
        poll_s = min(2 * poll_s, LONGEST_POLL_S)
