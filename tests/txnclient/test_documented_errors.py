"""The tables of errors in docs/client.md are held against the classes, and against what the calls themselves say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import txnclient
from txnclient import TxnError
from txnwire.errors import ERRORS_BY_CODE

SECTION = (
    (Path(__file__).resolve().parents[2] / "docs" / "client.md").read_text().split("\n## Errors\n")[1].split("\n## ")[0]
)
NAMES = {cls.__name__ for cls in ERRORS_BY_CODE.values()}
FACES = {
    "Client": txnclient.Client,
    "Transaction": txnclient.Transaction,
    "Producer": txnclient.Producer,
    "Consumer": txnclient.Consumer,
    "Reader": txnclient.Reader,
}
ANY_CALL = {"InvalidArgument", "Timeout", "Unauthorized", "InternalError"}
NOT_OF_USERS = {"Client.admin"}


def test_every_error_is_in_the_table_with_what_it_allows() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w*) ?\| ([^|]+) \| ([^|]+) \|$", SECTION, re.MULTILINE)
    assert sorted(name for name, *_ in rows) == sorted(NAMES)
    assert {name: allows for name, allows, *_ in rows} == {
        cls.__name__: _allows(cls) for cls in ERRORS_BY_CODE.values()
    }


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


def test_every_call_is_in_the_table_with_what_its_docstring_says_it_raises() -> None:
    rows = re.findall(r"^\| (`[a-z].*?) \| (.*?) ?\|$", SECTION.split("**What a call raises.**")[1], re.MULTILINE)
    told = {
        call: set(re.findall(r"`(\w+)`", raised)) for calls, raised in rows for call in re.findall(r"`(.*?)`", calls)
    }
    calls = _calls()
    assert len(calls) > 30
    for name, function in calls.items():
        face, _, method = name.partition(".")
        shown = f"{face.lower()}.{method}"
        assert shown in told, f"{shown} is not in docs/client.md"
        raised = set(re.findall(r"`(\w+)`", _what_is_raised(function))) & NAMES
        assert raised <= told[shown] | ANY_CALL, f"{shown}: docs/client.md lacks {raised - told[shown] - ANY_CALL}"
    every = {f"{name.partition('.')[0].lower()}.{name.partition('.')[2]}" for name in calls}
    assert {call for call in told if not call.startswith("txnclient.")} - every <= {
        "connect", "consumer.rewind", "client.transaction", "client.list_topics",
    }, "docs/client.md has calls that there are not"  # fmt: skip


def _what_is_raised(function: Callable[..., Any]) -> str:
    """Of its docstring, from its first "Raises" on."""
    return (inspect.getdoc(function) or "").partition("Raises")[2]
