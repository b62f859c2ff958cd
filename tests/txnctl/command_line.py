"""Runs `txnctl` as people do: a process of its own, with its exit code, standard output and standard error."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
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


ALONE = ("demo", "dev")
"""Commands that live long and start others: from an interpreter of their own, as all that a test signals."""


def _environment(url: str | None) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TXN_")}
    return environment | {"PYTHONPATH": os.getcwd()} | ({"TXN_URL": url} if url else {})


async def start(*words: str, url: str | None = None, cwd: str | None = None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "txnctl", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(url),
        cwd=cwd,
        start_new_session=True,
    )


async def txnctl(
    *words: str,
    url: str | None = None,
    stdin: str = "",
    timeout_s: float = TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
) -> Done:
    """Run to its end. Whatever happened, nobody wants to see a traceback. `environment`: put in besides."""
    if words[:1] and words[0] in ALONE:
        assert environment is None, "those take flags"
        done = await _run_alone(words, url, stdin.encode(), timeout_s)
    else:
        done = await _run_ready(words, _environment(url) | dict(environment or {}), stdin.encode(), timeout_s)
    assert "Traceback" not in done.err, done.err
    return done


async def _run_alone(words: tuple[str, ...], url: str | None, stdin: bytes, timeout_s: float) -> Done:
    process = await start(*words, url=url)
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin), timeout_s)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Done(process.returncode if process.returncode is not None else -1, out.decode(), err.decode())


async def _run_ready(words: tuple[str, ...], environment: dict[str, str], stdin: bytes, timeout_s: float) -> Done:
    """As a fork of `tests.txnctl.ready_commands`: most of what a short command costs is what it imports."""
    request = {"words": words, "environment": environment, "folder": os.getcwd()}
    (its_stdin, to), *outputs = [os.pipe() for _ in range(4)]
    theirs = [its_stdin, *(to_us for _, to_us in outputs)]
    try:
        socket.send_fds(_ready_commands(), [json.dumps(request).encode()], theirs)
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    said, complained, told = [await _reading(end) for end, _ in outputs]
    pid = int(await told.readline())
    try:
        async with asyncio.timeout(timeout_s):
            _, out, err = await asyncio.gather(asyncio.to_thread(_write, to, stdin), said.read(), complained.read())
            code = int(await told.readline())
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        await told.read()
        raise
    await told.read()
    return Done(code, out.decode(), err.decode())


async def _reading(descriptor: int) -> asyncio.StreamReader:
    """To its end, which closes it."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    return reader


def _write(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb", buffering=0) as pipe, suppress(BrokenPipeError):  # it need not read all
        while data:
            data = data[pipe.write(data) :]


@functools.cache
def _ready_commands() -> socket.socket:
    """Where to ask for commands: of one process, as long as this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.txnctl.ready_commands", str(its.fileno())],
            env=_environment(None),
            pass_fds=[its.fileno()],
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


async def done(*words: str, url: str, stdin: str = "") -> Done:
    """Run to its end, which must be a good one."""
    found = await txnctl(*words, url=url, stdin=stdin)
    assert found.code == 0, f"{' '.join(words)}: {found}"
    return found


def on_a_terminal(*words: str, columns: int, answer: str = "") -> tuple[int, str]:
    """Run at a pseudo-terminal so many columns wide; exit code and everything shown."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("TXN_")}
    environment |= {"COLUMNS": str(columns), "TERM": "xterm-256color", "PYTHONPATH": os.getcwd()}
    process = subprocess.Popen(
        [sys.executable, "-m", "txnctl", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    shown = b""
    try:
        while data := os.read(ours, 4096):
            shown += data
    except OSError:
        pass  # the terminal is gone once the program has ended
    os.close(ours)
    return process.wait(timeout=20), shown.decode()
