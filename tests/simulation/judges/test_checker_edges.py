"""X5: histories at the edges of the checker's rules, which one condition of a rule alone tells apart."""

from __future__ import annotations

import pytest

from simulation.judges.history import Ack, Operation
from tests.simulation.judges.histories import ALL, WROTE, A, B, C
from tests.simulation.judges.history_steps import acked, kinds, op, poll, sent
from tests.simulation.planted_promises import call, plain, producer, read

CLEAN: dict[str, list[Operation]] = {
    "delivered again before an unknown commit had landed, as is known of nobody": [
        op(sends=[A]),
        op(
            "s",
            "unknown",
            [sent("x", 0, "other")],
            polls=[poll((0, "a"), subscription="sub", at=2.0)],
            acks=acked("a", 2.1),
            at=2.0,
        ),
        op("t", polls=[poll((0, "a"), subscription="sub", at=4.0, assigned_at=3.0, assignment=1)]),
        op("r", polls=[poll((0, "x"), key="other")]),
    ],
    "a snapshot of one of the topics that a transaction wrote to": [
        op(sends=[A, sent("x", 0, "other")]),
        op("r", polls=[poll((0, "a"), snapshot="1")]),
        op("s", polls=[poll((0, "x"), key="other")]),
    ],
    "accepted and lost, and a flush said so before the close": [
        producer(call("accept", "a", "returned"), call("flush", "", "raised"), call("close", "", "returned")),
        plain("a"),
        read(""),
    ],
}

PLANTED: dict[str, tuple[list[str], list[Operation]]] = {
    "lost, of an unknown outcome that was reported as committed": (
        ["lost write", "unseen"],
        [op("q", "unknown", [A], reports=["committed"]), op(sends=[B]), op("r", polls=[poll((1, "b"))])],
    ),
    "a subscription never gets what stands under another key of its topic": (
        ["unseen"],
        [
            op(sends=[sent("a", 0, "topic/one")]),
            op("q", sends=[sent("b", 0, "topic/two")]),
            op("s", polls=[poll((0, "a"), key="topic/one", subscription="sub")]),
            op("r", polls=[poll((0, "b"), key="topic/two")]),
        ],
    ),
    "poll skip of what the operation has acked on another subscription": (
        ["poll skip"],
        [
            *WROTE,
            op(
                "s",
                polls=[
                    poll((0, "a"), subscription="sub", at=2.0),
                    poll((2, "c"), subscription="sub", at=3.0),
                ],
                acks=[Ack(subscription="other", value="b", at=2.1)],
            ),
            op("d", polls=[poll((1, "b"), subscription="sub", at=20.0)], name="drain"),
            op("r", polls=[ALL]),
        ],
    ),
    "non-monotonic send behind a first one that is in order": (
        ["non-monotonic send"],
        [op(sends=[A]), op(sends=[C]), op(sends=[B]), op("r", polls=[ALL])],
    ),
}


@pytest.mark.parametrize("name", CLEAN)
def test_x5_a_clean_history_at_an_edge_passes(name: str) -> None:
    assert kinds(*CLEAN[name]) == []


@pytest.mark.parametrize("name", PLANTED)
def test_x5_a_planted_anomaly_at_an_edge_is_caught(name: str) -> None:
    expected, operations = PLANTED[name]
    assert kinds(*operations) == expected
