"""Ids of a numbered producer: what is sent, what is not, and what goes with each entry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnclient.producing.channels import source_ids
from txnclient.producing.channels.source_ids import MOST_AHEAD, MOST_REMEMBERED, SourceIds, Standing
from txnwire.errors import InvalidArgument


def sent(ids: SourceIds, *given_ids: int) -> None:
    for one in given_ids:
        ids.give(one)
        ids.placed(one)


def test_what_any_segment_holds_is_stored_and_nothing_else() -> None:
    ids = SourceIds(-1)
    ids.learn(10, [12, 10, 11])
    ids.learn(3, [4, 15])
    assert ids.last_sequence_id == 12
    assert [n for n in range(17) if ids.standing(n) is Standing.STORED] == [*range(13), 15]
    assert ids.standing(13) is Standing.NEW, "the highest stored one proves nothing of those below it"


def test_the_source_may_know_more_than_is_remembered() -> None:
    ids = SourceIds(100)
    ids.learn(0, [])
    assert ids.last_sequence_id == 100
    assert ids.standing(100) is Standing.STORED
    assert SourceIds(-1).last_sequence_id == -1


def test_all_below_passes_nothing_that_was_given_and_is_not_stored() -> None:
    ids = SourceIds(-1)
    ids.learn(0, [])
    sent(ids, 5, 7, 9)
    assert ids.all_below == 5
    ids.stored([7])
    assert (ids.all_below, ids.last_sequence_id) == (5, -1)
    ids.stored([5])
    assert (ids.all_below, ids.last_sequence_id) == (9, 7)
    ids.stored([9])
    assert ids.last_sequence_id == 9


def test_an_id_whose_sender_gave_up_before_it_was_placed_may_be_sent_again_and_holds_all_below_back() -> None:
    ids = SourceIds(-1)
    ids.learn(0, [])
    ids.give(5)
    assert ids.standing(5) is Standing.UNDER_WAY
    ids.owe(5)
    sent(ids, 6)
    ids.stored([6])
    assert ids.standing(5) is Standing.OWED
    assert ids.all_below == 5
    sent(ids, 5)
    ids.stored([5])
    assert (ids.last_sequence_id, ids.standing(5)) == (6, Standing.STORED)


def test_an_id_that_was_passed_over_is_refused_and_not_taken_for_stored() -> None:
    ids = SourceIds(-1)
    ids.learn(0, [])
    sent(ids, 1, 3)
    ids.stored([1, 3])
    assert ids.standing(1) is Standing.STORED
    with pytest.raises(InvalidArgument, match="ascend"):
        ids.standing(2)


def test_stored_ids_are_remembered_up_to_a_bound_and_refused_beyond() -> None:
    ids = SourceIds(-1)
    ids.learn(0, [])
    for one in range(MOST_REMEMBERED + 2):
        sent(ids, one)
        ids.stored([one])
    assert ids.standing(MOST_REMEMBERED) is Standing.STORED
    with pytest.raises(InvalidArgument, match="open it again"):
        ids.standing(0)


@pytest.mark.parametrize("wrong", [-1, 1 << 62, "5", 1.0, None, True])
def test_what_is_no_id_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="sequence_id"):
        SourceIds(-1).standing(wrong)  # type: ignore[arg-type]


def test_room_ends_behind_the_lowest_unstored_id_and_waiting_ones_do_not_count() -> None:
    ids = SourceIds(-1)
    ids.learn(0, [])
    sent(ids, *range(MOST_AHEAD))
    assert not ids.has_room
    ids.stored(range(1, MOST_AHEAD))
    assert not ids.has_room, "a segment keeps them all"
    ids.stored([0])
    assert ids.has_room
    for one in range(MOST_AHEAD, 3 * MOST_AHEAD):
        ids.give(one)
    assert ids.has_room, "or they would wait for each other"
    ids.placed(MOST_AHEAD)
    ids.stored([MOST_AHEAD])
    assert ids.has_room


@given(st.data())
def test_at_random_no_given_id_counts_as_stored_before_it_is(data: st.DataObject) -> None:
    ids = SourceIds(-1)
    ids.learn(0, [])
    stored: set[int] = set()
    given_ids: list[int] = []
    for _ in range(data.draw(st.integers(0, 40))):
        open_ids = [one for one in given_ids if one not in stored]
        action = data.draw(st.sampled_from(["new", "store", "owe", "again"]))
        if action == "new":
            one = (given_ids[-1] if given_ids else -1) + data.draw(st.integers(1, 3))
            assert ids.standing(one) is Standing.NEW
            ids.give(one)
            given_ids.append(one)
            if data.draw(st.booleans()):
                ids.placed(one)
            else:
                ids.owe(one)
        elif open_ids:
            one = data.draw(st.sampled_from(open_ids))
            standing = ids.standing(one)
            if action == "store" and standing is Standing.UNDER_WAY:
                ids.stored([one])
                stored.add(one)
            elif standing is Standing.OWED:
                sent(ids, one)
        left = [one for one in given_ids if one not in stored]
        if left:
            assert ids.all_below == left[0]
            assert ids.last_sequence_id < left[0]
        else:
            assert ids.last_sequence_id == (given_ids[-1] if given_ids else -1)


def test_the_last_stored_ids_are_known_though_many_are_stored_ahead_of_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those ahead do not push out the ones before it: a caller that sends one of these again is told that it is
    stored."""
    monkeypatch.setattr(source_ids, "MOST_REMEMBERED", 5)
    ids = SourceIds(-1)
    ids.learn(0, [])
    sent(ids, *range(5))
    ids.stored(range(5))
    sent(ids, *range(5, 12))
    ids.stored(range(6, 12))
    assert [ids.standing(n) for n in range(5)] == [Standing.STORED] * 5
