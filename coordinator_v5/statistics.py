"""Counts and latencies of one coordinator, and the frozen snapshot of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from txnwire.histogram import Histogram, HistogramSnapshot


class HeldKeyStatistics(NamedTuple):
    """A transaction key whose holder is connected here; `age_s`: since its epoch was assigned, by the wall clock."""

    owner: str
    key: str
    epoch: int
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatistics:
    """Counters since the start of this process; the first group shows the present."""

    tcids: tuple[int, ...]
    open: int
    sessions: int
    retained: int
    """Decided headers in their retention."""
    stuck: int
    """Decided transactions past their retention that still have op records."""
    begun: int
    committed: int
    aborted: int
    """Aborts for any reason, including `timed_out` and `vanished`."""
    timed_out: int
    vanished: int
    """Aborted because their client vanished."""
    unanswered: int
    """Begins served with a fresh id because the first went unanswered."""
    collected: int
    aborted_by: dict[str, int]
    """`aborted` by the reason recorded in the header."""
    oldest_open_s: float
    """Age of the oldest open transaction, by the wall clock; 0 without any."""
    sweeping: int
    """Aborts in flight that no client asked for (deadlines, vanished clients), at most `swept_at_once`."""
    overdue: int
    """Aborts due and not decided yet (deadlines passed, clients vanished). Counted up to 10 000."""
    cas_ok: int
    """Compare-and-sets of headers (begins and decisions) that succeeded."""
    cas_conflict: int
    """Compare-and-sets that found the header decided by another process."""
    cas_reject: int
    """Compare-and-sets refused because this process no longer owns the coordinator id or the header."""
    begin_latency: HistogramSnapshot
    """Time from a begin's arrival to its answer, in seconds."""
    commit_latency: HistogramSnapshot
    abort_latency: HistogramSnapshot
    """Time from the arrival of an end to its answer, in seconds; for transactions open here."""
    transaction_keys: int = 0
    """Transaction keys whose holders are connected here."""
    held_keys: Sequence[HeldKeyStatistics] = ()
    """The first thousand of them."""


class Counters:
    """The mutable side of `CoordinatorStatistics`."""

    __slots__ = (
        "abort_latency",
        "aborted",
        "aborted_by",
        "begin_latency",
        "begun",
        "cas_conflict",
        "cas_ok",
        "cas_reject",
        "collected",
        "commit_latency",
        "committed",
        "stuck",
        "sweeping",
        "timed_out",
        "unanswered",
        "vanished",
    )

    def __init__(self) -> None:
        self.begun = self.committed = self.aborted = self.timed_out = self.vanished = 0
        self.unanswered = self.collected = self.stuck = self.sweeping = 0
        self.cas_ok = self.cas_conflict = self.cas_reject = 0
        self.aborted_by: dict[str, int] = {}
        self.begin_latency = Histogram()
        self.commit_latency = Histogram()
        self.abort_latency = Histogram()
