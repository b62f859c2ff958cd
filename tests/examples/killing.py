"""Programs of `examples/` as processes, killed in the middle of their work."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import txnclient

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
TIMEOUT_S = 60.0


async def started(name: str, *arguments: str, url: str) -> asyncio.subprocess.Process:
    """A program with `--url`, its output in one pipe."""
    command = [sys.executable, str(EXAMPLES / name), "--url", url, *arguments]
    return await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )


async def told(name: str, *arguments: str, url: str) -> str:
    """What a program says that ends well."""
    return await ended(await started(name, *arguments, url=url))


async def ended(process: asyncio.subprocess.Process) -> str:
    output, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    assert process.returncode == 0, output.decode()
    return output.decode()


async def killed(process: asyncio.subprocess.Process) -> None:
    """SIGKILL. Fails if it had ended before: then it was not in the middle."""
    assert process.returncode is None, (await process.communicate())[0].decode()
    process.send_signal(signal.SIGKILL)
    await process.communicate()
    assert process.returncode == -signal.SIGKILL


async def stored(reader: txnclient.Reader, count: int) -> None:
    """Waits until `count` more messages are stored, for a reader of what is not committed, too."""
    for _ in range(count):
        await reader.receive(timeout=TIMEOUT_S)
