"""Failures that no caller has received yet (C4). ▲ A flush or close after a lost send raises them: the loss would look
like success otherwise.

A failure counts as told once its future's exception was retrieved by `await`, `result()` or `exception()`, or once its
transaction has ended: the commit raises it, or the abort has undone the send.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any
from weakref import WeakKeyDictionary

from txnclient.transactions.outcome import TransactionState
from txnclient.transactions.transaction_impl import TransactionImpl
from txnwire.errors import TxnError, again

MOST_KEPT = 10_000
"""Most failed futures kept until retrieved. Beyond that only the first error is kept, and counts as untold."""

Stored = asyncio.Future[Any]


class Looked:
    """Whether the sender has retrieved the result of a send that another party awaits for it. It refers to neither, so
    it keeps neither alive."""

    __slots__ = ("yes",)

    def __init__(self) -> None:
        self.yes = False


class Untold:
    """Records one producer's untold failures, in the order in which they happened."""

    def __init__(self) -> None:
        self._failed: deque[tuple[Stored, TxnError, TransactionImpl | None]] = deque()
        self._looked: WeakKeyDictionary[Stored, Looked] = WeakKeyDictionary()
        self._beyond: TxnError | None = None

    def looked_at_elsewhere(self, future: Stored, looked: Looked) -> None:
        """Another party awaits `future` for the sender; only `looked` tells whether the sender knows the result."""
        self._looked[future] = looked

    def failed(self, future: Stored, error: TxnError, txn: TransactionImpl | None) -> None:
        while self._failed and self._told(*self._failed[0]):
            _silence(self._failed.popleft()[0])
        if len(self._failed) < MOST_KEPT:
            self._failed.append((future, error, txn))
            return
        _silence(future)
        if txn is None and self._beyond is None:
            self._beyond = error

    def tell(self, *, of_transactions: bool) -> TxnError | None:
        """The first one, to raise, which marks all as told. `of_transactions`: also failures in open transactions."""
        untold = [error for future, error, txn in self._failed if not self._told(future, error, txn)
                  and (of_transactions or txn is None)]  # fmt: skip
        untold += [] if self._beyond is None else [self._beyond]
        self.silence()
        if not untold:
            return None
        first = again(untold[0])
        if len(untold) > 1:
            first.add_note(f"and {len(untold) - 1} more sends failed without a report")
        return first

    def silence(self) -> None:
        """Forget all; the futures still raise their errors when awaited."""
        for future, _, _ in self._failed:
            _silence(future)
        self._failed.clear()
        self._beyond = None

    def _told(self, future: Stored, error: TxnError, txn: TransactionImpl | None) -> bool:
        if txn is not None and txn.state is not TransactionState.OPEN:
            return True
        looked = self._looked.get(future)
        return not future._log_traceback if looked is None else looked.yes


def _silence(future: Stored) -> None:
    """Keep asyncio from logging that the exception was never retrieved."""
    future.exception()
