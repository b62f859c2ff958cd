"""Dedup against clients that resend until they are answered: the log holds what they were told, once, in order.

Leaves out: several producers (`test_names_do_not_disturb_each_other`), other incarnations
(`test_other_incarnation_of_a_name_starts_anew`), two connections at once
(`test_l10_second_connection_of_a_name_fences_the_first_whatever_its_incarnation`), entries of several messages
(`test_pipelined_entries_are_stored_in_order_gaps_between_their_ids_included`), another content under the same ids
(`test_same_ids_with_other_extent_are_another_content`), producers that are idle
(`test_idle_producers_expire_connected_and_busy_ones_never`), snapshots in turns
(`test_l7_a_snapshot_taken_in_turns_has_every_producer`), numbered producers (`test_numbered.py`).
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from segments.log.sends.dedup import Dedup, DedupVerdict, InFlight
from txnwire.ids import Position


class DedupMachine(RuleBasedStateMachine):
    """One client with one connection at a time, over which frames and answers come in order, until it is lost. It sends
    entries 0, 1, 2, … each naming the one before that it has not given up; over a new connection it sends again what
    has no answer. What it is told has failed it gives up, or sends again."""

    def __init__(self) -> None:
        super().__init__()
        self.dedup: Dedup[int] = Dedup(idle_s=1e9)
        self.log: list[int] = []
        self.synced = 0
        self.unanswered: list[int] = []
        self.acked: list[int] = []
        self.given_up: list[int] = []
        self.next_id = 0
        self.way: list[InFlight[int]] = []
        """Admitted and not stored: the first `appended` of them stand in the log, unsynced."""
        self.appended = 0
        self.token = self.dedup.connect("p", 1, 0.0).token
        self.connected = True
        self.covered = 0
        self.footer = self.dedup.snapshot(0.0)

    # ---- the client

    @rule(count=st.integers(1, 3))
    def send_more(self, count: int) -> None:
        for _ in range(count):
            self.unanswered.append(self.next_id)
            self.next_id += 1
            self.deliver(self.unanswered[-1])

    def deliver(self, entry_id: int) -> None:
        if not self.connected:
            return
        before = [one for one in (*self.acked, *self.unanswered) if one < entry_id]
        admission = self.dedup.admit(self.token, entry_id, 1, max(before, default=-1), entry_id)
        if admission.verdict is DedupVerdict.STORED:
            self.answered(entry_id)
        elif admission.verdict is DedupVerdict.NEW:
            assert admission.entry is not None
            self.way.append(admission.entry)

    def answered(self, entry_id: int) -> None:
        if entry_id in self.unanswered:
            self.unanswered.remove(entry_id)
            self.acked.append(entry_id)

    @rule(lost_from=st.integers(0, 8))
    def reconnect(self, lost_from: int) -> None:
        """Perhaps to lose this connection too, after some frames."""
        self.token, last, _ = self.dedup.connect("p", 1, 0.0)
        self.connected = True
        for entry_id in [one for one in self.unanswered if one <= last]:
            self.answered(entry_id)
        for count, entry_id in enumerate(list(self.unanswered)):
            if count == lost_from:
                self.connected = False
            self.deliver(entry_id)

    @rule()
    def lose_connection(self) -> None:
        self.connected = False

    # ---- the segment

    @rule()
    def append(self) -> None:
        if self.appended < len(self.way):
            entry = self.way[self.appended]
            assert not entry.failed
            self.log.append(entry.first)
            self.appended += 1

    @rule()
    def sync(self) -> None:
        for entry in self.way[: self.appended]:
            for waiter in self.dedup.stored(entry, Position(1, self.synced), 0.0):
                if self.connected:
                    self.answered(waiter)
            self.synced += 1
        self.way = self.way[self.appended :]
        self.appended = 0

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """The op of one that is not appended yet is refused, and all behind it fail; the client hears of it, or not."""
        if self.appended == len(self.way):
            return
        at = data.draw(st.integers(self.appended, len(self.way) - 1))
        failed = self.dedup.failed(self.way[at])
        assert failed == self.way[at:]
        self.way = self.way[:at]
        if not self.connected:
            return
        for entry in failed:
            if entry.first in self.unanswered and data.draw(st.booleans()):
                self.unanswered.remove(entry.first)
                self.given_up.append(entry.first)
        for entry_id in [one for one in self.unanswered if one >= failed[0].first]:
            self.deliver(entry_id)

    @rule()
    def write_footer(self) -> None:
        self.footer = self.dedup.snapshot(0.0)
        self.covered = self.synced

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """What was not synced may be lost; the rest is read again."""
        self.log = self.log[: data.draw(st.integers(self.synced, len(self.log)))]
        self.synced = len(self.log)
        self.way, self.appended = [], 0
        self.connected = False
        self.dedup = Dedup(idle_s=1e9)
        self.dedup.restore(self.footer, 0.0)
        for entry_id, first in enumerate(self.log[self.covered :], self.covered):
            self.dedup.replay("p", 1, first, 1, Position(1, entry_id), 0.0)

    # ---- what must hold

    @invariant()
    def every_entry_is_logged_once_and_in_order(self) -> None:
        assert self.log == sorted(set(self.log))

    @invariant()
    def every_acked_entry_is_durable(self) -> None:
        assert set(self.acked) <= set(self.log[: self.synced])

    @invariant()
    def what_was_told_to_have_failed_is_not_stored(self) -> None:
        assert not set(self.given_up) & set(self.log)

    @invariant()
    def everything_gets_there_in_the_end(self) -> None:
        """With a connection that holds: nothing is refused, nothing is left behind."""
        if not self.unanswered or self.next_id % 7:
            return
        self.reconnect(1_000_000)
        while self.appended < len(self.way):
            self.append()
        self.sync()
        assert self.unanswered == []


DedupMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestDedup = DedupMachine.TestCase
