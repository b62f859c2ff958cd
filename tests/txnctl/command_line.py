"""Runs `txnctl` as people do: a process of its own, with its exit code, standard output and standard error."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, NamedTuple

import msgspec

TIMEOUT_S = 240.0
"""Many times what the longest one, the demo, takes alone on two cores: nothing that waits for it measures it."""


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)


async def start(*words: str, url: str | None = None, cwd: str | None = None) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TXN_")}
    environment |= {"PYTHONPATH": os.getcwd()} | ({"TXN_URL": url} if url else {})
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "txnctl", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd=cwd,
        start_new_session=True,
    )


async def txnctl(*words: str, url: str | None = None, stdin: str = "", timeout_s: float = TIMEOUT_S) -> Done:
    """Run to its end. Whatever happened, nobody wants to see a traceback."""
    process = await start(*words, url=url)
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), timeout_s)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    done = Done(process.returncode if process.returncode is not None else -1, out.decode(), err.decode())
    assert "Traceback" not in done.err, done.err
    return done


async def done(*words: str, url: str, stdin: str = "") -> Done:
    """Run to its end, which must be a good one."""
    found = await txnctl(*words, url=url, stdin=stdin)
    assert found.code == 0, f"{' '.join(words)}: {found}"
    return found
