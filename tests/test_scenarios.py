"""The scenarios' table in docs/testing.md and the tests that carry their ids are held together."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
ID = re.compile(r"[A-Z]\d+")
TOLD = {id: (what, where) for id, what, where in ROW.findall((TESTS.parent / "docs" / "testing.md").read_text())}
FAMILIES = "VADLSPKREXC"


@cache
def carried() -> dict[str, dict[str, None]]:
    """Id → files, as in the table, with a test whose name or docstring has it."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for path in sorted(TESTS.rglob("*.py")):
        for function in functions_of(path):
            words = [word.upper() for word in function.name.split("_")] + ID.findall(ast.get_docstring(function) or "")
            for word in words:
                if ID.fullmatch(word) and word[0] in FAMILIES:
                    found[word][path.relative_to(TESTS).as_posix()] = None
    return found


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Also those of contract suites, in classes."""
    top = ast.parse(path.read_text()).body
    within = [node for one in top if isinstance(one, ast.ClassDef) for node in one.body]
    for node in [*top, *within]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def test_every_file_that_the_table_names_has_a_test_with_the_id() -> None:
    files = carried()
    for id, (_, where) in TOLD.items():
        named = re.findall(r"`([\w/]+\.py)`", where)
        assert named, f"{id}: no file is named"
        for name in named:
            assert name in files[id], (
                f"docs/testing.md: no test of {name} has {id} in its name; those of {[*files[id]]} do"
            )


def test_every_id_of_a_test_is_in_the_table_and_no_id_is_left_out() -> None:
    unknown = {id: [*files] for id, files in carried().items() if id not in TOLD}
    assert unknown == {}, f"docs/testing.md does not know them: {unknown}"
    assert [family for family, _ in groupby(TOLD, key=lambda id: id[0])] == list(FAMILIES)
    for _, ids in groupby(TOLD, key=lambda id: id[0]):
        numbers = [int(id[1:]) for id in ids]
        assert numbers == list(range(1, len(numbers) + 1))
