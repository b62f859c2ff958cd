"""The tables of errors in docs/client.md are held against the classes, and against what the calls themselves say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txnclient
from txnclient import TxnError
from txnclient.obeying import ANY, AS_OTHERS, CALLS, NextStep, rows
from txnwire.errors import ERRORS

SECTION = (
    (Path(__file__).resolve().parents[2] / "docs" / "client.md").read_text().split("\n## Errors\n")[1].split("\n## ")[0]
)
NAMES = {cls.__name__ for cls in ERRORS}
FACES = {
    "Client": txnclient.Client,
    "Transaction": txnclient.Transaction,
    "Producer": txnclient.Producer,
    "Consumer": txnclient.Consumer,
    "Reader": txnclient.Reader,
}
NOT_OF_USERS = {"Client.admin"}


def test_every_error_is_in_the_table_with_what_it_allows() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w*) ?\| ([^|]+) \| ([^|]+) \|$", SECTION, re.MULTILINE)
    assert sorted(name for name, *_ in rows) == sorted(NAMES)
    assert {name: allows for name, allows, *_ in rows} == {cls.__name__: _allows(cls) for cls in ERRORS}


def _allows(cls: type[TxnError]) -> str:
    found = [name for name, held in (("retriable", cls.retriable), ("fatal", cls.fatal)) if held]
    return " ".join([*found, *["abort"] * cls.requires_abort])


def _calls() -> dict[str, Callable[..., Any]]:
    """What users call, by `Class.name`: what waits, is answered later, or opens something."""
    found: dict[str, Callable[..., Any]] = {}
    for name, cls in FACES.items():
        for member, function in inspect.getmembers(cls, inspect.isfunction):
            waits = inspect.iscoroutinefunction(function) or "Raises" in (inspect.getdoc(function) or "")
            if waits and not member.startswith("_"):
                found[f"{name}.{member}"] = function
    return {name: function for name, function in found.items() if name not in NOT_OF_USERS}


def _named(function: Callable[..., Any]) -> set[str]:
    """The errors that its docstring says it raises: those of its paragraph with "Raises", and of the rest of it."""
    return set(re.findall(r"`(\w+)`", (inspect.getdoc(function) or "").partition("Raises")[2])) & NAMES


@pytest.mark.parametrize("name", _calls())
def test_a_docstring_names_what_the_table_says_the_call_raises(name: str) -> None:
    face, _, method = name.partition(".")
    call = f"{face.lower()}.{method}"
    assert call in {*CALLS, *AS_OTHERS}, f"{call} is not in txnclient/obeying.py"
    own = {error.__name__ for error in CALLS.get(call, {})}
    of_all = {error.__name__ for error in ANY}
    others = {error.__name__ for other in AS_OTHERS.get(call, ()) for error in CALLS[other]}
    named = _named(_calls()[name])
    assert own - of_all <= named, f"{name}: its docstring lacks {own - of_all - named}"
    assert named <= own | of_all | others, f"{call}: the table lacks {named - own - of_all - others}"
    if call in AS_OTHERS:
        told = (inspect.getdoc(_calls()[name]) or "").partition("aises")[2]
        for other in AS_OTHERS[call]:
            assert f"`{other.partition('.')[2]}`" in told, f"{name}: its docstring does not say: as `{other}`"


def test_the_table_has_no_other_calls() -> None:
    calls = {f"{name.partition('.')[0].lower()}.{name.partition('.')[2]}" for name in _calls()}
    assert {*CALLS, *AS_OTHERS} - calls == {"connect"}
    assert {error.__name__ for error in CALLS["connect"]} <= _named(txnclient.connect)
    assert {other for others in AS_OTHERS.values() for other in others} <= set(CALLS)


def test_the_docs_show_the_table() -> None:
    shown = re.findall(r"^\| `[a-z].*\|$", SECTION.split("**What a call raises.**")[1], re.MULTILINE)
    assert [row for row in shown if "txnclient.process" not in row] == rows(), "paste:\n" + "\n".join(rows())


@pytest.mark.parametrize(
    ("call", "error", "step"),
    [(call, error, step) for call, errors in {"any": ANY, **CALLS}.items() for error, step in errors.items()],
)
def test_the_flags_lead_to_the_step_or_to_a_more_careful_one(call: str, error: type[TxnError], step: NextStep) -> None:
    """Whoever obeys the flags alone does no harm: what is fatal ends, what is retriable may be called again, and what
    asks for an abort is never called again as it was."""
    if error.fatal:
        assert step is NextStep.STOP
    if error.retriable:
        assert step is NextStep.CALL_AGAIN
    if step is NextStep.CALL_AGAIN:
        assert error.retriable or error is txnclient.WouldBlock
        assert not error.requires_abort
    if step is NextStep.BEGIN_AGAIN:
        assert error.requires_abort
    if step is NextStep.LEAVE:
        assert _allows(error) == ""


def test_no_error_is_forgotten() -> None:
    """`SegmentSealed` and `SequenceGap` are mended by producers; `UndecodableMessage` comes where a value is read."""
    found = {error for errors in (ANY, *CALLS.values()) for error in errors}
    assert {cls.__name__ for cls in set(ERRORS) - found} == {"SegmentSealed", "SequenceGap", "UndecodableMessage"}
