"""Runs blocking reads, writes and syncs in a few threads, for one event loop.

`ThreadPoolExecutor` with `run_in_executor` makes two futures and a condition for each job, which takes four times the
CPU. A broker under a small load has a job for nearly each entry.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]
_END: Final = None
"""Ends the thread that takes it."""


class IoThreads:
    """At most `most` threads, each started when a job would wait without it. They serve only the loop of the first job.

    They are daemons: Python does not wait for a disk that never answers when it ends.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._threads = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = False
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self.under_way: dict[asyncio.Future[Any], None] = {}
        """The jobs that have not ended."""

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run `job` in a thread; the future gets its result or error. A job cancelled before a thread begins it never
        runs. If the system allows no thread at all, the future has an `OSError`."""
        if self._ended:
            raise RuntimeError(f"the threads {self._name} have ended")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._belong_to(loop)
        future: asyncio.Future[T] = loop.create_future()
        if self._threads < min(len(self.under_way) + 1, self._most):
            try:
                self._start_thread(loop)
            except RuntimeError as error:
                if not self._threads:  # otherwise an existing thread will take the job
                    future.set_exception(OSError(errno.EAGAIN, str(error)))
                    return future
        self.under_way[future] = None
        self._queue.put((job, future))
        return future

    def end(self) -> None:
        """Cancel the jobs that no thread has begun; the threads end after those that they run."""
        if self._ended:
            return
        self._ended = True
        try:
            while (waiting := self._queue.get_nowait()) is not _END:
                self._settle(waiting[1], None, asyncio.CancelledError())
        except Empty:
            pass
        for _ in range(self._threads):
            self._queue.put(_END)

    def _belong_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """▲ A thread answers in the loop that started it: a caller in another loop would wait for ever."""
        if self._loop is not None:
            raise RuntimeError(f"the threads {self._name} belong to another event loop")
        self._loop = loop

    def _start_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises `RuntimeError` at a limit of threads; ▲ one that was not started must not count."""
        name = f"{self._name}-{self._threads}"
        threading.Thread(target=self._run, args=(loop,), name=name, daemon=True).start()
        self._threads += 1

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while (taken := self._queue.get()) is not _END:
            job, future = taken
            result: Any = None
            error: BaseException | None = None
            try:
                if not future.cancelled():
                    result = job()
            except BaseException as raised:  # noqa: BLE001 - goes to who asked
                error = raised
            try:
                loop.call_soon_threadsafe(self._settle, future, result, error)
            except RuntimeError:
                return  # the loop is closed: no caller is left
            del taken, job, future, result, error  # an idle thread keeps no data and no traceback

    def _settle(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        del self.under_way[future]
        if future.done():
            return  # cancelled by who asked
        if error is None:
            future.set_result(result)
        elif isinstance(error, asyncio.CancelledError):
            future.cancel()
        else:
            future.set_exception(error)
