"""The judge of clients that know the flags alone finds whatever they have lost, doubled or left (X5)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from simulation.clients.plan import Plan
from simulation.clients.recorder import Recorder
from simulation.workloads.obedient_work import ObedientLife, ObedientLog
from tests.segments.virtual_time import run
from txnwire.clock import SystemClock
from txnwire.errors import ConnectionLost, NotOwner, OutcomeUnknown, TxnError


def log(*, inputs: str, copies: str, left: str = "") -> ObedientLog:
    return ObedientLog(inputs=inputs.split(), copies=copies.split(), left=left.split())


def test_copies_of_all_that_came_are_right() -> None:
    assert list(log(inputs="a b c", copies="b a", left="c").findings()) == []


@pytest.mark.parametrize(
    ("wrong", "finding"),
    [
        (log(inputs="a b", copies="a"), "obedient: b was lost: it was not copied, and did not come at the end"),
        (log(inputs="a", copies="a a"), "obedient: a was copied 2 times"),
        (log(inputs="a", copies="a", left="a"), "obedient: a was copied, and came at the end as well"),
        (log(inputs="a", copies="a b"), "obedient: b was copied and is not visible"),
    ],
    ids=["lost", "doubled", "came again", "of an aborted message"],
)
def test_x5_what_the_copies_show_is_found(wrong: ObedientLog, finding: str) -> None:
    assert list(wrong.findings()) == [finding]


@dataclass(frozen=True)
class Name:
    name: str = "client-obedient-1.1"


@dataclass(frozen=True)
class NoPorts:
    owner: Name = Name()
    transport: None = None
    clock: SystemClock = field(default_factory=SystemClock)
    random: random.Random = field(default_factory=lambda: random.Random(1))


class Failing:
    """A call that fails with each of these errors in turn, then succeeds."""

    def __init__(self, *errors: TxnError) -> None:
        self.errors = list(errors)

    async def __call__(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_a_retriable_error_is_obeyed_by_the_same_call_and_one_without_a_flag_is_a_finding() -> None:
    plan, kept = Plan("txn://nowhere", Recorder(lambda: 1.0)), ObedientLog()
    life = ObedientLife(NoPorts(), plan, kept)  # type: ignore[arg-type]  (it connects to nothing)

    async def scenario() -> None:
        assert await life._obey("send", Failing(NotOwner("a"), ConnectionLost("b"))) == "done"
        with pytest.raises(OutcomeUnknown):
            await life._obey("commit", Failing(OutcomeUnknown("c")))
        assert list(kept.stranded()) == ["obedient: client-obedient-1.1 is still in commit, after OutcomeUnknown: c"]

    run(scenario())
    assert (kept.again, plan.errors) == (2, {"NotOwner": 1, "ConnectionLost": 1, "OutcomeUnknown": 1})
    plan.unexpected.clear()
    for obeyable in (NotOwner("a"), ConnectionLost("b")):
        life._ended_by(obeyable)
    assert plan.unexpected == []
    life._ended_by(OutcomeUnknown("c"))
    assert "no flag says how to obey OutcomeUnknown: c" in plan.unexpected[-1]
