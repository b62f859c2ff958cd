"""The order of entries and what is sent again: tables, and a model of the owner's side that loses what it likes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segments.log.sends.dedup import Dedup, DedupVerdict, InFlight
from txnclient.producing.channels.outbox import NONE_STORED, EntryOutbox
from txnwire.errors import SequenceGap
from txnwire.ids import Position


class Entry(NamedTuple):
    first: int
    last: int


def entries(*bounds: tuple[int, int]) -> list[Entry]:
    return [Entry(*one) for one in bounds]


def filled(*bounds: tuple[int, int], last_stored: int = NONE_STORED) -> EntryOutbox[Entry]:
    outbox: EntryOutbox[Entry] = EntryOutbox()
    for entry in entries(*bounds):
        outbox.add(entry)
    outbox.reopened(last_stored)
    return outbox


def write_all(outbox: EntryOutbox[Entry]) -> list[tuple[Entry, int]]:
    written = []
    while (following := outbox.next_to_write()) is not None:
        written.append(following)
    return written


def test_nothing_is_written_before_the_owner_has_said_what_it_has_stored() -> None:
    outbox: EntryOutbox[Entry] = EntryOutbox()
    outbox.add(Entry(0, 0))
    assert outbox.next_to_write() is None
    assert outbox.may_reopen


def test_each_entry_names_the_one_before_it() -> None:
    outbox = filled((0, 0), (1, 3), (7, 7))
    assert write_all(outbox) == [(Entry(0, 0), -1), (Entry(1, 3), 0), (Entry(7, 7), 3)]


@pytest.mark.parametrize(
    ("last_stored", "done", "again"),
    [
        (NONE_STORED, [], [(0, 0, -1), (1, 3, 0), (4, 4, 3)]),
        (0, [(0, 0)], [(1, 3, 0), (4, 4, 3)]),
        (3, [(0, 0), (1, 3)], [(4, 4, 3)]),
        (4, [(0, 0), (1, 3), (4, 4)], []),
    ],
)
def test_l7_what_is_stored_is_done_and_the_rest_is_sent_again_in_order(
    last_stored: int, done: list[tuple[int, int]], again: list[tuple[int, int, int]]
) -> None:
    outbox = filled((0, 0), (1, 3), (4, 4))
    write_all(outbox)
    outbox.give_up_answers()
    assert outbox.reopened(last_stored) == entries(*done)
    assert [(*entry, before) for entry, before in write_all(outbox)] == again


def test_what_was_ever_written_stays_in_doubt_until_the_segment_has_said_its_last_word() -> None:
    outbox = filled((0, 0), (1, 1), (2, 2), (3, 3))
    assert not outbox.in_doubt
    for _ in range(3):
        outbox.next_to_write()
    outbox.give_up_answers()
    outbox.reopened(NONE_STORED)
    first, _ = outbox.next_to_write() or (None, 0)
    assert first is not None
    outbox.settle(first)
    assert outbox.in_doubt, "1 and 2 may still be on their way"
    outbox.break_chain()
    assert outbox.sealed(1) == entries((1, 1))
    assert not outbox.in_doubt
    assert outbox.next_to_write() is None, "it is sealed"
    assert outbox.reopened(1) == []
    assert write_all(outbox) == [(Entry(2, 2), 1), (Entry(3, 3), 2)], "the seal was undone"
    assert outbox.in_doubt


def test_of_a_forgotten_segment_only_what_was_written_is_given_up() -> None:
    outbox = filled((0, 0), (1, 1), (2, 2))
    outbox.next_to_write()
    outbox.next_to_write()
    assert outbox.take_doubtful() == entries((0, 0), (1, 1))
    assert list(outbox) == entries((2, 2))
    assert not outbox.in_doubt


def test_an_interruption_stops_writing_until_all_answers_are_in() -> None:
    outbox = filled((0, 0), (1, 1), (2, 2))
    first, _ = outbox.next_to_write() or (None, 0)
    second, _ = outbox.next_to_write() or (None, 0)
    assert first is not None
    assert second is not None
    outbox.interrupt()
    assert outbox.next_to_write() is None
    assert not outbox.may_reopen
    with pytest.raises(RuntimeError):
        outbox.reopened(NONE_STORED)
    outbox.interrupt()
    assert outbox.may_reopen
    assert outbox.reopened(NONE_STORED) == []
    assert [entry.first for entry, _ in write_all(outbox)] == [0, 1, 2]


def test_entries_whose_answer_is_awaited_are_not_removed() -> None:
    outbox = filled((0, 0), (1, 1))
    outbox.next_to_write()
    assert outbox.remove(lambda entry: True) == [Entry(1, 1)]
    assert list(outbox) == [Entry(0, 0)]
    outbox.interrupt()
    assert outbox.remove(lambda entry: True) == [Entry(0, 0)]


@pytest.mark.parametrize("written", [0, 3])
def test_what_is_doomed_goes_wherever_it_stands(written: int) -> None:
    """Deadlines are each entry's own: one behind an entry that has time left may have passed."""
    outbox = filled((0, 0), (1, 1), (2, 2), (3, 3))
    for _ in range(written):
        outbox.next_to_write()
    outbox.give_up_answers()
    assert outbox.remove(lambda entry: entry.first in (1, 3)) == [Entry(1, 1), Entry(3, 3)]
    assert list(outbox) == [Entry(0, 0), Entry(2, 2)]


