"""A query at rest whose watch, or whose list of topics, cannot be had: it takes another cut, which tells why."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pyspark_txnstore.source.cuts import Cuts
from pyspark_txnstore.source.idle import LONGEST_PAUSE_S, NAMES_S, Idle
from txnclient import Snapshot
from txnwire.errors import Timeout

CUT = Snapshot(5, {})


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    def rest(self, for_s: float) -> None:
        self.now_s += for_s


class Failing:
    """What is asked of a cluster, which does not answer: a watch that it had opened, the names of its topics."""

    sees_all = True

    def __init__(self, *, may_name_others: bool) -> None:
        self._may_name_others = may_name_others
        self.closed = 0

    @property
    def client(self) -> Failing:
        return self

    def watch(self, *_: Any, **__: Any) -> Failing:
        return self

    def wait(self, _: float) -> bool:
        raise Timeout("no broker answers")

    def close(self) -> None:
        self.closed += 1
        raise Timeout("no broker answers")

    def may_name_others(self, _: Snapshot | None) -> bool:
        return self._may_name_others

    def names_others(self, _: Snapshot | None) -> bool:
        raise Timeout("no server lists topics")


@pytest.mark.parametrize(("cut", "within_s"), [(CUT, LONGEST_PAUSE_S), (None, NAMES_S)], ids=["watch", "names"])
def test_what_cannot_be_told_is_looked_for(cut: Snapshot | None, within_s: float) -> None:
    """▲ Neither does the query end by it, nor does it wait until it would have looked anyway."""
    clock, cluster = Clock(), Failing(may_name_others=cut is None)
    idle = Idle(cast(Cuts, cluster), "read_committed", fallback_s=3600.0, rest=clock.rest, now=clock.now)
    idle.begin({"v": 2}, cut)
    assert idle.news(60.0)
    assert clock.now_s <= within_s
    assert cluster.closed == (cut is not None)
