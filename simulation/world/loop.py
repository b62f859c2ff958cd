"""An event loop in virtual time, for many simulated processes in one thread (DESIGN §13).

Time jumps to the next timer when nothing is ready. Callbacks belong to the process in whose context they were
scheduled. Within a process they run in asyncio's order, first in first out; which process runs next is drawn from the
seed: any interleaving of separate processes is legal, and only such. A killed process never runs again, not even its
`finally` blocks; a paused one catches up later.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
import sys
import warnings
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple

from simulation.world.trace import Trace

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CALLBACK_S = 1e-6
"""Virtual time that one callback takes, so that code that spins until a time has passed ends."""


class SimulationStuck(RuntimeError):
    """Nothing is ready and no timer is set: all processes wait for each other; or the step limit was passed."""


class Nondeterminism(RuntimeError):
    """Code inside the simulation reached for a wall clock, true randomness, a thread or an unordered iteration."""


class ProcessLife:
    """Owner of callbacks and tasks: one life of one simulated process, or the world around them."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.alive = True
        self.paused = False
        self.queue: deque[asyncio.Handle] = deque()
        self.queued = False
        self.steps = 0
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._purge_at = 256

    def add_task(self, task: asyncio.Task[Any]) -> None:
        self.tasks[task] = None
        if len(self.tasks) >= self._purge_at:
            self.tasks = {task: None for task in self.tasks if not task.done()}
            self._purge_at = max(256, 2 * len(self.tasks))


OWNER: ContextVar[ProcessLife | None] = ContextVar("owner", default=None)

_Timer = tuple[float, float, int, asyncio.TimerHandle, ProcessLife]


