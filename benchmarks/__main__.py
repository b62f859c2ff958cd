"""`make bench`: run the benchmarks, print a table, write bench.json.

`python -m benchmarks [NAME …]` runs some of them; `--quick` runs each just long enough to see that it works.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from rich.console import Console

from benchmarks import machine, result
from benchmarks.connections import connections
from benchmarks.data import data
from benchmarks.group_commit import group_commit
from benchmarks.open_transactions import open_transactions
from benchmarks.queue import queue
from benchmarks.recovery import recovery
from benchmarks.result import Result
from benchmarks.scale import Scale
from benchmarks.segments import segments
from benchmarks.soak import soak
from benchmarks.transactions import latency, mutations, throughput
from benchmarks.transform import transform_benchmark
from benchmarks.visibility import visibility
from txnctl import logs

BENCHMARKS: dict[str, Callable[[Scale], Awaitable[list[Result]]]] = {
    "group-commit": group_commit,
    "latency": latency,
    "mutations": mutations,
    "throughput": throughput,
    "visibility": visibility,
    "recovery": recovery,
    "data": data,
    "segments": segments,
    "queue": queue,
    "transform": transform_benchmark,
    "open-transactions": open_transactions,
    "connections": connections,
    "soak": soak,
}
TIMEOUT_S = 1800.0


async def run(names: list[str], out: Path, *, quick: bool) -> int:
    console, results = Console(), list[Result]()
    console.print(f"on {machine.describe()}; every role, the client and etcd with fsync share these cores")
    for name in names:
        console.print(f"[dim]{name} …[/]")
        async with asyncio.timeout(TIMEOUT_S):
            results += await BENCHMARKS[name](Scale(quick=quick))
        result.write(results, out)  # after each: what was measured stays, whatever comes
    result.show(results, console)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works, the numbers say little")
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}: there are {', '.join(BENCHMARKS)}")
    logs.configure("error")
    return uvloop.run(run(arguments.names or list(BENCHMARKS), arguments.out, quick=arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
