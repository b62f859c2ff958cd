"""What a broker tells of its segments and their subscriptions: of all of them, and not of the first."""

from __future__ import annotations

from typing import Any

from segments.broker.broker_statistics import BrokerStatistics
from segments.log.housekeeping import KeepingStatistics
from segments.log.measures import Measures
from segments.owner.segment_statistics import SegmentStatistics
from segments.subscription.lag import LagAge
from segments.subscription.queueing.queue_ports import QueueStatistics
from segments.subscription.subscriptions import SubscriptionStatistics
from tests.txnctl.metrics.test_told_numbers import told
from txnctl.metrics.of_process import PROCESS
from txnctl.metrics.of_segments import BROKER
from txnctl.metrics.statistics import ServerStatistics
from txnwire.histogram import Histogram
from txnwire.ids import EARLIEST, Position, TxnId
from watchers.clean_up import CleanUpStatistics
from watchers.decisions import DecisionStatistics
from watchers.pending_acks import PendingAckStatistics
from watchers.visibility import BufferStatistics

TOPIC = "public/nyc/flights"


def subscription(name: str, n: int, *, queue: bool) -> SubscriptionStatistics:
    return SubscriptionStatistics(
        name=name,
        type="queue" if queue else "stream",
        consumer=None,
        consumers=(),
        mark_delete=EARLIEST,
        backlog=10 * n,
        permits=0,
        delivered=0,
        held_back=False,
        pending=PendingAckStatistics(transactions=0, positions=n, cumulative=100 * n, deferred=0, cleaning=0),
        open_transactions=(),
        queue=QueueStatistics(unacked=2 * n, set_aside=3 * n, delayed=5 * n) if queue else None,
    )


def segment(path: str, n: int) -> SegmentStatistics:
    """Every number that is told is a multiple of `n`."""
    buffer = BufferStatistics(
        open=0,
        pinning=0,
        deferred=0,
        cleaning=0,
        aborted=13 * n,
        max_read_position=EARLIEST,
        watermark=EARLIEST,
        earliest_open=None,
        earliest_position=None,
    )
    return SegmentStatistics(
        path=path,
        epoch=1,
        sealed=False,
        ledgers=2 * n,
        entries=0,
        last_confirmed=EARLIEST,
        max_read_position=EARLIEST,
        buffer=buffer,
        pinning=((TxnId(1, n), Position(1, 1)),),
        entries_behind=(7 * n, n),
        inflight=0,
        inflight_bytes=0,
        cached_bytes=0,
        producers=0,
        readers=0,
        clean_up_backlog=0,
        stored_entries=0,
        subscriptions=(subscription("job", n, queue=True), subscription("more", 10 * n, queue=True)),
        recovery_s=0.5 * n,
        trimmed_below=None,
        kept_bytes=1000 * n,
        aborted_in_store=11 * n,
        keeping=KeepingStatistics(trimmed_ledgers=n, trimmed_bytes=17 * n, sidecars=19 * n, skipped_entries=23 * n),
        open_transactions=0,
        lags={"job": LagAge(29 * n, 1.5 * n), "more": LagAge(31 * n, 2.5 * n)},
    )


def broker(*segments: SegmentStatistics) -> BrokerStatistics:
    return BrokerStatistics(
        broker_id="b",
        registered=True,
        segments=segments,
        taking=(),
        failed={},
        decisions=DecisionStatistics(
            followed_revision=1,
            held=0,
            events=0,
            decisions=0,
            resyncs=0,
            reread=0,
            absent=0,
            lag=Histogram().snapshot(),
        ),
        clean_up=CleanUpStatistics(backlog=0, in_flight=0, commits=0, cleaned=0, lost_compares=0),
        inflight_bytes=0,
        disk_free_bytes=None,
        disk_full=None,
        measures=Measures().snapshot(),
    )


def test_a_broker_s_of_all_its_segments() -> None:
    low, high = f"{TOPIC}/0000-7fff-0", f"{TOPIC}/8000-ffff-1"
    found = told(BROKER, broker(segment(low, 1), segment(high, 2)))
    expected = {
        "txnstore_broker_segments served": 2,
        "txnstore_recovery_seconds_max": 1.0,
        f"txnstore_segment_pinned_entries {low}": 7,
        f"txnstore_segment_pinned_entries {high}": 14,
        "txnstore_pinned_entries": 21,
        "txnstore_pinned_segments": 2,
        f"txnstore_subscription_backlog_entries {TOPIC} job": 30,
        f"txnstore_subscription_backlog_entries {TOPIC} more": 300,
        f"txnstore_subscription_lag_messages {TOPIC} job": 87,
        f"txnstore_subscription_lag_messages {TOPIC} more": 93,
        f"txnstore_subscription_lag_seconds {TOPIC} job": 3.0,
        f"txnstore_subscription_lag_seconds {TOPIC} more": 5.0,
        "txnstore_queue_entries unacked": 66,
        "txnstore_queue_entries set_aside": 99,
        "txnstore_queue_entries delayed": 165,
        "txnstore_pending_acks": 3333,
        "txnstore_trimmed_ledgers_total": 3,
        "txnstore_trimmed_bytes_total": 51,
        "txnstore_sidecars_total": 57,
        "txnstore_trimmed_unread_entries_total": 69,
        "txnstore_kept_bytes": 3000,
        "txnstore_aborted_records": 33,
        "txnstore_ledgers": 6,
        "txnstore_aborted_remembered": 39,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_failures_of_tasks_are_told_by_each_kind() -> None:
    of: Any = dict.fromkeys(ServerStatistics.__dataclass_fields__, 0)
    of |= {"id": "one", "roles": ("broker",), "version": "1", "not_ready": None, "task_failures": {"b": 2, "a": 3}}
    found = told(PROCESS, ServerStatistics(**of))
    assert {name: count for name, count in found.items() if "task_failures" in name} == {
        "txnstore_task_failures_total a": 3,
        "txnstore_task_failures_total b": 2,
    }
