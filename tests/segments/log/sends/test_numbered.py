"""What a segment knows of numbered producers: lives, ids, what is forgotten (DESIGN §7, "Numbered producers")."""

from __future__ import annotations

import msgspec
import pytest

from segments.log.sends.dedup import Dedup
from segments.log.sends.numbered import MOST_IDS_KEPT, KnownIds, NumberedNames
from txnwire.errors import DataCorrupt, InvalidArgument, NotOwner, ProducerFenced
from txnwire.ids import Position
from txnwire.numbers import Numbers, ids_of, steps_of

IDLE_S = 100.0
ONE_AT_ONCE = 1000


@pytest.fixture
def names() -> NumberedNames:
    return NumberedNames(idle_s=IDLE_S)


def test_a_later_life_fences_an_earlier_one_and_never_the_reverse(names: NumberedNames) -> None:
    assert names.take("p", 5, 1, 0.0)
    names.expect("p", 5, 1)
    assert names.take("p", 5, 2, 0.0), "of one epoch the greater incarnation"
    assert not names.take("p", 5, 1, 0.0)
    assert names.take("p", 5, 2, 0.0), "the same may ask again"
    assert names.is_fenced("p", 4, 9)
    with pytest.raises(ProducerFenced):
        names.expect("p", 5, 1)
    with pytest.raises(NotOwner):
        names.expect("p", 6, 1)
    with pytest.raises(NotOwner):
        names.expect("another", 1, 1)
    assert names.epoch_of("p") == 5


def test_a_fence_is_durable_only_once_it_was_written_for_that_life(names: NumberedNames) -> None:
    names.take("p", 1, 1, 0.0)
    assert not names.is_durable("p")
    names.made_durable("p", 1, 1)
    assert names.is_durable("p")
    names.take("p", 2, 1, 0.0)
    assert not names.is_durable("p")
    names.made_durable("p", 1, 1)
    assert not names.is_durable("p"), "what was written knows nothing of the later life"


def test_nothing_is_known_of_a_name_that_nobody_took(names: NumberedNames) -> None:
    names.take("p", 5, 1, 0.0)
    assert not names.is_fenced("another", 1, 1)
    assert names.epoch_of("another") == 0
    names.made_durable("another", 1, 1)
    assert not names.is_durable("another")
    names.expect_room("another", Numbers(1, 0, range(MOST_IDS_KEPT + 1)))


def test_an_entry_found_in_the_ledger_takes_the_name_for_its_life_unless_a_later_one_has_it(
    names: NumberedNames,
) -> None:
    """It was stored: so its life had the name, and that is durable by the entry."""
    names.stored("p", 1, Numbers(2, 0, [1]), 0.0)
    assert (names.epoch_of("p"), names.is_durable("p")) == (2, True)
    names.take("p", 3, 1, 0.0)
    names.stored("p", 1, Numbers(2, 0, [2]), 0.0)
    assert (names.epoch_of("p"), names.is_durable("p")) == (3, False)
    names.stored("p", 2, Numbers(3, 0, [3]), 0.0)
    assert names.is_fenced("p", 3, 1)
    assert not names.is_fenced("p", 3, 2)
    assert names.is_durable("p")


def test_ids_are_kept_from_the_greatest_all_below_on(names: NumberedNames) -> None:
    names.take("p", 1, 1, 0.0)
    names.stored("p", 1, Numbers(1, 0, [3, 7]), 0.0)
    assert names.known("p") == KnownIds(0, [3, 7])
    names.stored("p", 1, Numbers(1, 7, [9]), 0.0)
    assert names.known("p") == KnownIds(7, [7, 9])
    names.stored("p", 1, Numbers(1, 5, [5]), 0.0)
    assert names.known("p") == KnownIds(7, [7, 9]), "an entry encoded before tells less"
    names.stored("p", 1, Numbers(1, 20, [11]), 0.0)
    assert names.known("p") == KnownIds(20, []), "of none of them it is asked any more"
    assert names.known("another") == KnownIds(0, ())


