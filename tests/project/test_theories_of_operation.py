"""Each protocol of its own opens with its theory of operation, numbered, and its package points there; each room says
what it decides."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("txnwire", "txnstore", "watchers", "segments", "coordinator_v5", "txnclient", "pyspark_txnstore"),
    *("pytest_txnstore", "txnctl", "simulation"),
)
PROTOCOLS = {
    "visibility": "watchers.visibility",
    "group commit": "txnstore.access.group_commit",
    "order of a send": "segments.log.sends.send_order",
    "take-over": "segments.owner.take_over",
    "sealing": "segments.owner.sealing",
    "cursors": "segments.subscription.cursors.cursor",
    "queue": "segments.subscription.queueing.queue",
}


@pytest.mark.parametrize("module", PROTOCOLS.values(), ids=PROTOCOLS)
def test_a_protocol_opens_with_its_theory_of_operation_numbered(module: str) -> None:
    numbers = re.findall(r"^(\d+)\. ", importlib.import_module(module).__doc__ or "", re.MULTILINE)
    assert len(numbers) >= 5
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]


@pytest.mark.parametrize("module", PROTOCOLS.values(), ids=PROTOCOLS)
def test_its_package_points_there(module: str) -> None:
    package, _, name = module.rpartition(".")
    text = importlib.import_module(package).__doc__ or ""
    assert re.search(rf"theor(y|ies) of\s+operation in[^.;]*`{name}`", text)


ROOMS = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for package in PACKAGES
    for path in (ROOT / package).rglob("__init__.py")
    if "mutants/" not in path.parent.relative_to(ROOT).as_posix()  # tables, a folder for each kind
)
SAYS = {
    "what it decides": r"\b[Dd]ecides\b",
    "what it may import": r"\b[Ii]mports?\b|\b[Kk]nows? (no|nothing|only)\b|\bPure\b",
    "where to begin reading": r"\b[Bb]egin\s+(with|at)\b",
}


def test_there_are_rooms() -> None:
    assert len(ROOMS) > 50


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_decides_what_it_imports_and_where_to_begin(room: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())) or ""
    assert [what for what, pattern in SAYS.items() if not re.search(pattern, text)] == []
