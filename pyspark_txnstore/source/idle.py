"""Lets an idle streaming query wait for a watch instead of taking cuts.

Spark asks for the newest offset every 10 ms, or once in a trigger interval, and each cut costs every owner and etcd a
request. So the source takes no cut while a watch (`txnclient.reading.watch`) reports nothing. Timers cover what a watch
cannot see: `FALLBACK_S`, `LONGEST_PAUSE_S`, `NAMES_S`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import txnclient.sync
from pyspark_txnstore.shared.offset_codec import Isolation
from pyspark_txnstore.source.cuts import Cuts
from txnclient.reading.snapshot import Snapshot
from txnwire.errors import TxnError

BLOCK_S: Final = 0.2
"""Longest wait within one call of Spark's. ▲ Not longer: meanwhile Spark can neither stop the query nor ask its other
sources."""

FALLBACK_S: Final = 30.0
"""Longest time between cuts, whatever a watch says, so that a wrong watch cannot stall the query for ever."""

NAMES_S: Final = 1.0
"""How often topics are listed for a pattern: brokers do not report new topics."""

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
"""Time between cuts if a watch wakes without news, is unavailable or does not see everything: the first, doubled each
time up to the second."""

_log = logging.getLogger("pyspark_txnstore")


class Idle:
    """Idle state of one source. It opens its watch when it is first idle."""

    def __init__(
        self,
        cuts: Cuts,
        isolation: Isolation,
        *,
        fallback_s: float = FALLBACK_S,
        rest: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cuts = cuts
        self._isolation = isolation
        self._fallback_s = fallback_s
        self._rest = rest
        self._now = now
        self._start: Mapping[str, Any] | None = None
        self._cut: Snapshot | None = None
        self._watch: txnclient.sync.Watch | None = None
        self._woken = False
        """▲ Kept until the next cut, so that no news is lost."""
        self._pause_s = 0.0
        self._not_before_s = self._due_s = self._names_due_s = -math.inf

    def is_at(self, start: Mapping[str, Any]) -> bool:
        """Whether the newest cut has shown nothing after this offset, so that no other cut is needed before `news`."""
        return self._start is not None and self._start == start

    def over(self) -> None:
        """Something has come. The watch stays in place: most of its positions still hold next time."""
        self._start = None
        self._pause_s = 0.0

    def begin(self, start: Mapping[str, Any], cut: Snapshot | None, longest_s: float = math.inf) -> None:
        """Nothing is to be read between `start` and `cut`. `longest_s`: until another cut is wanted in any case."""
        in_vain, self._woken = self._woken and self.is_at(start), False
        self._pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), LONGEST_PAUSE_S) if in_vain else 0.0
        self._start, self._cut = dict(start), cut
        self._move()
        now_s = self._now()
        self._not_before_s = now_s + self._pause_s
        self._names_due_s = now_s + NAMES_S if self._cuts.may_name_others(cut) else math.inf
        self._due_s = now_s + min(longest_s, self._soon_s())

    def _soon_s(self) -> float:
        if self._cut is None:
            return self._fallback_s  # listing the names finds the first topic
        try:
            sees_all = self._watch is not None and self._watch.sees_all
        except TxnError as error:  # its client was closed
            self._lose(error)
            sees_all = False
        return self._fallback_s if sees_all else LONGEST_PAUSE_S

    def _move(self) -> None:
        if self._cut is None:
            self.close()
            return
        try:
            if self._watch is None:
                self._watch = self._cuts.client.watch(self._cut, isolation=self._isolation, timeout=BLOCK_S)
            else:
                self._watch.move(self._cut, timeout=BLOCK_S)
        except TxnError as error:
            self._lose(error)

    def _lose(self, error: TxnError) -> None:
        """▲ The error is not raised: if it lasts, the next cut, which is repeated with patience, shows it."""
        _log.debug("waiting for new data: %s: %s", type(error).__name__, error)
        self.close()

    def news(self, until_s: float) -> bool:
        """Whether another cut is worth taking; False once `now` is `until_s`."""
        while True:
            now_s = self._now()
            if now_s >= self._due_s or (self._woken and now_s >= self._not_before_s) or self._named_others(now_s):
                return True
            if now_s >= until_s:
                return False
            next_s = min(until_s, self._due_s, self._names_due_s)
            if self._woken:
                self._rest(min(next_s, self._not_before_s) - now_s)
            else:
                self._woken = self._is_told(next_s - now_s)

    def _is_told(self, for_s: float) -> bool:
        if self._watch is None:
            self._rest(for_s)
            return False
        try:
            return self._watch.wait(for_s)
        except TxnError as error:
            self._lose(error)
            return True

    def _named_others(self, now_s: float) -> bool:
        if now_s < self._names_due_s:
            return False
        self._names_due_s = now_s + NAMES_S
        try:
            return self._cuts.names_others(self._cut)
        except TxnError:
            return True

    def close(self) -> None:
        """Closes only the watch; it is opened again when next needed."""
        watch, self._watch = self._watch, None
        if watch is not None:
            try:
                watch.close()
            except TxnError as error:
                _log.debug("closing a watch: %s: %s", type(error).__name__, error)
