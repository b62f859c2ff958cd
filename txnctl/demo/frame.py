"""The frame of every demo: progress on a terminal, a folder, a cluster, a judge in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from txnctl.demo.changes import LEASE_TTL_S
from txnctl.demo.folders import passing_folder
from txnctl.launch.dev import DevSettings
from txnstore.etcd.lifetime import tied_to_parent
from txnwire.errors import InternalError, NotAllowed, Timeout

BROKERS = 2
PIPE_COLUMNS = 120

F = TypeVar("F")


class Terminal:
    """Prints lines with the seconds since the demo began, and bars."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._started_s = time.monotonic()

    def say(self, text: str) -> None:
        elapsed = f"{time.monotonic() - self._started_s:5.1f} s"
        self.console.print(f"[dim]{elapsed}[/]  {text}", highlight=False, soft_wrap=True)

    def bars(self) -> Bars:
        """Shows bars only on a terminal: elsewhere they would be lines among the lines."""
        return Bars(
            TextColumn("{task.description:>16}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )


def cluster_settings(folder: Path) -> DevSettings:
    """Any free ports, and leases short enough for the demo to notice a dead broker."""
    return DevSettings(
        data_dir=folder,
        listen="127.0.0.1:0",
        admin="127.0.0.1:0",
        etcd_port=0,
        brokers=BROKERS,
        server_flags=("--lease-ttl-s", str(LEASE_TTL_S)),
    )


async def judged(
    module: str, *arguments: str, answer: type[F], timeout_s: float, environment: Mapping[str, str] | None = None
) -> F:
    """The JSON object that `python -m MODULE ARGUMENTS…` prints; it exits with 0, or with 1 if it found a fault."""
    process = await asyncio.create_subprocess_exec(
        *tied_to_parent([sys.executable, "-P", "-m", module, *arguments]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await process.communicate()
    except TimeoutError:
        raise Timeout(f"the judge was not done after {timeout_s:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.returncode not in (0, 1) or not output.strip():
        raise InternalError(f"the judge failed with {process.returncode}:\n{errors.decode(errors='replace')}")
    return msgspec.json.decode(output, type=answer)


async def in_folder(
    keep: Path | None,
    demo: Callable[[Path, Console], Awaitable[int]],
    print_next: Callable[[Console, Path | None], None],
) -> int:
    """Returns the demo's exit code; removes its folder afterwards unless `keep` names one."""
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_COLUMNS)
    if keep is None:
        with passing_folder() as folder:
            code = await demo(folder, console)
    else:
        _make_folder(keep)
        code = await demo(keep, console)
    print_next(console, keep)
    return code


def _make_folder(keep: Path) -> None:
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise NotAllowed(f"--keep {keep}: there is something already; name a folder that is new or empty")
    keep.mkdir(parents=True, exist_ok=True)
