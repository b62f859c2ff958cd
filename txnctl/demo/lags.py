"""How long a committed transaction took to be read, and how much of that was not waiting for others.

READ_COMMITTED delivers a segment in order: what is committed waits until every transaction that wrote there before it
has ended. So a lag holds two things, the system's own time and other people's open transactions, and the second can be
any length. The journals tell when the second was over at the latest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from txnctl.demo.journal import ABORTED, BEGUN, COMMITTED, INTENT, JournalLine


@dataclass(slots=True)
class _Life:
    """Times on the machine's monotonic clock; `written`: every write had been acknowledged. What began unknown when is
    taken to have held nobody back, so that its part of a lag counts as the system's."""

    begun: float = math.inf
    written: float = math.inf
    ended: float = math.inf
    committed: bool = False


@dataclass(frozen=True)
class Lags:
    """Milliseconds until the last message of a transaction was read: `since_commit` was answered, and `since_free`,
    since nothing was open any more that might have held it back (the same moment, where nothing was)."""

    since_commit: list[float]
    since_free: list[float]


def lags(lines: Iterable[JournalLine], last_seen_s: Mapping[str, float], given_up_s: Mapping[str, float]) -> Lags:
    """`last_seen_s`: when the last message of each was read. `given_up_s`: when those ended that no worker ended."""
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
    """Transactions that were begun and of whose end no worker tells: its worker was killed."""
    open_ones: dict[str, None] = {}
    for line in lines:
        if line.event in (COMMITTED, ABORTED):
            open_ones.pop(line.txn_id, None)
        else:
            open_ones[line.txn_id] = None
    return list(open_ones)
