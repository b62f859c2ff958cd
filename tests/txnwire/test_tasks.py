"""Background tasks: begun anew, or the end of their process, and told in either case."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from tests.segments.virtual_time import run
from txnwire.errors import InternalError, NotOwner
from txnwire.tasks import LONGEST_PAUSE_S, SETTLED_S, TaskEnd, Tasks, all_of, defect, errand, restarted, vital


def under(scenario: Callable[[Tasks, list[TaskEnd], list[BaseException]], Coroutine[object, object, None]]) -> None:
    async def body() -> None:
        told: list[TaskEnd] = []
        fatal: list[BaseException] = []
        tasks = Tasks(asyncio.get_running_loop().time, fatal.append)
        tasks.witnesses.append(told.append)
        with tasks.in_charge():
            await scenario(tasks, told, fatal)

    run(body())


def test_a_restarted_task_begins_anew_whether_it_raised_or_returned_ever_more_slowly() -> None:
    async def scenario(tasks: Tasks, told: list[TaskEnd], fatal: list[BaseException]) -> None:
        began: list[float] = []

        async def work() -> None:
            began.append(asyncio.get_running_loop().time())
            if len(began) % 2:
                raise KeyError("a defect")

        task = restarted(work, name="worker", of="one")
        await asyncio.sleep(60)
        pauses = [round(later - earlier, 3) for earlier, later in pairwise(began)]
        assert pauses == sorted(pauses)
        assert pauses[-1] < LONGEST_PAUSE_S + 0.1
        assert [type(end.error) for end in told[:2]] == [KeyError, InternalError]
        assert tasks.failures == {"worker": len(began)}
        assert "worker of one has ended" in (tasks.failing() or "")
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert (len(told), fatal) == (len(began), [])

    under(scenario)


def test_of_several_that_have_ended_the_latest_is_told_to_all_who_listen() -> None:
    async def scenario(tasks: Tasks, told: list[TaskEnd], _: list[BaseException]) -> None:
        others: list[TaskEnd] = []
        tasks.witnesses.append(others.append)
        with capture_logs() as logs:
            for name in ("first", "second", "third"):
                tasks.ended(name, "one", KeyError(name))
                await asyncio.sleep(SETTLED_S / 4)
                assert f"task {name} of one has ended" in (tasks.failing() or "")
            tasks.ended("first", "one", _raised())
        assert [end.name for end in told] == [end.name for end in others] == ["first", "second", "third", "first"]
        assert "task first of one has ended" in (tasks.failing() or "")
        assert logs[-1]["at"].count(" < ") == 1, "where it was raised, and where that was called"

    under(scenario)


def _raised() -> KeyError:
    try:
        _raises()
    except KeyError as error:
        return error
    raise AssertionError


def _raises() -> None:
    raise KeyError("a defect")


def test_whoever_was_in_charge_is_so_no_more_behind_the_block() -> None:
    tasks = Tasks()
    with suppress(ValueError), tasks.in_charge():
        defect("inside", "", KeyError())
        raise ValueError
    defect("outside", "", KeyError())
    assert tasks.failures == {"inside": 1}


def test_an_end_hides_no_other_that_is_not_settled_yet() -> None:
    async def scenario(tasks: Tasks, _: list[TaskEnd], __: list[BaseException]) -> None:
        tasks.ended("long-ago", "", KeyError())
        await asyncio.sleep(SETTLED_S / 2)
        for name in ("first", "second", "third"):
            tasks.ended(name, "", KeyError())
        assert {who for who, _ in tasks._ended_at} == {"long-ago", "first", "second", "third"}
        await asyncio.sleep(SETTLED_S * 0.75)
        tasks.ended("last", "", KeyError())
        assert {who for who, _ in tasks._ended_at} == {"first", "second", "third", "last"}

    under(scenario)


def test_a_task_that_has_been_well_for_a_while_is_not_failing_and_begins_anew_at_once() -> None:
    async def scenario(tasks: Tasks, told: list[TaskEnd], _: list[BaseException]) -> None:
        async def work() -> None:
            await asyncio.sleep(SETTLED_S + 1)
            raise KeyError("a defect")

        task = restarted(work, name="worker")
        await asyncio.sleep(SETTLED_S + 0.5)
        assert (tasks.failing(), told) == (None, [])
        await asyncio.sleep(4 * SETTLED_S)
        assert len(told) >= 3, "each time at once"
        task.cancel()
        await asyncio.sleep(2 * SETTLED_S)
        assert tasks.failing() is None

    under(scenario)


def test_after_a_while_in_which_it_was_well_a_restarted_task_is_begun_anew_at_once_again() -> None:
    """▲ Else a process that had trouble once would do without its task for ten seconds at each later end."""

    async def scenario(_: Tasks, told: list[TaskEnd], __: list[BaseException]) -> None:
        began: list[float] = []

        async def work() -> None:
            began.append(asyncio.get_running_loop().time())
            if len(began) >= 12:
                await asyncio.sleep(SETTLED_S + 1)
            raise KeyError("a defect")

        task = restarted(work, name="worker")
        await asyncio.sleep(200)
        task.cancel()
        lasted = [later - earlier for earlier, later in pairwise(began)]
        assert lasted[10] == pytest.approx(LONGEST_PAUSE_S, rel=0.01), "it had long pauses before"
        assert [one - SETTLED_S - 1 for one in lasted[11:14]] == pytest.approx([0.1, 0.1, 0.1], abs=0.01)

    under(scenario)


def test_what_a_restarted_task_waits_for_may_be_cancelled_without_ending_it() -> None:
    async def scenario(_: Tasks, told: list[TaskEnd], __: list[BaseException]) -> None:
        runs: list[asyncio.Future[None]] = []

        async def work() -> None:
            runs.append(asyncio.get_running_loop().create_future())
            await runs[-1]

        task = restarted(work, name="worker")
        await asyncio.sleep(1)
        runs[0].cancel()
        await asyncio.sleep(1)
        assert (len(runs), task.done(), type(told[0].error)) == (2, False, asyncio.CancelledError)
        task.cancel()
        await asyncio.wait([task])

    under(scenario)


def test_the_end_of_a_vital_task_is_the_end_of_its_process_unless_it_was_cancelled() -> None:
    async def scenario(_: Tasks, told: list[TaskEnd], fatal: list[BaseException]) -> None:
        async def fail() -> None:
            raise KeyError("a defect")

        async def end() -> None:
            return

        cancelled = vital(asyncio.sleep(60), name="main")
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled, vital(fail(), name="main"), vital(end(), name="main")])
        await asyncio.sleep(0)
        assert [type(error) for error in fatal] == [KeyError, InternalError]
        assert [end.fatal for end in told] == [True, True]

    under(scenario)


def test_the_end_of_a_vital_task_is_the_end_of_its_process_though_its_log_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ Else the process would stay ready, and work on without its task."""
    with (tmp_path / "log").open("w") as closed:
        monkeypatch.setattr("txnwire.tasks.log", structlog.wrap_logger(structlog.PrintLogger(closed)))
    fatal: list[BaseException] = []
    tasks, error = Tasks(on_fatal=fatal.append), KeyError("a defect")
    with pytest.raises(ValueError, match="closed file"):
        tasks.ended("main", "", error, fatal=True)
    assert (tasks.failures, fatal) == ({"main": 1}, [error])


