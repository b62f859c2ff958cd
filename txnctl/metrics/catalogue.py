"""Lists every metric of every process, and turns statistics into samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import Metric as Family

from txnctl.metrics.metric import Metric
from txnctl.metrics.of_process import CONTROLLER, PROCESS, STORE, SWEEPER
from txnctl.metrics.of_segments import BROKER
from txnctl.metrics.of_transactions import CENSUS, COORDINATOR
from txnctl.metrics.statistics import ServerStatistics


def catalogue() -> list[Metric[Any]]:
    """In the order in which they are scraped."""
    return [*PROCESS, *STORE, *COORDINATOR, *SWEEPER, *CENSUS, *CONTROLLER, *BROKER]


def families(of: ServerStatistics) -> Iterator[Family]:
    """Every metric; one of a role that this process does not have comes with its help and without samples."""
    census = of.sweeper.census if of.sweeper is not None else None
    for metrics, statistics in (
        (PROCESS, of),
        (STORE, of.store),
        (COORDINATOR, of.coordinator),
        (SWEEPER, of.sweeper),
        (CENSUS, census),
        (CONTROLLER, of.controller),
        (BROKER, of.broker),
    ):
        yield from _read(metrics, statistics)


def _read(metrics: tuple[Metric[Any], ...], statistics: Any) -> Iterator[Family]:
    for metric in metrics:
        yield metric.family(statistics)
