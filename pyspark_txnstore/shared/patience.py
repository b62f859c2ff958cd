"""Repeats a question for a while when the cluster cannot answer: Spark ends a query at its driver's first error."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from txnwire.errors import TxnError

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0

_log = logging.getLogger("pyspark_txnstore")


class Patience:
    """`for_s`: counted from the first failure. A request under way then is awaited up to its own timeout."""

    def __init__(
        self,
        for_s: float,
        *,
        rest: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._for_s = for_s
        self._rest = rest
        self._now = now

    def ask(self, what: str, question: Callable[[], T]) -> T:
        """Returns the answer. ▲ `question` may have run in part, so it must be repeatable.

        Raises an error that is not retriable at once, and a retriable one after `for_s`."""
        until_s: float | None = None
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return question()
            except TxnError as error:
                if not error.retriable:
                    raise
                now_s = self._now()
                until_s = now_s + self._for_s if until_s is None else until_s
                if now_s + pause_s > until_s:
                    error.add_note(f"{what}: it was tried again for {self._for_s:g} s, see planningRetryMs")
                    raise
                _log.warning("%s is tried again in %g s: %s: %s", what, pause_s, type(error).__name__, error)
            self._rest(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
