"""Metrics of every process: its store connection, its view of the cluster, the controller's part."""

from __future__ import annotations

from collections.abc import Sequence

from segments.controller.controller import ControllerStatistics
from txnctl.metrics.metric import Metric, MetricKind
from txnctl.metrics.statistics import NamesOfNamespace, ServerStatistics, StoreStatistics, SweeperStatistics

NAMESPACES_SHOWN = 20


def _fullest(of: SweeperStatistics) -> Sequence[NamesOfNamespace]:
    """▲ Sorted by the part of its own bound that each uses: an alert looks at it, and a namespace with few names may
    have a low bound."""
    return sorted(of.names, key=lambda one: (-one.count / one.most, one.namespace))[:NAMESPACES_SHOWN]


STORE: tuple[Metric[StoreStatistics], ...] = (
    Metric(
        name="txnstore_group_size",
        kind=MetricKind.HISTOGRAM,
        help="Conditional writes that shared one etcd request.",
        read=lambda of: of.commits.sizes,
    ),
    Metric(
        name="txnstore_store_request_seconds",
        kind=MetricKind.HISTOGRAM,
        help="Write requests to etcd, from sending to answer; unanswered ones are left out and counted as repeats.",
        read=lambda of: of.commits.latency,
    ),
    Metric(
        name="txnstore_store_repeats_total",
        kind=MetricKind.COUNTER,
        help="Write requests sent again because the one before went unanswered.",
        read=lambda of: of.commits.repeats,
    ),
    Metric(
        name="txnstore_store_queued",
        kind=MetricKind.GAUGE,
        help="Conditional writes waiting for a request to share.",
        read=lambda of: of.commits.queued,
    ),
    Metric(
        name="txnstore_store_inflight",
        kind=MetricKind.GAUGE,
        help="Conditional writes on their way to etcd.",
        read=lambda of: of.commits.in_flight,
    ),
    Metric(
        name="txnstore_store_revision",
        kind=MetricKind.GAUGE,
        help="The newest etcd revision in an answer to a write of this process.",
        read=lambda of: of.commits.revision,
    ),
    Metric(
        name="txnstore_store_refuses_new",
        kind=MetricKind.GAUGE,
        help="1 while etcd is above its soft limit and new transactions get StoreFull, else 0.",
        read=lambda of: of.refuses_new,
    ),
    Metric(
        name="pulsar_txn_metadata_store_index_query_seconds",
        kind=MetricKind.HISTOGRAM,
        help="Range queries of the secondary indexes (writes-by-segment, acks-by-segment-subscription, "
        "txn-by-deadline), all pages and retries included.",
        read=lambda of: of.index_queries,
    ),
)

SWEEPER: tuple[Metric[SweeperStatistics], ...] = (
    Metric(
        name="txnstore_sweeper_elected",
        kind=MetricKind.GAUGE,
        help="1 in the process that compacts and defragments etcd, else 0.",
        read=lambda of: of.elected,
    ),
    Metric(
        name="txnstore_transaction_names",
        kind=MetricKind.GAUGE,
        help="Names of transactions that are kept, by their namespace, the part before a name's first /. The elected "
        "sweeper counts them about every 10 minutes, and only its process reports them, for the 20 namespaces that "
        "are nearest to their bounds.",
        labels=("names",),
        read=lambda of: [((one.namespace,), one.count) for one in _fullest(of)],
    ),
    Metric(
        name="txnstore_transaction_names_allowed",
        kind=MetricKind.GAUGE,
        help="How many names each of these namespaces may have (setting names_max): past it new ones are refused.",
        labels=("names",),
        read=lambda of: [((one.namespace,), one.most) for one in _fullest(of)],
    ),
)

