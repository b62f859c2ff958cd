"""The history checker: finds every anomaly of SCENARIOS, "The history checker", from clients' actions and observations
alone. Pure.

The rules are Jepsen's for transactional logs (its Kafka workload), extended by acks, snapshots, outcomes, redelivery
after an abort, and the promises of single calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulation.judges.anomalies.acks import ack_leak, torn_snapshot, two_outcomes
from simulation.judges.anomalies.facts import Anomaly, Facts, gather
from simulation.judges.anomalies.polls import holder_order, parents_first, past_failed_acks, poll_order
from simulation.judges.anomalies.promises import broken_promise, unheard_loss
from simulation.judges.anomalies.values import (
    aborted_read,
    duplicate,
    g1c,
    inconsistent_positions,
    lost_write,
    non_monotonic_send,
    precommitted_read,
    torn_transaction,
    unseen,
)
from simulation.judges.history import History

__all__ = ["RULES", "Anomaly", "check"]

RULES: dict[str, Callable[[Facts], Iterator[Anomaly]]] = {
    "inconsistent positions": inconsistent_positions,
    "duplicate": duplicate,
    "aborted read": aborted_read,
    "lost write": lost_write,
    "torn transaction": torn_transaction,
    "unseen": unseen,
    "poll skip / non-monotonic poll": poll_order,
    "non-monotonic poll": holder_order,
    "poll skip": parents_first,
    "read past its own failed ack": past_failed_acks,
    "non-monotonic send": non_monotonic_send,
    "precommitted read": precommitted_read,
    "G1c": g1c,
    "two outcomes": two_outcomes,
    "ack leak": ack_leak,
    "torn snapshot": torn_snapshot,
    "broken promise": broken_promise,
    "unheard loss": unheard_loss,
}


def check(history: History) -> list[Anomaly]:
    """Every anomaly of `history`, in the order of SCENARIOS' table. An empty list: the history is right."""
    facts = gather(history)
    return [anomaly for rule in RULES.values() for anomaly in rule(facts)]
