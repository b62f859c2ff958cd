"""Measures how long a committed transaction took to be read, and how much of that was not waiting for others.

READ_COMMITTED delivers a segment in order: a committed transaction waits until every transaction that wrote there
before it has ended. So a lag has two parts: the system's own time, and the time of other open transactions, which can
be any length. The journals show when the second part was over at the latest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from txnctl.demo.journal import ABORTED, BEGUN, COMMITTED, INTENT, JournalLine


@dataclass(slots=True)
class _Life:
    """Times on the machine's monotonic clock; `written`: every write had been acknowledged. A transaction with unknown
    begin counts as holding no reader back, so that its part of a lag counts as the system's."""

    begun: float = math.inf
    written: float = math.inf
    ended: float = math.inf
    committed: bool = False


@dataclass(frozen=True)
class Lags:
    """Milliseconds until the last message of a transaction was read: from the commit's answer (`since_commit`), and
    from when nothing open could hold it back any more (`since_free`; the same moment if nothing did)."""

    since_commit: list[float]
    since_free: list[float]


def lags(lines: Iterable[JournalLine], last_seen_s: Mapping[str, float], given_up_s: Mapping[str, float]) -> Lags:
    """`last_seen_s`: when each transaction's last message was read. `given_up_s`: when transactions ended that no
    worker ended."""
    lives: dict[str, _Life] = {}
    for line in lines:
        life = lives.setdefault(line.txn_id, _Life())
        if line.event == BEGUN:
            life.begun = line.at_s
        elif line.event == INTENT:
            life.written = line.at_s
        else:
            life.ended, life.committed = line.at_s, line.event == COMMITTED
    for txn_id, at_s in given_up_s.items():
        lives.setdefault(txn_id, _Life()).ended = at_s
    found = Lags([], [])
    for txn_id, life in lives.items():
        seen_s = last_seen_s.get(txn_id)
        if life.committed and seen_s is not None:
            holders = (other.ended for other in lives.values() if other is not life and _may_hold(other, life, seen_s))
            found.since_commit.append(max(0.0, seen_s - life.ended) * 1000)
            found.since_free.append(max(0.0, seen_s - max(holders, default=life.ended)) * 1000)
    return found


def _may_hold(other: _Life, life: _Life, seen_s: float) -> bool:
    """Whether `other` may have written before `life`, was open when that committed, and had ended when it was read."""
    return other.begun < life.written and life.ended < other.ended <= seen_s


def unfinished(lines: Iterable[JournalLine]) -> list[str]:
    """Begun transactions whose end no worker recorded: their workers were killed."""
    open_ones: dict[str, None] = {}
    for line in lines:
        if line.event in (COMMITTED, ABORTED):
            open_ones.pop(line.txn_id, None)
        else:
            open_ones[line.txn_id] = None
    return list(open_ones)
