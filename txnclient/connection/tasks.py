"""Background tasks with an owner: none outlives it, and every failure is reported."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final

from txnwire.errors import InternalError, TxnError, for_good

AGAIN_S: Final = 1.0

_log = logging.getLogger("txnclient")


class OwnedTasks:
    """Tasks that are cancelled and awaited when their owner closes."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._closed = False

    def start(
        self,
        work: Coroutine[object, object, None],
        *,
        name: str,
        on_failed: Callable[[TxnError], None] | None = None,
    ) -> asyncio.Task[None]:
        """Run `work` until it ends or the owner closes; after `close` the task is cancelled at once. `on_failed`
        receives an exception that `work` did not handle: ▲ C6: callers that wait for its result would wait for
        ever."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._done(task, on_failed))
        if self._closed:
            task.cancel()
        return task

    def keep(self, run: Callable[[], Coroutine[object, object, None]], *, name: str) -> asyncio.Task[None]:
        """As `start`, for work that lasts as long as the owner: started again if it fails."""

        async def again() -> None:
            while True:
                try:
                    return await run()
                except Exception:  # noqa: BLE001 - a defect of ours: still restart the work
                    _log.exception("background task %s failed, and starts again", name)
                await asyncio.sleep(AGAIN_S)

        return self.start(again(), name=name)

    @property
    def running(self) -> list[asyncio.Task[None]]:
        return list(self._tasks)

    def _done(self, task: asyncio.Task[None], on_failed: Callable[[TxnError], None] | None) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("background task %s failed", task.get_name(), exc_info=error)
            if on_failed is not None and not self._closed:
                failure = InternalError(f"{task.get_name()} failed by {type(error).__name__}: {error}")
                failure.__cause__ = error
                on_failed(for_good(failure))

    async def close(self) -> None:
        """Cancel all tasks except the calling one and wait for their end; their errors are logged."""
        self._closed = True
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
