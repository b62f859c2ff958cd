"""Entries for queues."""

from __future__ import annotations

from txnwire.ids import Position, TxnId
from watchers.acks import AckPosition

T1, T2 = TxnId(1, 1), TxnId(1, 2)


def whole(position: Position, messages: int = 1) -> AckPosition:
    return AckPosition(position, messages)
