"""Metrics of the coordinator's side: transactions, their headers, the backlog of the sweep and of collection."""

from __future__ import annotations

from coordinator_v5.statistics import CoordinatorStatistics
from txnctl.metrics.metric import Metric, MetricKind
from txnctl.metrics.statistics import Census

COORDINATOR: tuple[Metric[CoordinatorStatistics], ...] = (
    Metric(
        name="txnstore_transactions_active",
        kind=MetricKind.GAUGE,
        help="Open transactions of the coordinator ids this process owns.",
        read=lambda of: of.open,
    ),
    Metric(
        name="txnstore_transactions_created_total",
        kind=MetricKind.COUNTER,
        help="Transactions begun.",
        read=lambda of: of.begun,
    ),
    Metric(
        name="txnstore_transactions_committed_total",
        kind=MetricKind.COUNTER,
        help="Transactions committed by a compare-and-set of this process.",
        read=lambda of: of.committed,
    ),
    Metric(
        name="txnstore_transactions_aborted_total",
        kind=MetricKind.COUNTER,
        help="Transactions aborted by a compare-and-set of this process, by the reason in their header: client, "
        "timeout, session (the client vanished), admin, unanswered (a lost begin), fenced.",
        labels=("reason",),
        read=lambda of: [((reason,), count) for reason, count in sorted(of.aborted_by.items())],
    ),
    Metric(
        name="txnstore_transactions_timed_out_total",
        kind=MetricKind.COUNTER,
        help="Those of the aborted transactions whose deadline had passed.",
        read=lambda of: of.timed_out,
    ),
    Metric(
        name="txnstore_transaction_oldest_open_seconds",
        kind=MetricKind.GAUGE,
        help="Age of the transaction that has been open for longest; it may hold readers back. 0 without any.",
        read=lambda of: of.oldest_open_s,
    ),
    Metric(
        name="txnstore_begin_seconds",
        kind=MetricKind.HISTOGRAM,
        help="From the arrival of a begin to its answer.",
        read=lambda of: of.begin_latency,
    ),
    Metric(
        name="txnstore_commit_seconds",
        kind=MetricKind.HISTOGRAM,
        help="From the arrival of a commit to its answer.",
        read=lambda of: of.commit_latency,
    ),
    Metric(
        name="txnstore_abort_seconds",
        kind=MetricKind.HISTOGRAM,
        help="From the arrival of an abort to its answer.",
        read=lambda of: of.abort_latency,
    ),
    Metric(
        name="txnstore_coordinator_ids",
        kind=MetricKind.GAUGE,
        help="Coordinator ids this process owns.",
        read=lambda of: len(of.tcids),
    ),
    Metric(
        name="txnstore_client_sessions",
        kind=MetricKind.GAUGE,
        help="Clients with transactions here, connected or within their grace.",
        read=lambda of: of.sessions,
    ),
    Metric(
        name="txnstore_sweep_backlog",
        kind=MetricKind.GAUGE,
        help="Aborts that are due (deadline passed, client vanished) and not decided yet, counted up to 10 000.",
        read=lambda of: of.overdue,
    ),
    Metric(
        name="txnstore_gc_backlog",
        kind=MetricKind.GAUGE,
        help="Decided transactions whose header is not collected yet: retained ones wait out their retention, stuck "
        "ones are past it and still have op records.",
        labels=("state",),
        read=lambda of: [(("retained",), of.retained), (("stuck",), of.stuck)],
    ),
    Metric(
        name="txnstore_transactions_collected_total",
        kind=MetricKind.COUNTER,
        help="Headers collected.",
        read=lambda of: of.collected,
    ),
    Metric(
        name="pulsar_txn_metadata_store_header_cas_total",
        kind=MetricKind.COUNTER,
        help="Compare-and-sets of headers, begins and decisions: ok: it held; conflict: another process had decided; "
        "reject: this process no longer owns the coordinator id or the header.",
        labels=("result",),
        read=lambda of: [(("ok",), of.cas_ok), (("conflict",), of.cas_conflict), (("reject",), of.cas_reject)],
    ),
    Metric(
        name="pulsar_txn_transaction_key_count",
        kind=MetricKind.GAUGE,
        help="Transaction keys whose holders are connected here.",
        read=lambda of: of.transaction_keys,
    ),
    Metric(
        name="pulsar_txn_transaction_key_epoch",
        kind=MetricKind.GAUGE,
        help="The epoch of each of these keys (of the first thousand; as owner&key): it counts its holders.",
        labels=("transaction_key",),
        read=lambda of: [((f"{held.owner}&{held.key}",), held.epoch) for held in of.held_keys],
    ),
    Metric(
        name="pulsar_txn_transaction_key_age",
        kind=MetricKind.SUMMARY,
        help="Seconds since each of these keys was taken by its present holder; one observation each.",
        labels=("transaction_key",),
        read=lambda of: [((f"{held.owner}&{held.key}",), held.age_s) for held in of.held_keys],
    ),
)

CENSUS: tuple[Metric[Census], ...] = (
    Metric(
        name="pulsar_txn_metadata_store_outstanding_op_records",
        kind=MetricKind.GAUGE,
        help="Op records in etcd, of the whole cluster: of open transactions, and of decided ones that are not cleaned "
        "up. The elected sweeper counts them every 10 s, and only its process reports them.",
        read=lambda of: of.op_records,
    ),
    Metric(
        name="txnstore_headers",
        kind=MetricKind.GAUGE,
        help="Transaction headers in etcd, of the whole cluster; counted as the op records are.",
        read=lambda of: of.headers,
    ),
    Metric(
        name="txnstore_etcd_file_bytes",
        kind=MetricKind.GAUGE,
        help="Size of etcd's file, free pages included, which etcd compares with its quota. Of the sweeper's member.",
        read=lambda of: of.file_bytes,
    ),
    Metric(
        name="txnstore_etcd_in_use_bytes",
        kind=MetricKind.GAUGE,
        help="The part of etcd's file that is in use.",
        read=lambda of: of.in_use_bytes,
    ),
    Metric(
        name="txnstore_etcd_quota_bytes",
        kind=MetricKind.GAUGE,
        help="etcd's quota, as it tells it or as it is configured here.",
        read=lambda of: of.quota_bytes,
    ),
)
