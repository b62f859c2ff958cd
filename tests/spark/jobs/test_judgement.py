"""What the audit calls wrong, over small histories: one clean, and that one with a fault planted in each way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from pyspark_txnstore.jobs.judgement import KINDS, KNOWN, SHOWN, STORED, TOLD, entries_of, findings, with_outcomes

A, B = "topic://public/spark/a", "topic://public/spark/b"
COMMITTED, ABORTED, OPEN, NAMED, FORGOTTEN, PENDING = (f"0001-{number:016x}" for number in range(1, 7))
NO_WRITER, WINNER, LOSER = "0" * 16, "1" * 16, "2" * 16


class Stored(NamedTuple):
    topic: str
    segment: str
    ledger_id: int
    entry_id: int
    txn_id: str | None
    writer: str
    producer: str
    incarnation: str
    sequence_id: int
    messages: int

    def rows(self) -> list[tuple[Any, ...]]:
        """The messages as they are shown."""
        return [
            (
                self.topic,
                self.segment,
                self.ledger_id,
                self.entry_id,
                self.txn_id,
                self.producer,
                self.sequence_id + index,
            )
            for index in range(self.messages)
        ]


def entry(
    topic: str, entry_id: int, txn_id: str | None, sequence_id: int, messages: int = 2, writer: str = NO_WRITER,
    producer: str = "p", incarnation: str = "aa",
) -> Stored:  # fmt: skip
    segment = topic.removeprefix("topic://") + "/0000-ffff-0"
    return Stored(topic, segment, 1, entry_id, txn_id, writer, producer, incarnation, sequence_id, messages)


class History:
    """A clean one; tests change what was shown, what is stored or what is known."""

    def __init__(self) -> None:
        self.stored = [
            entry(A, 0, None, 0),
            entry(A, 1, COMMITTED, 2),
            entry(B, 0, COMMITTED, 4),
            entry(A, 2, ABORTED, 6),
            entry(A, 3, OPEN, 8),
            entry(A, 4, NAMED, 10, writer=WINNER),
            entry(A, 5, NAMED, 0, writer=LOSER, producer="q"),
            entry(A, 6, FORGOTTEN, 12),
            entry(B, 1, FORGOTTEN, 14),
            entry(A, 7, PENDING, 16),
            entry(B, 2, None, 0, incarnation="bb"),  # the name was used again: the ids of its first life say nothing
        ]
        self.known: dict[str, tuple[str, list[str] | None, bool, bool]] = {
            COMMITTED: ("COMMITTED", None, True, False),
            ABORTED: ("ABORTED", None, True, False),
            OPEN: ("OPEN", None, True, True),
            NAMED: ("COMMITTED", [WINNER], True, False),
            FORGOTTEN: ("UNKNOWN", None, False, False),
            PENDING: ("COMMITTED", None, True, True),
        }
        self.told: list[tuple[str, str, bool]] = []
        self.hidden = [ABORTED, OPEN, PENDING]
        self.shown = [
            row for one in self.stored if one.txn_id not in self.hidden and one.writer != LOSER for row in one.rows()
        ]

    def entry(self, topic: str, entry_id: int) -> Stored:
        return next(one for one in self.stored if (one.topic, one.entry_id) == (topic, entry_id))

    def hide(self, topic: str, entry_id: int, *sequence_ids: int) -> None:
        """All of its messages, or these."""
        gone = [row for row in self.entry(topic, entry_id).rows() if not sequence_ids or row[-1] in sequence_ids]
        assert set(gone) <= set(self.shown)
        self.shown = [row for row in self.shown if row not in gone]

    def show(self, topic: str, entry_id: int) -> None:
        self.shown += self.entry(topic, entry_id).rows()


Fault = Callable[[History], None]


def _stored_again(history: History) -> None:
    again = history.entry(A, 1)._replace(entry_id=9)
    history.stored.append(again)
    history.show(A, 9)


def _overlapping(history: History) -> None:
    history.stored.append(entry(B, 9, None, 11, messages=3))
    history.show(B, 9)


def _moved_to_another_transaction(history: History) -> None:
    history.shown = [(*row[:4], FORGOTTEN, *row[5:]) if row[:1] + row[3:4] == (B, 0) else row for row in history.shown]


def _committed_without_its_writers(history: History) -> None:
    """Its name is forgotten: which of them counted nobody can tell, but each is whole or it is torn."""
    history.known[NAMED] = ("COMMITTED", None, False, False)
    history.hide(A, 4, 11)


def _told_by_segments(history: History, fault: Fault) -> None:
    history.known[NAMED] = ("COMMITTED", None, False, False)
    history.told = [(NAMED, WINNER, True), (NAMED, LOSER, False)]
    fault(history)


def _forgotten(history: History) -> None:
    del history.known[FORGOTTEN]
    history.hide(B, 1)


CASES: list[tuple[str, Fault, list[tuple[str, str | None, int, int]]]] = [
    ("nothing is wrong", lambda _: None, []),
    ("a part in another topic is missing", lambda h: h.hide(B, 0), [("torn", COMMITTED, 4, 2)]),
    ("one message is missing", lambda h: h.hide(A, 1, 3), [("torn", COMMITTED, 4, 3)]),
    ("all of it is missing", lambda h: (h.hide(A, 1), h.hide(B, 0)), [("hidden", COMMITTED, 4, 0)]),  # type: ignore[func-returns-value]
    ("of a forgotten one a part is missing", lambda h: h.hide(B, 1), [("torn", FORGOTTEN, 4, 2)]),
    ("of one nobody knows a part is missing", _forgotten, [("torn", FORGOTTEN, 4, 2)]),
    ("the part of the writer that counts is missing", lambda h: h.hide(A, 4), [("hidden", NAMED, 2, 0)]),
    ("a writer is torn, its name forgotten", _committed_without_its_writers, [("torn", NAMED, 2, 1)]),
    ("its name forgotten, its segments tell", lambda h: _told_by_segments(h, lambda _: None), []),
    (
        "its name forgotten, the part of the writer that counts is missing",
        lambda h: _told_by_segments(h, lambda h: h.hide(A, 4)),
        [("hidden", NAMED, 2, 0)],
    ),
    (
        "its name forgotten, a writer that does not count is shown",
        lambda h: _told_by_segments(h, lambda h: h.show(A, 5)),
        [("aborted", NAMED, 2, 2)],
    ),
    ("an aborted one is shown", lambda h: h.show(A, 2), [("aborted", ABORTED, 2, 2)]),
    ("a writer that does not count is shown", lambda h: h.show(A, 5), [("aborted", NAMED, 2, 2)]),
    ("an open one is shown", lambda h: h.show(A, 3), [("undecided", OPEN, 2, 2)]),
    ("one is shown that was pending", lambda h: h.show(A, 7), [("undecided", PENDING, 2, 2)]),
    ("an entry is shown twice", lambda h: h.show(B, 0), [("duplicated", COMMITTED, 2, 2)]),
    ("an entry is stored twice", _stored_again, [("duplicated", COMMITTED, 2, 2)]),
    ("ids of two entries overlap", _overlapping, [("duplicated", FORGOTTEN, 2, 2), ("duplicated", None, 3, 3)]),
    ("a message of no transaction is missing", lambda h: h.hide(A, 0, 1), [("lost", None, 2, 1)]),
    ("one is shown as another's", _moved_to_another_transaction, [("invented", COMMITTED, 2, 2)]),
    (
        "one is shown that is not stored",
        lambda h: h.shown.extend(entry(B, 77, None, 900, messages=1).rows()),
        [("invented", None, 0, 0)],
    ),
]  # fmt: skip


Finding = tuple[str, str | None, int, int]


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> dict[str, list[Finding]]:
    """Of all of them, by name. One question to Spark: each has topics, transactions and producers of its own."""
    stored, shown, known, told = [], [], [], []
    for number, (_, fault, _) in enumerate(CASES):
        history = History()
        fault(history)
        stored += [
            one._replace(segment=f"{number}/{one.segment}", txn_id=_own(number, one.txn_id), incarnation=f"{number}")
            if one.incarnation == "aa"
            else one._replace(segment=f"{number}/{one.segment}", incarnation=f"{number}b")
            for one in history.stored
        ]
        shown += [(row[0], f"{number}/{row[1]}", *row[2:4], _own(number, row[4]), *row[5:]) for row in history.shown]
        known += [(_own(number, txn_id), *rest) for txn_id, rest in history.known.items()]
        told += [(_own(number, txn_id), *rest) for txn_id, *rest in history.told]
    entries = entries_of(spark.createDataFrame(stored, STORED), spark.createDataFrame(shown, SHOWN)).persist()
    found: dict[str, list[Finding]] = {name: [] for name, _, _ in CASES}
    outcomes = spark.createDataFrame(known, KNOWN), spark.createDataFrame(told, TOLD)
    for row in findings(with_outcomes(entries, *outcomes)).collect():
        assert row.kind in KINDS
        assert row.detail
        number = int(row.segment.partition("/")[0])
        txn_id = None if row.txn_id is None else row.txn_id.partition("/")[2]
        found[CASES[number][0]].append((row.kind, txn_id, row.stored, row.shown))
    entries.unpersist()
    return found


def _own(number: int, txn_id: str | None) -> str | None:
    return None if txn_id is None else f"{number}/{txn_id}"


@pytest.mark.parametrize(("name", "expected"), [(name, expected) for name, _, expected in CASES])
def test_a_planted_fault_is_found_and_nothing_else(
    judged: dict[str, list[Finding]], name: str, expected: list[Finding]
) -> None:
    assert sorted(judged[name], key=str) == sorted(expected, key=str)


def test_every_kind_is_planted() -> None:
    assert {finding[0] for _, _, expected in CASES for finding in expected} == set(KINDS)
