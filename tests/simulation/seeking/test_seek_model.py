"""What a subscription owes whoever seeks in it, over all its lives: planted breaches are found, clean logs pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.judges.history import Place
from simulation.seeking.seek_model import EARLIEST, LATEST, MESSAGE, TIME, AckedWithin, SeekLog


def at(segment: int, entry: int) -> Place:
    return (segment, 1, entry, 0)


PLACES = {"1-1": at(0, 0), "1-2": at(0, 1), "1-3": at(1, 0), "1-4": at(2, 0)}
"""The last segment came of the first."""


def joined(kind: str = EARLIEST, *, time_ms: int = 0, place: Place | None = None) -> SeekLog:
    """Four messages, published at 10, 20, 30 and 40 ms; the fourth was sent behind the seek, the first two were
    received before it."""
    log = SeekLog()
    log.next_topic()
    log.has_begun(log.begins(EARLIEST, joins=True))
    log.sent = dict.fromkeys(("1-1", "1-2", "1-3"), log.answered)
    log.came("1-1")
    log.came("1-2")
    log.acks({"1-1": log.begun, "1-2": log.begun})
    log.has_begun(log.begins(kind, time_ms=time_ms, place=place))
    log.sent["1-4"] = log.answered
    log.visible = [("k", place, value) for value, place in PLACES.items()]
    log.published_ms = {value: 10 * number for number, value in enumerate(PLACES, 1)}
    log.left = list(log.visible)
    log.ended = True
    return log


@pytest.mark.parametrize(
    ("log", "due"),
    [
        (joined(), ["1-1", "1-2", "1-3", "1-4"]),
        (joined(TIME, time_ms=30), ["1-3", "1-4"]),
        (joined(LATEST), ["1-4"]),
        (joined(MESSAGE, place=at(0, 1)), ["1-2", "1-3", "1-4"]),
        (joined(MESSAGE, place=at(1, 0)), ["1-3", "1-4"]),
    ],
    ids=["earliest", "time", "latest", "message", "message of another segment"],
)
def test_acks_of_before_a_seek_count_for_nothing_and_all_from_there_on_is_due(log: SeekLog, due: list[str]) -> None:
    assert [text.split()[1] for text in log.findings()] == due
    log.again = due
    assert list(log.findings()) == []


def test_what_is_received_and_acked_behind_a_seek_is_not_due() -> None:
    log = joined()
    log.acks({"1-1": log.begun})
    log.within = [AckedWithin("a", "1-2", log.begun), AckedWithin("b", "1-3", log.begun)]
    log.outcomes = {"a": "COMMITTED", "b": "ABORTED"}
    assert [text.split()[1] for text in log.findings()] == ["1-3", "1-4"]


def test_of_a_seek_that_may_still_come_what_it_leaves_out_is_not_due_and_nothing_comes_too_often() -> None:
    log = joined()
    log.begins(TIME, time_ms=40)
    log.within = [AckedWithin("a", "1-4", log.answered, answered=True)]
    log.outcomes = {"a": "COMMITTED"}
    log.again = ["1-4"]
    assert list(log.findings()) == []
    log.has_begun(log.begins(EARLIEST))
    assert [point.kind for point in log.points] == [TIME, EARLIEST]


def test_a_seek_to_latest_that_nobody_has_heard_of_makes_nothing_due() -> None:
    log = joined()
    log.begins(LATEST)
    assert list(log.findings()) == []


def test_the_next_life_of_a_subscription_owes_everything_and_the_next_topic_knows_of_no_seek() -> None:
    log = joined(LATEST)
    log.begins(TIME, time_ms=40)
    log.unsubscribed()
    log.has_begun(log.begins(EARLIEST, joins=True))
    assert [text.split()[1] for text in log.findings()] == ["1-4"]  # a seek of before may come to the next one
    log.guest_joins = True
    log.unsubscribed()
    assert [point.joins for point in log.points] == [False, True]
    log.next_topic()
    assert (log.points, log.life, log.joined) == ([], 2, False)


def lost(log: SeekLog) -> None:
    log.again.remove("1-3")


def of_a_deleted_topic(log: SeekLog) -> None:
    log.next_topic()
    log.came("1-1")
    log.ended = False


def visible_of_a_deleted_topic(log: SeekLog) -> None:
    del log.sent["1-1"]


def not_visible(log: SeekLog) -> None:
    log.stored["1-5"] = None


def committed_and_not_visible(log: SeekLog) -> None:
    log.sent_within["1-5"] = "a"


def committed_ack_came(log: SeekLog) -> None:
    log.within.append(AckedWithin("a", "1-4", log.begun, answered=True))


def sought_past(log: SeekLog) -> None:
    log.points[0].kind, log.points[0].place = MESSAGE, at(0, 1)


def received_before_latest(log: SeekLog) -> None:
    log.points[0].kind = LATEST
    log.again = ["1-2", "1-4"]


def twice(log: SeekLog) -> None:
    log.left.insert(0, log.left[0])


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lost, "1-3 at (1, 1, 0, 0) was not acked since the seek and did not come"),
        (of_a_deleted_topic, "1-1 of a deleted topic came in topic 2"),
        (visible_of_a_deleted_topic, "1-1 is of a deleted topic"),
        (not_visible, "1-5 was stored and is not visible"),
        (committed_and_not_visible, "1-5 was stored and is not visible"),
        (committed_ack_came, "1-4 came although a had committed its ack since the seek"),
        (sought_past, "1-1 at (0, 1, 0, 0) came, which lies before what was sought"),
        (received_before_latest, "1-2 at (0, 1, 1, 0) came, which lies before what was sought"),
        (twice, "1-1 came 2 times at the end"),
    ],
)
def test_x5_planted_breaches_are_found(plant: Callable[[SeekLog], None], found: str) -> None:
    log = joined()
    log.again = list(PLACES)
    log.outcomes = {"a": "COMMITTED"}
    plant(log)
    assert [found in text for text in log.findings()] == [True]
