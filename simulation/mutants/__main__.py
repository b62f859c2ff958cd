"""`python -m simulation.mutants`: break one rule after another; exit 1 if one survives."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from simulation.mutants.mutant import Mutant
from simulation.mutants.runner import MutantOutcome, Runner
from simulation.mutants.table import MUTANTS

SHOWN = 160
"""Characters of a finding."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="names, or parts of names, comma-separated")
    parser.add_argument("--seeds", type=int, default=500, help="at most so many for each mutant")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="mutants at once")
    parser.add_argument("--out", type=Path, help="write the outcomes as JSON")
    parser.add_argument("--list", action="store_true", help="names and rules, nothing run")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each seed")
    return parser.parse_args()


def _chosen(only: str) -> list[Mutant]:
    wanted = [part for part in only.split(",") if part]
    chosen = [mutant for mutant in MUTANTS if not wanted or any(part in mutant.name for part in wanted)]
    if not chosen:
        raise SystemExit(f"no mutant has {only!r} in its name: --list shows all of them")
    return chosen


def _show(outcome: MutantOutcome, number: int, of: int) -> None:
    print(f"[{number}/{of}] {outcome.verdict}: {outcome.name}, {outcome.by}, {outcome.seconds:.0f} s", flush=True)
    for finding in outcome.findings[:2]:
        print(f"    {finding[:SHOWN]}", flush=True)
    if outcome.passed_over:
        print(f"    passed over, not clean without the mutant either: seeds {outcome.passed_over}", flush=True)


def main() -> int:
    arguments = _arguments()
    mutants = _chosen(arguments.only)
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.name}: {mutant.rule} ({mutant.section}, {mutant.file})")
        return 0
    outcomes: list[MutantOutcome] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, ThreadPoolExecutor(arguments.jobs) as pool:
        runner = Runner(
            Path(scratch), arguments.seeds, arguments.first_seed, told=print if arguments.verbose else lambda _: None
        )
        for outcome in pool.map(runner.run, mutants):
            outcomes.append(outcome)
            _show(outcome, len(outcomes), len(mutants))
    if arguments.out:
        arguments.out.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    missed = [outcome.name for outcome in outcomes if outcome.verdict != "caught"]
    seconds = sum(outcome.seconds for outcome in outcomes)
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} mutants caught in {seconds:.0f} s", end="")
    print(f"; not: {', '.join(missed)}" if missed else "")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
