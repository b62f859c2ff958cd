"""Work in turns: everything once, in order, and others in between."""

from __future__ import annotations

import asyncio

import pytest

from txnwire.turns import (
    Steps,
    at_once,
    in_steps,
    in_turns,
    in_weighed_steps,
    taking_turns,
    turn_size,
    turns_divided_by,
)


@pytest.mark.parametrize(("count", "parts"), [(0, []), (2, [2]), (3, [3]), (7, [3, 3, 1])])
async def test_parts_are_in_order_and_others_have_their_turn_behind_each_whole_one(
    count: int, parts: list[int]
) -> None:
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    found: list[int] = []
    turns: list[int] = []
    async for part in in_turns(range(count), 3):
        found += part
        turns.append(others)
    running.cancel()
    assert found == list(range(count))
    assert turns == list(range(len(parts)))


async def test_a_simulation_makes_them_smaller_for_itself_and_its_tasks() -> None:
    async def sizes() -> list[int]:
        return [len(part) async for part in in_turns(range(5), 200)]

    with turns_divided_by(100):
        inner = asyncio.create_task(sizes())
        assert (turn_size(200), turn_size(50)) == (2, 1)
    assert await inner == [2, 2, 1]
    assert await sizes() == [5]


def _sum(numbers: list[int]) -> Steps[int]:
    total = 0
    for part in in_steps(numbers, 2):
        total += sum(part)
        yield
    return total


async def test_steps_return_the_same_at_once_and_in_turns() -> None:
    others: list[int] = []
    for at in range(3):
        asyncio.get_running_loop().call_soon(others.append, at)
    assert await taking_turns(_sum([1, 2, 3, 4, 5])) == 15
    assert others == [0, 1, 2]
    assert at_once(_sum([1, 2, 3, 4, 5])) == 15
    assert at_once(_sum([])) == 0


@pytest.mark.parametrize(
    ("weights", "parts"),
    [
        ([], []),
        ([1], [[1]]),
        ([1, 1, 1, 1], [[1, 1, 1], [1]]),
        ([3, 1, 2, 1], [[3], [1, 2], [1]]),
        ([9, 1, 9], [[9], [1], [9]]),
        ([0, 0, 3, 0], [[0, 0, 3, 0]]),
        ([2, 2, 2], [[2], [2], [2]]),
    ],
)
def test_weighed_parts_have_each_once_in_order_and_no_more_than_fits(
    weights: list[int], parts: list[list[int]]
) -> None:
    assert list(in_weighed_steps(weights, lambda weight: weight, 3)) == parts
