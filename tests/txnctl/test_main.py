"""How the command line ends: with which code, and what it says of an error, for people and for programs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

import msgspec
import pytest
import typer

from txnctl import main
from txnctl.main import _first_known, _report, _run_for_programs
from txnwire.errors import ConnectionLost, InvalidArgument, NameNotFound, TopicNotFound, TxnError

GONE = ConnectionLost("nobody answers")


@pytest.mark.parametrize(
    ("error", "code", "said", "retriable"),
    [
        (InvalidArgument("--at: no hash"), 2, "txnctl: --at: no hash", False),
        (TopicNotFound("there is none"), 1, "txnctl: TopicNotFound: there is none", False),
        (NameNotFound("never begun"), 1, "txnctl: NameNotFound: never begun", False),
        (GONE, 1, "txnctl: ConnectionLost: nobody answers", True),
        (OSError(2, "No such file", "a.toml"), 1, "txnctl: [Errno 2] No such file: 'a.toml'", False),
    ],
    ids=["an argument", "a topic", "a name", "a connection", "the machine"],
)
def test_an_error_is_told_in_a_line_or_an_object_and_has_the_same_code(
    capsys: pytest.CaptureFixture[str], error: TxnError | OSError, code: int, said: str, retriable: bool
) -> None:
    assert _report(error, as_json=False) == code
    assert tuple(capsys.readouterr()) == ("", f"{said}\n")
    assert _report(error, as_json=True) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert msgspec.json.decode(err) == {
        "error": type(error).__name__,
        "message": str(error),
        "retriable": retriable,
        "exit_code": code,
    }


def test_of_errors_that_came_together_the_first_is_told_and_a_bug_among_them_is_kept() -> None:
    bug = KeyError("a bug")
    deep = ExceptionGroup("outer", [ExceptionGroup("inner", [GONE, OSError("later")]), OSError("last")])
    assert _first_known(deep) == (GONE, None)
    known, others = _first_known(ExceptionGroup("both", [bug, GONE]))
    assert known is GONE
    assert others is not None
    assert others.exceptions == (bug,)
    assert _first_known(ExceptionGroup("bugs", [bug]))[0] is None


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Runs `main` with a command that raises this error; the exit code, or what else came out of it."""

    def run(error: BaseException, *words: str) -> object:
        def command() -> NoReturn:
            raise error

        monkeypatch.setattr("txnctl.cli.app", command)
        monkeypatch.setattr(sys, "argv", ["txnctl", *words])
        try:
            main.main()
        except SystemExit as exited:
            return exited.code
        raise AssertionError("it returned")

    return run


def test_a_command_ends_with_the_code_of_its_error(
    ended: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(GONE) == 1
    assert ended(PermissionError(13, "Permission denied")) == 1
    assert ended(InvalidArgument("no such form")) == 2
    assert ended(ExceptionGroup("together", [GONE, OSError("later")])) == 1
    assert capsys.readouterr().err.splitlines() == [
        "txnctl: ConnectionLost: nobody answers",
        "txnctl: [Errno 13] Permission denied",
        "txnctl: no such form",
        "txnctl: ConnectionLost: nobody answers",
    ]
    assert ended(KeyboardInterrupt()) == 130
    assert ended(SystemExit(3)) == 3
    assert capsys.readouterr().err == ""


def test_a_bug_is_shown_with_its_traceback(ended: Callable[..., object]) -> None:
    with pytest.raises(KeyError):
        ended(KeyError("a bug"))
    with pytest.raises(ExceptionGroup):
        ended(ExceptionGroup("together", [GONE, KeyError("a bug")]))
    with pytest.raises(ExceptionGroup):
        ended(ExceptionGroup("together", [KeyError("a bug")]))


def test_where_the_reader_of_a_pipe_has_gone_nothing_is_written_at_the_end(
    ended: Callable[..., object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", sys.stdout)
        assert ended(BrokenPipeError(32, "Broken pipe")) == 1
        assert sys.stdout is None
    assert capsys.readouterr().err == ""


def test_for_programs_a_command_ends_with_its_code_and_says_wrong_usage_in_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def returned() -> object:
        raise typer.Exit(3)

    def aborted() -> object:
        raise typer.Abort

    def misused() -> object:
        raise typer.BadParameter("no such thing")

    codes = []
    for command in (returned, aborted, lambda: None, misused):
        app = typer.Typer()
        app.command()(command)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["txnctl"])
            codes.append(_run_for_programs(app))
    assert codes == [3, 130, 0, 2]
    told = msgspec.json.decode(capsys.readouterr().err)
    assert (told["error"], told["retriable"], told["exit_code"]) == ("Usage", False, 2)
    assert "no such thing" in told["message"]


def test_the_first_process_of_a_container_heeds_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    """▲ Linux drops signals to it that it has no handler for."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        main._heed_sigterm()
        assert signal.getsignal(signal.SIGTERM) == before, "elsewhere the usual one does"
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            main._heed_sigterm()
        with pytest.raises(SystemExit) as exited:
            signal.raise_signal(signal.SIGTERM)
        assert exited.value.code == 143
    finally:
        signal.signal(signal.SIGTERM, before)
