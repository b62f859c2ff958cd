"""Metrics of the broker's side: publishing, entries held back from readers, decisions followed, clean-up."""

from __future__ import annotations

from functools import reduce

from segments.broker.broker import BrokerStatistics
from segments.log.housekeeping import KeepingStatistics
from txnctl.metrics.metric import Labelled, Metric, MetricKind, largest

SEGMENTS_SHOWN = 10
SUBSCRIPTIONS_SHOWN = 20


def _pinned(of: BrokerStatistics) -> Labelled:
    """Entries behind the first open transaction of each segment, which readers wait for."""
    return [((one.path,), one.entries_behind[0]) for one in of.segments if one.entries_behind]


def _by_subscription(of: BrokerStatistics) -> Labelled:
    """Entries not consumed by each subscription, over the segments served here."""
    found: dict[tuple[str, ...], float] = {}
    for segment in of.segments:
        topic = segment.path.rpartition("/")[0]
        for one in segment.subscriptions:
            found[topic, one.name] = found.get((topic, one.name), 0) + one.backlog
    return list(found.items())


def _lags(of: BrokerStatistics) -> dict[tuple[str, ...], tuple[float | None, float | None]]:
    """Messages not acked by each subscription, over the segments served here, and the age of the oldest. None: not
    known in one of them."""
    found: dict[tuple[str, ...], tuple[float | None, float | None]] = {}
    for segment in of.segments:
        topic = segment.path.rpartition("/")[0]
        for name, lag in segment.lags.items():
            messages, age_s = found.get((topic, name), (0, 0))
            found[topic, name] = (
                None if messages is None or lag.messages is None else messages + lag.messages,
                None if age_s is None or lag.age_s is None else max(age_s, lag.age_s),
            )
    return found


def _kept(of: BrokerStatistics) -> KeepingStatistics:
    """Housekeeping since the start of the process, wherever its segments are now."""
    return reduce(KeepingStatistics.plus, [one.keeping for one in of.segments], of.measures.kept)


def _queues(of: BrokerStatistics) -> Labelled:
    queues = [one.queue for segment in of.segments for one in segment.subscriptions if one.queue is not None]
    return [
        (("unacked",), sum(one.unacked for one in queues)),
        (("set_aside",), sum(one.set_aside for one in queues)),
        (("delayed",), sum(one.delayed for one in queues)),
    ]


