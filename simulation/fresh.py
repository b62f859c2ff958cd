"""Derives the first seed from the product's code: every change of the code gives other seeds, and the same code the
same ones. So a failure found on another machine is found here as well, even after the simulation or a judge was fixed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("txnwire", "txnstore", "watchers", "segments", "coordinator_v5", "txnclient", "txnctl")
SEEDS = 1_000_000_000


def first_seed(root: Path = ROOT) -> int:
    """From 0 up to `SEEDS`, from all Python sources in the packages under `root`."""
    code = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            code.update(f"{path.relative_to(root).as_posix()}\n".encode())
            code.update(hashlib.sha256(path.read_bytes()).digest())
    return int.from_bytes(code.digest()[:8], "big") % SEEDS
