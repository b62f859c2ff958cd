"""`Transaction`, as applications use it; `TransactionImpl` does the work."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from txnclient.transactions.outcome import CommitResult, TransactionState
from txnclient.transactions.transaction_impl import TransactionImpl
from txnwire.errors import InvalidArgument, TxnDecided
from txnwire.ids import TxnId

__all__ = ["CommitResult", "Transaction", "TransactionState", "impl_of", "transaction_impl"]


_log = logging.getLogger("txnclient")


class Transaction:
    """One transaction, made by `client.begin()` or `client.transaction()`. Any number of tasks may send and ack in it.

    Every client that begins the name shares a named one (`client.begin(name=…)`); this object is one writer of it.
    Another client's commit or abort shows here only after a call on this object: `state` stays OPEN until then."""

    def __init__(self, impl: TransactionImpl) -> None:
        self._impl = impl

    @property
    def id(self) -> TxnId:
        return self._impl.id

    @property
    def name(self) -> str | None:
        return self._impl.name

    @property
    def writer_id(self) -> int:
        """The writer that this object sends and acks as; random for each begin of a name, 0 without one."""
        return self._impl.writer_id

    @property
    def joined(self) -> bool:
        """Whether another begin had created the named transaction."""
        return self._impl.joined

    @property
    def state(self) -> TransactionState:
        return self._impl.state

    @property
    def result(self) -> CommitResult | None:
        """The result of `commit`; None while it is not known to be committed. Another client that passes
        `result.revision` as `at_least` reads no older state."""
        return self._impl.result

    @property
    def writers(self) -> tuple[int, ...] | None:
        """The writers that count in a committed named transaction; None: all, or not known."""
        return self._impl.writers

    @property
    def note(self) -> str | None:
        """The note of a committed named transaction; None: no note, or not known."""
        return self._impl.note

    async def flush(self, *, timeout: float | None = None) -> None:
        """Wait for every send and ack made through this object. Raises the error of one that failed, as `send` and
        `ack` do, `InvalidTxnState`.

        A writer of a named transaction then knows that its work is stored, and may tell the committing client."""
        await self._impl.flush(timeout=timeout)

    async def commit(
        self, *, writers: Iterable[int] | None = None, note: str | None = None, timeout: float | None = None
    ) -> CommitResult:
        """Wait for every send and ack made in the transaction, then commit. Committing again gives the same result.

        `writers`, for a named one: the `writer_id`s that count; sends and acks of all others are treated as aborted;
        None: all, an empty list: none. The first commit decides: a different list later raises `TxnDecided`. It
        waits only for sends and acks of *this* object, and only if its writer counts. `note`, for a named one: up to
        256 bytes of text for later begins of the name (`.note`), e.g. what was written. A different note later raises
        `TxnDecided`; a commit without a note never conflicts.

        If a send or ack failed, the transaction is aborted and that error raised (as the cause of `TxnTimedOut` if
        the transaction's own timeout has passed, which aborts it anyway). A named one then stays open, because it has
        other writers: commit it without this writer, or abort it. `timeout` in seconds, None: the client's.

        Raises what `send` and `ack` do. `Timeout`: the outcome is not known yet, call it again to ask again.
        `TxnAborted`: another party has aborted it, `TxnTimedOut`: because its own timeout has passed; `TxnDecided`: it
        has committed otherwise; `InvalidTxnState`: it was aborted or left here; `ExpiredTransaction`: a newer holder
        of the client's transaction key aborted it. `TxnNotFound`, `OutcomeUnknown`: how it ended is no longer known.
        """
        return await self._impl.commit(writers=writers, note=note, timeout=timeout)

    async def abort(self, *, timeout: float | None = None) -> TransactionState:
        """Fail unsent messages and acks with `InvalidTxnState`, abort, and wait for those already sent while time
        allows. Returns how the transaction has ended: ABORTED, or COMMITTED if a commit came first. Aborting again is
        ok; one that was left stays LEFT.

        Raises `ExpiredTransaction`: a newer holder of the client's transaction key aborted it. `Timeout`: not known to
        be aborted yet, call it again to ask again. `TxnNotFound`, `OutcomeUnknown`: how it ended is no longer known.
        """
        try:
            await self._impl.abort(timeout=timeout)
        except TxnDecided as decided:
            _log.debug("an abort came late: %s", decided)
        return self._impl.state

    async def leave(self, *, timeout: float | None = None) -> None:
        """Stop taking part in a named transaction, which goes on for its other writers; quiet if it is decided.

        Unsent messages and acks fail with `InvalidTxnState`; it waits for those already sent. What this writer has
        stored counts if a commit counts this writer: commit with a list of `writers`. Then begin the name again, which
        joins as a new writer, or finds how it has ended. `Timeout`: some are unanswered, call it again to wait again.
        Raises `InvalidArgument` for a transaction without a name.
        """
        await self._impl.leave(timeout=timeout)

    def __repr__(self) -> str:
        return repr(self._impl)


def transaction_impl(txn: Transaction) -> TransactionImpl:
    """The implementation, for the other parts of the client."""
    return txn._impl


def impl_of(txn: Transaction | None) -> TransactionImpl | None:
    """As `transaction_impl`, for the application's `txn` argument. Raises `InvalidArgument` if it is no transaction."""
    if txn is None:
        return None
    if not isinstance(txn, Transaction):
        raise InvalidArgument(f"txn is a transaction, as begin() gives it, not {type(txn).__name__}")
    return txn._impl
