"""What a subscription has consumed of one segment: a mark-delete position, and bitmaps of what is acked beyond. Pure.

Everything at or below the mark-delete position is acked. Beyond it, entries are acked individually, kept by *block* of
4 096 positions of one ledger; entries of which only some messages are acked are kept by index. Both are bounded: past
the bound an ack is refused with `Overloaded`. State only grows (P6): acking twice, in any order, changes nothing.

On disk (`/cursor/<segment>/<subscription>/<block>`): the record `mark` with the mark-delete position, and one record
`<ledger>-<n>` per block. Each is rewritten on its own, comparing its mod revision ▲ (P11).
Source: Pulsar's managed-ledger cursor (mark-delete and individually deleted ranges).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from txnstore import records
from txnstore.records import CursorBlock, CursorMark
from txnstore.store import KeyValue
from txnwire.errors import DataCorrupt, Overloaded
from txnwire.ids import EARLIEST, Position
from watchers.acks import WHOLE, AckPosition, bitmap_bytes
from watchers.pending_acks import BlockWrite

BLOCK_ENTRIES: Final = 4096
MARK: Final = "mark"


class LedgerList(Protocol):
    """The segment's ledgers, as far as a cursor cares."""

    def next_after(self, position: Position) -> Position:
        """The place of the entry behind `position`: an entry that exists, or where the next one will be appended. Entry
        id -1 is the place before a ledger's first."""


@dataclass(frozen=True, slots=True)
class CursorStatistics:
    mark_delete: Position
    blocks: int
    partial: int
    dirty: int


class _Block:
    """`acked`: bitmap of whole entries. `partial`: entry id → (messages, bitmap of acked indexes). `holds`: acks that
    may still come and for which room was promised. `generation` names its last change, `stored` the one last written.
    """

    __slots__ = ("acked", "first_entry", "generation", "holds", "ledger_id", "mod_revision", "partial", "stored")

    def __init__(self, ledger_id: int, number: int) -> None:
        self.ledger_id = ledger_id
        self.first_entry = number * BLOCK_ENTRIES
        self.acked = 0
        self.partial: dict[int, tuple[int, int]] = {}
        self.holds = 0
        self.generation = 0
        self.stored = 0
        self.mod_revision = 0

    @property
    def name(self) -> str:
        return f"{self.ledger_id}-{self.first_entry // BLOCK_ENTRIES}"

    def done_by(self, mark: Position) -> bool:
        """Whether nothing in it lies beyond `mark`."""
        if self.ledger_id != mark.ledger_id:
            return self.ledger_id < mark.ledger_id or not (self.acked or self.partial)
        return not self.partial and self.acked >> max(mark.entry_id + 1 - self.first_entry, 0) == 0

    def encode(self) -> bytes:
        partial = [
            (entry_id, messages, bitmap_bytes(acked).hex()) for entry_id, (messages, acked) in self.partial.items()
        ]
        acked = bitmap_bytes(self.acked).hex()
        return records.encode(
            CursorBlock(ledger_id=self.ledger_id, first_entry=self.first_entry, acked=acked, partial=partial)
        )


def _trailing_ones(bits: int) -> int:
    return (~bits & (bits + 1)).bit_length() - 1


def _bitmap(text: str) -> int:
    return int.from_bytes(bytes.fromhex(text), "little")


def block_of(position: Position) -> tuple[int, int]:
    """(ledger, number) of the block that holds an ack of `position`."""
    return position.ledger_id, position.entry_id // BLOCK_ENTRIES


