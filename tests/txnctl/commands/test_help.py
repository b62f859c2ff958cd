"""`--help` of every command is readable in a terminal of 80 columns: nothing runs over, nothing is cut off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from txnctl.cli import app


def commands(group: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


EVERY = list(commands(typer.main.get_command(app)))


def test_all_commands_are_looked_at() -> None:
    assert len(EVERY) > 40
    assert {("read",), ("backup",), ("topics", "peek"), ("subscriptions", "create")} <= set(EVERY)


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_fits_80_columns(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    shown = CliRunner().invoke(app, [*words, "--help"], prog_name="txnctl")
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert [line for line in lines if line.rstrip().endswith(("…", "...")) and not line.startswith("Usage")] == []
    assert "─" not in shown.output, "a table of it would cut words off"


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_says_what_each_command_does(words: tuple[str, ...]) -> None:
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    assert command.help
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{parameter.name} of {' '.join(words)} is not explained"
