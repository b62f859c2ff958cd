"""Chooses the op of a transaction that carries the index key, and makes the others wait for it (DESIGN §4). Pure.

One gate serves one participant: the writes of a segment, or the acks of one of its subscriptions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Generic, TypeVar

from txnwire.ids import TxnId

OpT = TypeVar("OpT")


class Turn(Enum):
    FIRST = "send now, with the index key"
    FURTHER = "send now"
    WAIT = "wait: the put that carries the index key is not confirmed"


class OpGate(Generic[OpT]):
    """Holds back a transaction's ops ▲ until the put that carries its index key is confirmed.

    Otherwise a later op could land while the first is refused or lost: neither clean-up nor a successor would find an
    op without an index key.
    """

    def __init__(self) -> None:
        self._waiting: dict[TxnId, deque[OpT] | None] = {}
        """Transactions whose first op is in flight → the ops that wait for it, if any."""
        self._indexed: dict[TxnId, None] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._indexed)

    def loaded(self, txn_id: TxnId) -> None:
        """The index key of `txn_id` was found in the store while the segment recovered."""
        self._indexed[txn_id] = None

    def enter(self, txn_id: TxnId, op: OpT) -> Turn:
        if txn_id in self._indexed:
            return Turn.FURTHER
        if txn_id not in self._waiting:
            self._waiting[txn_id] = None
            return Turn.FIRST
        waiting = self._waiting[txn_id]
        if waiting is None:
            waiting = self._waiting[txn_id] = deque()
        waiting.append(op)
        return Turn.WAIT

    def first_confirmed(self, txn_id: TxnId) -> Iterable[OpT]:
        """The index key is written: returns the waiting ops, to be sent now (`FURTHER`)."""
        self._indexed[txn_id] = None
        return self._waiting.pop(txn_id) or ()

    def first_refused(self, txn_id: TxnId) -> OpT | None:
        """The first op definitely did not land: the op returned, if any, is the new first (send it as `FIRST`)."""
        waiting = self._waiting[txn_id]
        if waiting:
            return waiting.popleft()
        del self._waiting[txn_id]
        return None

    def forget(self, txn_id: TxnId) -> None:
        """The transaction is decided and has no op in flight here."""
        self._indexed.pop(txn_id, None)
