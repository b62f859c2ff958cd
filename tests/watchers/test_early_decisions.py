"""What is kept of decisions while segments load."""

from __future__ import annotations

import pytest

from txnstore.store import KeyValue
from watchers.early_decisions import EarlyDecisions


def header(name: str, revision: int = 5) -> KeyValue:
    return KeyValue(name.encode(), b"decided", 1, 2, revision)


def keys(*names: str) -> list[bytes]:
    return [name.encode() for name in names]


def end(early: EarlyDecisions, who: object, expected: list[bytes]) -> dict[bytes, KeyValue]:
    """As a membership does it."""
    early.expect(who, expected)
    found = early.take(who)
    early.leave(who)
    return {one.key: one for one in found}


def test_a_decision_is_kept_once_however_many_segments_load() -> None:
    early = EarlyDecisions()
    for who in range(64):
        early.begin(who)
    for number in range(100):
        early.note(header(f"t{number}"))
    assert len(early) == 100
    assert end(early, 7, keys("t3", "open")) == {b"t3": header("t3")}


def test_once_its_state_is_read_only_what_it_found_open_is_kept_for_a_segment() -> None:
    early = EarlyDecisions()
    early.begin("a")
    early.note(header("before"))
    early.note(header("of others"))
    early.expect("a", keys("before", "behind", "open"))
    assert len(early) == 0
    for number in range(100):
        early.note(header(f"t{number}"))
    early.note(header("behind"))
    assert len(early) == 0
    assert end(early, "a", keys("before", "behind", "open")) == {
        b"before": header("before"),
        b"behind": header("behind"),
    }


def test_what_came_before_the_oldest_that_still_reads_is_forgotten() -> None:
    early = EarlyDecisions()
    early.begin("a")
    early.note(header("one"))
    early.begin("b")
    early.note(header("two"))
    assert end(early, "a", keys("one", "two")) == {b"one": header("one"), b"two": header("two")}
    assert len(early) == 1, "b may hold what was decided since it began"
    assert end(early, "b", keys("two")) == {b"two": header("two")}
    assert len(early) == 0
    early.note(header("nobody loads"))
    assert len(early) == 0


@pytest.mark.parametrize("expected", [False, True])
def test_whoever_leaves_lets_go_of_what_was_kept_for_it(expected: bool) -> None:
    early = EarlyDecisions()
    early.begin("a")
    early.note(header("one"))
    if expected:
        early.expect("a", keys("one"))
    early.leave("a")
    early.leave("a")
    assert (len(early), bool(early)) == (0, False)


def test_a_decision_that_several_segments_expect_is_kept_for_each() -> None:
    early = EarlyDecisions()
    for who in ("a", "b", "c"):
        early.begin(who)
        early.expect(who, keys("one", "open"))
    early.note(header("one"))
    assert [early.take(who) for who in ("a", "b", "c")] == [[header("one")]] * 3


def test_the_newest_record_of_a_header_counts() -> None:
    early = EarlyDecisions()
    early.begin("a")
    early.note(header("one", 5))
    early.begin("b")
    early.note(header("one", 9))
    early.leave("a")
    assert end(early, "b", keys("one")) == {b"one": header("one", 9)}
