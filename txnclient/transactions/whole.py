"""Operations of several sends that must be in their transaction whole, or it can only abort."""

from __future__ import annotations

import asyncio

from txnclient.transactions.transaction_impl import TransactionImpl
from txnwire.errors import InvalidTxnState, TxnError, again


class Whole:
    """A `with` block that keeps an operation of several sends in its transaction from the first send to the last.

    ▲ C1: if it ends before everything is stored, the transaction can only abort, or it would commit a part. ▲ C2: a
    commit waits for it, also while it waits for room or for the next message."""

    def __init__(self, txn: TransactionImpl | None, what: str) -> None:
        """`what`: e.g. "a send". `txn` None: without a transaction it does nothing."""
        self._txn = txn
        self._what = what
        self._under_way = False

    def __enter__(self) -> None:
        if self._txn is not None:
            self._under_way = True
            self._txn.started(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._txn is None:
            return
        if error is not None:
            self._txn.failed(failure_in(self._txn, self._what, error))
        self._finish()

    def _finish(self) -> None:
        if self._under_way and self._txn is not None:
            self._under_way = False
            self._txn.finished(None)

    def flush(self, txn: TransactionImpl) -> None:
        """Nothing to do: the channels flush its sends."""

    def withdraw(self, txn: TransactionImpl) -> None:
        """The transaction stops waiting for it: its caller may not have given the next message yet."""
        self._finish()

    def ended(self, txn: TransactionImpl, committed: bool, revision: int) -> None:
        """Nothing to do: its next send raises."""


def failure_in(txn: TransactionImpl, what: str, error: BaseException) -> TxnError:
    """Why `txn` can only abort after `error` has ended `what`, e.g. "a send"."""
    if isinstance(error, TxnError):
        return again(error)
    if isinstance(error, asyncio.CancelledError):
        return cancelled_in(txn, what)
    return InvalidTxnState(
        f"transaction {txn.id} can only abort: {what} in it was ended by {type(error).__name__}: {error}"
    )


def cancelled_in(txn: TransactionImpl, what: str) -> InvalidTxnState:
    return InvalidTxnState(f"transaction {txn.id} can only abort: {what} in it was cancelled")
