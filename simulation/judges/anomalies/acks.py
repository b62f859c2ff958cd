"""Rules about reported outcomes, acks and snapshots. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from simulation.judges.anomalies.facts import (
    Anomaly,
    Facts,
    acked_values,
    parts,
)
from simulation.judges.history import Operation, Poll


def two_outcomes(facts: Facts) -> Iterator[Anomaly]:
    for index, operation in enumerate(facts.history.operations):
        committed = operation.outcome == "ok" or "committed" in operation.reports
        aborted = operation.outcome == "failed" or "aborted" in operation.reports
        if committed and aborted:
            told = ", ".join(operation.reports) or "nothing else"
            yield Anomaly("two outcomes", f"{facts.name(index)} ended {operation.outcome} and was reported {told}")


@dataclass(frozen=True, slots=True)
class _Delivery:
    operation: int
    poll: Poll


def ack_leak(facts: Facts) -> Iterator[Anomaly]:
    deliveries: dict[tuple[str, str], list[_Delivery]] = defaultdict(list)
    for index, operation in enumerate(facts.history.operations):
        for poll in operation.polls:
            if poll.subscription is not None:
                for reads in poll.reads.values():
                    for read in reads:
                        deliveries[poll.subscription, read.value].append(_Delivery(index, poll))
    # A value acked by another operation need not come again to one that failed later, from a buffer that was stale
    # meanwhile.
    gone = acked_values(facts, "ok", "unknown")
    taken: dict[tuple[str, str], int] = {}
    for index, operation in enumerate(facts.history.operations):
        for ack in operation.acks:
            subject = (ack.subscription, ack.value)
            if index in facts.committed:
                if subject in taken:
                    yield Anomaly(
                        "ack leak",
                        f"{ack.value} was acked on {ack.subscription} by {facts.name(taken[subject])} and by "
                        f"{facts.name(index)}, which both committed",
                    )
                taken[subject] = index
                yield from _delivered_again(facts, index, operation, ack.value, deliveries[subject])
            elif (
                operation.outcome == "failed"
                and ack.value not in gone[ack.subscription]
                and _never_again(facts, deliveries[subject], ack.at)
            ):
                yield Anomaly(
                    "ack leak",
                    f"{ack.value} was acked on {ack.subscription} by {facts.name(index)}, which failed, and was "
                    "never delivered again",
                )


def _never_again(facts: Facts, deliveries: list[_Delivery], since: float) -> bool:
    return facts.history.drained and not any(delivery.poll.at > since for delivery in deliveries)


def _delivered_again(
    facts: Facts, index: int, operation: Operation, value: str, deliveries: list[_Delivery]
) -> Iterator[Anomaly]:
    if operation.completed is None or operation.outcome != "ok":
        return
    for delivery in deliveries:
        if delivery.poll.assigned_at > operation.completed:
            yield Anomaly(
                "ack leak",
                f"{value} was acked by {facts.name(index)}, which committed, and was delivered again to "
                f"{facts.name(delivery.operation)}",
            )


def torn_snapshot(facts: Facts) -> Iterator[Anomaly]:
    values: dict[str, dict[str, None]] = defaultdict(dict)
    covered: dict[str, dict[str, None]] = defaultdict(dict)
    for operation in facts.history.operations:
        for poll in operation.polls:
            if poll.snapshot is not None:
                for key, reads in poll.reads.items():
                    covered[poll.snapshot][key] = None
                    values[poll.snapshot].update((read.value, None) for read in reads)
    for snapshot, held in values.items():
        for indexes in parts(facts):
            sends = [send for index in indexes for send in facts.history.operations[index].sends]
            sends = [send for send in sends if send.key in covered[snapshot]]
            missing = [send.value for send in sends if send.value not in held]
            if missing and len(missing) < len(sends):
                who = ", ".join(facts.name(index) for index in indexes)
                yield Anomaly("torn snapshot", f"{snapshot} holds {who} without {', '.join(missing)}")
