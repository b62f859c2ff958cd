"""Real processes under kills, pauses and cuts, judged by the simulation's judges (X4).

    python -m tests.process.chaos --seconds 60 --seed 1 [--runs 5]

Three etcd members behind taps, two servers with coordinators and controller, three brokers, and worker processes with
clients of every kind do the simulation's workloads, while the seed's faults are injected. Then all heals, everyone must
get on again, everything is read, and whatever clients saw and etcd went through is judged. Exit 1, and the folder of
the run is kept, if anything is wrong. Real time is not in the seed's hand: the same faults, but not the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from tests.process.chaos.faults import KINDS
from tests.process.chaos.run import Settings, Verdict, run


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.process.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of work under faults, a run")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, default=1, help="how many runs, with seeds counting up")
    parser.add_argument("--pace", type=float, help="mean seconds between two faults, instead of the seed's")
    parser.add_argument("--faults", help=f"only these, comma-separated ('' for none): {', '.join(KINDS)}")
    parser.add_argument("--only", help="only the faults of these numbers, comma-separated")
    arguments = parser.parse_args()
    unknown = [name for name in _names(arguments.faults) or () if name not in KINDS]
    if unknown:
        parser.error(f"unknown faults: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    return arguments


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _settings(arguments: argparse.Namespace, seed: int) -> Settings:
    numbers = _names(arguments.only)
    return Settings(
        seed=seed,
        seconds=arguments.seconds,
        pace_s=arguments.pace,
        kinds=_names(arguments.faults),
        only=None if numbers is None else [int(number) for number in numbers],
    )


def _show(verdict: Verdict) -> None:
    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "none"

    print(
        f"seed {verdict.seed}: {'FAILED' if verdict.findings else 'ok'} ({verdict.seconds:.0f} s; "
        f"{listed(dict(sorted(verdict.operations.items())))})"
    )
    print(f"  faults: {listed(verdict.faults)}; everyone got on {verdict.healed_s:.1f} s after the last")
    print(f"  reached: {listed(verdict.reached)}")
    print(f"  clients met: {listed(dict(verdict.errors.most_common()))}")
    for finding in verdict.findings:
        print(f"  FOUND {finding}")


def _run_one(settings: Settings, arguments: argparse.Namespace) -> bool:
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{settings.seed}-"))
    print(f"seed {settings.seed}: {settings.seconds:g} s of chaos in {folder}", flush=True)
    try:
        verdict = asyncio.run(run(folder, settings))
    except KeyboardInterrupt:
        shutil.rmtree(folder)
        raise
    except BaseException:
        print(f"seed {settings.seed}: FAILED; kept: {folder}", flush=True)
        raise
    _show(verdict)
    if not verdict.findings:
        shutil.rmtree(folder)
        return True
    print("  its faults:")
    for fault in settings.faults():
        print(f"    {fault.at_s:6.1f} s {fault}")
    again = f"make chaos SEED={settings.seed} SECONDS={settings.seconds:g}"
    print(f"  kept: {folder}\n  the same faults again: {again}", flush=True)
    return False


def main() -> int:
    arguments = _arguments()
    failed: list[int] = []
    try:
        for seed in range(arguments.seed, arguments.seed + arguments.runs):
            if not _run_one(_settings(arguments, seed), arguments):
                failed.append(seed)
    except KeyboardInterrupt:
        print("stopped by Ctrl-C")
        return 130
    if arguments.runs > 1:
        print(f"{arguments.runs - len(failed)} of {arguments.runs} runs ok" + (f"; failed: {failed}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
