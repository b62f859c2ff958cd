"""The end of a term's work, and of the term itself: whoever asked for the work may have left (S6, S8)."""

from __future__ import annotations

import asyncio
import random

import pytest
from structlog.testing import capture_logs

from segments.controller.term_work import RetryPauses, TermWork, end_of
from tests.segments.virtual_time import LoopClock, virtual_time
from txnstore.election import Leadership
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import Commit, Put, Read
from txnwire.errors import DataCorrupt, NotOwner, TopicNotFound, TxnError


@pytest.mark.parametrize("what", ["deletion", "layout_change"])
@pytest.mark.parametrize(
    ("error", "event", "level"),
    [
        (NotOwner("the next controller goes on"), "left", "info"),
        (TopicNotFound("it was deleted meanwhile"), "stopped", "info"),
        (DataCorrupt("a record is unreadable"), "stopped", "error"),
    ],
    ids=["term over", "topic gone", "unreadable"],
)
async def test_only_an_end_that_needs_a_repair_is_logged_as_an_error(
    memory_store: MemoryStore, what: str, error: TxnError, event: str, level: str
) -> None:
    lease = await memory_store.grant_lease(5.0)
    work = TermWork(what, memory_store, random.Random(1), Leadership(memory_store, b"/leader", 1, lease), lambda: None)

    async def fail() -> None:
        raise error

    task = asyncio.ensure_future(fail())
    await asyncio.wait([task])
    with capture_logs() as logs:
        work.report_end(task)
    assert [(one["event"], one["log_level"]) for one in logs] == [(f"{what}_{event}", level)]
    assert error.args[0] in logs[0].get("error", error.args[0])


@virtual_time
async def test_pauses_grow_from_the_first_to_the_longest_and_no_further() -> None:
    """A deletion that was kept waiting for an hour goes on a moment after what kept it is over."""
    clock, pauses, waited = LoopClock(), RetryPauses(0.5, 2.0), []
    for _ in range(40):
        begun_s = clock.monotonic()
        await pauses.pause()
        waited.append(round(clock.monotonic() - begun_s, 3))
    assert waited[:4] == [0.5, 0.75, 1.125, 1.688]
    assert waited[4:] == [2.0] * 36


async def test_a_step_that_another_controller_has_forbidden_ends_the_term(memory_store: MemoryStore) -> None:
    """▲ Its requests would be refused one by one, for as long as its lease lasts."""
    lease, deposed = await memory_store.grant_lease(5.0), list[None]()
    leadership = Leadership(memory_store, b"/leader", 1, lease)
    work = TermWork("deletion", memory_store, random.Random(1), leadership, lambda: deposed.append(None))
    step = Commit(
        compares=(leadership.still_held(),), puts=(Put(b"/other", b""),), else_reads=(Read(leadership.key), Read(b"/x"))
    )
    with pytest.raises(NotOwner):
        await work.step(step)
    assert deposed == [None]
    assert await memory_store.get(b"/other") is None
    await lease.revoke()


async def test_who_waits_for_work_is_told_of_the_end_of_its_term_and_may_leave_before() -> None:
    work = asyncio.ensure_future(asyncio.Event().wait())
    leaves, stays = (asyncio.ensure_future(end_of(work)) for _ in range(2))
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.wait([leaves])
    assert leaves.cancelled()
    assert not work.done()
    work.cancel()
    with pytest.raises(NotOwner, match="controller no longer"):
        await stays


async def test_who_is_cancelled_as_the_term_ends_is_cancelled() -> None:
    work = asyncio.ensure_future(asyncio.Event().wait())
    leaves = asyncio.ensure_future(end_of(work))
    await asyncio.sleep(0)
    work.add_done_callback(lambda _: leaves.cancel())
    work.cancel()
    await asyncio.wait([leaves])
    assert leaves.cancelled()
