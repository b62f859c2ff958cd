"""docs/scenarios.md and the counts of docs/testing.md are what the code says now, and cannot say what is not there."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

import pytest

from tools import generate_scenarios


def test_pages_are_fresh(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["generate_scenarios.py", "--check"])
    assert generate_scenarios.main() == 0, capsys.readouterr().err


def test_a_page_that_is_stale_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = tmp_path / "scenarios.md"
    stale.write_text(generate_scenarios.page().replace("| V1 |", "| V1 | and what nobody shows"))
    monkeypatch.setattr(generate_scenarios, "PAGE", stale)
    monkeypatch.setattr(generate_scenarios, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["generate_scenarios.py", "--check"])
    assert generate_scenarios.main() == 1
    assert capsys.readouterr().err == "scenarios.md is stale: run `make scenarios`\n"


def test_a_row_without_a_test_and_a_test_without_a_row_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = generate_scenarios.SOURCE.read_text()
    source = tmp_path / "scenarios.toml"
    monkeypatch.setattr(generate_scenarios, "SOURCE", source)
    source.write_text(text + 'C999 = "Nobody tests it"\n')
    with pytest.raises(SystemExit, match="no test carries C999"):
        generate_scenarios.page()
    source.write_text(text.replace("\nV2 = ", "\n# "))
    with pytest.raises(
        SystemExit, match=r"does not have what tests carry: {'V2': \['segments/subscription/test_reading.py'"
    ):
        generate_scenarios.page()


def test_ids_of_a_family_are_numbered_without_gaps() -> None:
    ids = [id for rows in generate_scenarios.sentences().values() for id in rows]
    families = [(family, [int(id[1:]) for id in some]) for family, some in groupby(ids, key=lambda id: id[0])]
    assert len(dict.fromkeys(family for family, _ in families)) == len(families) == 11
    assert all(numbers == list(range(1, len(numbers) + 1)) for _, numbers in families)
