"""One metric: its name, its help, and how it is read from statistics. Pure, apart from Prometheus' own types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar, cast

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.core import Metric as Family

from txnwire.histogram import HistogramSnapshot

S = TypeVar("S")

Labelled = Sequence[tuple[tuple[str, ...], float]]
"""Values with their label values."""

Value = float | HistogramSnapshot | Labelled


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Generic[S]):
    """`name` as it is scraped: a counter's ends in `_total`, a unit comes last before that. `labels` are bounded, as
    `bound` says if `help` does not. Each value of a summary is one observation."""

    name: str
    kind: MetricKind
    help: str
    read: Callable[[S], Value]
    labels: tuple[str, ...] = ()

    def family(self, statistics: S | None) -> Family:
        """With its samples; without any if there are no statistics (the process does not have that role), so that every
        process exposes every metric's name and help."""
        family: Any = self._empty()
        if statistics is not None:
            value = self.read(statistics)
            if isinstance(value, HistogramSnapshot):
                family.add_metric((), buckets=cumulative(value), sum_value=value.total)
            else:
                for labels, one in [((), value)] if isinstance(value, int | float) else value:
                    family.add_metric(labels, *((1, one) if self.kind is MetricKind.SUMMARY else (one,)))
        return cast(Family, family)

    def _empty(self) -> Family:
        match self.kind:
            case MetricKind.COUNTER:
                return CounterMetricFamily(self.name.removesuffix("_total"), self.help, labels=self.labels)
            case MetricKind.GAUGE:
                return GaugeMetricFamily(self.name, self.help, labels=self.labels)
            case MetricKind.HISTOGRAM:
                return HistogramMetricFamily(self.name, self.help, labels=self.labels)
            case MetricKind.SUMMARY:
                return SummaryMetricFamily(self.name, self.help, labels=self.labels)


def cumulative(snapshot: HistogramSnapshot) -> list[tuple[str, float]]:
    """Prometheus' buckets: (upper bound as text, observations at or below it)."""
    seen, buckets = 0, []
    for bound, count in zip((*snapshot.bounds, float("inf")), snapshot.counts, strict=True):
        seen += count
        buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", float(seen)))
    return buckets


def largest(values: Iterable[tuple[tuple[str, ...], float]], limit: int) -> Labelled:
    """The `limit` largest non-zero values, for a label with too many values to show all."""
    return sorted((one for one in values if one[1]), key=lambda one: (-one[1], one[0]))[:limit]
