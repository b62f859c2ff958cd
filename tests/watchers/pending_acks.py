"""Cursors and acks in transactions over them."""

from __future__ import annotations

from txnwire.ids import Position, TxnId
from watchers.acks import AckPosition
from watchers.outcomes import Decision
from watchers.pending_acks import PendingAcks, Reservation

SEGMENT = "public/default/orders/0000-ffff-0"


A, B, C = TxnId(0, 1), TxnId(0, 2), TxnId(0, 3)


def at(entry_id: int, ledger_id: int = 1) -> Position:
    return Position(ledger_id, entry_id)


def whole(entry_id: int, ledger_id: int = 1) -> AckPosition:
    return AckPosition(at(entry_id, ledger_id), 4)


def part(entry_id: int, indexes: int) -> AckPosition:
    return AckPosition(at(entry_id), 4, indexes)


def commit(txn_id: TxnId, revision: int = 100, writers: frozenset[int] | None = None) -> Decision:
    return Decision(txn_id, True, revision, writers)


def abort(txn_id: TxnId, revision: int = 100, reason: str = "client") -> Decision:
    return Decision(txn_id, False, revision, None, reason)


def reserve(
    pending: PendingAcks, txn_id: TxnId, *acks: AckPosition, cumulative: bool = False, writer: int = 0
) -> Reservation:
    return pending.reserve(txn_id, writer, acks, cumulative=cumulative)


def acked(
    pending: PendingAcks, txn_id: TxnId, *acks: AckPosition, cumulative: bool = False, writer: int = 0
) -> Reservation:
    """Reserved, and its op recorded."""
    reservation = reserve(pending, txn_id, *acks, cumulative=cumulative, writer=writer)
    assert pending.confirmed(reservation) is None
    return reservation
