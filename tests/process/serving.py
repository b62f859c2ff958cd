"""One `txnctl serve` as a process of its own, with its log in a file, over an etcd that tests share."""

from __future__ import annotations

import asyncio
import os
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.client import HTTPMessage
from pathlib import Path
from typing import NamedTuple

from tests.waiting import until
from txnstore.etcd.embedded_etcd import free_port

READY_S = 60.0
FEW_FILES = 512
"""Soft limit of open files that a server is started with."""


class Answer(NamedTuple):
    status: int
    body: str
    headers: HTTPMessage


async def get(url: str) -> Answer:
    def fetch() -> Answer:
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return Answer(answer.status, answer.read().decode(), answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode(), error.headers)

    return await asyncio.to_thread(fetch)


@dataclass
class Serving:
    process: asyncio.subprocess.Process
    log: Path
    admin: str
    """Of its HTTP pages, host:port."""

    async def get(self, page: str) -> Answer:
        return await get(f"http://{self.admin}{page}")

    async def until_logged(self, *texts: str) -> str:
        def logged() -> bool:
            found = self.log.read_text()
            there = all(text in found for text in texts)
            assert there or self.process.returncode is None, found
            return there

        await until(logged, f"{texts} in the log", within_s=READY_S)
        return self.log.read_text()

    async def until_ready(self) -> None:
        async def ready() -> bool:
            found = await self._is_ready()
            assert found or self.process.returncode is None, self.log.read_text()
            return found

        await until(ready, "a server that is ready", within_s=READY_S)

    async def _is_ready(self) -> bool:
        try:
            return (await self.get("/readyz")).status == 200
        except OSError:
            return False  # it does not listen yet

    async def wait(self, timeout_s: float = 30.0) -> int:
        """Its exit code."""
        return await asyncio.wait_for(self.process.wait(), timeout_s)


@asynccontextmanager
async def serving(
    folder: Path,
    *flags: str,
    etcd: str,
    prefix: str,
    environment: Mapping[str, str] | None = None,
    stderr: int | None = None,
) -> AsyncIterator[Serving]:
    """`flags`: besides where its etcd, its data and its pages are. `stderr`: a descriptor to log to, instead of the
    file. Killed at the end if it has not ended."""
    admin = f"127.0.0.1:{free_port()}"
    log = folder / f"serve-{free_port()}.log"
    words: Sequence[str] = (
        *("serve", "--admin-listen", admin, "--data-dir", str(folder / "data")),
        *("--etcd", etcd, "--etcd-prefix", prefix, *flags),
    )
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TXN_")}
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", f'ulimit -Sn {FEW_FILES}; exec "$@"', "sh", sys.executable, "-P", "-m", "txnctl", *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=output if stderr is None else stderr,
            env={**inherited, "PYTHONPATH": os.getcwd(), **(environment or {})},
            start_new_session=True,
        )
    try:
        yield Serving(process, log, admin)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
