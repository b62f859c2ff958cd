"""Callers that let go of what they have called."""

from __future__ import annotations

import asyncio
import random

import pytest

from simulation.clients.careless import SHARES, Careless, GivenUp, Mistake, share_of


class Thing:
    """What is opened, with the awaits it came to."""

    def __init__(self) -> None:
        self.awaits = 0
        self.closed = False
        self.cancelled = False

    async def work(self, awaits: int) -> str:
        try:
            for _ in range(awaits):
                self.awaits += 1
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return "done"

    async def close(self) -> None:
        self.closed = True


async def _open(thing: Thing) -> Thing:
    return thing


async def test_a_call_is_cancelled_at_each_of_its_awaits_by_chance_and_never_before_the_first() -> None:
    stopped_at: dict[int, None] = {}
    for seed in range(300):
        thing, careless = Thing(), Careless(random.Random(seed), 1.0)
        try:
            assert await careless.call(thing.work(5)) == "done"
        except GivenUp:
            assert thing.cancelled
            stopped_at[thing.awaits] = None
    assert sorted(stopped_at) == [1, 2, 3, 4, 5]


async def test_whoever_is_never_careless_calls_as_usual() -> None:
    careless = Careless(random.Random(1), 0.0)
    assert [await careless.call(Thing().work(9)) for _ in range(50)] == ["done"] * 50
    assert not careless.slips(1000.0)


async def test_the_error_of_a_call_that_was_to_be_cancelled_is_its_own() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise TimeoutError("its own")

    met = dict.fromkeys([await _error_of(Careless(random.Random(seed), 1.0), fails()) for seed in range(50)])
    assert "its own" in met


async def _error_of(careless: Careless, call: object) -> str:
    try:
        await careless.call(call)  # type: ignore[arg-type]
    except (TimeoutError, GivenUp) as error:
        return str(error)
    raise AssertionError("it has to fail")


async def test_a_caller_that_is_cancelled_itself_is_not_taken_for_careless() -> None:
    careless = Careless(random.Random(1), 1.0)
    task = asyncio.ensure_future(careless.call(asyncio.get_running_loop().create_future()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_a_block_has_opened_is_closed_also_when_its_user_raises() -> None:
    thing = Thing()
    with pytest.raises(Mistake):
        async with Careless(random.Random(1), 0.0).within(_open(thing)):
            raise Mistake
    assert thing.closed


def test_an_iterator_that_stumbles_gives_some_and_then_raises() -> None:
    given: dict[int, None] = {}
    for seed in range(100):
        came: list[int] = []
        with pytest.raises(Mistake):
            came.extend(Careless(random.Random(seed), 1.0).stumbling(range(4), 4))
        assert came == list(range(len(came)))
        given[len(came)] = None
    assert sorted(given) == [0, 1, 2, 3, 4]


def test_runs_are_careless_in_several_degrees() -> None:
    assert {share_of(seed) for seed in range(100)} == set(SHARES)