def test_clear_takes_everything_out() -> None:
    outbox = filled((0, 0), (1, 1))
    outbox.next_to_write()
    assert outbox.clear() == entries((0, 0), (1, 1))
    assert len(outbox) == 0
    assert outbox.awaited == 0


class Owner:
    """The broker's side, with its own rules for what it admits. Answers wait in `answers` until they are delivered."""

    def __init__(self) -> None:
        self.dedup: Dedup[Entry] = Dedup(idle_s=1e9)
        self.token = 0
        self.log: list[int] = []
        self.pending: list[InFlight[Entry]] = []
        self.answers: list[tuple[Entry, str]] = []

    def open(self) -> int:
        connected = self.dedup.connect("p", 1, 0.0)
        self.token = connected.token
        return connected.last_sequence_id

    def send(self, entry: Entry, previous: int) -> None:
        try:
            admission = self.dedup.admit(self.token, entry.first, entry.last - entry.first + 1, previous, entry)
        except SequenceGap:
            self.answers.append((entry, "gap"))
            return
        if admission.verdict is DedupVerdict.STORED:
            self.answers.append((entry, "stored"))
        elif admission.verdict is DedupVerdict.NEW and admission.entry is not None:
            self.pending.append(admission.entry)

    def cut(self) -> None:
        """The connection is lost: no answer to what was sent over it is heard any more."""
        self.answers.clear()
        for admitted in self.pending:
            admitted.waiters.clear()

    def settle(self, outcome: str) -> None:
        """The oldest admitted entry is stored, or refused for good with all behind it told of the gap."""
        if not self.pending:
            return
        admitted = self.pending.pop(0)
        if outcome == "stored":
            self.log.append(admitted.first)
            self._answer(self.dedup.stored(admitted, Position(1, len(self.log)), 0.0), "stored")
            return
        for failed in self.dedup.failed(admitted):
            self._answer(failed.waiters, "refused" if failed is admitted else "gap")
        self.pending.clear()

    def _answer(self, waiters: Sequence[Entry], outcome: str) -> None:
        self.answers += [(entry, outcome) for entry in waiters]


Step = st.sampled_from(["add", "write", "store", "refuse", "answer", "cut"])


@given(st.lists(Step, max_size=80))
def test_l8_l7_every_entry_ends_once_in_order_whatever_is_lost(steps: list[str]) -> None:
    owner = Owner()
    outbox: EntryOutbox[Entry] = EntryOutbox()
    ended: dict[int, str] = {}
    next_id = 0

    def reopen() -> None:
        if outbox.may_reopen and len(outbox):
            while owner.pending:  # what the owner has admitted comes to its end before it is asked
                owner.settle("stored")
            owner.answers.clear()
            for entry in outbox.reopened(owner.open()):
                assert entry.first not in ended
                ended[entry.first] = "stored"

    def answer() -> None:
        if not owner.answers:
            return
        entry, outcome = owner.answers.pop(0)
        if outcome == "gap":
            outbox.interrupt()
        else:
            outbox.settle(entry)
            assert entry.first not in ended
            ended[entry.first] = outcome
            if outcome == "refused":
                outbox.break_chain()

    def write() -> None:
        reopen()
        following = outbox.next_to_write()
        if following is not None:
            owner.send(*following)

    for step in steps:
        if step == "add":
            outbox.add(Entry(next_id, next_id + 1))
            next_id += 2
        elif step == "write":
            write()
        elif step in ("store", "refuse"):
            owner.settle("stored" if step == "store" else "refused")
        elif step == "answer":
            answer()
        else:
            owner.cut()
            outbox.give_up_answers()
    for _ in range(10 * len(steps)):
        write()
        owner.settle("stored")
        answer()
    assert not len(outbox)
    assert sorted(ended) == list(range(0, next_id, 2))
    assert owner.log == sorted(owner.log)
    assert len(set(owner.log)) == len(owner.log)
    assert [first for first in owner.log if ended[first] == "refused"] == []
    assert all(first in owner.log for first, outcome in ended.items() if outcome == "stored")
