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


class Opened:
    """A cluster that opens watches, of which one kind of question fails; and a watch that tells of nothing."""

    def __init__(self, clock: Clock, failing: str) -> None:
        self._clock = clock
        self._failing = failing
        self.opened = self.closed = 0

    def _ask(self, what: str) -> None:
        if what == self._failing:
            raise Timeout(f"{what}: no broker answers")

    @property
    def client(self) -> Opened:
        return self

    @property
    def sees_all(self) -> bool:
        self._ask("sees all")
        return True

    def watch(self, *_: Any, **__: Any) -> Opened:
        self._ask("watch")
        self.opened += 1
        return self

    def move(self, *_: Any, **__: Any) -> None:
        self._ask("move")

    def wait(self, for_s: float) -> bool:
        self._clock.rest(for_s)
        return False

    def close(self) -> None:
        self.closed += 1

    def may_name_others(self, _: Snapshot | None) -> bool:
        return False


@pytest.mark.parametrize(
    ("failing", "opened", "is_news"),
    [("nothing", 1, False), ("watch", 0, True), ("move", 1, True), ("sees all", 2, True)],
)
def test_a_query_whose_watch_is_lost_looks_again_soon_and_opens_another(
    failing: str, opened: int, is_news: bool
) -> None:
    """▲ It would wait half a minute for what no watch tells of; the error itself is no reason to end."""
    clock = Clock()
    cluster = Opened(clock, failing)
    idle = Idle(cast(Cuts, cluster), "read_committed", fallback_s=3600.0, rest=clock.rest, now=clock.now)
    for version in range(2):
        idle.begin({"v": version}, CUT)
    assert idle.news(60.0) == is_news
    assert clock.now_s == (LONGEST_PAUSE_S if is_news else 60.0)
    idle.close()
    assert (cluster.opened, cluster.closed) == (opened, opened)
