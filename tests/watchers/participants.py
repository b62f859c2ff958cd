"""One segment's participants without its ledger: ops are recorded in a store, entries only counted."""

from __future__ import annotations

from itertools import count

from segments.subscription.cursors.cursor import Cursor
from tests.segments.ledger_lengths import LedgerLengths
from txnstore import keys, records
from txnstore.records import Op, OwnerRecord
from txnstore.store import Commit, Delete, MetadataStore, Put
from txnstore.writes import op_transitions
from txnwire.errors import TxnError
from txnwire.ids import EARLIEST, Position, TxnId
from watchers import acks
from watchers.acks import AckPosition
from watchers.clean_up import AckCleanUp, WriteCleanUp
from watchers.outcomes import Decision
from watchers.pending_acks import PendingAcks
from watchers.visibility import TransactionBuffer

SEGMENT = "public/default/orders/0000-ffff-0"
SUBSCRIPTION = "sub"
_counters = count(1)


async def own(store: MetadataStore) -> int:
    """Take the segment, from whoever has it; returns the ownership epoch."""
    key = keys.owner(SEGMENT)
    await store.commit(Commit(deletes=(Delete(key),)))
    result = await store.commit(Commit(puts=(Put(key, records.encode(OwnerRecord(broker="b", address="h:1"))),)))
    return result.revision


class Held:
    """Buffer, pending acks and their clean-up targets, under one ownership epoch."""

    def __init__(self, store: MetadataStore, epoch: int) -> None:
        self.store = store
        self.epoch = epoch
        self.errors: list[TxnError] = []
        self.buffer = TransactionBuffer(SEGMENT)
        self.cursor = Cursor(LedgerLengths({1: 100_000}), EARLIEST)
        self.pending = PendingAcks(SEGMENT, SUBSCRIPTION, self.cursor)
        self.writes = WriteCleanUp(SEGMENT, epoch, self.buffer, watermark=None, on_lost=self.errors.append)
        self.acks = AckCleanUp(SEGMENT, SUBSCRIPTION, epoch, self.pending, on_lost=self.errors.append)
        self._entries = 0
        self._indexed: dict[tuple[TxnId, str], None] = {}

    async def write(self, txn_id: TxnId, writer: int = 0) -> Position:
        """One acked write."""
        position = Position(1, self._entries)
        self._entries += 1
        self.buffer.op_started(txn_id, writer)
        op = Op(v=1, kind="write", segment=SEGMENT, writer=f"{writer:016x}" if writer else None)
        commit = op_transitions.plan_write_op(
            txn_id, SEGMENT, self.epoch, next(_counters), op, first_in_segment=self._first(txn_id, "")
        )
        op_transitions.read_op_verdict(commit, await self.store.commit(commit), txn_id)
        self.buffer.appended(txn_id, writer, position)
        self.buffer.confirmed(position)
        self.buffer.op_finished(txn_id)
        return position

    async def ack(self, txn_id: TxnId, *positions: AckPosition, cumulative: bool = False, writer: int = 0) -> None:
        reservation = self.pending.reserve(txn_id, writer, positions, cumulative=cumulative)
        op = acks.ack_op_record(SEGMENT, SUBSCRIPTION, positions, cumulative=cumulative, writer=writer)
        first = self._first(txn_id, SUBSCRIPTION)
        commit = op_transitions.plan_ack_op(
            txn_id, SEGMENT, SUBSCRIPTION, self.epoch, next(_counters), op, first_in_subscription=first
        )
        op_transitions.read_op_verdict(commit, await self.store.commit(commit), txn_id)
        self.pending.confirmed(reservation)

    def decided(self, decision: Decision) -> None:
        self.buffer.decided(decision)
        self.pending.decided(decision)

    def _first(self, txn_id: TxnId, subscription: str) -> bool:
        if (txn_id, subscription) in self._indexed:
            return False
        self._indexed[txn_id, subscription] = None
        return True


async def present(store: MetadataStore, prefix: bytes) -> dict[bytes, bytes]:
    found = await store.range(prefix, keys.prefix_end(prefix))
    return {record.key: record.value for record in found.records}
