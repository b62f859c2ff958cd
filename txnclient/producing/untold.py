"""Failures that nobody has been told of (C4). ▲ A producer that is flushed or closed behind a loss raises it: the loss
would look like success.

Told is: a future whose exception somebody has looked at, by `await`, `result()` or `exception()`; and what failed in a
transaction that is not open any more, for its commit raises that, and an abort makes it never have happened.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any
from weakref import WeakKeyDictionary

from txnclient.transactions.transaction import Transaction, TransactionState
from txnwire.errors import TxnError, again

MOST_KEPT = 10_000
"""Failed futures that are kept until somebody looks. Of more only the first one's error is: it counts as untold."""

Stored = asyncio.Future[Any]


class Looked:
    """Whether somebody has looked at the end of a send on whose behalf somebody else waits for it. It knows neither of
    both, so that who drops them drops them."""

    __slots__ = ("yes",)

    def __init__(self) -> None:
        self.yes = False


class Untold:
    """Of one producer, in the order in which they failed."""

    def __init__(self) -> None:
        self._failed: deque[tuple[Stored, TxnError, Transaction | None]] = deque()
        self._looked: WeakKeyDictionary[Stored, Looked] = WeakKeyDictionary()
        self._beyond: TxnError | None = None

    def looked_at_elsewhere(self, future: Stored, looked: Looked) -> None:
        """Somebody waits for `future` on behalf of others, and only `looked` tells whether they know how it ended."""
        self._looked[future] = looked

    def failed(self, future: Stored, error: TxnError, txn: Transaction | None) -> None:
        while self._failed and self._told(*self._failed[0]):
            _silence(self._failed.popleft()[0])
        if len(self._failed) < MOST_KEPT:
            self._failed.append((future, error, txn))
            return
        _silence(future)
        if txn is None and self._beyond is None:
            self._beyond = error

    def tell(self, *, of_transactions: bool) -> TxnError | None:
        """The first one, to be raised: all are told by that. `of_transactions`: also what failed in an open one."""
        untold = [error for future, error, txn in self._failed if not self._told(future, error, txn)
                  and (of_transactions or txn is None)]  # fmt: skip
        untold += [] if self._beyond is None else [self._beyond]
        self.silence()
        if not untold:
            return None
        first = again(untold[0])
        if len(untold) > 1:
            first.add_note(f"and {len(untold) - 1} more sends failed that nobody has been told of")
        return first

    def silence(self) -> None:
        """Forget all. Whoever looks at a future later is told all the same."""
        for future, _, _ in self._failed:
            _silence(future)
        self._failed.clear()
        self._beyond = None

    def _told(self, future: Stored, error: TxnError, txn: Transaction | None) -> bool:
        if txn is not None and txn.state is not TransactionState.OPEN:
            return True
        looked = self._looked.get(future)
        return not future._log_traceback if looked is None else looked.yes


def _silence(future: Stored) -> None:
    """The loop's handler need not say that nobody has looked at it."""
    future.exception()
