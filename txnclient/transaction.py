"""A transaction as its client holds it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from txnwire.ids import TxnId


class TransactionState(str, Enum):
    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    """`commit()` was called and its outcome is not known yet; calling it again asks again."""
    ABORTING = "ABORTING"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


@dataclass(frozen=True, slots=True)
class CommitResult:
    revision: int
    """Of the metadata store: orders all decisions. 0 where only the collected outcome is known any more."""


class Transaction:
    @property
    def id(self) -> TxnId:
        raise NotImplementedError

    @property
    def state(self) -> TransactionState:
        raise NotImplementedError

    async def commit(self) -> CommitResult:
        """Wait for every send and ack made in the transaction, then commit.

        If one of them failed the transaction is aborted and that error raised. `Timeout`: not decided as far as known,
        call it again. `InvalidTxnState`: it was aborted, and why. Committing twice is ok.
        """
        raise NotImplementedError

    async def abort(self) -> None:
        """Cancel what is not sent, end the transaction, await what was sent. `InvalidTxnState` if it has committed."""
        raise NotImplementedError
