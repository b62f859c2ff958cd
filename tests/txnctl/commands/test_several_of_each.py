"""What commands show of several rows, findings, names, segments and messages: each of them."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from rich.console import Console

from tests.cluster import InProcessCluster
from tests.waiting import until
from txnctl.checking.everything import Checked
from txnctl.commands.check import show_checked
from txnctl.commands.names import _delete_all, _expect_deleted, _said
from txnctl.commands.piping import _has_committed, _Sent, _tell_unread, write
from txnctl.commands.shared.asking import addresses_of, asking
from txnctl.commands.shared.lines import Input, PipedMessage, runs
from txnctl.commands.shared.output import Format, _print_blocks, _table, cell, show_rows
from txnctl.commands.snapshots import _show
from txnctl.commands.topics import _as_typed, _show_layout
from txnstore.etcd.embedded_etcd import free_port
from txnwire.errors import ConnectionLost, InvalidArgument, InvalidTxnState, NameNotFound, Overloaded

ROWS: list[dict[str, Any]] = [{"name": "a", "count": 1000, "note": "x"}, {"name": "longer", "count": 2, "note": "y"}]
COLUMNS = ["name", "count", "note"]


def test_lines_for_programs_have_all_rows_and_columns_as_wide_as_the_widest(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(ROWS, COLUMNS, Format.TABLE, empty="none")
    assert capsys.readouterr().out.splitlines() == [
        "name    count  note",
        "a       1000   x",
        "longer  2      y",
    ]


@pytest.mark.parametrize(("columns", "lines"), [("100", 1 + 1 + 2), ("12", 3 + 1 + 3)], ids=["a table", "blocks"])
def test_a_terminal_shows_all_rows_and_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str, lines: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show_rows(ROWS, COLUMNS, Format.TABLE, empty="none")
    shown = capsys.readouterr().out
    assert [text for text in ("a", "1,000", "x", "longer", "2", "y") if text not in shown] == []
    assert len(shown.splitlines()) == lines


def printed(show: Any) -> list[str]:
    terminal = Console(file=io.StringIO(), width=100, highlight=False)
    show(terminal)
    return [line.rstrip() for line in cast(io.StringIO, terminal.file).getvalue().splitlines()]


def test_tables_and_blocks_for_people_have_all_rows_and_columns() -> None:
    shown = [[cell(row[column]) for column in COLUMNS] for row in ROWS]
    table = _table(ROWS, COLUMNS, shown)
    assert [column.justify for column in table.columns] == ["left", "right", "left"]
    lines = printed(lambda terminal: terminal.print(table))
    assert [line.split() for line in (lines[0], *lines[2:])] == [COLUMNS, ["a", "1,000", "x"], ["longer", "2", "y"]]
    assert printed(lambda terminal: _print_blocks(COLUMNS, shown, terminal)) == [
        *("name   a", "count  1,000", "note   x"),
        "",
        *("name   longer", "count  2", "note   y"),
    ]


def test_a_cell_with_several_values_has_them_all_and_folds_where_any_of_its_column_is_long() -> None:
    assert cell([1000, "a", None]) == "1,000, a, -"
    shown = [["short"], ["x" * 40]]
    assert not _table([{"name": one} for (one,) in shown], ["name"], shown).columns[0].no_wrap


def test_a_column_is_one_of_numbers_only_if_each_of_its_cells_is_one() -> None:
    rows: list[dict[str, Any]] = [{"at": 1}, {"at": "one"}]
    assert [column.justify for column in _table(rows, ["at"], [["1"], ["one"]]).columns] == ["left"]


def test_a_check_tells_all_that_is_broken_and_all_that_was_repaired(capsys: pytest.CaptureFixture[str]) -> None:
    checked = Checked(7, [("one", "bad"), ("two", "worse")], [("torn", "mended"), ("ids", "raised")])
    show_checked(checked, Format.TABLE, repair=True)
    assert capsys.readouterr().out.splitlines() == [
        "repair: torn: mended",
        "repair: ids: raised",
        "one: bad",
        "two: worse",
        "2 broken invariants at revision 7",
    ]
    show_checked(checked, Format.JSON, repair=True)
    assert msgspec.json.decode(capsys.readouterr().out) == {
        "revision": 7,
        "broken": [{"rule": "one", "finding": "bad"}, {"rule": "two", "finding": "worse"}],
        "repaired": [{"what": "torn", "finding": "mended"}, {"what": "ids", "finding": "raised"}],
    }


class Names:
    """The service's answers to `names.delete`, in order."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = list(answers)
        self.asked: list[Any] = []

    async def ask(self, what: str, **args: Any) -> dict[str, Any]:
        self.asked.append(args["after"])
        return self._answers.pop(0)


