"""X3 with few messages (`make copy-test` has 100 000), and that its judge catches what it is there for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.process.copying.journal import Ended
from tests.process.copying.judge import Copied, judge
from tests.process.copying.run import run
from tests.process.copying.schedule import schedule

READ = [Copied(b"k%d" % (number % 2), number, f"txn-{number // 2}") for number in range(6)]
LEFT_OVER = [Copied(b"k0", 0, "txn-9")]
ENDED = [*(Ended(f"txn-{number}", "committed", 2) for number in range(3)), Ended("txn-9", "aborted", 1)]


@pytest.mark.process
@pytest.mark.timeout(300)
async def test_x3_each_message_is_copied_once_in_order_per_key_while_everyone_is_killed_in_turn(tmp_path: Path) -> None:
    verdict = await run(tmp_path, seed=1, messages=6000)
    assert verdict.findings == []
    assert verdict.transactions("committed") >= 6
    assert verdict.transactions("aborted") >= 2
    assert verdict.stored > 6000
    hits = {f"{kind} {group}" for kind in ("kill", "stop") for group in ("broker", "server", "copier")}
    assert hits < set(verdict.faults)
    assert verdict.faults["split"]


def test_x3_a_clean_copy_has_no_findings() -> None:
    assert judge(6, READ, READ, [*READ, *LEFT_OVER], ENDED) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (READ[:-1], "was never given: 5"),
        ([*READ, READ[0]], "was given twice: 0"),
        ([*READ, replace(READ[0], number=7)], "was given what nobody wrote: 7"),
        ([READ[2], READ[0], READ[1], *READ[3:]], "was given these behind a later one of their key: 0"),
    ],
)
def test_x3_the_follower_and_a_later_reader_are_judged_alike(wrong: list[Copied], said: str) -> None:
    for who, followed, read in (("the follower", wrong, READ), ("a reader at the end", READ, wrong)):
        found = judge(6, followed, read, [*READ, *LEFT_OVER], ENDED)
        assert any(text.startswith(f"{who} {said}") for text in found), found


def test_x3_a_transaction_is_visible_as_its_copier_has_ended_it() -> None:
    torn = [replace(READ[0], txn="txn-1"), *READ[1:]]
    assert judge(6, READ, torn, torn + LEFT_OVER, ENDED)[:2] == [
        "txn-0 committed, and 1 of its 2 messages are visible",
        "txn-1 committed, and 3 of its 2 messages are visible",
    ]
    aborted = [*ENDED[:2], replace(ENDED[2], outcome="aborted"), ENDED[3]]
    assert judge(6, READ, READ, [*READ, *LEFT_OVER], aborted) == ["txn-2 aborted, and 2 of its 2 messages are visible"]


def test_x3_what_was_aborted_must_have_been_stored_or_nothing_is_proven() -> None:
    assert judge(6, READ, READ, READ, ENDED) == ["txn-9 aborted, and 0 of its 1 acknowledged messages stand"]


def test_x3_everyone_is_killed_and_stopped_in_turn_and_a_seed_repeats_it() -> None:
    groups = {"broker": ("b1", "b2"), "copier": ("c1", "c2")}
    drawn = schedule(7, 20_000, groups, ("in", "out"))
    assert drawn == schedule(7, 20_000, groups, ("in", "out")) != schedule(8, 20_000, groups, ("in", "out"))
    assert [one.at_message for one in drawn] == sorted(one.at_message for one in drawn)
    strikes = [(one.kind, one.target[0]) for one in drawn if one.kind in ("kill", "stop")]
    everything = {(kind, group) for kind in ("kill", "stop") for group in "bc"}
    assert [set(strikes[first : first + 4]) for first in range(0, len(strikes), 4)] == [everything] * 2
    assert {one.target for one in drawn if one.kind == "split"} == {"in", "out"}
