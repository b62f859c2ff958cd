"""Pending acks against a model that keeps the state of every single message.

Leaves out: a cursor without room (`test_ack_the_cursor_could_not_hold_is_refused_before_its_op_is_sent`), aborted
entries passed over (`test_aborted_entries_are_passed_over_beyond_the_bound`), lost compares of the cursor's records
(`test_p6_lost_compare_merges_and_never_goes_back`), a clean-up that is durable as its owner dies unaware
(`test_p6_leftover_that_was_applied_before_the_crash_changes_nothing`), a plain ack of messages that were trimmed
(`test_plain_cumulative_ack_over_a_pending_cumulative_one_that_was_trimmed`), fenced transactions
(`test_ack_behind_a_known_decision_is_refused`), what is unsettled at a revision
(`test_decision_waits_for_ack_ops_in_flight`), what a cumulative ack that does not count releases part by part
(`test_cumulative_acks_release_nothing_before_the_last_of_them_is_gone`).
"""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from segments.subscription.cursors.cursor import Cursor
from tests.segments.ledger_lengths import LedgerLengths
from txnstore.store import KeyValue
from txnwire.errors import TxnConflict
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.turns import turns_divided_by
from watchers.acks import WHOLE, AckOp, AckPosition, ack_position
from watchers.outcomes import Decision
from watchers.pending_acks import APPLIED_AT_ONCE, AppliedAcks, PendingAcks, Reservation

MESSAGES = 2
LEDGERS = LedgerLengths({1: 3, 2: 3})
PLACES = LEDGERS.positions()
TXNS = [TxnId(0, counter) for counter in range(1, 6)]
WRITERS = [0, 1, 2]
Message = tuple[Position, int]
acks = st.builds(ack_position, st.sampled_from(PLACES), st.just(MESSAGES), st.sampled_from([WHOLE, 0b01, 0b10]))


def named(ack: AckPosition) -> set[Message]:
    return {(ack.position, index) for index in range(MESSAGES) if ack.indexes >> index & 1}


def named_up_to(ack: AckPosition) -> set[Message]:
    return named(ack) | {(place, index) for place in PLACES if place < ack.position for index in range(MESSAGES)}


def messages_of(one: Reservation) -> set[Message]:
    return named_up_to(one.positions[0]) if one.cumulative else {m for ack in one.positions for m in named(ack)}


