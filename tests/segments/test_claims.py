from __future__ import annotations

import pytest

from segments.claims import MAX_TAKING, MAX_YIELDING, RETRY_S, Claims
from segments.ownership import preferred_owner

SEGMENTS = [f"t/n/x/0000-ffff-{number}" for number in range(40)]
MINE = [segment for segment in SEGMENTS if preferred_owner(segment, ["a", "b"]) == "a"]
THEIRS = [segment for segment in SEGMENTS if segment not in MINE]


def test_unowned_segments_are_taken_by_whom_rendezvous_hashing_names() -> None:
    claims = Claims("a", settle_s=5.0)
    assert claims.to_take(SEGMENTS, {}, ["a", "b"], [], 0.0) == MINE
    assert claims.to_take(SEGMENTS, {}, ["b"], [], 0.0) == MINE  # not seen itself in the directory yet
    assert claims.to_take(SEGMENTS, {}, ["a"], [], 0.0) == SEGMENTS[:MAX_TAKING]


@pytest.mark.parametrize(("owner", "taken"), [("a", True), ("b", False), (None, True)])
def test_only_what_nobody_else_owns_is_taken(owner: str | None, taken: bool) -> None:
    owners = {} if owner is None else {MINE[0]: owner}
    found = Claims("a", settle_s=5.0).to_take(SEGMENTS, owners, ["a", "b"], [], 0.0)
    assert (MINE[0] in found) is taken


def test_take_overs_at_once_are_bounded_and_none_is_begun_twice() -> None:
    claims = Claims("a", settle_s=5.0)
    busy = SEGMENTS[: MAX_TAKING - 1]
    assert claims.to_take(SEGMENTS, {}, ["a"], busy, 0.0) == [SEGMENTS[MAX_TAKING - 1]]


def test_a_failed_take_over_is_tried_again_after_a_growing_pause() -> None:
    claims = Claims("a", settle_s=5.0)
    now, pauses = 0.0, []
    for _ in range(12):
        claims.failed("s", now)
        pause = RETRY_S[0]
        while not claims.to_take(["s"], {}, ["a"], [], now + pause):
            pause *= 2
        pauses.append(pause)
        now += pause
    assert pauses[:3] == [RETRY_S[0], 2 * RETRY_S[0], 4 * RETRY_S[0]]
    assert pauses == sorted(pauses)
    assert pauses[-1] <= 2 * RETRY_S[1]
    claims.succeeded("s")
    assert claims.to_take(["s"], {}, ["a"], [], now) == ["s"]


def test_misplaced_segments_are_yielded_a_few_at_a_time_to_a_broker_that_has_settled() -> None:
    claims = Claims("a", settle_s=5.0)
    assert claims.to_yield(SEGMENTS, ["a"], 0.0) == []
    assert claims.to_yield(SEGMENTS, ["a", "b"], 10.0) == []
    assert claims.to_yield(SEGMENTS, ["a", "b"], 14.9) == []
    assert claims.to_yield(SEGMENTS, ["a", "b"], 15.0) == THEIRS[:MAX_YIELDING]
    assert claims.to_yield(MINE, ["a", "b"], 15.0) == []
    assert claims.to_yield(SEGMENTS, ["a"], 16.0) == []
    assert claims.to_yield(SEGMENTS, ["a", "b"], 17.0) == []  # back, but not settled