class Cursor:
    """`start`: the last position *not* to be delivered. `max_blocks`, `max_partial`: the bound. The first unacked entry
    may always be acked, whatever the bound, so a full cursor never stays full for want of room."""

    def __init__(self, ledgers: LedgerList, start: Position, *, max_blocks: int = 32, max_partial: int = 4096) -> None:
        self._ledgers = ledgers
        self._mark = start
        self._generation = 0
        """Counts all changes, so that no two states of a block ever bear the same number."""
        self._mark_generation = 0
        self._mark_stored = 0
        self._mark_mod_revision = 0
        self._rewound = False
        self.seeks = 0
        """How often it was set anew: what consumers received before the last time is void."""
        self._blocks: dict[tuple[int, int], _Block] = {}
        self._gone: dict[str, int] = {}
        """Records to be deleted, with their mod revisions."""
        self._max_blocks = max_blocks
        self._max_partial = max_partial
        self._partial = 0
        self._partial_holds = 0

    @staticmethod
    def load(
        ledgers: LedgerList,
        start: Position,
        stored: Sequence[KeyValue],
        *,
        max_blocks: int = 32,
        max_partial: int = 4096,
    ) -> Cursor:
        """From the records under `keys.cursor_blocks`; `start` counts only where no mark has been stored. Raises
        `DataCorrupt` naming the key."""
        if any(record.key.endswith(b"/" + MARK.encode()) for record in stored):
            start = EARLIEST
        cursor = Cursor(ledgers, start, max_blocks=max_blocks, max_partial=max_partial)
        for record in stored:
            cursor._merge(record.key, record.value, record.mod_revision)
        for block in cursor._blocks.values():
            block.stored = block.generation
        cursor._mark_stored = cursor._mark_generation
        cursor.advance()
        return cursor

    # ---- reading

    @property
    def mark_delete(self) -> Position:
        return self._mark

    def following(self, position: Position) -> Position:
        """The place of the entry behind `position`."""
        return self._ledgers.next_after(position)

    def acked(self, position: Position) -> int:
        """Bitmap of the acked messages of an entry: `WHOLE`, 0, or some."""
        if position <= self._mark:
            return WHOLE
        block = self._blocks.get((position.ledger_id, position.entry_id // BLOCK_ENTRIES))
        if block is None:
            return 0
        if block.acked >> (position.entry_id - block.first_entry) & 1:
            return WHOLE
        return block.partial.get(position.entry_id, (0, 0))[1]

    def next_unacked(self, position: Position) -> Position:
        """The first place at or behind `position` that is not wholly acked. O(blocks)."""
        if position <= self._mark:
            position = self._ledgers.next_after(self._mark)
        while (block := self._blocks.get(block_of(position))) is not None:
            acked = _trailing_ones(block.acked >> (position.entry_id - block.first_entry))
            if acked == 0:
                break
            position = self._ledgers.next_after(Position(position.ledger_id, position.entry_id + acked - 1))
        return position

    # ---- acks

    def hold(self, ack: AckPosition, *, bounded: bool = True) -> None:
        """Keep room to apply `ack` later, whatever else is acked until then. Raises `Overloaded`, if `bounded`."""
        partial = ack.indexes != WHOLE
        first = self._is_first(ack.position)
        if partial and bounded and not first:
            self._check_partial()
        self._block(ack.position, bounded=bounded and not first).holds += 1
        self._partial_holds += partial

    def unhold(self, ack: AckPosition) -> None:
        """`ack` has been applied, or will not be."""
        key = block_of(ack.position)
        block = self._blocks[key]
        block.holds -= 1
        self._partial_holds -= ack.indexes != WHOLE
        self._drop_if_done(key, block)

    def ack(self, ack: AckPosition, *, held: bool = False) -> bool:
        """Ack one entry or some of its messages; `held`: room was promised. Returns whether anything changed. Raises
        `Overloaded`, changing nothing."""
        position, messages, indexes = ack
        already = self.acked(position)
        if indexes & ~already == 0:
            return False
        acked = already | indexes
        if messages and acked == (1 << messages) - 1:
            acked = WHOLE
        first = self._is_first(position)
        if acked == WHOLE and first:
            self._move_mark(position)
            return True
        if acked != WHOLE and not already and not held and not first:
            self._check_partial()
        block = self._block(position, bounded=not held and not first)
        self._generation = block.generation = self._generation + 1
        if acked != WHOLE:
            self._partial += position.entry_id not in block.partial
            block.partial[position.entry_id] = (messages, acked)
            return True
        self._partial -= block.partial.pop(position.entry_id, None) is not None
        block.acked |= 1 << (position.entry_id - block.first_entry)
        return True

    def ack_cumulative(self, ack: AckPosition) -> bool:
        """Ack everything before `ack.position`, and of that entry what `ack` names: always possible. Returns whether
        anything changed."""
        position = ack.position
        if ack.indexes == WHOLE:
            if position <= self._mark:
                return False
            self._move_mark(position)
            return True
        target = Position(position.ledger_id, position.entry_id - 1)
        moved = target > self._mark
        if moved:
            self._move_mark(target)
        return self.ack(ack, held=True) or moved

    def advance(self) -> None:
        """Let the mark-delete position pass what is acked behind it (also after a ledger was closed or trimmed)."""
        if self._blocks:
            self._move_mark(self._mark)

    def seek(self, position: Position) -> None:
        """Forget everything and start over behind `position`: the one way back, asked for by an operator or client.
        Nothing may be held."""
        for block in self._blocks.values():
            if block.mod_revision:
                self._gone[block.name] = block.mod_revision
        self._blocks.clear()
        self._partial = 0
        self._mark = position
        self._generation = self._mark_generation = self._generation + 1
        self._rewound = True
        self.seeks += 1

    # ---- persistence

    @property
    def dirty(self) -> bool:
        return (
            self._mark_generation != self._mark_stored
            or bool(self._gone)
            or any(block.generation != block.stored for block in self._blocks.values())
        )

    def block_writes(self) -> Sequence[BlockWrite]:
        """The records that differ from what is stored, `mark` first, deletions last: valid in this order, also in
        parts, as a deleted block's acks lie at or below the mark. Behind a seek ▲ deletions come first: a mark that has
        gone back must never stand beside acks from before."""
        writes: list[BlockWrite] = []
        if self._rewound:
            writes += (BlockWrite(name, None, mod_revision, 0) for name, mod_revision in self._gone.items())
        if self._mark_generation != self._mark_stored:
            value = records.encode(CursorMark(position=self._mark, seeks=self.seeks))
            writes.append(BlockWrite(MARK, value, self._mark_mod_revision, self._mark_generation))
        for block in self._blocks.values():
            if block.generation != block.stored:
                writes.append(BlockWrite(block.name, block.encode(), block.mod_revision, block.generation))
        if not self._rewound:
            writes += (BlockWrite(name, None, mod_revision, 0) for name, mod_revision in self._gone.items())
        return writes

    def written(self, writes: Iterable[BlockWrite], revisions: Mapping[str, int]) -> None:
        """They are stored; `revisions` has the mod revision of each block that was put."""
        for write in writes:
            mod_revision = 0 if write.value is None else revisions[write.block]
            if write.block == MARK:
                self._mark_mod_revision = mod_revision
                self._mark_stored = write.generation
                self._rewound = self._rewound and self._mark_generation != write.generation
                continue
            block = self._named(write.block)
            if block is not None:
                block.mod_revision = mod_revision
                block.stored = write.generation if write.value is not None else -1
            elif mod_revision:
                self._gone[write.block] = mod_revision
            else:
                self._gone.pop(write.block, None)

    def reload(self, block: str, value: bytes | None, mod_revision: int) -> None:
        """A compare was lost: merge what is stored (acks only add up) and write on top of that from now on. Raises
        `DataCorrupt`."""
        if value is not None and not self._rewound:
            self._merge(block.encode(), value, mod_revision)
            self.advance()
        elif block == MARK:
            self._mark_mod_revision = mod_revision
        elif (found := self._named(block)) is not None:
            found.mod_revision = mod_revision
            found.stored = -1
        elif mod_revision:
            self._gone[block] = mod_revision
        else:
            self._gone.pop(block, None)

    def statistics(self) -> CursorStatistics:
        dirty = len(self.block_writes()) if self.dirty else 0
        return CursorStatistics(self._mark, len(self._blocks), self._partial, dirty)

    # ---- inside

    def _is_first(self, position: Position) -> bool:
        """Whether it is the first place that is not wholly acked."""
        mark = self._mark
        if position.ledger_id == mark.ledger_id:
            return position.entry_id == mark.entry_id + 1
        return position == self._ledgers.next_after(mark)

    def _check_partial(self) -> None:
        if self._partial + self._partial_holds >= self._max_partial:
            raise Overloaded(
                f"{self._max_partial} entries are acked in part: ack the rest of their messages, oldest first"
            )

    def _block(self, position: Position, *, bounded: bool) -> _Block:
        key = block_of(position)
        block = self._blocks.get(key)
        if block is None:
            if bounded and len(self._blocks) >= self._max_blocks:
                raise Overloaded(
                    f"acks are spread over {self._max_blocks} blocks of {BLOCK_ENTRIES} positions behind the first "
                    f"unacked entry, {self._ledgers.next_after(self._mark)}: ack or seek past that one"
                )
            block = _Block(*key)
            if (mod_revision := self._gone.pop(block.name, 0)) != 0:
                block.mod_revision = mod_revision
                block.stored = -1
            self._blocks[key] = block
        return block

    def _named(self, name: str) -> _Block | None:
        ledger, _, number = name.partition("-")
        return self._blocks.get((int(ledger), int(number)))

    def _move_mark(self, mark: Position) -> None:
        """To `mark` and past whatever is acked behind it; blocks that hold nothing beyond go."""
        if self._blocks:
            mark = self._contiguous(mark)
        if mark != self._mark:
            self._mark = mark
            self._generation = self._mark_generation = self._generation + 1
        for key, block in list(self._blocks.items()):
            if block.partial and block.ledger_id == mark.ledger_id:
                self._drop_partial(block, mark.entry_id)
            self._drop_if_done(key, block)

    def _contiguous(self, mark: Position) -> Position:
        while True:
            position = self._ledgers.next_after(mark)
            block = self._blocks.get(block_of(position))
            acked = 0 if block is None else _trailing_ones(block.acked >> (position.entry_id - block.first_entry))
            if acked == 0:
                return mark
            mark = Position(position.ledger_id, position.entry_id + acked - 1)

    def _drop_partial(self, block: _Block, up_to: int) -> None:
        for entry_id in [entry_id for entry_id in block.partial if entry_id <= up_to]:
            del block.partial[entry_id]
            self._partial -= 1

    def _drop_if_done(self, key: tuple[int, int], block: _Block) -> None:
        """A block behind whose acks the mark has moved goes; its record goes with the next write, or one after it."""
        if block.holds or not block.done_by(self._mark):
            return
        del self._blocks[key]
        self._partial -= len(block.partial)
        if block.mod_revision:
            self._gone[block.name] = block.mod_revision

    def _merge(self, key: bytes, value: bytes, mod_revision: int) -> None:
        name = key.rpartition(b"/")[2]
        self._generation += 1
        if name == MARK.encode():
            mark = records.decode(CursorMark, value, key=key)
            self._mark_mod_revision = mod_revision
            self._mark_generation = self._generation
            self._mark = max(self._mark, Position(*mark.position))
            self.seeks = max(self.seeks, mark.seeks)
            return
        try:
            self._merge_block(records.decode(CursorBlock, value, key=key), mod_revision)
        except ValueError as error:
            raise DataCorrupt(f"{key.decode(errors='replace')}: {error}") from error

    def _merge_block(self, record: CursorBlock, mod_revision: int) -> None:
        block = self._block(Position(record.ledger_id, record.first_entry), bounded=False)
        block.mod_revision = mod_revision
        block.generation = self._generation
        block.acked |= _bitmap(record.acked)
        for entry_id, messages, text in record.partial:
            if not block.acked >> (entry_id - block.first_entry) & 1:
                self._partial += entry_id not in block.partial
                before = block.partial.get(entry_id, (messages, 0))[1]
                block.partial[entry_id] = (messages, before | _bitmap(text))
