"""A range kept in memory equals a fresh reading, whatever order its batches, re-listings and single reads come in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segments.layout.followed_table import FollowedTable
from txnstore.store import Event, EventKind, KeyValue, WatchBatch
from txnwire.errors import DataCorrupt, InvalidArgument

PREFIX = b"/x/"


def parse(record: KeyValue) -> str:
    text = record.value.decode()
    if text == "corrupt":
        raise DataCorrupt(f"{record.key.decode()}: corrupt")
    if text == "malformed":
        raise InvalidArgument("malformed name")
    return text


def table() -> FollowedTable[str]:
    return FollowedTable(PREFIX, parse)


def put(name: str, value: str, revision: int) -> Event:
    return Event(EventKind.PUT, KeyValue(PREFIX + name.encode(), value.encode(), 1, revision, revision))


def delete(name: str, revision: int) -> Event:
    return Event(EventKind.DELETE, KeyValue(PREFIX + name.encode(), b"", 0, 0, revision))


def test_a_batch_tells_which_names_changed_and_twice_changes_nothing() -> None:
    t = table()
    batch = WatchBatch(6, (put("a", "1", 5), put("b", "1", 6)))
    assert t.apply(batch) == ("a", "b")
    assert t.apply(batch) == ()
    assert t.apply(WatchBatch(7, (delete("a", 7),))) == ("a",)
    assert t.apply(WatchBatch(8, (delete("a", 8),))) == ()
    assert dict(t.entries) == {"b": "1"}
    assert t.revision == 8


def test_everything_that_a_re_listing_lacks_is_gone_and_is_told() -> None:
    t = table()
    t.apply(WatchBatch(6, tuple(put(name, "1", revision) for revision, name in enumerate("abcde", 2))))
    assert t.apply(WatchBatch(9, (put("b", "1", 3), put("d", "2", 8)), resync=True)) == ("d", "a", "c", "e")
    assert dict(t.entries) == {"b": "1", "d": "2"}


def test_what_a_read_found_is_kept_until_the_watch_gets_there() -> None:
    t = table()
    t.apply(WatchBatch(5, (), resync=True))
    assert t.learn(put("a", "new", 9).record)
    assert t.apply(WatchBatch(7, (put("a", "old", 7),))) == ()
    assert t.get("a") == "new"
    assert t.apply(WatchBatch(8, (), resync=True)) == ()  # a re-listing at 8 cannot know of revision 9
    assert t.get("a") == "new"
    assert t.apply(WatchBatch(10, (delete("a", 10),))) == ("a",)


def test_a_read_that_comes_late_does_not_bring_a_deleted_record_back() -> None:
    t = table()
    read = put("a", "1", 5).record
    t.apply(WatchBatch(5, (put("a", "1", 5),)))
    t.apply(WatchBatch(6, (delete("a", 6),)))
    assert not t.learn(read)
    assert t.get("a") is None


def test_an_unreadable_record_is_an_error_where_it_is_asked_for_and_nowhere_else() -> None:
    t = table()
    t.apply(WatchBatch(3, (put("a", "corrupt", 1), put("b", "fine", 2), put("c", "malformed", 3))))
    assert dict(t.entries) == {"b": "fine"}
    with pytest.raises(DataCorrupt, match="/x/a"):
        t.get("a")
    with pytest.raises(DataCorrupt, match="/x/c"):
        t.get("c")
    t.apply(WatchBatch(5, (put("a", "mended", 4), delete("c", 5))))
    assert t.get("a") == "mended"
    assert t.get("c") is None


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_e1_a_watch_cut_compacted_and_raced_by_reads_ends_equal_to_a_fresh_reading(data: st.DataObject) -> None:
    names = ["a", "b", "c"]
    history: list[Event] = []
    state: dict[str, Event] = {}
    snapshots: list[dict[str, Event]] = [{}]
    for revision in range(1, data.draw(st.integers(1, 30)) + 1):
        name = data.draw(st.sampled_from(names))
        if name in state and data.draw(st.booleans()):
            history.append(delete(name, revision))
            state = {k: v for k, v in state.items() if k != name}
        else:
            history.append(put(name, f"v{revision}", revision))
            state = {**state, name: history[-1]}
        snapshots.append(state)
    t, followed = table(), 0
    while followed < len(history):
        target = data.draw(st.integers(followed + 1, len(history)))
        for at in data.draw(st.lists(st.integers(followed, len(history)), max_size=2)):  # reads ahead, or late ones
            for event in snapshots[at].values():
                t.learn(event.record)
        if data.draw(st.booleans()):
            t.apply(WatchBatch(target, tuple(snapshots[target].values()), resync=True))
        else:
            t.apply(WatchBatch(target, tuple(history[followed:target])))
        followed = target
        for name, value in t.entries.items():  # never older than what is followed, nor anything that never was
            assert any(e.record.value.decode() == value for e in history)
            if name in snapshots[followed]:
                assert int(value[1:]) >= snapshots[followed][name].record.mod_revision
    assert dict(t.entries) == {name: event.record.value.decode() for name, event in state.items()}
