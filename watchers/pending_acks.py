"""Acks in transactions on one (segment, subscription): PIP-31's machine as a pure core (DESIGN §6, "Pending acks").

    PENDING ──reserve──► PENDING_ACK ──commit──► DELETED
       ▲                      │
       └──── release, abort ──┘

A message in PENDING_ACK is not redelivered; a plain ack on it is dropped and a plain cumulative ack stops before it; a
second transaction that acks it gets `TxnConflict`. Messages of an entry count by index. Pending acks of a named
transaction are held per writer. Source: PIP-31, "New Acknowledgement State".

The life of one ack op, as the segment drives it:

    reserve ──► (op sent) ──► confirmed
                    └───────► release        only on a definite refusal ▲
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from txnwire.ids import Position, TxnId
from watchers.acks import AckOp, AckPosition
from watchers.outcomes import Decision


class BlockWrite(NamedTuple):
    """A cursor record to be written: `value` None deletes it. `mod_revision` is what it was read or last written at (0:
    absent). `generation` tells a later change apart (see `CursorView.written`)."""

    block: str
    value: bytes | None
    mod_revision: int
    generation: int


class CursorView(Protocol):
    """What pending acks and clean-up need of `segments.cursor.Cursor`, which documents it."""

    @property
    def mark_delete(self) -> Position: ...
    def acked(self, position: Position) -> int: ...
    def following(self, position: Position) -> Position: ...
    def hold(self, position: Position) -> None: ...
    def unhold(self, position: Position) -> None: ...
    def ack(self, ack: AckPosition) -> bool: ...
    def ack_cumulative(self, ack: AckPosition) -> bool: ...
    @property
    def dirty(self) -> bool: ...
    def block_writes(self) -> Sequence[BlockWrite]: ...
    def written(self, writes: Iterable[BlockWrite], revisions: dict[str, int]) -> None: ...
    def reload(self, block: str, value: bytes | None, mod_revision: int) -> None: ...


class Reservation:
    """One ack op between `reserve` and its transaction's decision. Opaque to callers, but for these."""

    __slots__ = ("cumulative", "in_flight", "positions", "txn_id", "writer")

    txn_id: TxnId
    writer: int
    cumulative: bool
    positions: tuple[AckPosition, ...]
    in_flight: bool


class AppliedAcks(NamedTuple):
    """A decision that has been applied to this subscription; its durable clean-up is queued.

    `acked`: now DELETED, and applied to the cursor. `released`: back to PENDING: a queue redelivers these, a stream
    consumer is rewound if there are any. A cumulative ack stands as its one position.
    """

    decision: Decision
    acked: tuple[AckPosition, ...]
    released: tuple[AckPosition, ...]


@dataclass(frozen=True, slots=True)
class PendingAckStatistics:
    """`positions`: entries held individually. `cumulative`: cumulative acks pending."""

    transactions: int
    positions: int
    cumulative: int
    deferred: int
    cleaning: int


class PendingAcks:
    def __init__(self, segment: str, subscription: str, cursor: CursorView) -> None:
        raise NotImplementedError

    @property
    def cursor(self) -> CursorView:
        raise NotImplementedError

    # ---- acks in a transaction

    def reserve(
        self, txn_id: TxnId, writer: int, positions: tuple[AckPosition, ...], *, cumulative: bool
    ) -> Reservation:
        """▲ Before the op is sent. All or nothing. The same transaction may ack a message again (a resend).

        Raises `TxnConflict` where a message is pending in another transaction or acked already, or the transaction is
        decided; `Overloaded` where the cursor could not hold the ack; `InvalidArgument` where a cumulative ack does not
        name exactly one position."""
        raise NotImplementedError

    def confirmed(self, reservation: Reservation) -> AppliedAcks | None:
        """The op is recorded. Returns a remembered decision that this let through."""
        raise NotImplementedError

    def release(self, reservation: Reservation) -> AppliedAcks | None:
        """▲ The op is *definitely* not recorded, now or later. The messages go back to PENDING. (They were never hidden
        for another reason, so the caller redelivers them as if they had not been acked.)"""
        raise NotImplementedError

    def restore(self, op: AckOp) -> None:
        """An op found in the store while the segment recovered (P5)."""
        raise NotImplementedError

    def decided(self, decision: Decision) -> AppliedAcks | None:
        """Apply a decision (commit: to the cursor, monotonically), remember it while an op of the transaction is in
        flight, or drop it if the transaction holds nothing here (P7)."""
        raise NotImplementedError

    # ---- plain acks

    def ack(self, positions: Sequence[AckPosition]) -> bool:
        """Ack outside any transaction; what is pending in one is dropped from it. Returns whether the cursor moved.

        Raises `Overloaded` past the cursor's bound; positions before the failing one have been applied."""
        raise NotImplementedError

    def ack_cumulative(self, ack: AckPosition) -> bool:
        """Ack everything up to and including `ack`, stopping before the first message pending in a transaction."""
        raise NotImplementedError

    # ---- dispatch

    def skip(self, position: Position) -> int:
        """Bitmap of indexes not to be delivered (acked or pending); `WHOLE`: none of the entry, 0: all of it."""
        raise NotImplementedError

    def earliest_unacked(self) -> Position:
        """The first position with a message neither acked nor pending: where a stream consumer is rewound to. It may lie
        behind the last entry. O(entries acked or pending from the mark-delete position on)."""
        raise NotImplementedError

    def holds(self, txn_id: TxnId) -> bool:
        """Whether the transaction's decision is still awaited here."""
        raise NotImplementedError

    def open_transactions(self) -> Sequence[TxnId]:
        """Transactions with acks pending here (P12 waits until those of a predecessor are gone). O(n)."""
        raise NotImplementedError

    def unsettled(self, revision: int) -> bool:
        """Whether a transaction decided at or before `revision` still has an op in flight here."""
        raise NotImplementedError

    # ---- durable clean-up (driven by `watchers.clean_up.AckCleanUp`)

    def clean_up_batch(self, limit: int) -> Sequence[AppliedAcks]:
        raise NotImplementedError

    def cleaned(self, batch: Sequence[AppliedAcks]) -> None:
        raise NotImplementedError

    @property
    def clean_up_backlog(self) -> int:
        raise NotImplementedError

    def statistics(self) -> PendingAckStatistics:
        raise NotImplementedError
