"""What a subscription has consumed of one segment: a mark-delete position, and bitmaps of what is acked beyond it. Pure.

Everything at or below the mark-delete position is acked. Beyond it, entries are acked individually, kept by *block* of
4 096 positions of one ledger; entries of which only some messages are acked are kept by index. Both are bounded: past
the bound an ack is refused with `Overloaded`. State only grows (P6): acking twice, in any order, changes nothing.

On disk (`/cursor/<segment>/<subscription>/<block>`): the record `mark` with the mark-delete position, and one record
`<ledger>-<n>` per block. Each is rewritten on its own, comparing its mod revision ▲ (P11).
Source: Pulsar's managed-ledger cursor (mark-delete and individually deleted ranges).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from txnwire.ids import Position
from watchers.acks import AckPosition
from watchers.pending_acks import BlockWrite

BLOCK_ENTRIES = 4096
MARK = "mark"


class LedgerList(Protocol):
    """The segment's ledgers, as far as a cursor cares."""

    def following(self, position: Position) -> Position:
        """The place of the entry after `position`: in the same ledger, or entry 0 of the next that holds or may still get
        entries if that ledger is closed and ends there. Entry id -1 is the place before a ledger's first."""


@dataclass(frozen=True, slots=True)
class CursorStatistics:
    mark_delete: Position
    blocks: int
    partial: int
    dirty: int


class Cursor:
    """`start`: the last position *not* to be delivered. `max_blocks`, `max_partial`: the bound."""

    def __init__(
        self, ledgers: LedgerList, start: Position, *, max_blocks: int = 32, max_partial: int = 4096
    ) -> None:
        raise NotImplementedError

    @staticmethod
    def load(
        ledgers: LedgerList,
        start: Position,
        records: Iterable[tuple[str, bytes, int]],
        *,
        max_blocks: int = 32,
        max_partial: int = 4096,
    ) -> Cursor:
        """From (block, value, mod revision) triples; `start` counts only where there is no `mark` record yet. Raises
        `DataCorrupt`."""
        raise NotImplementedError

    @property
    def mark_delete(self) -> Position:
        raise NotImplementedError

    def following(self, position: Position) -> Position:
        raise NotImplementedError

    def acked(self, position: Position) -> int:
        """Bitmap of the acked messages of an entry: `WHOLE`, 0, or some."""
        raise NotImplementedError

    def hold(self, position: Position) -> None:
        """Make sure that `position` can be acked later whatever else is acked meanwhile. Raises `Overloaded`."""
        raise NotImplementedError

    def unhold(self, position: Position) -> None:
        raise NotImplementedError

    def ack(self, ack: AckPosition) -> bool:
        """Ack one entry or some of its messages. Returns whether anything changed. Raises `Overloaded`."""
        raise NotImplementedError

    def ack_cumulative(self, ack: AckPosition) -> bool:
        """Ack everything before `ack.position`, and of that entry what `ack` names."""
        raise NotImplementedError

    def advance(self) -> bool:
        """Let the mark-delete position cross the end of a ledger that has been closed meanwhile, and trimmed ones."""
        raise NotImplementedError

    def seek(self, position: Position) -> None:
        """Forget everything and start over behind `position`: the one way back, asked for by an operator or client."""
        raise NotImplementedError

    # ---- persistence

    @property
    def dirty(self) -> bool:
        raise NotImplementedError

    def block_writes(self) -> Sequence[BlockWrite]:
        """The records that differ from what is stored, `mark` first, deletions last. Valid in this order, also in parts."""
        raise NotImplementedError

    def written(self, writes: Iterable[BlockWrite], revisions: dict[str, int]) -> None:
        """They are stored; `revisions` has the mod revision of each block that was put."""
        raise NotImplementedError

    def reload(self, block: str, value: bytes | None, mod_revision: int) -> None:
        """A compare was lost: merge what is stored (acks only add up) and write on top of that from now on."""
        raise NotImplementedError

    def statistics(self) -> CursorStatistics:
        raise NotImplementedError
