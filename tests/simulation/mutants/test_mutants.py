"""Every mutant of `make mutants` still applies to the code as it is, and what it makes of it compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.mutants.mutant import CodeHasMoved, Mutant
from simulation.mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutant_applies_and_compiles(mutant: Mutant) -> None:
    for path, text in mutant.mutated(ROOT):
        assert text != path.read_text()
        if path.suffix == ".py":  # others are of the chart
            compile(text, str(path), "exec")


def test_names_are_unique_and_every_test_named_exists() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(dict.fromkeys(names))
    for mutant in MUTANTS:
        assert bool(mutant.tests) == bool(mutant.why_tests), f"{mutant.name}: tests and why_tests go together"
        for test in mutant.tests:
            file, _, name = test.partition("::")
            function = name.partition("[")[0].rpartition("::")[2]
            contracts = sorted((ROOT / "tests").glob("*/*_contract.py"))  # a class may inherit the test
            beside = [ROOT / file, *contracts]
            assert not name or any(f"def {function}(" in path.read_text() for path in beside), test


def test_code_that_has_moved_is_told_with_the_mutants_name(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("twice\ntwice\n")
    mutant = Mutant(name="m", rule="r", section="§0", file="code.py", old="twice", new="once")
    with pytest.raises(CodeHasMoved, match=r"mutant m: the code has moved: its old text stands 2 times in code\.py"):
        mutant.apply(tmp_path)
    assert (tmp_path / "code.py").read_text() == "twice\ntwice\n"
