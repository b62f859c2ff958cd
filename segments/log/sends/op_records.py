"""Writes the op records that claim a segment's transactional entries (DESIGN §6).

Entries of one producer and transaction that arrive in one turn of the loop (in one frame), or while an op of it is in
flight, share the next op: an op record says that the transaction has written here, not what it wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from segments.log.measures import Measures
from segments.log.sends.op_gate import OpGate, Turn
from segments.log.sends.send_order import OP
from segments.log.sends.sending import Item, PipelineEvents, ProducerLine
from txnstore.records import Op
from txnstore.store import Commit, CommitVerdict, MetadataStore
from txnstore.writes.op_transitions import plan_write_op, read_op_verdict
from txnwire.errors import ExpiredTransaction, NotOwner, OutcomeUnknown, TxnConflict, TxnError
from txnwire.ids import TxnId
from watchers.visibility import TransactionBuffer

Claim = list[Item]
"""Entries of one producer, writer and transaction that share an op record."""


class OpRecords:
    """Sends the ops of one segment; `advance` is called with a line whose entries may be appended, `fail` with an entry
    that was refused. `op_counter` gives the next number for op keys. ▲ Use one per broker process, never restarted: a
    number used twice under one epoch would be an op key used twice."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        segment: str,
        epoch: int,
        buffer: TransactionBuffer,
        measures: Measures,
        op_counter: Callable[[], int],
        events: PipelineEvents,
        advance: Callable[[ProducerLine], None],
        fail: Callable[[Item, TxnError], None],
    ) -> None:
        self._store = store
        self._segment = segment
        self._epoch = epoch
        self._buffer = buffer
        self._measures = measures
        self._op_counter = op_counter
        self._events = events
        self._advance = advance
        self._fail = fail
        self.gate: OpGate[Claim] = OpGate()
        self._gathering: dict[TxnId, Claim] = {}
        """Entries that have no op yet: the next op claims all that arrive before the end of this turn of the loop, or
        before the answer to the op in flight."""
        self._leaving: list[TxnId] = []
        """Transactions whose next op is sent at the end of this turn."""
        self._ops_out: dict[TxnId, int] = {}
        self._stopped = False

    def stop(self) -> None:
        """Send no more, and heed no answer but that an outcome is unknown."""
        self._stopped = True

    def start(self, item: Item, txn_id: TxnId) -> None:
        """Claims an admitted entry; it may be appended once its op stands."""
        try:
            # ▲ Register before sending the op: a decision that overtakes the op's answer is remembered, not dropped.
            self._buffer.op_started(txn_id, item.entry.writer)
        except TxnError as error:
            self._fail(item, error)
            return
        self._events.hold(txn_id)
        gathering = self._gathering.get(txn_id)
        if gathering is not None:
            gathering.append(item)
            return
        self._gathering[txn_id] = [item]
        if txn_id not in self._ops_out:
            if not self._leaving:
                asyncio.get_running_loop().call_soon(self._leave)
            self._leaving.append(txn_id)

    def _leave(self) -> None:
        leaving, self._leaving = self._leaving, []
        if not self._stopped:
            for txn_id in leaving:
                self._send_ops(txn_id)

    def _send_ops(self, txn_id: TxnId) -> None:
        """Send one op for the gathered entries of each producer and writer."""
        claims: dict[tuple[tuple[str, int], int], Claim] = {}
        for item in self._without_failed(self._gathering.pop(txn_id), txn_id):
            claims.setdefault((item.line.key, item.entry.writer), []).append(item)
        for claim in claims.values():
            turn = self.gate.enter(txn_id, claim)
            if turn is not Turn.WAIT:
                self._send_op(claim, txn_id, first=turn is Turn.FIRST)

    def _without_failed(self, items: Claim, txn_id: TxnId) -> Claim:
        """The entries of an unsent claim that may still be appended."""
        live = [item for item in items if not item.admitted.failed]
        for _ in range(len(items) - len(live)):
            self.settled(txn_id, recorded=False)
        return live

    def _send_op(self, items: Claim, txn_id: TxnId, *, first: bool) -> None:
        entry = items[0].entry
        op = Op(
            v=1,
            kind="write",
            segment=self._segment,
            producer=entry.producer,
            sequence_id=entry.sequence_id,
            writer=f"{entry.writer:016x}" if entry.writer else None,
            messages=sum([item.entry.messages for item in items]),
            bytes=sum([len(item.entry.data) for item in items]),
        )
        commit = plan_write_op(txn_id, self._segment, self._epoch, self._op_counter(), op, first_in_segment=first)
        self._ops_out[txn_id] = self._ops_out.get(txn_id, 0) + 1
        future = self._store.commit_nowait(commit)
        future.add_done_callback(partial(self._op_done, items, txn_id, commit, first))

    def _op_done(
        self, items: Claim, txn_id: TxnId, commit: Commit, first: bool, future: asyncio.Future[CommitVerdict]
    ) -> None:
        if future.cancelled():
            return
        if self._stopped and not isinstance(future.exception(), OutcomeUnknown):
            return
        self._op_answered(txn_id)
        try:
            read_op_verdict(commit, future.result(), txn_id)
        except OutcomeUnknown as unknown:
            self._events.lost(unknown)  # the store is closing; a successor reads the outcome
        except TxnError as refusal:
            self._op_refused(items, txn_id, refusal, first=first)
        else:
            self._op_recorded(items, txn_id, first=first)
        if not self._stopped and txn_id not in self._ops_out and txn_id in self._gathering:
            self._send_ops(txn_id)

    def _op_answered(self, txn_id: TxnId) -> None:
        left = self._ops_out[txn_id] - 1
        if left:
            self._ops_out[txn_id] = left
        else:
            del self._ops_out[txn_id]

    def _op_recorded(self, items: Claim, txn_id: TxnId, *, first: bool) -> None:
        self._measures.ops_written += 1
        if first:
            self._index_confirmed(txn_id)
        for item in items:
            item.durable = OP
            if item.admitted.failed:
                self.settled(txn_id, recorded=True)  # an op without an entry: deleted when the transaction ends
        self._advance(items[0].line)

    def _index_confirmed(self, txn_id: TxnId) -> None:
        for claim in self.gate.first_confirmed(txn_id):
            if live := self._without_failed(claim, txn_id):
                self._send_op(live, txn_id, first=False)

    def _op_refused(self, items: Claim, txn_id: TxnId, error: TxnError, *, first: bool) -> None:
        refused = list(items)
        while first and (waiting := self.gate.first_refused(txn_id)) is not None:
            if not isinstance(error, TxnConflict | ExpiredTransaction):
                if live := self._without_failed(waiting, txn_id):
                    self._send_op(live, txn_id, first=True)
                    break
            else:
                refused += waiting  # a decided transaction accepts none of them
        for one in refused:
            self.settled(txn_id, recorded=False)
            if not one.admitted.failed:
                self._fail(one, error)
        if isinstance(error, NotOwner):
            self._events.lost(error)

    def settled(self, txn_id: TxnId, *, recorded: bool) -> None:
        """One op of the transaction is no longer in flight, and has no entry."""
        applied = self._buffer.op_finished(txn_id) if recorded else self._buffer.op_refused(txn_id)
        if applied is not None:
            self._events.applied(applied)
        elif not recorded:
            self._events.let_go(txn_id)
