"""The judge of streams from cut to cut against planted mistakes (X5), and where a range may be parted."""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.workloads.stream_work import ShownMessage, StreamLog, partings
from txnclient.reading.entries import EntryHead, PieceHead
from txnwire.ids import Position

PATH = "public/sim/in/0000-ffff-0"


def step(text: str, first: int = 1) -> list[ShownMessage]:
    """`text`: a transaction and what of it is shown, e.g. "t1:ab"; "-" is none."""
    found = [(txn, value) for txn, _, values in (one.partition(":") for one in text.split()) for value in values]
    return [
        ShownMessage(Position(1, number), None if txn == "-" else txn, value)
        for number, (txn, value) in enumerate(found, start=first)
    ]


def stream(*steps: str, expected: str) -> StreamLog:
    log = StreamLog(("topic://public/sim/in",), steps=[{} for _ in steps], expected=Counter(expected), ended=True)
    for number, text in enumerate(steps):
        log.told(number, PATH, step(text))
    return log


SENT = (["a", "b"], ["c"], ["d", "e"])


def test_x2_each_transaction_whole_in_one_step_is_right() -> None:
    log = stream("t1:ab -:c", "", "t2:de", expected="abcde")
    log.told(2, PATH, step("t2:de"))
    assert list(log.findings(SENT)) == []
    assert log.again == 1


@pytest.mark.parametrize(
    ("planted", "finding"),
    [
        (stream("t1:ab", "t1:b", expected="ab"), "b was shown by step 0 and by step 1"),
        (stream("t1:a", "t1:b", expected="ab"), "t1 was shown by step 0 and by step 1"),
        (stream("-:a", "-:b", expected="ab"), "of a, b, which belong together"),
        (stream("t2:d", expected="d"), "of d, e, which belong together"),
        (stream("-:c", "t1:ab", expected="abcde"), "it lacks d, e"),
        (stream("-:c", expected=""), "it has, and no reader, c"),
    ],
)
def test_x2_planted_mistakes_are_found(planted: StreamLog, finding: str) -> None:
    assert any(finding in found for found in planted.findings(SENT)), list(planted.findings(SENT))


@pytest.mark.parametrize("again", ["t1:a", "t1:ba", "t2:ab", "t1:ab -:c", ""])
def test_x2_a_step_that_shows_something_else_when_it_is_read_again_is_found(again: str) -> None:
    log = stream("t1:ab", expected="ab")
    log.told(0, PATH, step(again))
    assert any("read again" in found for found in log.findings(SENT))


def test_x2_a_step_that_shows_the_same_elsewhere_is_found() -> None:
    log = stream("t1:ab", expected="ab")
    log.told(0, PATH, step("t1:ab", first=2))
    assert any("read again" in found for found in log.findings(SENT))


def test_a_stream_that_has_not_ended_lacks_nothing_yet() -> None:
    log = stream("t1:a", expected="")
    log.ended = False
    assert list(log.findings(SENT)) == []


def test_x2_a_range_is_parted_anywhere_but_amid_large_values() -> None:
    def head(entry: int, producer: str = "", number: int = -1) -> EntryHead:
        piece = None if number < 0 else PieceHead(producer, 7, 1, number, 3)
        return EntryHead(Position(1, entry), None, 0, 1, 10, 0, False, piece)

    plain = [head(1), head(2), head(3)]
    assert partings(plain) == [Position(1, 1), Position(1, 2)]
    assert partings([]) == []
    value = [head(4, "p", 0), head(5, "p", 1), head(6), head(7, "p", 2), head(8)]
    assert partings([*plain, *value]) == [Position(1, 1), Position(1, 2), Position(1, 3), Position(1, 7)]
    between = [head(1, "p", 0), head(2, "q", 0), head(3, "p", 1), head(4, "p", 2), head(5, "q", 1), head(6, "q", 2)]
    assert partings([*between, head(7)]) == [Position(1, 6)]
