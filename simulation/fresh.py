"""The first of the seeds that belong to the product's code as it is: others with every change of it, and the same again
for whoever has the same code, so that what a machine far away has found is found here as well, and is there still once
the simulation or a judge has been put right."""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("txnwire", "txnstore", "watchers", "segments", "coordinator_v5", "txnclient", "txnctl")
SEEDS = 1_000_000_000


def first_seed(root: Path = ROOT) -> int:
    """From 0 up to `SEEDS`: of everything that is written in Python in the packages under `root`."""
    code = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            code.update(f"{path.relative_to(root).as_posix()}\n".encode())
            code.update(hashlib.sha256(path.read_bytes()).digest())
    return int.from_bytes(code.digest()[:8], "big") % SEEDS
