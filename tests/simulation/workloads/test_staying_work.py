"""Consumers that stay get what is sent, or it is a finding."""

from __future__ import annotations

from simulation.workloads.staying_work import QUEUE, STREAM, StayingLog


def test_what_did_not_come_to_a_consumer_that_stayed_is_found() -> None:
    log = StayingLog({STREAM: {}, QUEUE: {"staying-7": None, "staying-8": None}}, sent=20, ended=True)
    assert list(log.findings()) == [
        "staying: 2 of 20 messages, the first of them staying-7, did not come to staying-queue, whose consumer stayed"
    ]


def test_nothing_is_wrong_where_everything_came_or_nobody_worked() -> None:
    assert list(StayingLog({STREAM: {}, QUEUE: {}}, sent=20, ended=True).findings()) == []
    assert list(StayingLog().findings()) == []


def test_who_could_not_send_to_the_end_is_found() -> None:
    assert list(StayingLog({STREAM: {}}, sent=3).findings()) == [
        "staying: it could not send what was left once everything had healed"
    ]


def test_what_came_from_a_paused_segment_is_found() -> None:
    log = StayingLog({STREAM: {}}, breaches=["staying: m came to staying, which had paused it"], sent=1, ended=True)
    assert list(log.findings()) == ["staying: m came to staying, which had paused it"]
