"""Background tasks with an owner: none outlives it, and none fails unheard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

_log = logging.getLogger("txnclient")


class OwnedTasks:
    """Tasks that are cancelled and awaited when their owner closes."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._closed = False

    def start(self, work: Coroutine[object, object, None], *, name: str) -> asyncio.Task[None]:
        """Run `work` until it ends or the owner closes. After `close` it is not begun: the task is cancelled at
        once."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        if self._closed:
            task.cancel()
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            _log.error("background task %s failed", task.get_name(), exc_info=task.exception())

    async def close(self) -> None:
        """Cancel all and wait for their end; what they raise has been logged. The calling task is left out."""
        self._closed = True
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
