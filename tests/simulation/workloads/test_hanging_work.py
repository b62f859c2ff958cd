"""The judge of workers that hang, against planted mistakes (X5)."""

from __future__ import annotations

import pytest

from simulation.workloads.hanging_work import HangingLog
from simulation.workloads.queue_work import QueueLog, Taken


def log(*, left: str = "", visible: str = "ab", stored: str = "ab", ended: bool = True, **taken: str) -> HangingLog:
    """`taken`: transaction → values; one whose name begins with c committed."""
    queue = QueueLog(
        taken=[Taken("worker", txn, tuple(values)) for txn, values in taken.items()],
        left=list(left),
        visible=list(visible),
        outcomes={txn: "COMMITTED" if txn.startswith("c") else "ABORTED" for txn in taken},
    )
    return HangingLog(queue, stored=dict.fromkeys(stored), ended=ended)


def test_what_is_acked_once_whoever_hung_is_right() -> None:
    assert list(log(c1="a", x1="a", c2="b").findings()) == []
    assert list(log(stored="", visible="", ended=False).findings()) == []


@pytest.mark.parametrize(
    ("planted", "finding"),
    [
        (log(left="b", c1="a"), "hanging: b came to no worker that works"),
        (log(c1="ab", c2="a"), "hanging: a was acked by c1 and c2, which both committed"),
        (log(c1="a"), "hanging: b was lost"),
        (log(visible="a", c1="a"), "hanging: b was stored and is not visible"),
        (log(ended=False, c1="ab"), "could not send what was left"),
    ],
)
def test_planted_mistakes_are_found(planted: HangingLog, finding: str) -> None:
    [found] = planted.findings()
    assert finding in found
