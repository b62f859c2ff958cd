"""Worker processes that run jobs. A run that hangs or kills its process is a finding, and the process is replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from types import TracebackType
from typing import IO

import msgspec

from simulation.running.job import Job, Result

ANSWER_BYTES = 64 * 1024 * 1024
LAST_WORDS_BYTES = 6000
ABORT_S = 5.0


class SimulationWorker:
    """One process at a time. `hang_s`: how long a run may take by the wall clock. Usable by one caller at a time."""

    def __init__(self, *, hang_s: float) -> None:
        self._hang_s = hang_s
        self._process: asyncio.subprocess.Process | None = None
        self._errors: IO[bytes] | None = None

    async def __aenter__(self) -> SimulationWorker:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self._end(signal.SIGKILL)

    async def perform(self, job: Job) -> Result:
        begin = time.monotonic()
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._hang_s):
                process.stdin.write(msgspec.json.encode(job) + b"\n")
                await process.stdin.drain()
                answer = await process.stdout.readline()
        except TimeoutError:
            words = await self._end(signal.SIGABRT)
            return _lost(job, begin, f"hung: not done after {self._hang_s:g} s of wall clock\n{words}")
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
        if not answer.endswith(b"\n"):
            words = await self._end(signal.SIGKILL)
            return _lost(job, begin, f"died: its process ended with {process.returncode}\n{words}")
        result = msgspec.json.decode(answer, type=Result)
        if result.raised:  # ▲ the remains of such a run would be freed in the middle of the next one
            await self._end(signal.SIGKILL)
        return result

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "simulation.worker",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=self._errors, limit=ANSWER_BYTES,
            )  # fmt: skip
        return self._process

    async def _end(self, by: signal.Signals) -> str:
        """The end of its standard error: the stacks of all threads, after SIGABRT."""
        process, errors = self._process, self._errors
        self._process = self._errors = None
        if process is None or errors is None:
            return ""
        if process.returncode is None:
            # Not process.send_signal: it reaps a process that has just died, and asyncio then reports 255 for its end.
            with suppress(ProcessLookupError):
                os.kill(process.pid, by)
        try:
            async with asyncio.timeout(ABORT_S):
                await process.wait()
        except TimeoutError:
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        with errors:
            size = errors.seek(0, 2)
            errors.seek(max(0, size - LAST_WORDS_BYTES))
            return errors.read().decode(errors="replace")


def _lost(job: Job, begin: float, finding: str) -> Result:
    return Result(seed=job.seed, wall_s=time.monotonic() - begin, findings=[finding])
