"""Which number each metric tells, and under which label: statistics of which every number is another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from coordinator_v5.statistics import CoordinatorStatistics, HeldKeyStatistics
from segments.controller.autoscaling import AutoscaleStatistics
from segments.controller.controller import ControllerStatistics
from segments.controller.layout_changes import LayoutStatistics
from segments.controller.snapshots import SnapshotStatistics
from txnctl.metrics.metric import Metric, MetricKind
from txnctl.metrics.of_process import CONTROLLER
from txnctl.metrics.of_transactions import CENSUS, COORDINATOR
from txnctl.metrics.statistics import Census
from txnwire.histogram import Histogram


def told(metrics: Sequence[Metric[Any]], statistics: Any) -> dict[str, float]:
    """The samples of all but histograms: by name, and by the values of labels behind it."""
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for metric in metrics
        if metric.kind is not MetricKind.HISTOGRAM
        for sample in metric.family(statistics).samples
        if not sample.name.endswith("_created")
    }


def test_a_controller_s() -> None:
    statistics = ControllerStatistics(
        leading=True,
        epoch=2,
        subscriptions=3,
        connected_consumers=4,
        snapshots=SnapshotStatistics(taken=5, started_over=6, failed=7, taken_s=8.5),
        layouts=LayoutStatistics(under_way=9, splits=10, merges=11, given_up=12),
        autoscale=AutoscaleStatistics(splits=13, merges=14, failed=15),
        pruned_segments=16,
    )
    assert told(CONTROLLER, statistics) == {
        "txnstore_controller_leading": 1,
        "txnstore_controller_subscriptions": 3,
        "txnstore_controller_consumers": 4,
        "txnstore_snapshots_total taken": 5,
        "txnstore_snapshots_total failed": 7,
        "txnstore_snapshots_started_over_total": 6,
        "txnstore_snapshot_seconds_total": 8.5,
        "txnstore_layout_changes_total split": 10,
        "txnstore_layout_changes_total merge": 11,
        "txnstore_layout_changes_total given_up": 12,
        "txnstore_layout_changes_under_way": 9,
        "txnstore_pruned_segments_total": 16,
        "txnstore_autoscale_changes_total split": 13,
        "txnstore_autoscale_changes_total merge": 14,
        "txnstore_autoscale_changes_total failed": 15,
    }


def test_a_coordinator_s() -> None:
    counts: dict[str, Any] = {one.name: 100 + number for number, one in enumerate(fields(CoordinatorStatistics))}
    counts |= {name: Histogram().snapshot() for name in counts if name.endswith("_latency")}
    counts |= {"tcids": (3, 4), "aborted_by": {"timeout": 1, "client": 2}}
    held = (HeldKeyStatistics("alice", "job", 7, 1.5), HeldKeyStatistics("bob", "etl", 8, 2.5))
    of = CoordinatorStatistics(**(counts | {"held_keys": held}))
    assert told(COORDINATOR, of) == {
        "txnstore_transactions_active": of.open,
        "txnstore_transactions_created_total": of.begun,
        "txnstore_transactions_committed_total": of.committed,
        "txnstore_transactions_aborted_total client": 2,
        "txnstore_transactions_aborted_total timeout": 1,
        "txnstore_transactions_timed_out_total": of.timed_out,
        "txnstore_transaction_oldest_open_seconds": of.oldest_open_s,
        "txnstore_coordinator_ids": 2,
        "txnstore_client_sessions": of.sessions,
        "txnstore_sweep_backlog": of.overdue,
        "txnstore_gc_backlog retained": of.retained,
        "txnstore_gc_backlog stuck": of.stuck,
        "txnstore_transactions_collected_total": of.collected,
        "pulsar_txn_metadata_store_header_cas_total ok": of.cas_ok,
        "pulsar_txn_metadata_store_header_cas_total conflict": of.cas_conflict,
        "pulsar_txn_metadata_store_header_cas_total reject": of.cas_reject,
        "pulsar_txn_transaction_key_count": of.transaction_keys,
        "pulsar_txn_transaction_key_epoch alice&job": 7,
        "pulsar_txn_transaction_key_age_count alice&job": 1,
        "pulsar_txn_transaction_key_age_sum alice&job": 1.5,
        "pulsar_txn_transaction_key_epoch bob&etl": 8,
        "pulsar_txn_transaction_key_age_count bob&etl": 1,
        "pulsar_txn_transaction_key_age_sum bob&etl": 2.5,
    }


def test_a_sweeper_s_count() -> None:
    census = Census(op_records=1, headers=2, file_bytes=3, in_use_bytes=4, quota_bytes=5)
    assert told(CENSUS, census) == {
        "pulsar_txn_metadata_store_outstanding_op_records": 1,
        "txnstore_headers": 2,
        "txnstore_etcd_file_bytes": 3,
        "txnstore_etcd_in_use_bytes": 4,
        "txnstore_etcd_quota_bytes": 5,
    }
