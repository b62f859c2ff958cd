"""One question to several members: who is asked when, whose answer counts, and what becomes of the others."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.segments.virtual_time import virtual_time
from txnstore.access.backend import Unanswered
from txnstore.etcd.hedging import first_answer


class Members:
    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []
        self.cancelled: list[str] = []

    async def ask(self, name: str, answers_s: float, error: Exception | None = None) -> str:
        self.asked.append((name, asyncio.get_running_loop().time()))
        try:
            await asyncio.sleep(answers_s)
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        if error is not None:
            raise error
        return name


@virtual_time
async def test_the_next_is_asked_after_a_while_and_the_silent_one_is_given_up_with_the_first_answer() -> None:
    members, start = Members(), asyncio.get_running_loop().time()
    async with asyncio.timeout(10):
        found = await first_answer([partial(members.ask, "a", 3600), partial(members.ask, "b", 0.1)], 0.4)
    assert found == "b"
    assert [(name, round(at - start, 3)) for name, at in members.asked] == [("a", 0.0), ("b", 0.4)]
    assert members.cancelled == ["a"]


@virtual_time
async def test_who_gives_up_leaves_no_question_behind() -> None:
    members = Members()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await first_answer([partial(members.ask, "a", 3600), partial(members.ask, "b", 3600)], 0.4)
    assert members.cancelled == ["a", "b"]


@virtual_time
async def test_the_next_is_asked_at_once_where_all_have_failed_and_the_last_failure_is_told() -> None:
    members, start = Members(), asyncio.get_running_loop().time()
    questions = [partial(members.ask, name, 0.1, Unanswered(f"{name} is away")) for name in ("a", "b")]
    with pytest.raises(Unanswered, match="b is away"):
        await first_answer(questions, 60.0)
    assert [(name, round(at - start, 3)) for name, at in members.asked] == [("a", 0.0), ("b", 0.1)]
    with pytest.raises(Unanswered, match="nobody was asked"):
        await first_answer([], 60.0)


@virtual_time
async def test_any_other_failure_is_an_answer() -> None:
    members = Members()
    with pytest.raises(LookupError):
        await first_answer([partial(members.ask, "a", 0.1, LookupError()), partial(members.ask, "b", 0.1)], 60.0)
    assert [name for name, _ in members.asked] == ["a"]
