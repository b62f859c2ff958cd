"""What a new owner reads of a segment's transactional state: everything at one revision R (DESIGN §6, "Recovery").

The segment has joined the decision watch, taken ownership and fenced the old ledger before. Then

    state = await load_state(store, segment, owner_epoch)        watermark, aborted, indexes, ops, cursors, headers at R
    buffer = state.transaction_buffer(last_confirmed=…, fenced_below=…)
    for each entry behind state.watermark: buffer.scanned(txn_id, writer, position)
    pending = state.pending_acks(subscription, cursor)           cursor from state.cursor_records(subscription)
    for decision in state.decisions: decide(decision)            decided leftovers; aborted ones before the first read
    membership.loaded(state.open_transactions)                   decisions after R

Cost: open and not yet cleaned transactions, never history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from txnstore.store import KeyValue, MetadataStore
from txnwire.ids import Position, TxnId
from watchers.acks import AckOp
from watchers.outcomes import Decision
from watchers.pending_acks import CursorView, PendingAcks
from watchers.visibility import AbortedKey, TransactionBuffer


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentState:
    """All as of `revision`. `decisions`: of transactions with leftovers here, in revision order. `open_transactions`:
    those without a decision (▲ `absent_headers` among them: still pinned). `writers`: per transaction with writes here.
    `ack_ops`: by subscription, in key order."""

    segment: str
    owner_epoch: int
    revision: int
    watermark: Position
    watermark_record: KeyValue | None
    aborted: Mapping[AbortedKey, Position | None]
    writers: Mapping[TxnId, Sequence[int]]
    ack_ops: Mapping[str, Sequence[AckOp]]
    cursor_blocks: Mapping[str, Sequence[KeyValue]]
    decisions: Sequence[Decision]
    open_transactions: Sequence[TxnId]
    absent_headers: Sequence[TxnId]

    def transaction_buffer(self, *, last_confirmed: Position, fenced_below: Position) -> TransactionBuffer:
        """With every transaction of the write index registered; feed it `scanned`, then `decided`, before any reader."""
        raise NotImplementedError

    def cursor_records(self, subscription: str) -> Sequence[tuple[str, bytes, int]]:
        """(block, value, mod revision) of each cursor record: what `Cursor.load` takes."""
        raise NotImplementedError

    def pending_acks(self, subscription: str, cursor: CursorView) -> PendingAcks:
        """With every ack op restored (P5)."""
        raise NotImplementedError

    @property
    def subscriptions(self) -> Sequence[str]:
        """Those with cursor records or ack ops here."""
        raise NotImplementedError


async def load_state(store: MetadataStore, segment: str, owner_epoch: int, *, timeout_s: float = 30.0) -> SegmentState:
    """Raises `NotOwner` where the segment has another owner at R, `DataCorrupt` naming the key of a record that does not
    parse, `StoreUnavailable`, `Timeout`."""
    raise NotImplementedError
