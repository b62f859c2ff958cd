"""An event loop whose time jumps to the next timer when nothing else is left to do: seconds of grace take no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("deadlock: every task waits, and no timer is set")
            self.now += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class LoopClock:
    """The `Clock` port over the running loop's time."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return int(self.monotonic() * 1000) + 1_700_000_000_000


def run(scenario: Coroutine[object, object, T]) -> T:
    """Run `scenario` on a virtual loop, at most an hour of its time; whatever it leaves unhandled fails the test."""
    failures: list[dict[str, object]] = []
    loop = _VirtualLoop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(asyncio.wait_for(scenario, 3600.0))
    assert not failures, failures
    return result
