"""`python -m simulation --seed N [--runs M]`: one simulated cluster per seed, judged; exit 1 if anything is wrong."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from simulation import guards

if TYPE_CHECKING:
    from simulation.scenario import Report


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, default=1, help="how many runs, with seeds counting up")
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual seconds of work under faults")
    parser.add_argument("--faults", help="only these, comma-separated; an empty text for none")
    parser.add_argument("--log", type=Path, help="write what happens, to compare two runs of one seed")
    parser.add_argument("--history", type=Path, help="write the history as JSON lines")
    return parser.parse_args()


def _show(report: Report, seconds: float) -> None:
    done = ", ".join(f"{count} {kind}" for kind, count in sorted(report.operations.items()))
    faults = sum(report.faults.values())
    print(
        f"seed {report.seed}: {'FAILED' if report.findings else 'ok'} {report.digest} "
        f"({report.virtual_s:.0f} virtual s in {seconds:.1f} s, {report.events} events, {faults} faults; {done})"
    )
    for finding in report.findings:
        print(f"  {finding}")


def main() -> int:
    arguments = _arguments()
    guards.install_guard()
    from simulation.history import write_history
    from simulation.scenario import run

    failed: list[int] = []
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        begin = time.perf_counter()
        with ExitStack() as stack:
            log = stack.enter_context(arguments.log.open("w")) if arguments.log else None
            report = run(seed, work_s=arguments.seconds, faults=arguments.faults, log=log)
        _show(report, time.perf_counter() - begin)
        if arguments.history:
            write_history(arguments.history, report.history)
        if report.findings:
            failed.append(seed)
            print(f"  again: make sim SEED={seed}   (add --log FILE to python -m simulation to see what happened)")
    if arguments.runs > 1:
        print(
            f"{arguments.runs - len(failed)} of {arguments.runs} runs ok{f'; failed seeds: {failed}' if failed else ''}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
