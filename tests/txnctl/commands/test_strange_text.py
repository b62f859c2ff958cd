"""What a command is given or shows that is no plain text, and what it reads that cannot be read."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.txnctl.command_line import txnctl
from txnctl.commands.piping import _stdin_chunks
from txnctl.commands.shared.lines import Splitter
from txnctl.commands.shared.output import Format, show_rows
from txnwire.errors import InvalidArgument


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("job\n0003-0000000000000001  OPEN", "job\\n0003-0000000000000001  OPEN"),
        ("\x1b[2K\x1b[1Ahidden", "\\x1b[2K\\x1b[1Ahidden"),
        ("\u202etxet", "\\u202etxet"),
        ("größe 価格 ✓", "größe 価格 ✓"),
    ],
)
def test_free_text_of_clients_stays_in_its_cell(name: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([{"name": name, "state": "COMMITTED"}], ["name", "state"], Format.TABLE, empty="none")
    assert capsys.readouterr().out.splitlines()[1:] == [f"{shown}  COMMITTED"]


def test_properties_stay_in_their_cell_like_names(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON writes out the control characters of ASCII alone; U+009B begins an escape sequence, too."""
    row = {"properties": {"a": "\x9b2K\u2028\u202etxet"}, "key": "k"}
    show_rows([row], ["properties", "key"], Format.TABLE, empty="none")
    assert capsys.readouterr().out.splitlines()[1:] == ['{"a":"\\x9b2K\\u2028\\u202etxet"}  k']


async def test_input_that_cannot_be_read_ends_produce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for the next lines for ever."""
    folder = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(fileno=lambda: folder))
    try:
        async with asyncio.timeout(20):
            with pytest.raises(IsADirectoryError):
                [lines async for lines in _stdin_chunks(Splitter(b"\n"))]
    finally:
        os.close(folder)
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it where it is closed
    with pytest.raises(InvalidArgument, match="standard input is closed"):
        [lines async for lines in _stdin_chunks(Splitter(b"\n"))]


async def test_an_empty_prefix_does_not_forget_every_name_of_the_cluster() -> None:
    """A variable of a script that is not set: without a terminal nobody is asked."""
    refused = await txnctl("names", "delete", "--prefix", "", "--yes", url="txn://127.0.0.1:1")
    assert (refused.code, "every name of the cluster" in refused.err) == (2, True), refused
