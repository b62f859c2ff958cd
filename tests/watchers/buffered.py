"""Operations and decisions for transaction buffers."""

from __future__ import annotations

from txnwire.ids import Position, TxnId
from watchers.outcomes import Decision
from watchers.visibility import TransactionBuffer

SEGMENT = "public/default/orders/0000-ffff-0"


A, B, C = TxnId(0, 1), TxnId(0, 2), TxnId(3, 1)


W1, W2, W3 = 0x11, 0x22, 0x33


def at(entry_id: int, ledger_id: int = 1) -> Position:
    return Position(ledger_id, entry_id)


def abort(txn_id: TxnId, revision: int = 100, reason: str | None = "client") -> Decision:
    return Decision(txn_id, False, revision, None, reason)


def write(buffer: TransactionBuffer, txn_id: TxnId, entry_id: int, writer: int = 0) -> None:
    """One write from beginning to ack."""
    buffer.op_started(txn_id, writer)
    buffer.appended(txn_id, writer, at(entry_id))
    buffer.confirmed(at(entry_id))
    assert buffer.op_finished(txn_id) is None


def fresh() -> TransactionBuffer:
    return TransactionBuffer(SEGMENT)
