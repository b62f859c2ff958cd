"""What can be set about a coordinator; every number of this package stands here once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    tcids: int = 16
    """Coordinator ids 0 … tcids - 1 of the whole cluster, shared out evenly among its coordinators."""
    lease_ttl_s: float = 5.0
    balance_after_s: float = 2.0
    """So long no coordinator has come or gone when one with more than its share gives some up: a restart moves none."""
    header_retention_s: float = 60.0
    """A decided header stays so long after this coordinator first saw it final, on the monotonic clock."""
    outcome_retention_s: float = 7 * 24 * 3600.0
    default_timeout_s: float = 60.0
    """For a begin that names no timeout."""
    max_timeout_s: float = 3600.0
    client_grace_s: float = 10.0
    """A client without connection and announcement for so long has its open transactions aborted."""
    id_block: int = 1024
    """Ids taken at a time; the next block is asked for when half of one is used up."""
    sweep_s: float = 0.25
    """Cadence of deadlines, sessions and the late index; well inside the promised 1.5 s."""
    swept_at_once: int = 250
    """Aborts that nobody asked for are on their way at once, at most: clients' own begins and ends queue behind no more
    than that, however many transactions one deadline or one vanished client ends."""
    behind_s: float = 0.02
    """Cadence of the sweep while more is overdue than that."""
    max_open: int = 16_384
    """Open transactions of one coordinator id; beyond it a begin is refused with `Overloaded`. Each takes some 1.2 KB
    here, as much at its brokers, and 5.5 KB in etcd."""
    index_after_s: float = 1.0
    """A transaction open for longer gets a deadline key."""
    mark_every_s: float = 5.0
    """How often the late-index mark of one TCID is advanced at most: it bounds a successor's scan."""
    begin_patience_s: float = 2.0
    """A begin unanswered by the store for so long is served with a fresh id."""
    answer_s: float = 10.0
    """A request unanswered for so long is told `Timeout`."""
    collect_every_s: float = 1.0
    headers_at_once: int = 500
    """Headers that are read in one piece, and looked at before the loop goes on."""
    keys_at_once: int = 5_000
    """Keys without their values, likewise."""
    ops_at_once: int = 1_000
    """Op records of one transaction that are read in one piece."""
    stamp_every_s: float = 5.0
    """How often the owner of coordinator id 0 stamps the cluster's clock."""
    reconcile_every_s: float = 15.0
    """How often transactions open for longer than that are looked at: another coordinator may have ended them."""
    housekeeping_every_s: float = 60.0
    """Stale deadline keys and expired outcome blocks."""
