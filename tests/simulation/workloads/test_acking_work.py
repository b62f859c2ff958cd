"""The rules of acks against each other, over several segments: planted breaches are found, clean logs pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.judges.history import Place
from simulation.workloads.acking_work import AckingLog, NamedAck, Outside


def at(segment: int, entry: int) -> Place:
    return (segment, 1, entry, 0)


def clean() -> AckingLog:
    """`c` has acked `a` and, cumulatively, `x` of another segment; what `d` had acked outside has come again."""
    log = AckingLog()
    log.visible = {"a": at(0, 0), "b": at(0, 1), "x": at(1, 0), "y": at(1, 1)}
    log.within = [("c", NamedAck(("a", "x"), (at(0, 0), at(1, 0)))), ("d", NamedAck(("b",)))]
    log.outside = [Outside(NamedAck(("y",), (at(0, 1), at(1, 1))), (NamedAck(("b",)),))]
    log.outcomes = {"c": "COMMITTED", "d": "ABORTED"}
    log.left = {"b": at(0, 1)}
    return log


def test_a_clean_log_passes() -> None:
    assert list(clean().findings()) == []


def cumulative_of_one_segment(log: AckingLog) -> None:
    log.left["x"] = at(1, 0)


def over_what_was_pending(log: AckingLog) -> None:
    log.left.clear()


def nobody_acked_it(log: AckingLog) -> None:
    log.visible["z"] = at(1, 2)


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (cumulative_of_one_segment, "x at (1, 1, 0, 0) came at the end although c had committed its ack"),
        (over_what_was_pending, "b at (0, 1, 1, 0) was lost"),
        (nobody_acked_it, "z at (1, 1, 2, 0) was lost"),
    ],
)
def test_x5_planted_breaches_are_found(plant: Callable[[AckingLog], None], found: str) -> None:
    log = clean()
    plant(log)
    assert [found in text for text in log.findings()] == [True]