class PendingAcksMachine(RuleBasedStateMachine):
    """Model: `deleted` messages, and the ack ops by their transaction, with what they name. An op is in `recorded` once
    it stands in etcd; the answer to it may still be due (`answers`)."""

    def __init__(self) -> None:
        super().__init__()
        self.pending = PendingAcks("s", "sub", Cursor(LEDGERS, EARLIEST))
        self.deleted: set[Message] = set()
        self.held: list[tuple[Reservation, set[Message]]] = []
        self.recorded: list[Reservation] = []
        self.answers: list[Reservation] = []
        self.decisions: dict[TxnId, Decision] = {}
        self.etcd_cursor: dict[str, KeyValue] = {}
        self.revision = 0
        self.owed: set[Message] = set()
        """Acked by ops that were recorded when their transaction committed."""

    # ---- acks

    @rule(
        txn_id=st.sampled_from(TXNS),
        writer=st.sampled_from(WRITERS),
        ack=acks,
        more=st.lists(acks, max_size=2),
        cumulative=st.booleans(),
    )
    def reserve(self, txn_id: TxnId, writer: int, ack: AckPosition, more: list[AckPosition], cumulative: bool) -> None:
        positions = (ack,) if cumulative else (ack, *more)
        wanted = named_up_to(ack) if cumulative else {message for one in positions for message in named(one)}
        elsewhere = {message for hold, messages in self.held if hold.txn_id != txn_id for message in messages}
        done = wanted <= self.deleted if cumulative else bool(wanted & self.deleted)
        try:
            reservation = self.pending.reserve(txn_id, writer, positions, cumulative=cumulative)
        except TxnConflict:
            # One transaction at a time holds cumulative acks, also where they name different messages of one entry.
            covered = cumulative and any(hold.cumulative and hold.txn_id != txn_id for hold, _ in self.held)
            assert done or wanted & elsewhere or covered or txn_id in self.decisions
            return
        assert not done
        assert not wanted & elsewhere
        self.held.append((reservation, wanted))
        self.answers.append(reservation)

    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        """etcd takes an op in flight while the transaction is open, answered or not."""
        open_ones = [one for one in self.answers if one.txn_id not in self.decisions and one not in self.recorded]
        if open_ones:
            self.recorded.append(data.draw(st.sampled_from(open_ones)))

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        definite = [one for one in self.answers if one in self.recorded or one.txn_id in self.decisions]
        if not definite:
            return
        reservation = data.draw(st.sampled_from(definite))
        self.answers.remove(reservation)
        if reservation in self.recorded:
            applied = self.pending.confirmed(reservation)
        else:
            applied = self.pending.release(reservation)
            self.let_go(reservation)
        self.went_on(applied)

    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        """StoreUnavailable, StoreFull: definitely not recorded, whatever the transaction's state."""
        candidates = [one for one in self.answers if one not in self.recorded]
        if candidates:
            reservation = data.draw(st.sampled_from(candidates))
            self.answers.remove(reservation)
            applied = self.pending.release(reservation)
            self.let_go(reservation)
            self.went_on(applied)

    def let_go(self, reservation: Reservation) -> None:
        self.held = [(hold, messages) for hold, messages in self.held if hold is not reservation]

    # ---- decisions

    @rule(
        txn_id=st.sampled_from(TXNS),
        committed=st.booleans(),
        writers=st.none() | st.frozensets(st.sampled_from(WRITERS)),
    )
    def decide(self, txn_id: TxnId, committed: bool, writers: frozenset[int] | None) -> None:
        decision = Decision(txn_id, committed, len(self.decisions) + 1, writers if committed else None)
        if self.decisions.setdefault(txn_id, decision) is decision:
            ops = [one for one in self.recorded if one.txn_id == txn_id and decision.counts(one.writer)]
            self.owed.update(message for one in ops for message in messages_of(one))

    @rule(txn_id=st.sampled_from(TXNS))
    def deliver(self, txn_id: TxnId) -> None:
        if txn_id in self.decisions:
            in_flight = any(one.txn_id == txn_id for one in self.answers)
            applied = self.pending.decided(self.decisions[txn_id])
            assert not (applied and in_flight)
            self.went_on(applied)

    @rule(
        txn_id=st.sampled_from(TXNS),
        ops=st.lists(st.tuples(st.sampled_from(WRITERS), acks, st.booleans()), min_size=2, max_size=4),
        committed=st.booleans(),
        writers=st.none() | st.frozensets(st.sampled_from(WRITERS)),
    )
    def end_with_several(
        self,
        txn_id: TxnId,
        ops: list[tuple[int, AckPosition, bool]],
        committed: bool,
        writers: frozenset[int] | None,
    ) -> None:
        """Left to chance alone, hardly any transaction ends with several acks of several writers."""
        for writer, ack, cumulative in ops:
            self.reserve(txn_id, writer, ack, [], cumulative)
        for one in [one for one in self.answers if one.txn_id == txn_id]:
            if txn_id not in self.decisions and one not in self.recorded:
                self.recorded.append(one)
            if one in self.recorded:
                self.answers.remove(one)
                self.went_on(self.pending.confirmed(one))
        self.decide(txn_id, committed, writers)
        self.deliver(txn_id)

    def went_on(self, applied: AppliedAcks | None) -> None:
        if applied is not None:
            self.apply(applied)

    def apply(self, applied: AppliedAcks) -> None:
        decision = applied.decision
        losing = [one for one in self.held if one[0].txn_id == decision.txn_id and not decision.counts(one[0].writer)]
        for hold, messages in self.held:
            if hold.txn_id == decision.txn_id and decision.counts(hold.writer):
                assert hold in self.recorded
                self.deleted |= messages
        self.held = [one for one in self.held if one[0].txn_id != decision.txn_id]
        # Found again by a recovery, two may hold one message: whoever lets go of it last releases it.
        elsewhere = {message for _, messages in self.held for message in messages}
        singles = {message for hold, messages in losing if not hold.cumulative for message in messages}
        # A cumulative one goes back as its one position, if anything up to there is left.
        left = [place for place in PLACES if any((place, index) not in self.deleted for index in range(MESSAGES))]
        cumulative = [hold.positions[0] for hold, _ in losing if hold.cumulative]
        back = {ack for ack in cumulative if left and left[0] <= ack.position}
        assert back <= set(applied.released)
        due = singles - self.deleted - elsewhere | {message for ack in back for message in named(ack)}
        assert {message for ack in applied.released for message in named(ack)} == due

    # ---- plain acks

    @rule(ack=acks)
    def plain(self, ack: AckPosition) -> None:
        self.pending.ack([ack])
        self.deleted |= named(ack) - {message for _, messages in self.held for message in messages}

    @rule(ack=acks)
    def plain_cumulative(self, ack: AckPosition) -> None:
        self.pending.ack_cumulative(ack)
        self.deleted |= named_up_to(ack) - {message for _, messages in self.held for message in messages}

    # ---- durability

    @rule(limit=st.integers(1, 3))
    def clean_up(self, limit: int) -> None:
        """Cursor blocks and op deletes in one etcd transaction."""
        batch = self.pending.clean_up_batch(limit)
        writes = self.pending.cursor.block_writes()
        self.revision += 1
        for write in writes:
            if write.value is None:
                self.etcd_cursor.pop(write.block)
            else:
                key = b"/cursor/s/sub/" + write.block.encode()
                self.etcd_cursor[write.block] = KeyValue(key, write.value, 1, self.revision, self.revision)
        self.pending.cursor.written(writes, {write.block: self.revision for write in writes})
        self.pending.cleaned(batch)
        done = [applied.decision.txn_id for applied in batch]
        self.recorded = [one for one in self.recorded if one.txn_id not in done]

    @rule()
    def crash_and_recover(self) -> None:
        """P5, P6: ops restored, decided leftovers applied once; plain acks not yet written may be redelivered."""
        cursor = Cursor.load(LEDGERS, EARLIEST, list(self.etcd_cursor.values()))
        self.pending = PendingAcks("s", "sub", cursor)
        self.deleted = {(p, i) for p in PLACES for i in range(MESSAGES) if cursor.acked(p) >> i & 1}
        self.answers = []
        recorded, self.recorded, self.held = self.recorded, [], []
        for op in recorded:
            self.pending.restore(AckOp(b"k", op.txn_id, op.writer, op.cumulative, op.positions))
            reservation = Reservation(op.txn_id, op.writer, op.positions, cumulative=op.cumulative)
            self.recorded.append(reservation)
            self.held.append((reservation, messages_of(reservation)))
        for txn_id in dict.fromkeys(one.txn_id for one in recorded):
            self.deliver(txn_id)

    # ---- what must hold

    @invariant()
    def every_message_is_in_its_state(self) -> None:
        hidden = self.deleted | {message for _, messages in self.held for message in messages}
        for place in PLACES:
            bits = sum(1 << index for index in range(MESSAGES) if (place, index) in hidden)
            assert self.pending.skip(place, MESSAGES) == (WHOLE if bits == 0b11 else bits)

    @invariant()
    def cursor_holds_what_is_deleted(self) -> None:
        for place in PLACES:
            bits = sum(1 << index for index in range(MESSAGES) if (place, index) in self.deleted)
            assert self.pending.cursor.acked(place) == (WHOLE if bits == 0b11 else bits)

    @invariant()
    def committed_acks_are_never_lost(self) -> None:
        """Each stands in etcd's cursor, or its op does, which any successor applies."""
        if not self.owed:
            return
        kept = {message for one in self.recorded for message in messages_of(one)}
        etcd = Cursor.load(LEDGERS, EARLIEST, list(self.etcd_cursor.values()))
        assert all(message in kept or etcd.acked(message[0]) >> message[1] & 1 for message in self.owed)

    @invariant()
    def earliest_unacked_is_the_first_neither_acked_nor_pending(self) -> None:
        skips = {place: self.pending.skip(place, MESSAGES) for place in PLACES}
        earliest = self.pending.earliest_unacked()
        first = next((place for place in PLACES if skips[place] != WHOLE), Position(2, 3))
        assert earliest <= first
        assert all(skips[place] == WHOLE for place in PLACES if earliest <= place < first)


PendingAcksMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestPendingAcks = PendingAcksMachine.TestCase


class InParts(PendingAcksMachine):
    """Decisions are applied ack by ack, and anything may happen in between."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = ExitStack()
        self.turns.enter_context(turns_divided_by(APPLIED_AT_ONCE))
        self.parts: dict[TxnId, list[tuple[Reservation, bool]]] = {}
        """What is left to apply, in order: (ack, whether it counts). One that does not is passed over first."""

    def teardown(self) -> None:
        self.turns.close()

    def went_on(self, applied: AppliedAcks | None) -> None:
        super().went_on(applied)
        for txn_id in self.pending._applying:
            if txn_id not in self.parts:
                decision = self.decisions[txn_id]
                holds = [hold for hold, _ in self.held if hold.txn_id == txn_id]
                losing = [(hold, False) for hold in holds if not decision.counts(hold.writer)]
                again = [one for one in losing if one[0].cumulative]
                self.parts[txn_id] = [(hold, decision.counts(hold.writer)) for hold in holds] + losing + again

    @rule()
    def apply_part(self) -> None:
        if not self.pending.applying:
            return
        txn_id = next(iter(self.parts))
        part = self.pending.apply_part()
        if part.whole is not None:
            assert part.whole.decision == self.decisions[txn_id]
            assert self.parts.pop(txn_id) == []
            assert not any(hold.txn_id == txn_id for hold, _ in self.held)
            return
        hold, counts = self.parts[txn_id].pop(0)
        messages = messages_of(hold)
        if counts:
            assert hold in self.recorded
            assert part.acked == hold.positions
            self.deleted |= messages
            self.let_go(hold)
        elif not part.acked and (hold, False) not in self.parts[txn_id]:
            self.let_go(hold)
            held = {message for _, others in self.held for message in others}
            if not hold.cumulative:
                assert {message for ack in part.released for message in named(ack)} == messages - self.deleted - held
        elif hold.cumulative and self.parts[txn_id].count((hold, False)) == 1:
            self.let_go(hold)

    @rule()
    def crash_and_recover(self) -> None:
        self.parts = {}
        super().crash_and_recover()


InParts.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestPendingAcksInParts = InParts.TestCase
