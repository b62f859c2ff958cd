"""Keeps child processes running: starts them in order, restarts dead ones, stops them in reverse order.

It is the process manager of `txnctl dev` and `txnctl demo`. Every child dies with this process
(`txnstore.etcd.lifetime`), so a SIGKILL of the supervisor leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from txnstore.etcd.lifetime import tied_to_parent
from txnwire.errors import InternalError, Timeout

log = structlog.get_logger()

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0
STEADY_AFTER_S = 10.0
STOP_TIMEOUT_S = 15.0
CRASH_LOOP = 3
LOG_LINES, LOG_COLUMNS = 5, 300


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """One child: `command` and changes of the environment (None: without that variable); output goes to `log_path`;
    `wait_ready` returns once it serves (it must be cancellable) and is awaited at most `ready_timeout_s`."""

    name: str
    command: Sequence[str]
    log_path: Path
    wait_ready: Callable[[], Awaitable[None]] | None = None
    ready_timeout_s: float = 30.0
    environment: Mapping[str, str | None] = field(default_factory=dict)

    def whole_environment(self) -> dict[str, str]:
        changed = {**os.environ, **self.environment}
        return {name: value for name, value in changed.items() if value is not None}


class Child:
    """A running child and its restarts. `restarts` counts unexpected deaths after which it was started again."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.restarts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False
        self._killed: int | None = None
        self._log_start = 0
        self.looping = asyncio.Event()
        """Set once it has died `CRASH_LOOP` times."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Starts and waits until ready; also after `stop`. Raises `InternalError` with the last log lines if the child
        dies, or `Timeout`."""
        self._stopping = False
        await self._spawn()
        if self.spec.wait_ready is not None:
            await self._wait_ready(self.spec.wait_ready)
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.spec.name}")

    async def stop(self, number: signal.Signals = signal.SIGTERM, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Sends it `number`, and SIGKILL after `timeout_s`; it does not come back. Idempotent."""
        self._stopping = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.signal(number)
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
        except TimeoutError:
            log.warning("child_did_not_stop", child=self.spec.name, after_s=timeout_s)
            self.signal(signal.SIGKILL)
            await process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the running child; does nothing if it is not running."""
        pid = self.pid
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                log.debug("child_already_gone", child=self.spec.name)

    def kill_group(self) -> None:
        """Sends SIGKILL to the child and its process group. It is started again, but this does not count as a
        restart."""
        pid = self.pid
        if pid is not None:
            self._killed = pid
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                log.debug("child_already_gone", child=self.spec.name)

    async def _spawn(self) -> None:
        self.spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.spec.log_path.open("ab") as output:
            self._log_start = output.tell()
            self._process = await asyncio.create_subprocess_exec(
                *tied_to_parent(self.spec.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=self.spec.whole_environment(),
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which stops children in order
            )

    async def _wait_ready(self, wait_ready: Callable[[], Awaitable[None]]) -> None:
        process = self._process
        if process is None:
            raise InternalError(f"{self.spec.name} was not started")
        ready = asyncio.ensure_future(wait_ready())
        died = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait({ready, died}, timeout=self.spec.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                ready.result()
            elif died.done():
                raise InternalError(f"{self.spec.name} exited with {process.returncode} at start; {self.log_tail()}")
            else:
                raise Timeout(
                    f"{self.spec.name} was not ready after {self.spec.ready_timeout_s:g} s; {self.log_tail()}"
                )
        finally:
            for waiter in (ready, died):
                waiter.cancel()
            await asyncio.gather(ready, died, return_exceptions=True)

    async def _keep(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        loop = asyncio.get_running_loop()
        while not self._stopping and self._process is not None:
            started = loop.time()
            code = await self._process.wait()
            if self._stopping:
                return
            asked = self._process.pid == self._killed
            self.restarts += not asked
            if self.restarts == CRASH_LOOP and not asked:
                self.looping.set()
            if not asked:
                log.warning("child_died_restarting", child=self.spec.name, exit_code=code, restarts=self.restarts)
            backoff_s = FIRST_BACKOFF_S if loop.time() - started > STEADY_AFTER_S else backoff_s
            backoff_s = await self._spawn_again(backoff_s)

    async def _spawn_again(self, backoff_s: float) -> float:
        """Tries until it runs; returns the next pause. A log file on a full disk cannot be opened, and a machine may
        have no memory for a process: neither lasts, and no other code would start the child again."""
        while True:
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, LONGEST_BACKOFF_S)
            try:
                await self._spawn()
            except OSError as error:
                log.warning("child_not_started", child=self.spec.name, error=str(error), again_in_s=backoff_s)
            else:
                return backoff_s

    def log_tail(self) -> str:
        """The end of its output since its last start."""
        try:
            with self.spec.log_path.open("rb") as log_file:
                log_file.seek(self._log_start)
                lines = log_file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
        except FileNotFoundError:
            lines = []
        said = [f"  {line[:LOG_COLUMNS]}" for line in lines]
        return "\n".join([f"the end of {self.spec.log_path}:" if said else f"{self.spec.log_path} is empty", *said])


class Supervisor:
    """Children by name. As an async context manager: started in order on entry, stopped in reverse order on exit."""

    def __init__(self, specs: Sequence[ChildSpec]) -> None:
        self.children = {spec.name: Child(spec) for spec in specs}

    async def __aenter__(self) -> Supervisor:
        try:
            for child in self.children.values():
                await child.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def wait_crash_loop(self) -> None:
        """Never returns. Raises `InternalError`, with the end of its log, once a child has died `CRASH_LOOP` times."""
        waiters = {asyncio.create_task(child.looping.wait()): child for child in self.children.values()}
        try:
            done, _ = await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
            await asyncio.gather(*waiters, return_exceptions=True)
        child = next(waiters[waiter] for waiter in waiters if waiter in done)
        raise InternalError(f"{child.spec.name} died {CRASH_LOOP} times; {child.log_tail()}")

    async def stop(self) -> None:
        for child in reversed(self.children.values()):
            await child.stop()
