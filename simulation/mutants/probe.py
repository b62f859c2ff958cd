"""`python -m simulation.mutants.probe ROOT FIRST LAST WORK_S FAULTS`: seeds of the simulation in ROOT, until one
has findings. One JSON object a line: `{"seed", "findings"}`. Started by `simulation.mutants.runner` with
ROOT as working directory and alone in `PYTHONPATH`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from simulation.world import guards


def main() -> int:
    root, first, last = Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3])
    work_s, faults = float(sys.argv[4]), sys.argv[5]
    parent = os.getppid()
    guards.install_guard()
    import txnstore.writes.transitions
    from simulation.running import job, scenario

    for module in (scenario, txnstore.writes.transitions):
        # ▲ An installed package would be the code without the mutant, and every mutant would survive.
        if not Path(str(module.__file__)).resolve().is_relative_to(root):
            print(f"{module.__name__} comes from {module.__file__}, not from {root}", file=sys.stderr)
            return 2
    for seed in range(first, last + 1):
        result = job.perform(job.Job(seed=seed, work_s=work_s, kinds=faults))
        print(json.dumps({"seed": seed, "findings": result.findings}), flush=True)
        if result.findings or os.getppid() != parent:
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