def test_a_segment_keeps_a_bounded_number_of_ids(names: NumberedNames) -> None:
    names.take("p", 1, 1, 0.0)
    names.expect_room("p", Numbers(1, 0, range(MOST_IDS_KEPT)))
    names.stored("p", 1, Numbers(1, 0, range(MOST_IDS_KEPT)), 0.0)
    with pytest.raises(InvalidArgument, match="does not report"):
        names.expect_room("p", Numbers(1, 0, [MOST_IDS_KEPT]))


def test_a_name_that_was_taken_and_never_sent_is_forgotten_unless_it_is_connected(names: NumberedNames) -> None:
    names.take("p", 1, 1, 0.0)
    names.take("q", 1, 1, 50.0)
    assert names.expire(IDLE_S, (), limit=ONE_AT_ONCE) == 0
    assert names.expire(IDLE_S + 1, ("p",), limit=ONE_AT_ONCE) == 0
    assert names.expire(IDLE_S + 51, (), limit=ONE_AT_ONCE) == 1
    assert "p" in names, "used as long as it was connected"
    assert names.expire(2 * IDLE_S + 2, (), limit=ONE_AT_ONCE) == 1
    assert len(names) == 0


def test_the_snapshot_keeps_lives_ids_and_idle_times_and_says_that_an_older_release_cannot_read_it() -> None:
    dedup: Dedup[str] = Dedup(idle_s=IDLE_S)
    assert msgspec.json.decode(dedup.snapshot(0.0))["v"] == 1
    dedup.numbered.take("silent", 9, 1, 0.0)
    dedup.numbered.take("p", 5, 7, 10.0)
    dedup.numbered.stored("p", 7, Numbers(5, 3, [4, 8, 6]), 20.0)
    snapshot = dedup.snapshot(30.0)
    assert msgspec.json.decode(snapshot)["v"] == 2
    successor: Dedup[str] = Dedup(idle_s=IDLE_S)
    successor.restore(snapshot, 1000.0)
    assert successor.numbered.known("p") == KnownIds(3, [4, 6, 8])
    assert successor.numbered.is_fenced("silent", 8, 1)
    assert successor.numbered.is_durable("p")
    assert successor.statistics().remembered == 2
    assert successor.expire(1000.0 + IDLE_S - 29) == 1, "it was idle for 30 s before"
    assert successor.expire(1000.0 + IDLE_S - 9) == 1
    with pytest.raises(DataCorrupt, match="version 3"):
        successor.restore(snapshot.replace(b'"v":2', b'"v":3'), 0.0)


def test_a_connection_of_another_life_ends_and_its_entries_go_on() -> None:
    dedup: Dedup[str] = Dedup(idle_s=IDLE_S)
    before = dedup.connect("p", 1, 0.0)
    entry = dedup.admit(before.token, 0, 1, -1, "w").entry
    assert entry is not None
    assert dedup.disconnect_others("p", 1, 0.0) is None
    assert dedup.disconnect_others("p", 2, 0.0) == before.token
    with pytest.raises(ProducerFenced):
        dedup.admit(before.token, 1, 1, 0, "w")
    assert dedup.stored(entry, Position(1, 0), 0.0) == ["w"]


@pytest.mark.parametrize("ids", [[], [5], [1, 2, 9], [7, 3, 4]])
def test_ids_come_back_from_their_steps(ids: list[int]) -> None:
    assert ids_of(steps_of(ids)) == ids


def test_a_connected_name_that_was_idle_for_longest_keeps_no_other_from_being_forgotten(names: NumberedNames) -> None:
    """As many may be connected and silent as there are programs."""
    for name in ("connected", "p", "connected too", "q"):
        names.take(name, 1, 1, 0.0)
    assert names.expire(IDLE_S + 1, ("connected", "connected too"), limit=ONE_AT_ONCE) == 2
    assert "connected" in names
    assert "connected too" in names
