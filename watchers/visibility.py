"""Which entries of one segment a READ_COMMITTED reader may see: the transaction buffer, as a pure core (DESIGN §6).

    visible(entry)  ⇔  its position ≤ max_read_position  and  not is_aborted(its transaction, its writer)

Publish order is op record → ledger append → ack, so every transactional entry was registered here before it could be
read. The life of one write, as the segment drives it:

    op_started ──► (op confirmed) ──► appended ──► op_finished          acked, or failed after the op was recorded
         └───────► op_refused                                           the op is definitely not recorded

Source: PIP-471 `MetadataTransactionBuffer`; the watermark and the aborted set take the place of PIP-31's snapshots.
All methods are O(1) unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from txnwire.ids import EARLIEST, Position, TxnId
from watchers.outcomes import Decision

AbortedKey = tuple[TxnId, int | None]
"""A transaction aborted whole (None), or one writer of it that did not count."""


class Applied(NamedTuple):
    """A decision that has been applied to the pure state; its durable clean-up is queued in the buffer.

    `aborted`: the records to be written, each with the highest position of its entries here.
    """

    decision: Decision
    aborted: tuple[tuple[int | None, Position], ...]


@dataclass(frozen=True, slots=True)
class BufferStatistics:
    """`open`: transactions registered. `pinning`: those of them with entries here. `deferred`: decided, but waiting for
    operations in flight. `cleaning`: applied, clean-up not durable yet. `aborted`: size of the aborted set."""

    open: int
    pinning: int
    deferred: int
    cleaning: int
    aborted: int
    max_read_position: Position
    watermark: Position
    earliest_open: TxnId | None
    earliest_position: Position | None


class TransactionBuffer:
    """`watermark`: every entry at or below it is decided and every aborted record there is durable. `aborted`: the durable
    aborted records with their highest positions; None (nobody knew it) is taken as `fenced_below`, the place before the
    first ledger this owner has opened. `last_confirmed`: the last entry that may be exposed at all."""

    def __init__(
        self,
        segment: str,
        *,
        watermark: Position = EARLIEST,
        last_confirmed: Position = EARLIEST,
        aborted: Mapping[AbortedKey, Position | None] | None = None,
        fenced_below: Position = EARLIEST,
    ) -> None:
        raise NotImplementedError

    # ---- the life of a write

    def op_started(self, txn_id: TxnId, writer: int) -> None:
        """Register a write before its op is sent; from here on it is in flight.

        Raises `TxnConflict` (or `ExpiredTransaction`), registering nothing, where the decision is known already."""
        raise NotImplementedError

    def appended(self, txn_id: TxnId, writer: int, position: Position) -> None:
        """Its entry has got `position`; positions rise. Called before `confirmed` reaches it."""
        raise NotImplementedError

    def op_finished(self, txn_id: TxnId) -> Applied | None:
        """The write is acked, or failed after its op was recorded. Returns a remembered decision that this let through."""
        raise NotImplementedError

    def op_refused(self, txn_id: TxnId) -> Applied | None:
        """The op is definitely not recorded. A transaction with nothing else here is forgotten (see `holds`)."""
        raise NotImplementedError

    def confirmed(self, position: Position) -> None:
        """Everything up to `position` is durable and may be exposed. Never goes back."""
        raise NotImplementedError

    # ---- recovery

    def loaded(self, txn_id: TxnId, writers: Iterable[int]) -> None:
        """This segment's index names the transaction: its ops, and perhaps entries, are from before this owner."""
        raise NotImplementedError

    def scanned(self, txn_id: TxnId, writer: int, position: Position) -> None:
        """An entry found in the ledger tail, in order. Of a loaded transaction it pins; any other is decided already."""
        raise NotImplementedError

    # ---- decisions

    def decided(self, decision: Decision) -> Applied | None:
        """Apply a decision, or remember it while operations of its transaction are in flight, or drop it if unknown."""
        raise NotImplementedError

    def unsettled(self, revision: int) -> bool:
        """Whether a transaction decided at or before `revision` still has an operation in flight here. O(deferred)."""
        raise NotImplementedError

    # ---- reading

    @property
    def last_confirmed(self) -> Position:
        raise NotImplementedError

    @property
    def max_read_position(self) -> Position:
        """The entry before the earliest open transaction's first, or the last confirmed one."""
        raise NotImplementedError

    def is_aborted(self, txn_id: TxnId, writer: int) -> bool:
        raise NotImplementedError

    def holds(self, txn_id: TxnId) -> bool:
        """Whether the transaction is registered, so that its decision is still awaited here."""
        raise NotImplementedError

    def open_transactions(self) -> Sequence[TxnId]:
        """All registered, in order of registration. O(n)."""
        raise NotImplementedError

    def pinning(self, limit: int) -> Sequence[tuple[TxnId, Position]]:
        """The `limit` open transactions that hold readers back first, with the positions of their first entries."""
        raise NotImplementedError

    # ---- durable clean-up (driven by `watchers.clean_up.WriteCleanUp`)

    @property
    def watermark(self) -> Position:
        """The highest position that may be written as watermark now."""
        raise NotImplementedError

    def clean_up_batch(self, limit: int) -> Sequence[Applied]:
        """The oldest `limit` applied decisions whose clean-up is not durable. O(limit)."""
        raise NotImplementedError

    def cleaned(self, batch: Sequence[Applied]) -> None:
        """Their ops are gone from etcd and their aborted records stand there."""
        raise NotImplementedError

    @property
    def clean_up_backlog(self) -> int:
        raise NotImplementedError

    # ---- retention

    def aborted_records(self) -> Mapping[AbortedKey, Position]:
        """A copy of the aborted set with highest positions, durable or not (for a sidecar). O(n)."""
        raise NotImplementedError

    def prunable(self, below: Position, limit: int) -> Sequence[AbortedKey]:
        """Up to `limit` durable aborted records all of whose entries lie below `below`, lowest first. O(limit · log n)."""
        raise NotImplementedError

    def pruned(self, records: Iterable[AbortedKey]) -> None:
        """Their data is trimmed and their records are gone from etcd: forget them."""
        raise NotImplementedError

    def statistics(self) -> BufferStatistics:
        raise NotImplementedError