def test_an_errand_tells_its_defects_and_nothing_else() -> None:
    async def scenario(tasks: Tasks, told: list[TaskEnd], fatal: list[BaseException]) -> None:
        async def fail(error: Exception) -> None:
            raise error

        done = [errand(fail(KeyError("a defect")), name="errand", of="x"), errand(fail(NotOwner("no")), name="errand")]
        await asyncio.wait([*done, errand(asyncio.sleep(0), name="errand")])
        await asyncio.sleep(0)
        defect("housekeeping", "a/b/c", KeyError("another"))
        assert [(end.name, end.of, end.fatal) for end in told] == [
            ("errand", "x", False),
            ("housekeeping", "a/b/c", False),
        ]
        assert (tasks.failures, fatal) == ({"errand": 1, "housekeeping": 1}, [])

    under(scenario)


def test_a_task_belongs_to_the_process_that_was_in_charge_when_it_was_started() -> None:
    async def scenario(tasks: Tasks, told: list[TaskEnd], _: list[BaseException]) -> None:
        other = Tasks()

        async def fail() -> None:
            raise KeyError("a defect")

        async def start_one() -> None:
            await asyncio.wait([errand(fail(), name="inner")])

        with other.in_charge():
            starting = asyncio.ensure_future(start_one())
        await starting
        await asyncio.sleep(0)
        assert (other.failures, tasks.failures, told) == ({"inner": 1}, {}, [])

    under(scenario)


async def test_a_task_that_fails_as_it_is_cancelled_is_not_begun_anew() -> None:
    """Or whoever closes it waits for ever."""
    begun = asyncio.Event()

    async def run() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise InternalError("what it held cannot be given back")

    task = restarted(run, name="test")
    await begun.wait()
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=5.0)
    assert done
    assert task.cancelled()


async def test_a_task_that_returns_as_it_is_cancelled_is_not_begun_anew() -> None:
    begun = asyncio.Event()

    async def run() -> None:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    task = restarted(run, name="test")
    await begun.wait()
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=5.0)
    assert done
    assert task.cancelled()


async def say(what: str, after_s: float, said: list[str]) -> str:
    try:
        await asyncio.sleep(after_s)
    except asyncio.CancelledError:
        said.append(f"{what} cancelled")
        raise
    said.append(what)
    return what


async def fail(after_s: float) -> str:
    await asyncio.sleep(after_s)
    raise NotOwner("not here")


def test_all_of_gives_results_in_order_and_ends_the_others_before_a_failure_is_told() -> None:
    async def scenario(_: Tasks, told: list[TaskEnd], __: list[BaseException]) -> None:
        said: list[str] = []
        assert await all_of(say(name, after_s, said) for name, after_s in (("slow", 2.0), ("quick", 1.0))) == [
            "slow",
            "quick",
        ]
        assert said == ["quick", "slow"]
        with pytest.raises(NotOwner):
            await all_of([say("before", 1.0, said), fail(2.0), say("behind", 3.0, said), fail(2.0)])
        assert said[2:] == ["before", "behind cancelled"]
        assert told == []

    under(scenario)


def test_all_of_ends_what_it_has_begun_when_its_caller_is_cancelled() -> None:
    async def scenario(_: Tasks, __: list[TaskEnd], ___: list[BaseException]) -> None:
        said: list[str] = []
        task = asyncio.ensure_future(all_of([say("one", 5.0, said), say("two", 6.0, said)]))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert said == ["one cancelled", "two cancelled"]

    under(scenario)
