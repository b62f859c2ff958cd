"""What `transactions describe` and `subscriptions describe` say of what is there, of what is not, and of what is not
known."""

from __future__ import annotations

from typing import Any

import pytest

from txnctl.commands.subscriptions import _behind, _lag_cells, _name_of
from txnctl.commands.transactions import _describe

HEADER: dict[str, Any] = {
    "reason": None,
    "owner": "anonymous",
    "created_ms": 1,
    "timeout_ms": 60_001,
    "finalized_ms": None,
    "name": None,
    "writers": None,
    "txn_key": None,
    "key_epoch": None,
}
COLLECTED = "its header has been collected: no more than the outcome is kept"


def told(capsys: pytest.CaptureFixture[str], *, outcome: str, header: dict[str, Any] | None, **more: Any) -> list[str]:
    _describe({"txn": "0003-1", "outcome": outcome, "header": header, "operations": [], **more})
    shown = capsys.readouterr()
    assert shown.err == "no operation records (none yet, or cleaned up)\n"
    return shown.out.splitlines()


def test_an_open_transaction_is_told_with_its_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, outcome="OPEN", header=HEADER) == [
        "0003-1: OPEN",
        "owner anonymous, begun 1970-01-01 00:00:00.001+00:00, aborted at the latest 1970-01-01 00:01:00.001+00:00",
    ]


def test_a_transaction_that_has_ended_is_told_with_how_and_when_and_under_which_name_and_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = {
        **HEADER,
        **{"reason": "admin", "owner": "", "finalized_ms": 1500, "name": "job\n7", "writers": ["a", "b"]},
        **{"txn_key": "etl\x1b", "key_epoch": 3},
    }
    assert told(capsys, outcome="ABORTED", header=ended, note="rows=3\n", keep_ms=90_000, keep_newest=False) == [
        "0003-1: ABORTED, reason: admin",
        "owner -, begun 1970-01-01 00:00:00.001+00:00, ended 1970-01-01 00:00:01.500+00:00",
        "name job\\n7, 2 writers count",
        "transaction key etl\\x1b, epoch 3",
        "note rows=3\\n",
        "how it ended is known for 0:01:30 after its end",
    ]


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        ({}, []),
        ({"writers": None, "note": None}, []),
        ({"writers": []}, ["0 writers count: "]),
        ({"writers": ["a", "b"], "note": "n"}, ["2 writers count: a b", "note n"]),
        (
            {"keep_ms": 60_000, "keep_newest": True},
            [
                "how it ended is known for 0:01:00 after its end, "
                "and for ever while it is the newest commit of its prefix"
            ],
        ),
    ],
)
def test_of_a_collected_transaction_what_is_kept_is_told(
    capsys: pytest.CaptureFixture[str], more: dict[str, Any], lines: list[str]
) -> None:
    assert told(capsys, outcome="COMMITTED", header=None, **more) == ["0003-1: COMMITTED", COLLECTED, *lines]


def test_the_writers_of_operations_are_told_where_any_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    plain = {"kind": "write", "segment": "s", "producer": "p", "messages": 2, "bytes": 1000}
    usual = ["kind", "segment", "subscription", "producer", "consumer", "messages", "bytes"]
    for operations, columns in (([plain], usual), ([plain, plain | {"writer": "w"}], [*usual, "writer"])):
        _describe({"txn": "0003-1", "outcome": "OPEN", "header": None, "operations": operations})
        header, *rows = capsys.readouterr().out.splitlines()[2:]
        assert header.split() == columns
        assert [row.split()[:7] for row in rows] == [["write", "s", "-", "p", "-", "2", "1000"]] * len(operations)
        assert rows[-1].split()[-1] == ("w" if len(operations) == 2 else "1000")


@pytest.mark.parametrize(
    ("messages", "age_s", "said"),
    [
        (None, None, "? messages not acked"),
        (None, 5, "? messages not acked"),
        (0, None, "0 messages not acked"),
        (1, None, "1 message not acked, the oldest ? s old"),
        (2000, 1.5, "2,000 messages not acked, the oldest 1.5 s old"),
        (2, 0, "2 messages not acked, the oldest 0 s old"),
    ],
)
def test_how_far_a_subscription_is_behind_is_told_as_far_as_it_is_known(
    messages: int | None, age_s: float | None, said: str
) -> None:
    assert _behind({"lag_messages": messages, "lag_seconds": age_s}) == said


def test_a_lag_that_is_not_known_is_no_empty_cell() -> None:
    """A dash would read as none."""
    assert _lag_cells({}) == {"lag_messages": "?", "lag_seconds": "?"}
    assert _lag_cells({"lag_messages": 0, "lag_seconds": None}) == {"lag_messages": 0, "lag_seconds": "?"}
    assert _lag_cells({"lag_messages": 3, "lag_seconds": 0}) == {"lag_messages": 3, "lag_seconds": 0}


def test_consumers_are_told_by_the_names_that_they_were_given() -> None:
    assert [_name_of(one) for one in ("worker@7@8", "worker", None)] == ["worker", "worker", None]
