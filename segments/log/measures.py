"""Counts a broker's work over all its segments: a few counters and histograms, which `/metrics` reads."""

from __future__ import annotations

from dataclasses import dataclass

from segments.log.housekeeping import KeepingStatistics
from txnwire.histogram import Histogram, HistogramSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuresSnapshot:
    """Counts since the start of this process; histograms are in seconds.

    `ops_written`: op records, of writes and acks. `publish`: from the arrival of an entry to its acknowledgement.
    `ledger_sync`: from the request of a sync to its end. `visibility_lag`: from a decision, by the coordinator's wall
    clock, to its effect on the readers of one segment here, by ours. `kept`: housekeeping in segments that have moved
    away."""

    ops_written: int
    entries_stored: int
    messages_stored: int
    bytes_stored: int
    publish: HistogramSnapshot
    ledger_sync: HistogramSnapshot
    visibility_lag: HistogramSnapshot
    kept: KeepingStatistics


class Measures:
    """Counts for all segments of one broker, also for one that moved away and came back."""

    __slots__ = (
        "bytes_stored",
        "entries_stored",
        "kept",
        "ledger_sync",
        "messages_stored",
        "ops_written",
        "publish",
        "visibility_lag",
    )

    def __init__(self) -> None:
        self.ops_written = self.entries_stored = self.messages_stored = self.bytes_stored = 0
        self.publish = Histogram()
        self.ledger_sync = Histogram()
        self.visibility_lag = Histogram()
        self.kept = KeepingStatistics()

    def left(self, kept: KeepingStatistics) -> None:
        """Keep the counts of a segment that has moved away."""
        self.kept = self.kept.plus(kept)

    def snapshot(self) -> MeasuresSnapshot:
        return MeasuresSnapshot(
            ops_written=self.ops_written,
            entries_stored=self.entries_stored,
            messages_stored=self.messages_stored,
            bytes_stored=self.bytes_stored,
            publish=self.publish.snapshot(),
            ledger_sync=self.ledger_sync.snapshot(),
            visibility_lag=self.visibility_lag.snapshot(),
            kept=self.kept,
        )
