"""docs/glossary.md against the code: each word is a name there, and the words that it refuses are none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import txnclient
import txnclient.sync
from simulation.fresh import PACKAGES
from txnstore import keys

ROOT = Path(__file__).resolve().parents[2]
USED, NOT_USED = (
    [(row[0].strip(), row[1].strip()) for row in re.findall(r"^\| (.+?) \| (.+) \|$", part, re.MULTILINE)[1:]]
    for part in (ROOT / "docs" / "glossary.md").read_text().split("## Words not used")
)
Words = tuple[str, ...]


def words_of(name: str) -> Words:
    """In lower case and in the singular: ("aborted", "record") of `AbortedRecords`."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)
    return tuple(word.lower().removesuffix("s") for word in words)


def names_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


@cache
def names() -> dict[str, str]:
    """Each name that the packages give to a module, class, function, parameter or variable → a file that gives it."""
    found: dict[str, str] = {}
    for package in (*PACKAGES, "pyspark_txnstore", "pytest_txnstore"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                continue
            place = path.relative_to(ROOT)
            given = [*place.with_suffix("").parts, *names_in(ast.parse(path.read_text()))]
            found.update((name, place.as_posix()) for name in given)
    return found


@cache
def sequences() -> set[Words]:
    """What stands side by side in a name: (a), (a, b) and (b) of `a_b`."""
    split = {words_of(name) for name in names()}
    return {
        words[first:end] for words in split for first in range(len(words)) for end in range(first + 1, len(words) + 1)
    }


def terms(row: str) -> list[str]:
    """The words of a row's first column; what stands in brackets tells where a word means this."""
    return [one.strip() for one in re.sub(r"\(.*?\)", "", row).split(",")]


def named(meaning: str) -> list[str]:
    """The names in code font, each part of a dotted one."""
    dotted = re.findall(r"`([A-Za-z_]\w*(?:\.\w+)*)`", meaning)
    return [part for name in dotted for part in name.split(".")]


def test_there_are_words_and_names() -> None:
    assert len(USED) > 60
    assert len(NOT_USED) > 8
    assert len(names()) > 5000, "the packages are elsewhere"


@pytest.mark.parametrize(("row", "meaning"), USED)
def test_each_word_is_part_of_a_name_or_its_row_tells_the_name(row: str, meaning: str) -> None:
    without = [term for term in terms(row) if words_of(term) not in sequences()]
    assert without == [] or named(meaning), f"no name in the code has {without}, and its row tells none"


@pytest.mark.parametrize(("row", "meaning"), USED)
def test_each_name_in_code_font_is_in_the_code(row: str, meaning: str) -> None:
    assert [name for name in named(meaning) if name not in names()] == []


def test_each_key_in_code_font_is_one_of_the_stores() -> None:
    prefixes = {value.decode() for name, value in vars(keys).items() if name.isupper() and isinstance(value, bytes)}
    shown = [key for _, meaning in USED for key in re.findall(r"`(/[\w-]+/)", meaning)]
    assert len(shown) > 3
    assert [key for key in shown if key not in prefixes] == []


@pytest.mark.parametrize(("refused", "instead"), NOT_USED)
def test_no_name_has_a_word_that_is_not_used(refused: str, instead: str) -> None:
    words = {words_of(word) for word in terms(refused)}
    found = [f"{place}: {name}" for name, place in names().items() for word in words_of(name) if (word,) in words]
    assert found == [], f"the word is {instead}"


def test_the_words_instead_are_in_the_glossary() -> None:
    known = {term for row, _ in USED for term in terms(row)}
    assert [word for _, instead in NOT_USED for word in terms(instead) if word not in known] == []


def test_each_class_of_both_faces_is_in_the_glossary() -> None:
    """What a user opens: the classes that have a synchronous twin."""
    known = {words_of(term) for row, _ in USED for term in terms(row)}
    twins = {
        name
        for name in txnclient.__all__
        if isinstance(kind := getattr(txnclient, name), type) and getattr(txnclient.sync, name, kind) is not kind
    }
    assert {"Client", "Producer", "Consumer"} <= twins
    assert {name for name in twins if words_of(name) not in known} == set()


def test_words_stand_in_alphabetical_order() -> None:
    shown = [re.sub("[^a-z ]", "", row.lower().replace("-", " ")).strip() for row, _ in USED]
    assert shown == sorted(shown)
