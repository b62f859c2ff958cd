"""Runs of a batch: the newest run under a name continues, and aborts the transactions of older ones. Pure.

Spark makes a new sink for each run of a batch and sends it to all tasks of that run. So the sink carries the run:

    run     milliseconds of the driver's clock (6 bytes) · random (6 bytes) · mark of the query (8 bytes, of a stream's)
    writer  random of the run (36 bits) · number of the task attempt (28 bits)

▲ A newer run aborts an older run's transaction and begins a new one: if a restarted driver's tasks joined the dead
driver's transaction, they would inherit a deadline that is nearly over.

An older run joins a newer one's, which is always safe: the one commit lists the writers that count. Clocks cannot lose
or double a row: a driver whose clock is behind joins, too.

The mark is for cleaning up: the process that aborts a failed batch knows its number, but neither the query's id nor the
run, which another process began. Both processes know the driver's folders and the query's options.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

_TIME_BYTES: Final = 6
_NONCE_BYTES: Final = 6
_RUN_BYTES: Final = _TIME_BYTES + _NONCE_BYTES
_MARK_BYTES: Final = 8

DRIVER_FOLDERS: Final = "SPARK_LOCAL_DIRS"
"""Variable that Spark sets for the driver's Python processes; it has an id of this driver's block manager."""

TASK_BITS: Final = 28
"""Spark numbers the task attempts of an application from 0 on. ▲ A batch with more attempts than this would give out a
writer twice."""


class BatchRun(NamedTuple):
    """`stamp` is the attempt under which all tasks of the run begin their transaction."""

    stamp: bytes

    @staticmethod
    def begin(mark: bytes = b"") -> BatchRun:
        """Begins a new run, now."""
        now_ms = time.time_ns() // 1_000_000
        return BatchRun(now_ms.to_bytes(_TIME_BYTES, "big") + os.urandom(_NONCE_BYTES) + mark)

    def supersedes(self, attempt: str) -> bool:
        """Whether the transaction begun under this attempt, in hex, is an older run's. Not known of other attempts, so
        those transactions are joined."""
        return _is_run(attempt) and attempt[: 2 * _RUN_BYTES] < self.stamp[:_RUN_BYTES].hex()

    def is_superseded_by(self, attempt: str) -> bool:
        """Whether the transaction begun under this attempt, in hex, is a newer run's."""
        return _is_run(attempt) and attempt[: 2 * _RUN_BYTES] > self.stamp[:_RUN_BYTES].hex()

    def writer_id(self, task_attempt: int) -> int:
        """▲ Unique to each attempt of the run, and across runs by chance. Ids are consecutive, so that a commit with
        very many writers is small."""
        nonce = int.from_bytes(self.stamp[_TIME_BYTES:_RUN_BYTES], "big") >> (8 * _NONCE_BYTES - (64 - TASK_BITS))
        return (nonce or 1) << TASK_BITS | task_attempt % (1 << TASK_BITS)


def _is_run(attempt: str) -> bool:
    return len(attempt) in (2 * _RUN_BYTES, 2 * (_RUN_BYTES + _MARK_BYTES))


def mark_of(options: Mapping[str, str], environment: Mapping[str, str]) -> bytes:
    """Mark of a query with these options in the driver with this environment; empty if not known.

    Two queries of one driver share a mark only if all their options are equal: both unnamed and with checkpoints in
    Spark's default place."""
    folders = environment.get(DRIVER_FOLDERS)
    if not folders:
        return b""
    known = sorted((name.lower(), value) for name, value in options.items())
    return blake2b(repr((folders, known)).encode(), digest_size=_MARK_BYTES).digest()


def has_mark(attempt: str, mark: bytes) -> bool:
    """Whether the transaction begun under this attempt, in hex, belongs to a run with this mark."""
    return bool(mark) and len(attempt) == 2 * (_RUN_BYTES + _MARK_BYTES) and attempt.endswith(mark.hex())
