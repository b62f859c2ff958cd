"""The statistics of a broker."""

from __future__ import annotations

from dataclasses import dataclass

from segments.log.measures import MeasuresSnapshot
from segments.owner.segment_statistics import SegmentStatistics
from watchers.clean_up import CleanUpStatistics
from watchers.decisions import DecisionStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatistics:
    """A broker's state at one moment. `failed`: segments whose recovery found corrupt data, with the error's text.
    `disk_full`: why sends are refused, None if they are not."""

    broker_id: str
    registered: bool
    segments: tuple[SegmentStatistics, ...]
    taking: tuple[str, ...]
    failed: dict[str, str]
    decisions: DecisionStatistics
    clean_up: CleanUpStatistics
    inflight_bytes: int
    disk_free_bytes: int | None
    disk_full: str | None
    measures: MeasuresSnapshot
