"""The rules of a topic that is trimmed, deleted and made again: planted breaches are found, clean logs pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.workloads.passing_work import Generation, PassingLog


def clean() -> PassingLog:
    old = Generation(0, 1, None, deleting=True, certain={"0-1": 1}, delivered=[("0-1", 1)])
    now = Generation(1, 1, None, subscription=3)
    now.certain = {"1-1": 2, "1-2": 3}
    now.in_txn = {"1-3": ("a", 3), "1-4": ("b", 3), "1-5": ("c", 2)}
    now.acked = [("a", 3, "1-1"), ("b", 3, "1-2"), ("a", 2, "1-2")]
    now.delivered = [("1-1", 3), ("1-2", 3), ("1-2", 2)]
    outcomes = {"a": "COMMITTED", "b": "ABORTED", "c": "COMMITTED"}
    return PassingLog([old, now], subscriptions=3, left=["1-2", "1-3", "1-5"], drained=True, outcomes=outcomes)


def test_a_clean_log_passes() -> None:
    assert list(clean().findings()) == []


def test_retention_may_take_what_was_there_before_the_subscription() -> None:
    log = clean()
    log.current.retention_ms = 1
    log.left.remove("1-5")
    assert list(log.findings()) == []


def an_old_one(log: PassingLog) -> None:
    log.current.delivered.append(("0-1", 3))


def an_aborted_one(log: PassingLog) -> None:
    log.left.append("1-4")


def a_lost_one(log: PassingLog) -> None:
    log.current.retention_ms = 1
    log.left.remove("1-3")


def one_that_a_deleted_subscription_had_acked(log: PassingLog) -> None:
    log.left.remove("1-2")


def an_acked_one(log: PassingLog) -> None:
    log.left.append("1-1")


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (an_old_one, "0-1 of a deleted topic came in topic 1"),
        (an_aborted_one, "1-4 of b, which was aborted, was delivered"),
        (a_lost_one, "1-3 was lost"),
        (one_that_a_deleted_subscription_had_acked, "1-2 was lost"),
        (an_acked_one, "1-1 came at the end although a had committed its ack"),
    ],
)
def test_x5_planted_breaches_are_found(plant: Callable[[PassingLog], None], found: str) -> None:
    log = clean()
    plant(log)
    assert [found in text for text in log.findings()] == [True]
