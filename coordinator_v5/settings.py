"""The settings of a coordinator; every number of this package is stated here once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class NameSettings:
    """Limits of a namespace of transaction names (`txnwire.names.namespace_of`); `…_of` overrides one by namespace."""

    keep_s: float = 7 * 24 * 3600.0
    """How long an outcome is kept, counted from its collection, where the begin does not say."""
    keep_s_of: Mapping[str, float] = field(default_factory=dict)
    most: int = 2_000_000
    """Names of one namespace; past it a begin of a new one is refused with `TooManyNames`. 150 bytes each: 300 MB."""
    most_of: Mapping[str, int] = field(default_factory=dict)

    def keep_ms(self, namespace: str) -> int:
        return int(self.keep_s_of.get(namespace, self.keep_s) * 1000)

    def bound(self, namespace: str) -> int:
        return self.most_of.get(namespace, self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    tcids: int = 16
    """The cluster has coordinator ids 0 … tcids - 1, shared out evenly among its coordinators."""
    lease_ttl_s: float = 5.0
    balance_after_s: float = 2.0
    """A coordinator gives up its excess only after no coordinator has come or gone for this long: a restart moves no
    id.
    """
    header_retention_s: float = 60.0
    """How long a decided header stays after this coordinator first saw it final, on the monotonic clock."""
    outcome_retention_s: float = 7 * 24 * 3600.0
    default_timeout_s: float = 60.0
    """Timeout of a begin that names none."""
    max_timeout_s: float = 3600.0
    client_grace_s: float = 10.0
    """After this long without connection and announcement a client's open transactions are aborted."""
    id_block: int = 1024
    """Ids taken at a time; the next block is requested when half of one is used up."""
    sweep_s: float = 0.25
    """Cadence of deadlines, sessions and the late index; well inside the promised 1.5 s."""
    swept_at_once: int = 250
    """Most aborts in flight that no client asked for. Begins and ends of clients never queue behind more of them, even
    if one deadline or one vanished client ends very many transactions."""
    behind_s: float = 0.02
    """Cadence of the sweep while it may have left aborts overdue."""
    max_open: int = 16_384
    """Open transactions of one coordinator id; beyond it a begin is refused with `Overloaded`. Each takes some 1.2 KB
    here, 1.5 at its brokers, and 5.5 in etcd."""
    index_after_s: float = 1.0
    """A transaction open for longer gets a deadline key."""
    mark_every_s: float = 5.0
    """Shortest time between two moves of one TCID's late-index mark, which bounds a successor's scan."""
    begin_patience_s: float = 2.0
    """After this long without the store's answer, a begin is retried with a fresh id."""
    answer_s: float = 10.0
    """After this long without an answer a request gets `Timeout`."""
    collect_every_s: float = 1.0
    headers_at_once: int = 500
    """Headers read at once, and processed before the loop goes on."""
    keys_at_once: int = 5_000
    """Keys read at once without their values."""
    ops_at_once: int = 1_000
    """Op records of one transaction read at once."""
    stamp_every_s: float = 5.0
    """How often the owner of coordinator id 0 stamps the cluster's clock."""
    reconcile_every_s: float = 15.0
    """Transactions open for longer are checked this often: another coordinator may have ended them."""
    housekeeping_every_s: float = 60.0
    """How often stale deadline keys and expired outcome blocks are deleted."""
    names: NameSettings = field(default_factory=NameSettings)
    count_names_s: float = 10.0
    """How often the number of names, which the elected sweeper has counted, is read while new ones are begun."""
