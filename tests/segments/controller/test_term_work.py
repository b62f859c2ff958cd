"""What the log tells of the end of a term's work: whoever asked for it may have left (S6, S8)."""

from __future__ import annotations

import asyncio
import random

import pytest
from structlog.testing import capture_logs

from segments.controller.term_work import RetryPauses, TermWork
from tests.segments.virtual_time import LoopClock, virtual_time
from txnstore.election import Leadership
from txnstore.memory.memory_store import MemoryStore
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
