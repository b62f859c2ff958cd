"""The interface that a queue needs from its subscription, its limits, and its statistics."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from txnwire.ids import Position, TxnId
from watchers.acks import Block


class QueueAcks(Protocol):
    """The subscription's acks, as the queue uses them."""

    def skip(self, position: Position, messages: int = 0) -> int:
        """Bitmap of indexes acked or pending; `WHOLE`: the whole entry."""

    def pass_over(self, position: Position, messages: int) -> None:
        """Count an aborted entry as consumed: no consumer will ever ack it."""

    @property
    def mark_delete(self) -> Position: ...
    def blocks(self) -> Collection[Block]:
        """Blocks with acks behind the mark-delete position."""

    def acked(self, position: Position) -> int: ...
    def next_unacked(self, position: Position) -> Position: ...
    def following(self, position: Position) -> Position: ...
    def has_room(self, position: Position) -> bool:
        """Whether the cursor has room for the entry's messages to be acked one by one."""

    def promise(self, position: Position, messages: int) -> None:
        """Keep room for acks of any of the entry's messages until `withdraw`: it is with a consumer."""

    def withdraw(self, position: Position) -> None: ...


class QueueOutcomes(Protocol):
    """The transaction buffer, as the queue reads it."""

    def pins(self, txn_id: TxnId) -> bool: ...
    def is_aborted(self, txn_id: TxnId, writer: int) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBounds:
    """`places`: positions and intervals kept. `unacked`: entries with one consumer. `blocks`: blocks of
    `cursor.BLOCK_ENTRIES` positions behind the mark-delete position, so the cursor has room for every ack."""

    places: int
    unacked: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics:
    """Numbers of entries. `unacked`: with consumers. `due`: intervals to deliver again, or to deliver after a commit.
    `redelivered`: unacked entries with a message that was given back."""

    unacked: int = 0
    set_aside: int = 0
    set_aside_transactions: int = 0
    delayed: int = 0
    due: int = 0
    redelivered: int = 0
