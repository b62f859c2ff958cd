"""What takes part in a transaction, what ends it, and what holds its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from txnclient.connection.deadlines import Deadline
from txnclient.transactions.outcome import CommitResult
from txnwire.errors import ExpiredTransaction, TxnError
from txnwire.proto import txn_pb2 as pb

if TYPE_CHECKING:
    from txnclient.transactions.transaction_impl import TransactionImpl


class TransactionParticipant(Protocol):
    """A sender or acker in a transaction: a producer's channel, or the acks of a consumed segment."""

    def flush(self, txn: TransactionImpl) -> None:
        """Send what is gathered for it now."""

    def withdraw(self, txn: TransactionImpl) -> None:
        """Drop what is not under way to a server: it aborts, or commits without this writer."""

    def ended(self, txn: TransactionImpl, committed: bool, revision: int) -> None:
        """It has been decided, at this revision; 0: unknown."""


class Ender(Protocol):
    """Ends transactions at the coordinators."""

    async def end(
        self,
        txn: TransactionImpl,
        action: pb.TxnAction,
        deadline: Deadline,
        *,
        writers: Sequence[int] | None = None,
        note: str | None = None,
    ) -> pb.EndTxnOk: ...

    async def committed_as(self, txn: TransactionImpl, deadline: Deadline) -> CommitResult | None:
        """How a committed named transaction committed; None if its outcome is no longer kept."""

    def forget(self, txn: TransactionImpl) -> None: ...

    def settle(self, txn: TransactionImpl) -> None:
        """End it in the background."""


class KeyHolder(Protocol):
    """Tells whether a client still holds its transaction key."""

    def expired(self) -> ExpiredTransaction | None:
        """The error to raise if it was fenced."""

    async def expired_instead(self, error: TxnError, deadline: Deadline) -> TxnError:
        """`error`, or `ExpiredTransaction` if fencing has caused it."""
