"""What a coordinator's row tells of its statistics, in which unit."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from coordinator_v5.statistics import CoordinatorStatistics
from txnctl.admin.admin_cluster import coordinator_row
from txnwire.histogram import Histogram


def statistics(**given: Any) -> CoordinatorStatistics:
    """Every count is another number: its place among the fields."""
    counts: dict[str, Any] = {one.name: number for number, one in enumerate(fields(CoordinatorStatistics))}
    latencies = {name: Histogram().snapshot() for name in counts if name.endswith("_latency")}
    return CoordinatorStatistics(**(counts | latencies | {"tcids": (3, 4), "aborted_by": {"timeout": 1}} | given))


@pytest.mark.parametrize(("bound_s", "shown_ms"), [(0.0005, 0.5), (0.001, 1.0), (0.0075, 7.5), (0.2, 200.0)])
def test_latencies_are_told_in_milliseconds_with_their_fractions(bound_s: float, shown_ms: float) -> None:
    """▲ Most commits take less than one: rounded to whole ones, they would take none."""
    measured = Histogram()
    for latency_s in (bound_s, bound_s, 1000.0):
        measured.observe(latency_s)
    row = coordinator_row(statistics(begin_latency=measured.snapshot(), commit_latency=measured.snapshot()))
    assert (row["begin_p50_ms"], row["commit_p50_ms"]) == (shown_ms, shown_ms)
    assert (row["begin_p99_ms"], row["commit_p99_ms"]) == (None, None), "above the last bound"


def test_a_row_names_each_count_and_no_latency_before_the_first_one() -> None:
    of = statistics(oldest_open_s=1.26)
    assert coordinator_row(of) == {
        "tcids": 2,
        "active": of.open,
        "oldest_open_s": 1.3,
        "created": of.begun,
        "committed": of.committed,
        "aborted": of.aborted,
        "timed_out": of.timed_out,
        "aborted_by": {"timeout": 1},
        **dict.fromkeys(("begin_p50_ms", "begin_p99_ms", "commit_p50_ms", "commit_p99_ms")),
        "sweep_backlog": of.overdue,
        "retained": of.retained,
        "stuck": of.stuck,
        "collected": of.collected,
    }
