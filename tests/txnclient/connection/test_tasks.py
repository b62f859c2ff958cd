"""Background tasks of an owner that has closed."""

from __future__ import annotations

import asyncio

from tests.segments.virtual_time import virtual_time
from txnclient.connection.tasks import OwnedTasks


@virtual_time
async def test_what_is_started_behind_the_end_of_its_owner_ends_at_once() -> None:
    """▲ Nobody would wait for it: it would outlive the client, and the loop would report it as never awaited."""
    tasks, ran = OwnedTasks(), list[str]()

    async def work(name: str) -> None:
        ran.append(name)
        await asyncio.sleep(3600.0)

    before = tasks.start(work("before"), name="before")
    await asyncio.sleep(0)
    await tasks.close()
    behind = tasks.start(work("behind"), name="behind")
    kept = tasks.keep(lambda: work("kept"), name="kept")
    await asyncio.wait((behind, kept), timeout=1.0)
    assert all(task.cancelled() for task in (before, behind, kept))
    assert ran == ["before"]
    assert tasks.running == []
