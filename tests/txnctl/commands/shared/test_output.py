"""What a value looks like in a cell, and what is shown where there is nothing to show or too little room."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from txnctl.commands.shared.output import Format, cell, counted, say, show_done, show_rows


@pytest.mark.parametrize(
    ("value", "shown", "plain"),
    [
        (None, "-", "-"),
        ([], "-", "-"),
        ("", "-", "-"),
        (True, "yes", "yes"),
        (False, "no", "no"),
        (0, "0", "0"),
        (1_234_567, "1,234,567", "1234567"),
        (0.0, "0.0", "0.0"),
        (1234.56, "1,234.6", "1234.56"),
        ([1000, 2.25, None], "1,000, 2.2, -", "1000, 2.25, -"),
        (("a", True), "a, yes", "a, yes"),
        ({"a": [1, "x\n"]}, '{"a":[1,"x\\n"]}', '{"a":[1,"x\\n"]}'),
        ({}, "{}", "{}"),
        ("x\x00\ny", "x\\x00\\ny", "x\\x00\\ny"),
    ],
)
def test_a_cell_is_for_people_or_plain_for_programs(value: Any, shown: str, plain: str) -> None:
    assert (cell(value), cell(value, plain=True)) == (shown, plain)


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 messages"), (1, "1 message"), (2, "2 messages"), (2000, "2,000 messages")]
)
def test_one_is_counted_in_the_singular(number: int, said: str) -> None:
    assert counted(number, "message", "messages") == said


def test_no_rows_are_an_empty_list_for_programs_and_a_sentence_beside_the_output_for_people(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_rows([], ["name"], Format.JSON, empty="nothing is there")
    assert tuple(capsys.readouterr()) == ("[]\n", "")
    show_rows([], ["name"], Format.TABLE, empty="nothing is there")
    assert tuple(capsys.readouterr()) == ("", "nothing is there\n")


def test_a_row_without_a_column_has_an_empty_cell_in_it_and_json_has_what_is_no_column(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"name": "a", "more": 1}, {"name": "b", "count": 0}]
    show_rows(rows, ["name", "count"], Format.TABLE, empty="")
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["name", "count"],
        ["a", "-"],
        ["b", "0"],
    ]
    show_rows(rows, ["name", "count"], Format.JSON, empty="")
    assert '"more": 1' in capsys.readouterr().out


def test_what_was_done_is_said_in_a_sentence_or_in_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    show_done("a: deleted", {"name": "a"}, Format.TABLE)
    assert capsys.readouterr().out == "a: deleted\n"
    show_done("a: deleted", {"name": "a"}, Format.JSON)
    assert capsys.readouterr().out == '{\n  "name": "a"\n}\n'


def test_a_line_is_said_as_it_is_however_long_and_with_what_looks_like_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    line = "[bold]name[/bold] [x] 7 of 'all' " + "word " * 20 + "end"
    for terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
        say(line)
        assert capsys.readouterr().out == f"{line}\n"


def test_a_wide_terminal_shows_a_table_with_short_titles_and_a_narrow_one_a_block_for_each_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    rows = [{"topic": topic, "oldest_open_s": 1000, "read_to": "12:34"} for topic in ("t" * 21, "u")]

    def shown(width: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        show_rows(rows, list(rows[0]), Format.TABLE, empty="")
        plain = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        return [line.rstrip() for line in plain.splitlines()]

    header, _, *lines = shown(60)
    assert header.split() == ["topic", "oldest", "s", "read", "to"]
    assert [line.split() for line in lines] == [["t" * 21, "1,000", "12:34"], ["u", "1,000", "12:34"]]
    assert shown(20) == [
        *(f"topic     {'t' * 21}", "oldest s  1,000", "read to   12:34"),
        "",
        *("topic     u", "oldest s  1,000", "read to   12:34"),
    ]


def test_at_every_width_what_is_short_is_shown_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """rich's measure of a table leaves out a part of its padding: cells lost their last characters."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    row = {
        "txn": "0003-00000000000004d2", "state": "OPEN", "age_s": 1.5, "timeout_in_s": 58.5, "owner": "anonymous",
        "reason": None, "note": "a note of more characters than are kept whole",
    }  # fmt: skip
    tables = 0
    for width in range(20, 130):
        monkeypatch.setenv("COLUMNS", str(width))
        show_rows([row], list(row), Format.TABLE, empty="")
        words = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).split()
        assert {"0003-00000000000004d2", "OPEN", "1.5", "58.5", "anonymous", "-", "txn", "owner", "reason"} <= set(
            words
        )
        tables += words[1] == "state"
    assert tables > 50