def told(deleted: int, after: str | None = None, *, kept: int = 0, changed: int = 0) -> dict[str, Any]:
    return {"deleted": deleted, "open": 1, "kept": kept, "changed": changed, "after": after}


async def test_names_are_forgotten_in_several_requests_and_once_more_where_some_had_changed() -> None:
    service = Names(told(5, "m"), told(4, changed=2), told(2, "m"), told(0))
    answer = await _delete_all(service, "orders/")
    assert service.asked == [None, "m", None, "m"]
    assert answer == {"deleted": 11, "open": 2, "kept": 0, "changed": 0}
    assert _said(answer | {"kept": 3, "changed": 4}, None) == (
        "11 names forgotten, 2 are open and stay, 3 stay as the newest of their prefix (keep_newest), "
        "4 could not be read or changed meanwhile: repeat"
    )


@pytest.mark.parametrize(
    ("answers", "asked", "left"),
    [
        ([told(1)], [None], {"open": 1, "kept": 0, "changed": 0}),
        ([told(1, kept=2)], [None], {"open": 1, "kept": 2, "changed": 0}),
        ([told(1, "m", kept=1), told(1)] * 3, [None, "m"] * 3, {"open": 2, "kept": 1, "changed": 0}),
        ([told(1, changed=1)] * 3, [None] * 3, {"open": 1, "kept": 0, "changed": 1}),
        ([told(1, "m"), told(1, "m")], [None, "m"], {"open": 2, "kept": 0, "changed": 0}),
    ],
    ids=["at once", "the newest of one request", "the newest of several", "always changed", "no further"],
)
async def test_forgetting_is_repeated_as_long_as_that_may_help_and_not_for_ever(
    answers: list[dict[str, Any]], asked: list[str | None], left: dict[str, int]
) -> None:
    """▲ A request spares the newest of what it has read itself; what came before it, of another request, is not."""
    service = Names(*answers)
    assert await _delete_all(service, "orders/") == {"deleted": len(asked), **left}
    assert service.asked == asked


def test_of_names_that_are_forgotten_only_what_there_was_is_said() -> None:
    nothing = {"deleted": 2000, "open": 0, "kept": 0, "changed": 0}
    assert _said(nothing, None) == "2,000 names forgotten"
    assert _said(nothing | {"open": 1}, None) == "2,000 names forgotten, 1 are open and stay"
    assert _said(nothing, "orders/1") == "orders/1: forgotten"


@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        ("open", InvalidTxnState, "the transaction of 'n' is open: commit or abort it first"),
        ("kept", InvalidTxnState, "'n' stays: its begin asked for keep_newest"),
        ("changed", InvalidTxnState, "'n' was changed meanwhile: look again"),
        (None, NameNotFound, "no transaction is known by the name 'n'"),
    ],
)
def test_a_name_that_is_not_forgotten_is_told_with_the_reason(
    what: str | None, error: type[Exception], said: str
) -> None:
    answer = {"deleted": 0, "open": 0, "kept": 0, "changed": 0}
    _expect_deleted("n", answer | {"deleted": 1})
    with pytest.raises(error, match=said):
        _expect_deleted("n", answer if what is None else answer | {what: 1})


def test_a_split_and_a_merge_of_several_name_all_segments_that_they_made(capsys: pytest.CaptureFixture[str]) -> None:
    paths = [f"t/n/x/{name}" for name in ("0000-7fff-0", "8000-ffff-1", "0000-3fff-2", "4000-7fff-3", "8000-ffff-4")]
    children = [(2, 3), (4,), (), (), ()]
    segments = {n: SimpleNamespace(path=paths[n], children=children[n]) for n in range(5)}
    layout = cast(Any, SimpleNamespace(topic="topic://t/n/x", epoch=4, segments=segments))
    _show_layout(layout, "both", [f"segment://{path}" for path in paths[:2]], Format.TABLE)
    assert capsys.readouterr().out == "both into 0000-3fff-2 and 4000-7fff-3 and 8000-ffff-4, layout epoch 4\n"
    assert _as_typed({"max_segments": 4, "split_messages_per_s": 5}) == "max_segments=4,split_messages_per_s=5"


