"""A server process' view of itself at one moment: the statistics of its roles, its store and its view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator_v5.statistics import CoordinatorStatistics
from segments.broker.broker import BrokerStatistics
from segments.controller.controller import ControllerStatistics
from txnstore.access.group_commit import Statistics as CommitStatistics
from txnwire.histogram import HistogramSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """The elected sweeper's last count in etcd: op records and headers by key, and etcd's size."""

    op_records: int
    headers: int
    file_bytes: int
    in_use_bytes: int
    quota_bytes: int


@dataclass(frozen=True, slots=True)
class NamesOfNamespace:
    """Transaction names as last counted, and how many are allowed; namespace "": those without a `/`."""

    namespace: str
    count: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweeperStatistics:
    """`census` is None, and `names` empty, if this process is not elected, or has not counted yet."""

    elected: bool
    census: Census | None
    names: Sequence[NamesOfNamespace] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """`index_queries`: seconds of range queries of the secondary indexes. `refuses_new`: the soft limit holds."""

    commits: CommitStatistics
    index_queries: HistogramSnapshot
    refuses_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatistics:
    """`not_ready`: why this process does not serve, None if it does. A role that it does not have is None."""

    id: str
    roles: tuple[str, ...]
    version: str
    address: str
    not_ready: str | None
    uptime_s: float
    connections: int
    topics: int
    segments: int
    unowned_segments: int
    task_failures: Mapping[str, int]
    """Background tasks that ended unexpectedly, by kind, since the start."""
    longest_pause_s: float
    """Recent pause of the event loop; 0 if not measured."""
    longest_pause_cpu_s: float
    """CPU time of the loop's thread within one pause, likewise."""
    clock_ahead_s: float
    """This process's wall clock minus the cluster's."""
    store: StoreStatistics
    coordinator: CoordinatorStatistics | None
    sweeper: SweeperStatistics | None
    controller: ControllerStatistics | None
    broker: BrokerStatistics | None