BROKER: tuple[Metric[BrokerStatistics], ...] = (
    Metric(
        name="txnstore_publish_seconds",
        kind=MetricKind.HISTOGRAM,
        help="From the arrival of an entry to its acknowledgement, op record and sync included.",
        read=lambda of: of.measures.publish,
    ),
    Metric(
        name="txnstore_ledger_sync_seconds",
        kind=MetricKind.HISTOGRAM,
        help="Syncs of a ledger, from asking for one to its end.",
        read=lambda of: of.measures.ledger_sync,
    ),
    Metric(
        name="txnstore_visibility_lag_seconds",
        kind=MetricKind.HISTOGRAM,
        help="From the decision of a transaction, by its coordinator's clock, to its effect on the readers of a "
        "segment, by the broker's.",
        read=lambda of: of.measures.visibility_lag,
    ),
    Metric(
        name="txnstore_watch_lag_seconds",
        kind=MetricKind.HISTOGRAM,
        help="From the decision of a transaction, by its coordinator's clock, to its arrival here, by the broker's.",
        read=lambda of: of.decisions.lag,
    ),
    Metric(
        name="txnstore_watch_followed_revision",
        kind=MetricKind.GAUGE,
        help="The etcd revision up to which decisions are followed; compare with txnstore_store_revision.",
        read=lambda of: of.decisions.followed_revision,
    ),
    Metric(
        name="txnstore_watch_resyncs_total",
        kind=MetricKind.COUNTER,
        help="Times that etcd had compacted the watch's revision and the process listed everything again.",
        read=lambda of: of.decisions.resyncs,
    ),
    Metric(
        name="txnstore_decisions_total",
        kind=MetricKind.COUNTER,
        help="Decisions delivered to segments of this broker.",
        read=lambda of: of.decisions.decisions,
    ),
    Metric(
        name="txnstore_entries_stored_total",
        kind=MetricKind.COUNTER,
        help="Entries stored and acknowledged.",
        read=lambda of: of.measures.entries_stored,
    ),
    Metric(
        name="txnstore_messages_stored_total",
        kind=MetricKind.COUNTER,
        help="Messages in those entries.",
        read=lambda of: of.measures.messages_stored,
    ),
    Metric(
        name="txnstore_stored_bytes_total",
        kind=MetricKind.COUNTER,
        help="Bytes of those entries.",
        read=lambda of: of.measures.bytes_stored,
    ),
    Metric(
        name="txnstore_publish_inflight_bytes",
        kind=MetricKind.GAUGE,
        help="Bytes admitted and neither stored nor refused; sends beyond the bound get Overloaded.",
        read=lambda of: of.inflight_bytes,
    ),
    Metric(
        name="txnstore_broker_segments",
        kind=MetricKind.GAUGE,
        help="Segments of this broker: served, being taken over, and given up because their data is corrupt.",
        labels=("state",),
        read=lambda of: [
            (("served",), len(of.segments)),
            (("taking",), len(of.taking)),
            (("failed",), len(of.failed)),
        ],
    ),
    Metric(
        name="txnstore_broker_registered",
        kind=MetricKind.GAUGE,
        help="1 while the broker's lease holds, else 0: then it acknowledges nothing.",
        read=lambda of: of.registered,
    ),
    Metric(
        name="txnstore_recovery_seconds_max",
        kind=MetricKind.GAUGE,
        help="The longest take-over among the segments served now.",
        read=lambda of: max((one.recovery_s for one in of.segments), default=0.0),
    ),
    Metric(
        name="txnstore_segment_pinned_entries",
        kind=MetricKind.GAUGE,
        help=f"Entries after an open transaction that readers wait for, of the {SEGMENTS_SHOWN} segments with most.",
        labels=("segment",),
        read=lambda of: largest(_pinned(of), SEGMENTS_SHOWN),
    ),
    Metric(
        name="txnstore_pinned_entries",
        kind=MetricKind.GAUGE,
        help="The same over all segments of this broker.",
        read=lambda of: sum(count for _, count in _pinned(of)),
    ),
    Metric(
        name="txnstore_pinned_segments",
        kind=MetricKind.GAUGE,
        help="Segments in which an open transaction holds readers back.",
        read=lambda of: sum(1 for one in of.segments if one.pinning),
    ),
    Metric(
        name="txnstore_subscription_backlog_entries",
        kind=MetricKind.GAUGE,
        help=f"Entries not consumed, in segments served here, of the {SUBSCRIPTIONS_SHOWN} subscriptions with most.",
        labels=("topic", "subscription"),
        read=lambda of: largest(_by_subscription(of), SUBSCRIPTIONS_SHOWN),
    ),
    Metric(
        name="txnstore_subscription_lag_messages",
        kind=MetricKind.GAUGE,
        help=f"Messages not acked, in segments served here, of the {SUBSCRIPTIONS_SHOWN} subscriptions with most; "
        "counted every 15 s.",
        labels=("topic", "subscription"),
        read=lambda of: largest(
            ((labels, messages) for labels, (messages, _) in _lags(of).items() if messages), SUBSCRIPTIONS_SHOWN
        ),
    ),
    Metric(
        name="txnstore_subscription_lag_seconds",
        kind=MetricKind.GAUGE,
        help=f"Age of the oldest message not acked, by its producer's clock, in segments served here, of the "
        f"{SUBSCRIPTIONS_SHOWN} subscriptions with the oldest.",
        labels=("topic", "subscription"),
        read=lambda of: largest(
            ((labels, age_s) for labels, (_, age_s) in _lags(of).items() if age_s), SUBSCRIPTIONS_SHOWN
        ),
    ),
    Metric(
        name="txnstore_subscription_lags_unknown",
        kind=MetricKind.GAUGE,
        help="Subscriptions whose lag in some segment served here is not known, because ledgers are being read for it.",
        read=lambda of: sum(None in lag for lag in _lags(of).values()),
    ),
    Metric(
        name="txnstore_queue_entries",
        kind=MetricKind.GAUGE,
        help="Entries of queue subscriptions: unacked (with consumers), set aside (of open transactions), delayed.",
        labels=("state",),
        read=_queues,
    ),
    Metric(
        name="txnstore_pending_acks",
        kind=MetricKind.GAUGE,
        help="Acks in transactions that are not decided.",
        read=lambda of: sum(
            one.pending.positions + one.pending.cumulative for each in of.segments for one in each.subscriptions
        ),
    ),
    Metric(
        name="txnstore_trimmed_ledgers_total",
        kind=MetricKind.COUNTER,
        help="Ledgers deleted because their retention was over.",
        read=lambda of: _kept(of).trimmed_ledgers,
    ),
    Metric(
        name="txnstore_trimmed_bytes_total",
        kind=MetricKind.COUNTER,
        help="Bytes of those ledgers.",
        read=lambda of: _kept(of).trimmed_bytes,
    ),
    Metric(
        name="txnstore_trimmed_unread_entries_total",
        kind=MetricKind.COUNTER,
        help="Entries trimmed before a reader or consumer that had yet to read them.",
        read=lambda of: _kept(of).skipped_entries,
    ),
    Metric(
        name="txnstore_sidecars_total",
        kind=MetricKind.COUNTER,
        help="Sidecars written: aborted records that left etcd for a file beside their ledger.",
        read=lambda of: _kept(of).sidecars,
    ),
    Metric(
        name="txnstore_kept_bytes",
        kind=MetricKind.GAUGE,
        help="Bytes in the ledgers of the segments served here.",
        read=lambda of: sum(one.kept_bytes for one in of.segments),
    ),
    Metric(
        name="txnstore_aborted_records",
        kind=MetricKind.GAUGE,
        help="Aborted records in etcd, of the segments served here; sidecars take them over.",
        read=lambda of: sum(one.aborted_in_store for one in of.segments),
    ),
    Metric(
        name="txnstore_ledgers",
        kind=MetricKind.GAUGE,
        help="Ledgers of the segments served here, the open ones included.",
        read=lambda of: sum(one.ledgers for one in of.segments),
    ),
    Metric(
        name="txnstore_aborted_remembered",
        kind=MetricKind.GAUGE,
        help="Aborted transactions, by segment, that readers have to pass over until their data is trimmed.",
        read=lambda of: sum(one.buffer.aborted for one in of.segments),
    ),
    Metric(
        name="txnstore_disk_free_bytes",
        kind=MetricKind.GAUGE,
        help="Bytes free on the disk of the ledgers, as this broker saw it last.",
        read=lambda of: of.disk_free_bytes or 0,
    ),
    Metric(
        name="txnstore_disk_refuses_new",
        kind=MetricKind.GAUGE,
        help="1 while the disk of the ledgers has less than min_free_bytes free and sends get StoreFull, else 0.",
        read=lambda of: int(of.disk_full is not None),
    ),
    Metric(
        name="txnstore_clean_up_backlog",
        kind=MetricKind.GAUGE,
        help="Decided transactions, by segment, whose op records are not cleaned up yet.",
        read=lambda of: of.clean_up.backlog,
    ),
    Metric(
        name="txnstore_clean_up_lost_compares_total",
        kind=MetricKind.COUNTER,
        help="Clean-up writes that found another record than expected and were planned again.",
        read=lambda of: of.clean_up.lost_compares,
    ),
    Metric(
        name="pulsar_txn_metadata_store_op_writes_total",
        kind=MetricKind.COUNTER,
        help="Op records written, of writes and of acks.",
        read=lambda of: of.measures.ops_written,
    ),
)
