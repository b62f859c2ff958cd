"""The judge of queue workers against planted mistakes (X5); it judges every simulated run
(`simulation.running.scenario`)."""

from __future__ import annotations

import pytest

from simulation.workloads.queue_work import QueueLog, Taken


def log(*, left: str = "", visible: str = "", **taken: str) -> QueueLog:
    """`taken`: transaction → values; one whose name begins with c committed."""
    return QueueLog(
        taken=[Taken("worker", txn, tuple(values)) for txn, values in taken.items()],
        left=list(left),
        visible=list(visible),
        outcomes={txn: "COMMITTED" if txn.startswith("c") else "ABORTED" for txn in taken},
    )


def test_what_was_acked_once_or_is_still_there_is_right() -> None:
    clean = log(visible="abcd", left="cd", c1="a", c2="b", x1="abc", x2="d")
    assert list(clean.findings()) == []


@pytest.mark.parametrize(
    ("planted", "finding"),
    [
        (log(visible="a", c1="a", c2="a"), "both committed"),
        (log(visible="ab", c1="a"), "b was lost"),
        (log(visible="ab", c1="a", x1="b"), "b was lost"),
        (log(visible="a", left="a", c1="a"), "came at the end although c1"),
        (log(visible="a", left="b", c1="a"), "b was delivered and is not visible"),
        (log(visible="a", c1="ab"), "b was acked and is not visible"),
    ],
)
def test_planted_mistakes_are_found(planted: QueueLog, finding: str) -> None:
    [found] = planted.findings()
    assert finding in found
