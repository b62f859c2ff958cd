"""Threads for blocking work: results, errors, cancels and the end; nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from segments.ledger.io_threads import IoThreads
from tests.waiting import until

NAME = "io under test"
LONG_S = 30.0


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(NAME)]


@pytest.fixture
def threads() -> Iterator[IoThreads]:
    made = IoThreads(2, NAME)
    yield made
    made.end()
    for thread in running():  # the next test counts its own
        thread.join(LONG_S)
        assert not thread.is_alive()


async def test_a_job_returns_or_raises_what_it_did(threads: IoThreads) -> None:
    assert await threads.submit(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await threads.submit(lambda: 1 // 0)
    assert await threads.submit(threading.current_thread) is not threading.current_thread()
    assert not threads.under_way


async def test_a_thread_is_started_for_each_job_under_way_up_to_the_bound(threads: IoThreads) -> None:
    assert running() == []
    for _ in range(3):
        await threads.submit(lambda: None)
    assert len(running()) == 1
    go_on = threading.Event()
    jobs = [threads.submit(lambda: go_on.wait(LONG_S)) for _ in range(5)]
    assert len(running()) == 2
    go_on.set()
    assert await asyncio.gather(*jobs) == [True] * 5


async def test_a_job_cancelled_before_it_began_does_not_run_and_one_after_is_not_told(threads: IoThreads) -> None:
    go_on, ran = threading.Event(), list[int]()

    def work(number: int) -> None:
        ran.append(number)
        go_on.wait(LONG_S)

    jobs = [threads.submit(lambda number=number: work(number)) for number in range(3)]  # type: ignore[misc]
    await until(lambda: len(ran) == 2)
    for job in jobs:
        job.cancel()
    assert len(threads.under_way) == 3  # two of them still use what they were given
    go_on.set()
    await until(lambda: not threads.under_way)
    assert sorted(ran) == [0, 1]
    assert await threads.submit(lambda: "goes on") == "goes on"


async def test_at_the_end_what_has_begun_is_done_and_the_rest_is_cancelled() -> None:
    threads, go_on = IoThreads(1, NAME), threading.Event()
    began = threading.Event()

    def first() -> str:
        began.set()
        go_on.wait(LONG_S)
        return "done"

    jobs = [threads.submit(first), threads.submit(lambda: "never")]
    await asyncio.to_thread(began.wait, LONG_S)
    threads.end()
    threads.end()  # again: nothing happens
    assert jobs[1].cancelled()
    assert not jobs[0].done()
    with pytest.raises(RuntimeError, match="have ended"):
        threads.submit(lambda: None)
    go_on.set()
    assert await jobs[0] == "done"
    await until(lambda: not running())


async def test_an_idle_thread_keeps_neither_the_job_nor_its_result_nor_its_error(threads: IoThreads) -> None:
    class Heavy:
        pass

    def made() -> tuple[Heavy, weakref.ref[Heavy]]:
        heavy = Heavy()
        return heavy, weakref.ref(heavy)

    result, told = made()
    error, raised = made()
    gc.disable()
    try:
        await threads.submit(lambda one=result: one)  # type: ignore[misc]

        def fails(one: Heavy = error) -> None:
            raise ValueError("fails")

        with pytest.raises(ValueError, match="fails"):
            await threads.submit(fails)
        del result, error, fails
        await until(lambda: told() is None and raised() is None)
    finally:
        gc.enable()


async def test_a_thread_that_cannot_start_is_an_error_of_the_job_and_counts_for_none(
    threads: IoThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ A limit of threads may hold for a moment: jobs would wait for threads that never were."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with asyncio.timeout(LONG_S / 3):
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refused)
            for _ in range(3):
                with pytest.raises(OSError, match="can't start new thread"):
                    await threads.submit(lambda: 7)
        assert not threads.under_way
        assert await threads.submit(lambda: 7) == 7
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refused)
            assert await asyncio.gather(*[threads.submit(lambda: 8) for _ in range(2)]) == [8, 8]
    go_on = threading.Event()
    jobs = [threads.submit(lambda: go_on.wait(LONG_S)) for _ in range(2)]
    assert len(running()) == 2
    go_on.set()
    await asyncio.gather(*jobs)


def test_a_job_of_another_loop_is_refused(threads: IoThreads) -> None:
    """▲ The threads would tell it to the loop that they were started in."""

    async def work() -> int:
        async with asyncio.timeout(1.0):
            return await threads.submit(lambda: 7)

    assert asyncio.run(work()) == 7
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(work())
    assert not threads.under_way


def test_a_loop_that_has_ended_before_its_job_ends_the_thread() -> None:
    threads, go_on = IoThreads(1, NAME), threading.Event()

    async def leave() -> None:
        threads.submit(lambda: go_on.wait(LONG_S))

    asyncio.run(leave())
    (thread,) = running()
    go_on.set()
    thread.join(LONG_S)
    assert not thread.is_alive()


def test_python_ends_without_waiting_for_a_job_that_never_does() -> None:
    async def leave() -> bool:
        IoThreads(1, NAME).submit(lambda: hung.wait(LONG_S))
        return next(thread.daemon for thread in threading.enumerate() if thread.name.startswith(NAME))

    hung = threading.Event()
    assert asyncio.run(leave())
    hung.set()
