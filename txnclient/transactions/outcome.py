"""States of a transaction, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TransactionState(StrEnum):
    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    """`commit()` was called and its outcome is not known yet; call it again to ask again."""
    ABORTING = "ABORTING"
    """It failed or `abort()` was called, and the service has not confirmed it yet; call `abort()` to ask again."""
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


@dataclass(frozen=True, slots=True)
class CommitResult:
    revision: int
    """The metadata store's revision, which orders all decisions; 0 if only the collected outcome is left."""
    writers: tuple[int, ...] | None = None
    """For a named transaction: the writers that count, in rising order; None: all."""
    note: str | None = None
    """The note of its commit; None: no note."""


@dataclass(frozen=True, slots=True)
class Joined:
    """How a client takes part in a named transaction (DESIGN §10): its writer id, and whether another begin had created
    it. `result`: its commit, if it had committed already."""

    name: str
    writer_id: int
    joined: bool = False
    result: CommitResult | None = None
