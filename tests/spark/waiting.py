"""Waiting on a condition, in tests and in Spark's tasks alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

WAIT_S: Final = 60.0
POLL_S: Final = 0.02


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    """Raises `TimeoutError` that says what was waited for."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s} s for {what}")
        time.sleep(POLL_S)
