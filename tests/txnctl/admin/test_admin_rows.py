"""The rows of the admin role: each of several transactions, subscriptions, segments and coordinators is in them."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator_v5.queries import UnreadableRecord
from txnctl.admin.admin_cluster import COUNTED, _total
from txnctl.admin.admin_lags import segment_lag, subscription_lag, total_lag
from txnctl.admin.admin_rows import (
    attached,
    held_readers,
    outcome,
    pinning,
    segment_row,
    subscription_row,
    unreadable_rows,
)
from txnstore.records import COMMITTED
from txnstore.writes.transitions import RecordedDecision
from txnwire.ids import TxnId

FIRST, SECOND, THIRD = (TxnId(3, n) for n in (1, 2, 3))


def subscription(name: str, type_: str = "stream", **facts: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "consumers": [f"{name}@1", f"{name}@2"]} | facts


STATS: dict[str, Any] = {
    "path": "t/n/x/0000-ffff-0",
    "epoch": 7,
    "sealed": False,
    "entries": 9,
    "readers": 4,
    "last_confirmed": [1, 8],
    "max_read_position": [1, 2],
    "pinning": [[tuple(FIRST), [1, 3]], [tuple(SECOND), [1, 5]]],
    "entries_behind": [6, 4],
    "subscriptions": [subscription("a"), subscription("b", "queue"), subscription("c")],
}


def test_a_segment_s_row_has_all_its_numbers_and_positions_and_who_holds_it_back() -> None:
    assert segment_row(STATS) == {
        "epoch": 7,
        "sealed": False,
        "entries": 9,
        "readers": 4,
        "last_confirmed": "1:8",
        "max_read_position": "1:2",
        "subscriptions": ["a", "b", "c"],
        "held_by": [
            {"txn": str(FIRST), "position": "1:3", "entries_behind": 6},
            {"txn": str(SECOND), "position": "1:5", "entries_behind": 4},
        ],
    }
    assert pinning(STATS) == [(FIRST, "1:3", 6), (SECOND, "1:5", 4)]


@pytest.mark.parametrize(
    ("txn_id", "at", "behind", "why"),
    [
        (FIRST, "1:3", 6, "holds readers back"),
        (SECOND, "1:5", 4, f"would, but {FIRST} holds them back before it"),
        (THIRD, None, None, "wrote; is not among the first to hold readers back"),
    ],
)
def test_who_waits_for_a_transaction_is_each_stream(
    txn_id: TxnId, at: str | None, behind: int | None, why: str
) -> None:
    row = held_readers(txn_id, STATS)
    assert (row["held_at"], row["entries_behind"], row["why"]) == (at, behind, why)
    assert row["waiting"] == ([] if at is None else ["a", "c"])


def test_a_subscription_s_row_has_each_transaction_that_it_waits_for_and_each_count_of_a_queue() -> None:
    row = subscription_row(
        subscription("a", "queue")
        | dict.fromkeys(("consumer", "backlog", "delivered", "permits", "held_back"))
        | {
            "mark_delete": [1, 2],
            "pending": {"positions": 2, "cumulative": 3},
            "open_transactions": [tuple(FIRST), tuple(SECOND)],
            "queue": {"unacked": 4, "set_aside": 5, "delayed": 6},
        }
    )
    assert (row["pending_in"], row["pending_acks"]) == ([str(FIRST), str(SECOND)], 5)
    assert (row["unacked"], row["set_aside"], row["delayed"]) == (4, 5, 6)


def test_consumers_of_each_queue_are_those_of_all_segments() -> None:
    found: dict[str, dict[str, None]] = {}
    attached(found, STATS)
    attached(found, {"subscriptions": [subscription("a", consumers=["late@3"])]})
    assert {name: list(ones) for name, ones in found.items()} == {
        "a": ["a@1", "a@2", "late@3"],
        "b": ["b@1", "b@2"],
        "c": ["c@1", "c@2"],
    }


def test_each_record_that_cannot_be_read_has_one_row() -> None:
    found = [UnreadableRecord(f"/txn/{name}", f"bad {name}") for name in ("a", "b", "a")]
    assert unreadable_rows(found, b"/txn/", ("txn", "state", "owner")) == [
        {"txn": name, "state": None, "owner": None, "error": f"bad {name}"} for name in ("a", "b")
    ]


def lag(messages: int | None, oldest_ms: int | None) -> dict[str, Any]:
    return {"lags": {"job": {"messages": messages, "oldest_ms": oldest_ms}}}


def test_a_lag_is_the_sum_over_all_segments_and_the_highest_age_and_unknown_where_one_is() -> None:
    answers: dict[str, Any] = {"one": lag(3, 9_000), "two": lag(4, 2_000), "three": lag(0, None)}
    told = subscription_lag(answers, "job", now_ms=10_000)
    assert (told["lag_messages"], told["lag_seconds"]) == (7, 8.0)
    assert [(row["segment"], row["lag_messages"]) for row in told["segments"]] == [("one", 3), ("two", 4), ("three", 0)]
    told = subscription_lag(answers | {"four": {"error": "Timeout"}}, "job", now_ms=10_000)
    assert (told["lag_messages"], told["lag_seconds"], told["segments"][-1]["error"]) == (None, None, "Timeout")
    assert total_lag([]) == {"lag_messages": 0, "lag_seconds": 0.0}


def test_the_counts_of_all_coordinators_that_answer_are_added_up() -> None:
    rows: list[dict[str, Any]] = [
        dict.fromkeys(COUNTED, 3) | {"oldest_open_s": 0.5},
        {"error": "Timeout"},
        dict.fromkeys(COUNTED, 4) | {"oldest_open_s": 2.5},
    ]
    assert _total(rows) == dict.fromkeys(COUNTED, 7) | {"oldest_open_s": 2.5}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({}, (None, None)),
        ({"error": "Timeout"}, (None, None)),
        ({"lags": {"other": {"messages": 1, "oldest_ms": 1}}}, (None, None)),
        (lag(None, None), (None, None)),
        (lag(0, 1_000), (0, 0.0)),
        (lag(2, None), (2, None)),
        (lag(2, 8_760), (2, 1.2)),
        (lag(2, 99_000), (2, 0.0)),
    ],
    ids=["older", "silent", "without it", "still reading", "done", "of no age", "behind", "of a clock that is ahead"],
)
def test_what_is_not_known_of_a_lag_is_never_told_as_none(
    answer: dict[str, Any], told: tuple[int | None, float | None]
) -> None:
    found = segment_lag(answer, "job", now_ms=10_000)
    assert (found["lag_messages"], found["lag_seconds"]) == told


def test_where_nothing_is_known_of_who_waits_the_reason_is_told() -> None:
    nothing: dict[str, Any] = {"held_at": None, "entries_behind": None, "waiting": [], "readers": 0}
    assert held_readers(FIRST, {"error": "Timeout: it hangs"}) == {
        **nothing,
        "why": "wrote; the segment's owner does not answer: Timeout: it hangs",
    }
    free = STATS | {"pinning": [], "entries_behind": []}
    assert held_readers(FIRST, free) == {**nothing, "why": "wrote; is not among the first to hold readers back"}
    assert held_readers(FIRST, STATS)["readers"] == 4


def test_a_row_of_an_owner_that_does_not_answer_has_its_error_alone() -> None:
    assert segment_row({"error": "Timeout"}) == {"error": "Timeout"}
    assert subscription_row({}) == {}
    stream = subscription("a") | dict.fromkeys(("consumer", "backlog", "delivered", "permits", "held_back"))
    stream |= {"mark_delete": [1, 2], "pending": {"positions": 0, "cumulative": 0}, "open_transactions": []}
    assert [subscription_row(stream)[name] for name in ("unacked", "set_aside", "delayed")] == [None] * 3


def test_an_outcome_is_told_before_a_header_that_is_still_there() -> None:
    decided = RecordedDecision(COMMITTED, 7)
    assert [outcome(decided, is_open=True), outcome(None, is_open=True), outcome(None, is_open=False)] == [
        COMMITTED,
        "OPEN",
        "UNKNOWN",
    ]


def test_where_no_coordinator_answers_the_total_is_nothing() -> None:
    for rows in ([], [{"error": "Timeout"}]):
        assert _total(rows) == dict.fromkeys(COUNTED, 0) | {"oldest_open_s": 0.0}
