"""Runs of a batch: of those that write for one name the newest goes on, and what older ones began is given up. Pure.

Spark makes a sink anew for each run of a batch and sends it to all tasks of that run. So the sink carries the run:

    run     milliseconds of the driver's clock (6 bytes) · random (6 bytes)
    writer  random of the run (36 bits) · number of the task attempt (28 bits)

▲ A driver that starts again runs its last batch again. Were its tasks to join the transaction that the dead driver has
left open, they would inherit a deadline that is nearly over. So a newer run aborts what an older one has begun, and
begins anew with all of its time. An older run that finds a newer one's joins it, which is always safe: the one commit
lists the writers that count. By the clock alone no row is lost or doubled: a driver whose clock is behind joins too.
"""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

_TIME_BYTES: Final = 6
_NONCE_BYTES: Final = 6

TASK_BITS: Final = 28
"""Spark numbers the task attempts of an application from 0 on. ▲ A batch that took more of them than this would give a
writer out twice."""


class Run(NamedTuple):
    """`stamp` is the attempt under which all tasks of the run begin their transaction."""

    stamp: bytes

    @staticmethod
    def begin() -> Run:
        """A new one, now."""
        now_ms = time.time_ns() // 1_000_000
        return Run(now_ms.to_bytes(_TIME_BYTES, "big") + os.urandom(_NONCE_BYTES))

    def supersedes(self, attempt: str) -> bool:
        """Whether the transaction begun under this attempt, in hex, is an older run's. Of what is no run it is not
        known, so it is joined."""
        if len(attempt) != 2 * len(self.stamp):
            return False
        return attempt < self.stamp.hex()

    def writer_id(self, task_attempt: int) -> int:
        """▲ Another one for each attempt of the run, and for all runs by chance. They follow each other, so that a
        commit of very many is small."""
        nonce = int.from_bytes(self.stamp[_TIME_BYTES:], "big") >> (8 * _NONCE_BYTES - (64 - TASK_BITS))
        return (nonce or 1) << TASK_BITS | task_attempt % (1 << TASK_BITS)
