"""Which benchmarks run, one after the other, and where their numbers go."""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path

import uvloop
from rich.console import Console

from benchmarks.harness import machine, result
from benchmarks.harness.result import Result
from benchmarks.harness.scale import Scale
from txnctl.process import logs

Benchmark = Callable[[Scale], Awaitable[list[Result]]]
TIMEOUT_S = 1800.0


def main(benchmarks: Mapping[str, Benchmark], *, description: str | None, out: str) -> int:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(benchmarks)}; default: all")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works, the numbers say little")
    parser.add_argument("--share", type=float, default=1.0, help="of the sizes that can be less, for a busy machine")
    parser.add_argument("--out", type=Path, default=Path(out))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if not _named(benchmarks, name)]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}: there are {', '.join(benchmarks)}")
    logs.configure("error")
    names = [one for name in arguments.names for one in _named(benchmarks, name)]
    chosen = {name: benchmarks[name] for name in names or benchmarks}
    return uvloop.run(_run(chosen, arguments.out, Scale(quick=arguments.quick, share=arguments.share)))


def until_terminated(work: Coroutine[object, object, None]) -> None:
    """The program of another process of a benchmark: does `work` until SIGTERM ends it."""

    async def run() -> None:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with suppress(asyncio.CancelledError):
            await task

    uvloop.run(run())


def _named(benchmarks: Mapping[str, Benchmark], name: str) -> list[str]:
    """The one, or those of the group."""
    return [name] if name in benchmarks else [one for one in benchmarks if one.startswith(f"{name}-")]


async def _run(benchmarks: Mapping[str, Benchmark], out: Path, scale: Scale) -> int:
    console, results, began = Console(), list[Result](), time.monotonic()
    console.print(f"on {machine.describe()}; every role, the client and etcd with fsync share these cores")
    for name, benchmark in benchmarks.items():
        console.print(f"[dim]{name} … ({time.monotonic() - began:.0f} s so far)[/]")
        async with asyncio.timeout(TIMEOUT_S):
            results += await benchmark(scale)
        result.write(results, out)  # after each: what was measured stays, whatever comes
    result.show(results, console)
    return 0
