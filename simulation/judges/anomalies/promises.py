"""Rules about the promises of single calls, however they ended (SCENARIOS C1, C2, C4). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.judges.anomalies.facts import Anomaly, Facts
from simulation.judges.history import Call, Operation

OF_PRODUCERS = ("accept", "flush", "close")
"""Calls outside of transactions, judged by `unheard_loss`."""


def broken_promise(facts: Facts) -> Iterator[Anomaly]:
    """A transaction that committed although a call in it failed, after which it may only abort (C1); or one that lacks
    what a successful call has sent in it (C2)."""
    for index in facts.committed:
        for call in facts.history.operations[index].calls:
            if call.what not in OF_PRODUCERS and (text := _broken(facts, call)):
                yield Anomaly("broken promise", f"{facts.name(index)} committed, {text}")


def _broken(facts: Facts, call: Call) -> str:
    if call.ended in ("raised", "cut"):
        how = "was cancelled" if call.ended == "cut" else "raised"
        there = sum(1 for value in call.values if _is_seen(facts, value))
        return f"and {call.what} of {_some(call.values)} in it {how}: {there} of {len(call.values)} were read"
    sent = [value for value in call.values if value in facts.writers]
    missing = [value for value in sent if facts.history.drained and not _is_seen(facts, value)]
    if missing and call.ended == "returned":
        return f"and {call.what} in it returned, but {_some(missing)} is missing"
    return ""


def unheard_loss(facts: Facts) -> Iterator[Anomaly]:
    """Messages that a producer accepted and lost, and that no later call of it reported: the `flush` or `close` behind
    a loss raises (C4). An error of any later call of the producer counts as a report."""
    if facts.history.drained:
        for index, operation in enumerate(facts.history.operations):
            yield from _unheard(facts, index, operation)


def _unheard(facts: Facts, index: int, operation: Operation) -> Iterator[Anomaly]:
    accepted: list[str] = []
    for call in operation.calls:
        if call.what == "accept" and call.ended == "returned":
            accepted += call.values
        elif call.ended == "raised":
            accepted = []
        elif call.ended == "returned" and call.what in ("flush", "close"):
            lost = [value for value in accepted if not _is_seen(facts, value)]
            accepted = []
            if lost:
                yield Anomaly("unheard loss", f"{facts.name(index)} lost {_some(lost)}, and its {call.what} returned")


def _is_seen(facts: Facts, value: str) -> bool:
    writer = facts.writers.get(value)
    return writer is not None and value in facts.seen[writer.send.key]


def _some(values: list[str]) -> str:
    shown = ", ".join(values[:3])
    return shown if len(values) <= 3 else f"{shown} and {len(values) - 3} more"
