"""What has to be in its transaction whole, or leaves it only able to abort."""

from __future__ import annotations

import asyncio

from txnclient.transactions.transaction import Transaction
from txnwire.errors import InvalidTxnState, TxnError, again


class Whole:
    """Something that consists of several sends and is in its transaction from its first one to its last, as a block.

    ▲ C1: whatever ends it before it is all stored leaves the transaction only able to abort, or that would commit a
    part. ▲ C2: no commit passes while it is under way, also while it waits for room or for the next message."""

    def __init__(self, txn: Transaction | None, what: str) -> None:
        """`what`: e.g. "a send". None: in no transaction, nothing is done."""
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

    def flush(self, txn: Transaction) -> None:
        """Its sends are flushed where they are."""

    def withdraw(self, txn: Transaction) -> None:
        """Nobody waits for it any more: it may be at a message that its caller has yet to give."""
        self._finish()

    def ended(self, txn: Transaction, committed: bool, revision: int) -> None:
        """Its next send is told."""


def failure_in(txn: Transaction, what: str, error: BaseException) -> TxnError:
    """Why `txn` can only abort after `error` has ended `what`, e.g. "a send"."""
    if isinstance(error, TxnError):
        return again(error)
    if isinstance(error, asyncio.CancelledError):
        return cancelled_in(txn, what)
    return InvalidTxnState(
        f"transaction {txn.id} can only abort: {what} in it was ended by {type(error).__name__}: {error}"
    )


def cancelled_in(txn: Transaction, what: str) -> InvalidTxnState:
    return InvalidTxnState(f"transaction {txn.id} can only abort: {what} in it was cancelled")
