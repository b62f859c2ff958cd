"""docs/design.md against the code: every section that is cited is there, and every file that a rule names keeps one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DESIGN = (ROOT / "docs" / "design.md").read_text()
SECTIONS = {int(number) for number in re.findall(r"^## (\d+)\. ", DESIGN, re.MULTILINE)}
PACKAGES = (
    *("txnwire", "txnstore", "watchers", "segments", "coordinator_v5", "txnclient", "pyspark_txnstore", "txnctl"),
    "pytest_txnstore",
    *("simulation", "benchmarks", "tests", "tools", "docs", "examples"),
)
INVENTED = (Path(__file__).name, "test_mutants.py")
"""Files whose sections are made up."""
CITED = re.compile(r"§(\d+)(?:[–-](\d+))?")


def texts() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in (".py", ".md") and path.name not in INVENTED:
                yield path.relative_to(ROOT).as_posix(), path.read_text()


def test_every_section_that_is_cited_is_there() -> None:
    cited = {
        (name, int(number))
        for name, text in texts()
        for one in CITED.finditer(text)
        for number in one.groups()
        if number
    }
    assert len({number for _, number in cited}) > 8
    lost = [f"{name}: §{number}" for name, number in sorted(cited) if number not in SECTIONS]
    assert lost == [], f"docs/design.md has sections {sorted(SECTIONS)}"


def test_sections_are_numbered_without_a_gap() -> None:
    numbers = [int(number) for number in re.findall(r"^## (\d+)\. ", DESIGN, re.MULTILINE)]
    assert numbers[0] == 1
    assert all(after == before + 1 for before, after in pairwise(numbers))


def rules() -> dict[str, list[str]]:
    """Rule → its files, from the tables *Rules*."""
    found = {}
    for table in DESIGN.split("| ▲ Rule | Kept in |\n|---|---|\n")[1:]:
        for line in table.split("\n\n")[0].splitlines():
            rule, files = line.strip("| ").rsplit(" | ", 1)
            found[rule] = _paths(re.findall(r"`([^`]+)`", files))
    return found


def _paths(names: list[str]) -> list[str]:
    """A name without a folder, or with a part of one, lies in the package of the one before it."""
    paths: list[str] = []
    for name in names:
        package = name.split("/")[0] in PACKAGES
        paths.append(name if package else f"{paths[-1].split('/')[0]}/{name}")
    return paths


RULES = rules()


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_marked_in_each_file_that_keeps_it(rule: str) -> None:
    for name in RULES[rule]:
        path = ROOT / name
        found = [path] if path.exists() else sorted((ROOT / name.split("/")[0]).rglob(path.name))
        assert found, f"{name} is not there"
        assert any("▲" in one.read_text() for one in found), f"{name} has no ▲"


def test_every_file_that_the_architecture_names_is_there() -> None:
    named = re.findall(r"`(\w+/[\w/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(named) > 40
    assert [name for name in named if not (ROOT / name).exists()] == []