CONTROLLER: tuple[Metric[ControllerStatistics], ...] = (
    Metric(
        name="txnstore_controller_leading",
        kind=MetricKind.GAUGE,
        help="1 in the process that is the controller, else 0.",
        read=lambda of: of.leading,
    ),
    Metric(
        name="txnstore_controller_subscriptions",
        kind=MetricKind.GAUGE,
        help="Stream subscriptions with consumers or an assignment that the controller keeps.",
        read=lambda of: of.subscriptions,
    ),
    Metric(
        name="txnstore_controller_consumers",
        kind=MetricKind.GAUGE,
        help="Consumers connected to the controller.",
        read=lambda of: of.connected_consumers,
    ),
    Metric(
        name="txnstore_snapshots_total",
        kind=MetricKind.COUNTER,
        help="Snapshots taken, and those given up.",
        labels=("result",),
        read=lambda of: [(("taken",), of.snapshots.taken), (("failed",), of.snapshots.failed)],
    ),
    Metric(
        name="txnstore_snapshots_started_over_total",
        kind=MetricKind.COUNTER,
        help="Cuts begun again because a segment moved to another broker meanwhile.",
        read=lambda of: of.snapshots.started_over,
    ),
    Metric(
        name="txnstore_snapshot_seconds_total",
        kind=MetricKind.COUNTER,
        help="Duration of snapshots, repeated attempts included.",
        read=lambda of: of.snapshots.taken_s,
    ),
    Metric(
        name="txnstore_layout_changes_total",
        kind=MetricKind.COUNTER,
        help="Splits and merges made, and those given up, since this process was elected.",
        labels=("kind",),
        read=lambda of: [
            (("split",), of.layouts.splits),
            (("merge",), of.layouts.merges),
            (("given_up",), of.layouts.given_up),
        ],
    ),
    Metric(
        name="txnstore_layout_changes_under_way",
        kind=MetricKind.GAUGE,
        help="Splits and merges accepted and neither made nor given up.",
        read=lambda of: of.layouts.under_way,
    ),
    Metric(
        name="txnstore_pruned_segments_total",
        kind=MetricKind.COUNTER,
        help="Sealed segments that were empty and forgotten and left their topics, since this process was elected.",
        read=lambda of: of.pruned_segments,
    ),
    Metric(
        name="txnstore_autoscale_changes_total",
        kind=MetricKind.COUNTER,
        help="Splits and merges that autoscale has asked for, and those of them that failed, since this process was "
        "elected.",
        labels=("kind",),
        read=lambda of: [
            (("split",), of.autoscale.splits),
            (("merge",), of.autoscale.merges),
            (("failed",), of.autoscale.failed),
        ],
    ),
)

PROCESS: tuple[Metric[ServerStatistics], ...] = (
    Metric(
        name="txnstore_ready",
        kind=MetricKind.GAUGE,
        help="1 while this process serves all its roles, else 0; the label names it.",
        labels=("id", "roles", "version"),
        read=lambda of: [((of.id, ",".join(of.roles), of.version), float(of.not_ready is None))],
    ),
    Metric(
        name="txnstore_uptime_seconds",
        kind=MetricKind.GAUGE,
        help="Since this process began to start.",
        read=lambda of: of.uptime_s,
    ),
    Metric(
        name="txnstore_task_failures_total",
        kind=MetricKind.COUNTER,
        help="Background tasks that ended without being asked to, by kind: each is a defect, and the task starts again "
        "or the process ends.",
        labels=("task",),
        read=lambda of: [((name,), count) for name, count in sorted(of.task_failures.items())],
    ),
    Metric(
        name="txnstore_longest_pause_seconds",
        kind=MetricKind.GAUGE,
        help="The longest time within the last minute or two that one piece of work blocked this process: meanwhile "
        "clients wait, and leases are not renewed.",
        read=lambda of: of.longest_pause_s,
    ),
    Metric(
        name="txnstore_longest_pause_cpu_seconds",
        kind=MetricKind.GAUGE,
        help="The most CPU time that the event loop's thread has used within one such pause: a longer pause than that "
        "is a machine's that is busy with others.",
        read=lambda of: of.longest_pause_cpu_s,
    ),
    Metric(
        name="txnstore_clock_ahead_seconds",
        kind=MetricKind.GAUGE,
        help="This process's wall clock minus the cluster's, below 0 if it is behind; 0 before the first stamp of the "
        "cluster's clock.",
        read=lambda of: of.clock_ahead_s,
    ),
    Metric(
        name="txnstore_connections",
        kind=MetricKind.GAUGE,
        help="Connections of clients and of other servers.",
        read=lambda of: of.connections,
    ),
    Metric(
        name="txnstore_topics",
        kind=MetricKind.GAUGE,
        help="Topics of the cluster, as this process follows them.",
        read=lambda of: of.topics,
    ),
    Metric(
        name="txnstore_segments",
        kind=MetricKind.GAUGE,
        help="Segments of the cluster, as this process follows them.",
        read=lambda of: of.segments,
    ),
    Metric(
        name="txnstore_segments_unowned",
        kind=MetricKind.GAUGE,
        help="Those of them that no broker owns at the moment.",
        read=lambda of: of.unowned_segments,
    ),
)
