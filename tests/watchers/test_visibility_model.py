"""The transaction buffer against a model that keeps every entry and asks each one on its own.

Leaves out: more than one ledger (`test_v1_first_entry_of_a_ledger_holds_readers_at_the_ledgers_start`), sidecars and
trimming (`test_r3_losers_of_one_transaction_go_into_the_sidecars_of_their_own_ledgers`), records without a position
(`test_r3_record_with_an_unknown_position_goes_with_everything_before_the_first_ledger_of_this_owner`), a batch that is
durable as its owner dies unaware (`test_leftover_whose_aborted_record_is_durable_already_is_not_recorded_again`),
fenced transactions (`test_operation_in_a_fenced_transaction_is_expired`), cuts
(`test_a_cut_shows_the_moment_of_its_first_step`, `tests/segments/controller/test_cut_model.py`), what is unsettled at a
revision (`test_what_was_decided_earlier_is_unsettled_too_while_an_operation_is_in_flight`).
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from txnwire.errors import TxnConflict
from txnwire.ids import Position, TxnId
from watchers.outcomes import Decision
from watchers.visibility import Applied, TransactionBuffer

TXNS = [TxnId(0, counter) for counter in range(1, 5)]
WRITERS = [0, 1, 2]


class BufferMachine(RuleBasedStateMachine):
    """Model: `entries` in ledger order as (txn, writer), None for a plain one; `decisions` as the coordinator made
    them; `flights`: (transaction, writer, appended) of each operation in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[TxnId, int] | None] = []
        self.confirmed = 0
        self.decisions: dict[TxnId, Decision] = {}
        self.delivered: dict[TxnId, None] = {}
        self.flights: list[tuple[TxnId, int, bool]] = []
        self.ops: dict[TxnId, None] = {}
        """Transactions with an op record in etcd here."""
        self.durable: dict[tuple[TxnId, int | None], Position] = {}
        self.watermark = Position(0, -1)
        self.buffer = TransactionBuffer("s")
        self.settled: dict[TxnId, None] = {}
        self.may_land: dict[TxnId, int] = {}
        """Of decided transactions: how many of the ops that are unanswered were sent before the decision."""

    # ---- what happens to the segment

    @rule(txn_id=st.sampled_from(TXNS), writer=st.sampled_from(WRITERS))
    def start(self, txn_id: TxnId, writer: int) -> None:
        try:
            self.buffer.op_started(txn_id, writer)
        except TxnConflict:
            assert txn_id in self.delivered
            return
        self.flights.append((txn_id, writer, False))

    @precondition(lambda self: any(not appended for _, _, appended in self.flights))
    @rule(data=st.data())
    def answer_op(self, data: st.DataObject) -> None:
        """etcd answers: recorded if the header was open then, refused otherwise. A recorded one may never append."""
        txn_id, writer, _ = flight = data.draw(st.sampled_from([one for one in self.flights if not one[2]]))
        self.flights.remove(flight)
        if txn_id in self.decisions:
            if not self.may_land[txn_id] or data.draw(st.booleans()):
                self.may_land[txn_id] = min(self.may_land[txn_id], self._unanswered(txn_id))
                self.buffer.op_refused(txn_id)
                return
            self.may_land[txn_id] -= 1
        self.ops[txn_id] = None
        if data.draw(st.integers(0, 4)) == 0:
            self.buffer.op_finished(txn_id)
            return
        self.entries.append((txn_id, writer))
        self.buffer.appended(txn_id, writer, Position(1, len(self.entries) - 1))
        self.flights.append((txn_id, writer, True))

    def _unanswered(self, txn_id: TxnId) -> int:
        return sum(flight_of == txn_id and not appended for flight_of, _, appended in self.flights)

    @rule()
    def append_plain(self) -> None:
        self.entries.append(None)

    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        self.confirmed = data.draw(st.integers(self.confirmed, len(self.entries)))
        if self.confirmed:
            self.buffer.confirmed(Position(1, self.confirmed - 1))

    @precondition(lambda self: any(appended for _, _, appended in self.flights))
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        flight = data.draw(st.sampled_from([one for one in self.flights if one[2]]))
        self.flights.remove(flight)
        self.confirmed = len(self.entries)
        self.buffer.confirmed(Position(1, self.confirmed - 1))
        self.buffer.op_finished(flight[0])

    # ---- decisions and clean-up

    @rule(
        txn_id=st.sampled_from(TXNS),
        committed=st.booleans(),
        writers=st.none() | st.frozensets(st.sampled_from(WRITERS)),
    )
    def decide(self, txn_id: TxnId, committed: bool, writers: frozenset[int] | None) -> None:
        decision = Decision(txn_id, committed, len(self.decisions) + 1, writers if committed else None)
        if txn_id not in self.decisions:
            self.decisions[txn_id] = decision
            self.may_land[txn_id] = self._unanswered(txn_id)

    @rule(txn_id=st.sampled_from(TXNS))
    def deliver(self, txn_id: TxnId) -> None:
        if txn_id in self.decisions:
            self.delivered[txn_id] = None
            self.buffer.decided(self.decisions[txn_id])

    @rule(limit=st.integers(1, 3))
    def clean_up(self, limit: int) -> None:
        batch = self.buffer.clean_up_batch(limit)
        self._write(batch)
        self.buffer.cleaned(batch)

    def _write(self, batch: object) -> None:
        assert isinstance(batch, tuple)
        for applied in batch:
            assert isinstance(applied, Applied)
            txn_id = applied.decision.txn_id
            for writer, position in applied.aborted:
                self.durable[txn_id, writer] = position
            self.ops.pop(txn_id, None)

    @rule()
    def write_watermark(self) -> None:
        assert self.buffer.watermark >= self.watermark
        self.watermark = self.buffer.watermark

    @rule(data=st.data())
    def crash_and_recover(self, data: st.DataObject) -> None:
        """A new owner: from the watermark, the durable records, the ops (as the index) and the ledger's tail."""
        for txn_id, _, appended in self.flights:
            if not appended and self.may_land.get(txn_id, 1) and data.draw(st.booleans()):
                self.ops[txn_id] = None
        self.flights, self.may_land = [], dict.fromkeys(self.may_land, 0)
        self.settled = {}
        self.confirmed = len(self.entries)
        last = Position(1, self.confirmed - 1) if self.entries else Position(0, -1)
        self.buffer = TransactionBuffer("s", watermark=self.watermark, last_confirmed=last, aborted=dict(self.durable))
        for txn_id in self.ops:
            self.buffer.loaded(txn_id)
        for entry_id, entry in enumerate(self.entries):
            if entry is not None and Position(1, entry_id) > self.watermark:
                self.buffer.scanned(*entry, Position(1, entry_id))
        self.delivered = {}
        for txn_id in list(self.ops):
            if txn_id in self.decisions:
                self.delivered[txn_id] = None
                self.buffer.decided(self.decisions[txn_id])

    # ---- what must hold, entry by entry

    def _settled(self, txn_id: TxnId) -> bool:
        """Decided, delivered, nothing in flight, once: an op sent later still is refused, and holds nobody back."""
        if not self.buffer.holds(txn_id) and txn_id in self.decisions:
            self.settled[txn_id] = None
        return txn_id in self.settled

    @invariant()
    def everything_visible_is_committed(self) -> None:
        for entry_id in range(self.confirmed):
            entry = self.entries[entry_id]
            visible = Position(1, entry_id) <= self.buffer.max_read_position
            if entry is None or not visible:
                continue
            decision = self.decisions.get(entry[0])
            assert decision is not None, f"entry {entry_id} of an open transaction is readable"
            assert self.buffer.is_aborted(*entry) is not decision.counts(entry[1])

    @invariant()
    def nothing_else_holds_readers_back(self) -> None:
        """The read position is the entry before the first of an unsettled transaction."""
        for txn_id in TXNS:
            self._settled(txn_id)
        unsettled = (
            entry_id
            for entry_id, entry in enumerate(self.entries[: self.confirmed])
            if entry is not None and not self._settled(entry[0])
        )
        first = next(unsettled, self.confirmed)
        expected = Position(1, first - 1) if self.confirmed else Position(0, -1)
        assert self.buffer.max_read_position == expected

    @invariant()
    def watermark_is_sound(self) -> None:
        """At or below it everything is decided, and what is aborted is durable with its true last position or later."""
        for entry_id, entry in enumerate(self.entries[: self.confirmed]):
            if entry is None or Position(1, entry_id) > self.buffer.watermark:
                continue
            txn_id, writer = entry
            decision = self.decisions[txn_id]
            if not decision.counts(writer):
                record = self.durable.get((txn_id, None if not decision.committed else writer))
                assert record is not None
                assert record >= Position(1, entry_id)


BufferMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestBuffer = BufferMachine.TestCase