def test_a_snapshot_is_shown_with_all_its_segments(capsys: pytest.CaptureFixture[str]) -> None:
    bounds = {path: SimpleNamespace(resolved=f"1:{n}", end=f"2:{n}") for n, path in enumerate(("t/n/x/0", "t/n/x/1"))}
    _show(cast(Any, SimpleNamespace(segments=bounds, revision=7, pending=())))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:3] == [["t/n/x/0", "1:0", "2:0"], ["t/n/x/1", "1:1", "2:1"]]


def test_lines_of_a_pipe_are_all_sent_up_to_the_first_wrong_one_and_counted() -> None:
    found: list[PipedMessage] = []
    sent = _Sent("topic://t/n/x", 2, Input.JSON, None)
    wrong = sent.parse([b'{"value": "%d"}' % n for n in range(3)] + [b"{", b'{"value": "3"}'], found)
    assert isinstance(wrong, InvalidArgument)
    assert "line 4" in str(wrong)
    assert [one.value for one in found] == [b"0", b"1", b"2"]
    for messages in (2, 1):
        sent.add(messages)
    assert (sent.messages, sent.transactions) == (3, 2)
    plain = _Sent("topic://t/n/x", 0, Input.LINES, None)
    plain.add(2)
    assert (plain.messages, plain.transactions) == (2, 0)


def test_neighbours_are_sent_together_and_what_has_properties_alone() -> None:
    plain = [PipedMessage(None, b"%d" % n) for n in range(5)]
    alone = [PipedMessage(None, value, properties={"a": "b"}) for value in (b"x", b"y")]
    assert list(runs([*plain[:2], *alone, *plain[2:]])) == [plain[:2], [alone[0]], [alone[1]], plain[2:]]


def test_all_messages_of_a_page_are_written(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    messages: Sequence[Any] = [SimpleNamespace(data=b"one"), SimpleNamespace(data=b"two")]
    assert write(messages, Format.TABLE, b"\0")
    sys.stdout.flush()
    assert capsysbinary.readouterr().out == b"one\0two\0"


class Unread:
    """A consumer that cannot tell how much is unread."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def lag(self) -> Any:
        raise self._error


@pytest.mark.parametrize(("error", "told"), [(Overloaded("later"), "later"), (TimeoutError(), "no answer")])
async def test_where_the_lag_is_not_known_consume_ends_with_a_sentence(
    capsys: pytest.CaptureFixture[str], error: Exception, told: str
) -> None:
    """Everything that it was to print is printed: that is no failure."""
    await _tell_unread(cast(Any, Unread(error)))
    assert capsys.readouterr().err == f"whether more messages are there is not known: {told}\n"


class Cancelled:
    """A transaction whose commit was cancelled."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def commit(self, *, timeout: float) -> None:
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(("error", "committed"), [(None, True), (InvalidTxnState("it is ABORTED"), False)])
async def test_whether_a_cancelled_commit_counts_is_asked(error: Exception | None, committed: bool) -> None:
    assert await _has_committed(cast(Any, Cancelled(error))) is committed


async def test_of_several_servers_that_do_not_answer_each_is_told_with_its_error() -> None:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with pytest.raises(ConnectionLost, match=r"^no server answers \(") as raised:
        async with asking(f"txn://{','.join(addresses)}"):
            pytest.fail("nobody is there")
    first, second = str(raised.value).removeprefix("no server answers (").partition("). Is ")[0].split("; ")
    assert (first.startswith(addresses[0]), second.startswith(addresses[1])) == (True, True), raised.value


async def test_a_server_that_was_asked_has_no_connection_left(cluster: InProcessCluster) -> None:
    server = cluster.servers["control"].server
    before = server._connections
    for _ in range(3):
        async with asking(cluster.url) as asked:
            assert (await asked.ask("process.describe"))["id"] == "control"
    await until(lambda: server._connections <= before, lambda: f"{server._connections} connections to be {before}")


def test_a_url_that_is_none_is_named_by_its_option() -> None:
    with pytest.raises(InvalidArgument, match=r"^--url: "):
        addresses_of("http://somewhere")
