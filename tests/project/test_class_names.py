"""One name, one thing: no two classes of the packages share a name."""

from __future__ import annotations

import ast
from pathlib import Path

from simulation.fresh import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
TWINS = "txnclient/sync/"
"""The synchronous twins have the names of the asynchronous classes."""


def test_each_public_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for package in (*PACKAGES, "pyspark_txnstore", "pytest_txnstore", "simulation"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name.startswith(TWINS) or name.endswith("_pb2.py"):
                continue
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(name)
    assert len(places) > 500, "the packages are elsewhere"
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
