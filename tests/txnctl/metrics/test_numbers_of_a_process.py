"""Which number of a process, of its store and of its broker each metric tells: every number is another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from inspect import get_annotations
from typing import Any

import pytest

from coordinator_v5.statistics import CoordinatorStatistics
from segments.log.measures import MeasuresSnapshot
from tests.txnctl.metrics.test_numbers_of_a_broker import broker, segment
from tests.txnctl.metrics.test_told_numbers import told
from txnctl.metrics.metric import Metric, MetricKind
from txnctl.metrics.of_process import PROCESS, STORE
from txnctl.metrics.of_segments import BROKER
from txnctl.metrics.of_transactions import COORDINATOR
from txnctl.metrics.statistics import ServerStatistics, StoreStatistics
from txnstore.access.group_commit import Statistics as CommitStatistics
from txnwire.histogram import Histogram, HistogramSnapshot
from watchers.clean_up import CleanUpStatistics
from watchers.decisions import DecisionStatistics


def numbered(kind: type, first: int, **given: Any) -> Any:
    """Statistics of this kind with numbers from `first` on, but for what is given."""
    return kind(**{name: first + number for number, name in enumerate(get_annotations(kind))} | given)


def observed(times: int) -> HistogramSnapshot:
    histogram = Histogram()
    for _ in range(times):
        histogram.observe(0.001)
    return histogram.snapshot()


def observations(metrics: Sequence[Metric[Any]], statistics: Any) -> Mapping[str, int]:
    """How many each histogram has."""
    return {
        sample.name.removesuffix("_count"): int(sample.value)
        for metric in metrics
        if metric.kind is MetricKind.HISTOGRAM
        for sample in metric.family(statistics).samples
        if sample.name.endswith("_count")
    }


@pytest.mark.parametrize(("not_ready", "ready"), [(None, 1), ("it is starting", 0)])
def test_a_process(not_ready: str | None, ready: int) -> None:
    roles: Any = {"id": "one", "roles": ("broker", "admin"), "version": "1.2", "not_ready": not_ready}
    of = numbered(ServerStatistics, 100, task_failures={}, **roles)
    assert told(PROCESS, of) == {
        "txnstore_ready one broker,admin 1.2": ready,
        "txnstore_uptime_seconds": of.uptime_s,
        "txnstore_longest_pause_seconds": of.longest_pause_s,
        "txnstore_longest_pause_cpu_seconds": of.longest_pause_cpu_s,
        "txnstore_clock_ahead_seconds": of.clock_ahead_s,
        "txnstore_connections": of.connections,
        "txnstore_topics": of.topics,
        "txnstore_segments": of.segments,
        "txnstore_segments_unowned": of.unowned_segments,
    }


@pytest.mark.parametrize("refuses", [False, True])
def test_a_store(refuses: bool) -> None:
    commits = numbered(CommitStatistics, 100, sizes=observed(1), latency=observed(2))
    of = StoreStatistics(commits=commits, index_queries=observed(3), refuses_new=refuses)
    assert told(STORE, of) == {
        "txnstore_store_repeats_total": commits.repeats,
        "txnstore_store_queued": commits.queued,
        "txnstore_store_inflight": commits.in_flight,
        "txnstore_store_revision": commits.revision,
        "txnstore_store_refuses_new": refuses,
    }
    assert observations(STORE, of) == {
        "txnstore_group_size": 1,
        "txnstore_store_request_seconds": 2,
        "pulsar_txn_metadata_store_index_query_seconds": 3,
    }


def test_a_broker_apart_from_its_segments() -> None:
    histograms = {"publish": observed(1), "ledger_sync": observed(2), "visibility_lag": observed(3)}
    nothing = broker()
    of = replace(
        nothing,
        taking=("a", "b", "c"),
        failed={"d": "corrupt", "e": "corrupt"},
        registered=False,
        decisions=numbered(DecisionStatistics, 100, lag=observed(4)),
        clean_up=numbered(CleanUpStatistics, 200),
        inflight_bytes=300,
        disk_free_bytes=400,
        disk_full="it has 400 bytes free",
        measures=numbered(MeasuresSnapshot, 500, kept=nothing.measures.kept, **histograms),
    )
    expected = {
        "txnstore_watch_followed_revision": of.decisions.followed_revision,
        "txnstore_watch_resyncs_total": of.decisions.resyncs,
        "txnstore_decisions_total": of.decisions.decisions,
        "txnstore_entries_stored_total": of.measures.entries_stored,
        "txnstore_messages_stored_total": of.measures.messages_stored,
        "txnstore_stored_bytes_total": of.measures.bytes_stored,
        "txnstore_publish_inflight_bytes": 300,
        "txnstore_broker_segments served": 0,
        "txnstore_broker_segments taking": 3,
        "txnstore_broker_segments failed": 2,
        "txnstore_broker_registered": 0,
        "txnstore_recovery_seconds_max": 0.0,
        "txnstore_disk_free_bytes": 400,
        "txnstore_disk_refuses_new": 1,
        "txnstore_clean_up_backlog": of.clean_up.backlog,
        "txnstore_clean_up_lost_compares_total": of.clean_up.lost_compares,
        "pulsar_txn_metadata_store_op_writes_total": of.measures.ops_written,
    }
    found = told(BROKER, of)
    assert {name: found.get(name) for name in expected} == expected
    assert observations(BROKER, of) == {
        "txnstore_publish_seconds": 1,
        "txnstore_ledger_sync_seconds": 2,
        "txnstore_visibility_lag_seconds": 3,
        "txnstore_watch_lag_seconds": 4,
    }
    found = told(BROKER, nothing)
    assert (found["txnstore_disk_free_bytes"], found["txnstore_disk_refuses_new"]) == (0, 0)


def test_of_many_segments_those_with_most_entries_held_back_are_told() -> None:
    found = told(BROKER, broker(*(segment(f"t/n/x/{number:04}", number) for number in range(1, 16))))
    shown = [name for name in found if name.startswith("txnstore_segment_pinned_entries ")]
    assert shown == [f"txnstore_segment_pinned_entries t/n/x/{number:04}" for number in range(15, 5, -1)]
    assert found["txnstore_pinned_segments"] == 15


def test_of_a_segment_that_nothing_holds_back_nothing_is_told() -> None:
    free = replace(segment("t/n/x/free", 1), pinning=(), entries_behind=(), subscriptions=(), lags={})
    found = told(BROKER, broker(free))
    assert [name for name in found if "segment_pinned" in name or "subscription_" in name] == [
        "txnstore_subscription_lags_unknown"
    ]
    assert (found["txnstore_pinned_entries"], found["txnstore_pinned_segments"]) == (0, 0)


def test_a_coordinators_latencies_are_told_apart() -> None:
    names = [one.name for one in fields(CoordinatorStatistics) if one.name.endswith("_latency")]
    latencies = {name: observed(1 + number) for number, name in enumerate(names)}
    of = numbered(CoordinatorStatistics, 100, aborted_by={}, tcids=(), held_keys=(), **latencies)
    assert observations(COORDINATOR, of) == {
        f"txnstore_{name.removesuffix('_latency')}_seconds": 1 + number for number, name in enumerate(names)
    }
