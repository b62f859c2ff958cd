"""The judges of large values and of dead letters against planted mistakes (X5)."""

from __future__ import annotations

import pytest

from simulation.workloads.dead_work import DeadLog
from simulation.workloads.large_work import PIECE_BYTES, LargeLog, LargeSend, content


def large(visible: str, *sends: str, seen: str = "") -> LargeLog:
    """`sends`: transaction and the values it sent to the one key; those whose name begins with c committed."""
    made = [LargeSend(text.partition(":")[0], "k", value, 3) for text in sends for value in text.partition(":")[2]]
    return LargeLog(
        sends=made,
        seen=list(seen),
        visible=[("k", value) for value in visible],
        outcomes={send.txn_id: "COMMITTED" if send.txn_id.startswith("c") else "ABORTED" for send in made},
    )


def test_a7_whole_values_of_committed_transactions_once_and_in_order_are_right() -> None:
    assert list(large("abd", "c1:ab", "x1:c", "c2:d", seen="ad").findings()) == []


@pytest.mark.parametrize(
    ("planted", "finding"),
    [
        (large("abx", "c1:ab"), "x was read and never sent"),
        (large("abc", "c1:ab", "x1:c"), "c of x1, which is ABORTED, was read"),
        (large("ab", "c1:ab", "x1:c", seen="c"), "c of x1, which is ABORTED, was read"),
        (large("aba", "c1:ab"), "a is there 2 times"),
        (large("a", "c1:ab"), "b of c1 is lost"),
        (large("ba", "c1:ab"), "k holds b, a, sent in the order a, b"),
    ],
)
def test_a7_planted_mistakes_are_found(planted: LargeLog, finding: str) -> None:
    assert any(finding in found for found in planted.findings()), list(planted.findings())


def test_a7_a_value_has_so_many_pieces_and_other_bytes_are_told() -> None:
    for pieces in (2, 3, 8):
        assert -(-len(content("large-17", pieces)) // PIECE_BYTES) == pieces
    assert content("large-1", 3) != content("large-2", 3)


def dead(visible: str, *, acked: str = "", moved: str = "", left: str = "") -> DeadLog:
    return DeadLog(
        acked=dict.fromkeys(acked),
        dead=[(f"id-{value}", value) for value in moved],
        left=list(left),
        visible=list(visible),
    )


def test_each_message_is_acked_or_moved_or_left() -> None:
    clean = dead("abcde", acked="ab", moved="c", left="de")
    assert list(clean.findings()) == []
    assert list(dead("abc", acked="abc", moved="b", left="c").findings()) == [], "a crash may forget an ack"


@pytest.mark.parametrize(
    ("planted", "finding"),
    [
        (dead("ab", acked="a", moved="bb"), "b was moved 2 times"),
        (dead("ab", acked="a", moved="b", left="b"), "b was moved, and came at the end"),
        (dead("a", acked="a", moved="b"), "b was moved and is not visible"),
        (dead("abc", acked="a", moved="b"), "c is neither acked, moved nor left"),
    ],
)
def test_planted_mistakes_of_dead_letters_are_found(planted: DeadLog, finding: str) -> None:
    assert any(finding in found for found in planted.findings()), list(planted.findings())
