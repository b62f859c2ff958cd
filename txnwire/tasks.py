"""Starts the background tasks of a process, and reports every unexpected end.

If a failed task only logged its exception, the process would keep its names and leases but no longer do part of its
work. So background tasks are started in one of three ways:

- `restarted`: must live as long as its process; started again with a growing pause whenever it ends;
- `vital`: must live too, but cannot be started again: its end is the end of the process, through `on_fatal`;
- `errand`: ends normally; an exception that is no `TxnError` is a defect, and reported.

Each unexpected end is logged, counted by name, shown by `failing` for a while, and passed to `witnesses`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from traceback import extract_tb
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from txnwire.errors import InternalError, TxnError

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0
SETTLED_S: Final = 15.0
"""How long a task must run after its last end to count as healthy again; longer than the longest pause."""

log = structlog.get_logger(__name__)
T = TypeVar("T")


class TaskEnd(NamedTuple):
    """An unexpected end. `name`: the kind of task, of a small set; `of`: which one. `fatal`: it ends the process."""

    name: str
    of: str
    error: BaseException
    fatal: bool


class Tasks:
    """Records the tasks' ends of one process. `now`: monotonic seconds. `on_fatal` is called when a vital task has
    ended: the process must end too."""

    def __init__(
        self, now: Callable[[], float] = lambda: 0.0, on_fatal: Callable[[BaseException], None] = lambda _: None
    ) -> None:
        self._now = now
        self._on_fatal = on_fatal
        self._ended_at: dict[tuple[str, str], tuple[float, BaseException]] = {}
        self.failures: dict[str, int] = {}
        """Number of unexpected ends, by the name of the task."""
        self.witnesses: list[Callable[[TaskEnd], None]] = []

    @contextmanager
    def in_charge(self) -> Iterator[None]:
        """Tasks started in this block, and by its tasks and callbacks, belong to this process."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def failing(self) -> str | None:
        """The latest ended task among those not healthy again yet; None if all are healthy."""
        after = self._now() - SETTLED_S
        lately = [(at, who, error) for who, (at, error) in self._ended_at.items() if at > after]
        if not lately:
            return None
        _, (name, of), error = max(lately, key=lambda item: item[0])
        return f"task {f'{name} of {of}' if of else name} has ended: {error!r}"

    def ended(self, name: str, of: str, error: BaseException, *, fatal: bool = False) -> None:
        end = TaskEnd(name, of, error, fatal)
        self.failures[name] = self.failures.get(name, 0) + 1
        now = self._now()
        self._ended_at = {who: what for who, what in self._ended_at.items() if now - what[0] < SETTLED_S}
        self._ended_at[name, of] = (now, error)
        for witness in self.witnesses:
            witness(end)
        if fatal:
            self._on_fatal(error)
        # ▲ Last: if this raised, a process without its vital task would be ready, and go on.
        log.error("task_ended", task=name, of=of, fatal=fatal, error=repr(error), at=_where(error))


_CURRENT: ContextVar[Tasks] = ContextVar("tasks", default=Tasks())  # noqa: B039  (for what runs in no server process)


def restarted(run: Callable[[], Awaitable[None]], *, name: str, of: str = "") -> asyncio.Task[None]:
    """A task that runs `run` for ever: again after a pause when it raises or returns. Cancel it to end it."""
    return asyncio.get_running_loop().create_task(_run_again(run, name, of, _CURRENT.get()), name=_title(name, of))


async def _run_again(run: Callable[[], Awaitable[None]], name: str, of: str, tasks: Tasks) -> None:
    loop, pause_s = asyncio.get_running_loop(), FIRST_PAUSE_S
    while True:
        began = loop.time()
        try:
            await run()
            if _is_cancelled():  # ▲ an inner await may have swallowed the cancel: end here
                raise asyncio.CancelledError
            error: BaseException = InternalError(f"task {_title(name, of)} returned and should never end")
        except asyncio.CancelledError as cancelled:
            if _is_cancelled():
                raise
            error = cancelled  # it awaited something cancelled: an error like any other
        except Exception as raised:
            if _is_cancelled():  # ▲ its cleanup may raise: a restart would keep the process from ending
                raise asyncio.CancelledError from raised
            error = raised
        tasks.ended(name, of, error)
        pause_s = FIRST_PAUSE_S if loop.time() - began >= SETTLED_S else pause_s
        await asyncio.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, pause_s * 2)


def vital(work: Coroutine[Any, Any, T], *, name: str, of: str = "") -> asyncio.Task[T]:
    """A task whose end, except by a cancel, ends the process."""
    task = asyncio.get_running_loop().create_task(work, name=_title(name, of))
    tasks = _CURRENT.get()

    def ended(task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            missing = InternalError(f"task {_title(name, of)} returned and should never end")
            tasks.ended(name, of, task.exception() or missing, fatal=True)

    task.add_done_callback(ended)
    return task


def errand(
    work: Coroutine[Any, Any, T], *, name: str, of: str = "", expected: type[BaseException] = TxnError
) -> asyncio.Task[T]:
    """A task that ends normally. Its waiter gets its exception; one that is neither a `TxnError` nor `expected` is a
    defect, and also reported."""
    task = asyncio.get_running_loop().create_task(work, name=_title(name, of))
    tasks = _CURRENT.get()

    def ended(task: asyncio.Task[T]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, TxnError | expected):
            tasks.ended(name, of, error)

    task.add_done_callback(ended)
    return task


async def cancel_all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel them and wait until all have ended in any way."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results, in order. ▲ The first failure, or the caller's cancel, ends the others before it is raised: with
    `asyncio.gather` they would go on after the caller has given up or closed."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await cancel_all(tasks)
        raise


def defect(name: str, of: str, error: BaseException) -> None:
    """Report a defect in one part of a task, as the end of that part; the task itself continues."""
    _CURRENT.get().ended(name, of, error)


def _where(error: BaseException) -> str:
    """The innermost lines of its traceback."""
    frames = extract_tb(error.__traceback__)[-3:]
    return " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))


def _title(name: str, of: str) -> str:
    return f"{name} of {of}" if of else name


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