class SimLoop(asyncio.AbstractEventLoop):
    """The parts of a loop that asyncio's own primitives need, and nothing that touches the outside: the rest of the
    interface raises `NotImplementedError` as its base class does."""

    def __init__(self, seed: int, trace: Trace | None = None, *, max_steps: int = 100_000_000) -> None:
        self.trace = trace or Trace()
        self.world = ProcessLife("world", 0)
        self.unhandled: list[str] = []
        self._random = random.Random(f"{seed}/schedule")
        self._now = 0.0
        self._timers: list[_Timer] = []
        self._sequence = 0
        self._runnable: list[ProcessLife] = []
        self._owners = [self.world]
        self._steps_left = max_steps
        self._stopping = False
        self._closed = False
        self._running = False

    # --- processes ---

    @property
    def owners(self) -> Sequence[ProcessLife]:
        return self._owners

    def new_owner(self, name: str) -> ProcessLife:
        owner = ProcessLife(name, len(self._owners))
        self._owners.append(owner)
        return owner

    def context_of(self, owner: ProcessLife) -> Context:
        """A context in which everything scheduled belongs to `owner`."""
        context = copy_context()
        context.run(OWNER.set, owner)
        return context

    def current_owner(self) -> ProcessLife:
        return OWNER.get() or self.world

    def kill(self, owner: ProcessLife) -> None:
        """▲ As SIGKILL: none of its code runs any more. Its tasks are kept: freeing them would run their clean-up."""
        owner.alive = False
        owner.queue.clear()
        for task in owner.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def pause(self, owner: ProcessLife) -> None:
        owner.paused = True

    def resume(self, owner: ProcessLife) -> None:
        owner.paused = False
        self._make_runnable(owner)

    def _make_runnable(self, owner: ProcessLife) -> None:
        if owner.queue and not owner.queued and not owner.paused and owner.alive:
            owner.queued = True
            self._runnable.append(owner)

    # --- scheduling ---

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle, self._owner_in(context))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._sequence += 1
        entry = (when, self._random.random(), self._sequence, handle, self._owner_in(context))
        heapq.heappush(self._timers, entry)
        return handle

    def call_in_world(self, delay_s: float, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """For events outside of processes (a packet under way): they go on when the current process is killed."""
        context = self.context_of(self.world)
        self.call_later(delay_s, callback, *args, context=context)

    def _owner_in(self, context: Context | None) -> ProcessLife:
        owner = OWNER.get() if context is None else context.get(OWNER)
        return owner or self.world

    def _enqueue(self, handle: asyncio.Handle, owner: ProcessLife) -> None:
        if owner.alive:
            owner.queue.append(handle)
            self._make_runnable(owner)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by `TimerHandle.cancel`; the heap drops it when its time comes."""

    # --- running ---

    def run_forever(self) -> None:
        if self._running or self._closed:
            raise RuntimeError("this simulation's loop is running already, or closed")
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finalize_generator)
        events._set_running_loop(self)
        self._running = True
        try:
            while not self._stopping:
                self._step()
        finally:
            self._stopping = self._running = False
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        task: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        task.add_done_callback(self._stop_callback)
        try:
            self.run_forever()
        finally:
            task.remove_done_callback(self._stop_callback)
        if not task.done():
            raise RuntimeError("the simulation was stopped before its scenario ended")
        return task.result()

    def _stop_callback(self, _: asyncio.Future[Any]) -> None:
        self.stop()

    def _step(self) -> None:
        self._fire_timers()
        while not self._runnable:
            self._jump()
        if self._steps_left == 0:
            raise SimulationStuck(f"step limit passed at virtual second {self._now:.3f}")
        self._steps_left -= 1
        runnable = self._runnable
        index = int(self._random.random() * len(runnable)) if len(runnable) > 1 else 0
        owner = runnable[index]
        if owner.paused or not owner.queue:
            self._drop_runnable(index)
            return
        handle = owner.queue.popleft()
        if not owner.queue:
            self._drop_runnable(index)
        if handle._cancelled:
            return
        self._now += CALLBACK_S
        owner.steps += 1
        self.trace.step(int(self._now * 1e6), owner.number)
        if self.trace.logging:
            self.trace.note(f"{self._now:.6f} {owner.name} {_describe(handle)}")
        handle._run()

    def _drop_runnable(self, index: int) -> None:
        owner = self._runnable[index]
        owner.queued = False
        self._runnable[index] = self._runnable[-1]
        self._runnable.pop()

    def _fire_timers(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self._now:
            *_, handle, owner = heapq.heappop(timers)
            if not handle._cancelled:
                self._enqueue(handle, owner)

    def _jump(self) -> None:
        """Jumps to the next timer of a living process."""
        timers = self._timers
        while timers and (timers[0][3]._cancelled or not timers[0][4].alive):
            heapq.heappop(timers)
        if not timers:
            raise SimulationStuck(f"at virtual second {self._now:.3f} nothing is ready and no timer is set")
        self._now = max(self._now, timers[0][0])
        self._fire_timers()

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """▲ Closes all pending coroutines with every process dead, so that nothing they do while they end reaches a
        process."""
        if self._closed:
            return
        self._closed = True
        for owner in self._owners:
            owner.alive = False
            owner.queue.clear()
        # Their `finally` blocks still ask for the loop: without one asyncio would make a real one, and leave it open.
        running = events._get_running_loop()
        events._set_running_loop(self)
        try:
            with _ignoring_last_words():
                for owner in self._owners:
                    for task in tuple(owner.tasks):
                        if not task.done():
                            task._log_destroy_pending = False  # type: ignore[attr-defined]
                            _bury(task)
                    owner.tasks.clear()
                self._timers.clear()
                gc.collect()
        finally:
            events._set_running_loop(running)

    async def shutdown_asyncgens(self) -> None:
        """`close` ends those still running."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

    def _finalize_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed:
            self.call_soon(self._close_generator, generator)

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.create_task(generator.aclose())

    # --- futures and tasks ---

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        if self._closed:
            coro.close()
            raise RuntimeError("this simulation is over")
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._owner_in(context).add_task(task)
        return task

    def get_task_factory(self) -> None:
        return None

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback or task failed and no code retrieved the error: kept in `unhandled`, which a scenario counts as a
        failure."""
        owner = self.current_owner()
        if self._closed or not owner.alive:
            return
        error = context.get("exception")
        what = f"{type(error).__name__}: {error}" if error is not None else ""
        self.unhandled.append(f"{self._now:.6f} {owner.name}: {context.get('message')} {what}".rstrip())
        if self.trace.logging:
            self.trace.note(self.unhandled[-1])

    # --- what must not happen here ---

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        raise Nondeterminism(f"run_in_executor({func!r}): there are no threads inside the simulation")

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        raise Nondeterminism(f"call_soon_threadsafe({callback!r}): there are no threads inside the simulation")


@contextmanager
def _ignoring_last_words() -> Iterator[None]:
    """Silences warnings of coroutines that are closed in the middle, or never ran."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook


def _bury(task: asyncio.Task[Any]) -> None:
    coroutine = task.get_coro()
    if isinstance(coroutine, Coroutine):
        with suppress(Exception):
            coroutine.close()


def _describe(handle: asyncio.Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]
    target = getattr(callback, "__self__", None)
    if isinstance(target, asyncio.Task):
        code = getattr(target.get_coro(), "__qualname__", "")
        return f"task {code}"
    return str(getattr(callback, "__qualname__", type(callback).__name__))
