"""Seeds that belong to the code: the same for the same code, wherever it lies; others for any other."""

from __future__ import annotations

from pathlib import Path

from simulation.fresh import PACKAGES, SEEDS, first_seed


def tree(root: Path, **changed: str) -> Path:
    for package in PACKAGES:
        (root / package / "inner").mkdir(parents=True)
        (root / package / "__init__.py").write_text("")
        (root / package / "inner" / "code.py").write_text(changed.get(package, "x = 1\n"))
    return root


def test_the_same_code_has_the_same_seeds_and_any_other_has_others(tmp_path: Path) -> None:
    one, same = tree(tmp_path / "one"), tree(tmp_path / "same")
    (same / "segments" / "inner" / "notes.txt").write_text("no code")
    assert 0 <= first_seed(one) == first_seed(same) < SEEDS
    others = [first_seed(tree(tmp_path / f"other-{package}", **{package: "x = 2\n"})) for package in PACKAGES]
    (same / "txnctl" / "inner" / "code.py").rename(same / "txnctl" / "inner" / "moved.py")
    assert len(dict.fromkeys([first_seed(one), first_seed(same), *others])) == len(PACKAGES) + 2
