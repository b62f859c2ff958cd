"""Keeps what a subscription has acked in one segment: a mark-delete position, and bitmaps beyond it. Pure.

Theory of operation:

1. Everything at or below the *mark-delete position* is acked. It moves up over each run of acked entries behind it.
2. Beyond it, acks are kept by *block* of 4 096 positions of one ledger: a bitmap of whole entries, and for each entry
   acked in part a bitmap of its messages.
3. State only grows, except in a seek (P6): repeated or reordered acks change nothing, and two states merge.
4. Blocks and entries acked in part are bounded; past the bound an ack is refused with `Overloaded`. ▲ Two acks are
   always taken: one with reserved room, and that of the first unacked entry: a full cursor could never empty otherwise.
5. On disk (`/cursor/<segment>/<subscription>/<block>`): the record `mark`, a record `<ledger>-<n>` for each block, and
   pages `<ledger>-<n>-<m>` (`partial_acks` here). Each rewrite compares a mod revision ▲ (P11).
6. The mark is stored first, and the blocks below it are deleted last ▲. After a seek the order is reversed ▲: a
   mark that moved back must never be stored together with older acks.

Source: Pulsar's managed-ledger cursor (mark-delete and individually deleted ranges).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from segments.subscription.cursors.acks_around import CursorLedgers, acks_around
from segments.subscription.cursors.partial_acks import RECORD_BYTES, AckedBlock, PartialRoom, Parts, Record
from txnstore import records
from txnstore.records import CursorBlock, CursorMark
from txnstore.store import KeyValue
from txnwire.errors import DataCorrupt, Overloaded
from txnwire.ids import EARLIEST, Position
from watchers.acks import BLOCK_ENTRIES as BLOCK_ENTRIES
from watchers.acks import WHOLE, AckPosition, Block, LeftOut, bitmap_of, block_of, names_all, trailing_ones
from watchers.pending_acks import BlockWrite

PARTIAL_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the store for the entries acked in part of one subscription in one segment."""
MARK: Final = "mark"


@dataclass(frozen=True, slots=True)
class CursorStatistics:
    mark_delete: Position
    blocks: int
    partial: int
    dirty: int


class _Block(Record):
    """Holds the acks of one block. `acked`: bitmap of whole entries. `parts`: the entries acked in part. `holds`: acks
    that may still come and have room promised."""

    __slots__ = ("acked", "holds", "parts")

    def __init__(self, ledger_id: int, number: int, record_bytes: int) -> None:
        super().__init__(f"{ledger_id}-{number}", ledger_id, number * BLOCK_ENTRIES)
        self.acked = 0
        self.parts = Parts(self, record_bytes)
        self.holds = 0

    def done_by(self, mark: Position) -> bool:
        """Whether nothing in it lies beyond `mark`."""
        if self.ledger_id != mark.ledger_id:
            return self.ledger_id < mark.ledger_id or not (self.acked or self.parts)
        return not self.parts and self.acked >> max(mark.entry_id + 1 - self.first_entry, 0) == 0


class Cursor:
    """Applies acks and plans the writes that persist them. `start`: the last position *not* to be delivered. The bound:
    `max_blocks`, and `max_partial` entries acked in part of at most `partial_bytes` in the store. The first unacked
    entry may always be acked, so a full cursor can always empty. `record_bytes`: of such entries in one record."""

    def __init__(
        self,
        ledgers: CursorLedgers,
        start: Position,
        *,
        max_blocks: int = 32,
        max_partial: int = 4096,
        partial_bytes: int = PARTIAL_BYTES,
        record_bytes: int = RECORD_BYTES,
    ) -> None:
        self._ledgers = ledgers
        self._mark = start
        self._generation = 0
        """Counts all changes, so that no two states of a block share a number."""
        self._mark_generation = 0
        self._mark_stored = 0
        self._mark_mod_revision = 0
        self._rewound = False
        self.seeks = 0
        """Number of seeks: messages received before the last one are void."""
        self._blocks: dict[Block, _Block] = {}
        self._gone: dict[str, int] = {}
        """Records to be deleted, with their mod revisions."""
        self._max_blocks = max_blocks
        self._room = PartialRoom(max_partial, partial_bytes)
        self._record_bytes = record_bytes

    @staticmethod
    def load(
        ledgers: CursorLedgers,
        start: Position,
        stored: Sequence[KeyValue],
        *,
        max_blocks: int = 32,
        max_partial: int = 4096,
        partial_bytes: int = PARTIAL_BYTES,
        record_bytes: int = RECORD_BYTES,
    ) -> Cursor:
        """Load from the records under `keys.cursor_blocks`; `start` applies only if no mark is stored. Raises
        `DataCorrupt` naming the key."""
        if any(record.key.endswith(b"/" + MARK.encode()) for record in stored):
            start = EARLIEST
        cursor = Cursor(
            ledgers, start, max_blocks=max_blocks, max_partial=max_partial, partial_bytes=partial_bytes,
            record_bytes=record_bytes,
        )  # fmt: skip
        for record in stored:
            cursor._merge(record.key, record.value, record.mod_revision)
        for one in cursor._records():
            if not one.moved:
                one.stored = one.generation
        cursor._mark_stored = cursor._mark_generation
        cursor.advance()
        return cursor

    # ---- reading

    @property
    def mark_delete(self) -> Position:
        return self._mark

    def following(self, position: Position) -> Position:
        """The position of the entry behind `position`."""
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
        return block.parts.get(position.entry_id)[1]

    def next_unacked(self, position: Position) -> Position:
        """The first position at or behind `position` that is not wholly acked. O(blocks)."""
        if position <= self._mark:
            position = self._ledgers.next_after(self._mark)
        while (block := self._blocks.get(block_of(position))) is not None:
            acked = trailing_ones(block.acked >> (position.entry_id - block.first_entry))
            if acked == 0:
                break
            position = self._ledgers.next_after(Position(position.ledger_id, position.entry_id + acked - 1))
        return position

    def blocks(self) -> Collection[Block]:
        """Blocks that hold acks or reserve room for them."""
        return self._blocks.keys()

    def beyond(self) -> list[AckedBlock]:
        """A copy of the acks beyond the mark-delete position; the first block also includes acks before it."""
        return [AckedBlock(one.ledger_id, one.first_entry, one.acked, one.parts.all()) for one in self._blocks.values()]

    # ---- acks

    def hold(self, ack: AckPosition, *, bounded: bool = True) -> None:
        """Reserve room to apply `ack` later, even if the cursor is full by then. Raises `Overloaded`, if `bounded`."""
        partial = ack.indexes != WHOLE
        first = self._is_first(ack.position)
        if partial and bounded and not first:
            self._check_partial(ack.position)
        self._block(ack.position, bounded=bounded and not first).holds += 1
        if partial:
            self._room.take(ack.position, ack.messages)

    def unhold(self, ack: AckPosition) -> None:
        """Release the room of `ack`, which has been applied or never will be."""
        key = block_of(ack.position)
        block = self._blocks[key]
        block.holds -= 1
        if ack.indexes != WHOLE:
            self._room.give(ack.position)
        self._drop_if_done(key, block)

    def has_room(self, position: Position) -> bool:
        """Whether the entry may be given to a consumer that may ack it in part."""
        return not self._room.full or position in self._room

    def promise(self, position: Position, messages: int) -> None:
        """Reserve room for an entry with a consumer: it may ack single messages even if the cursor is full by then."""
        self._room.take(position, messages)

    def withdraw(self, position: Position) -> None:
        """Release the room of `promise`: no consumer has the entry."""
        self._room.give(position)

    def ack(self, ack: AckPosition, *, held: bool = False) -> bool:
        """Ack one entry or some of its messages; `held`: room was promised. Returns whether anything changed. Raises
        `Overloaded`, changing nothing."""
        position, messages, indexes = ack
        already = self.acked(position)
        if indexes & ~already == 0:
            return False
        acked = already | indexes
        if messages and names_all(acked, messages):
            acked = WHOLE
        first = self._is_first(position)
        if acked == WHOLE and first:
            self._move_mark(position)
            return True
        if acked != WHOLE and not already and not held and not first:
            self._check_partial(position)
        block = self._block(position, bounded=not held and not first)
        self._generation += 1
        if acked != WHOLE:
            self._put_part(block, position.entry_id, messages, acked).generation = self._generation
            return True
        self._drop_part(block, position.entry_id)
        block.acked |= 1 << (position.entry_id - block.first_entry)
        block.generation = self._generation
        return True

    def ack_cumulative(self, ack: AckPosition) -> bool:
        """Ack everything before `ack.position`, and the messages of that entry that `ack` names: always possible.
        Returns whether anything changed."""
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

    def ack_around(self, ack: AckPosition, kept: LeftOut) -> bool:
        """Ack the messages from the first of `kept` up to `ack`, without those that `kept` names. Returns whether
        anything changed. Raises `Overloaded`, changing nothing. See `segments.subscription.cursors.acks_around`."""
        blocks, parts = acks_around(self._ledgers, ack, kept)
        added = sum(1 for key in blocks if key not in self._blocks)
        if added and len(self._blocks) + added > self._max_blocks:
            raise self._too_spread()
        for part in parts:
            if not self.acked(part.position):
                self._check_partial(part.position)
        changed = False
        for (ledger_id, number), acked in blocks.items():
            changed = self._ack_in_block(Position(ledger_id, number * BLOCK_ENTRIES), acked) or changed
        for part in parts:
            changed = self.ack(part, held=True) or changed
        self.advance()
        return changed

    def advance(self) -> None:
        """Move the mark-delete position past the acked entries behind it (also after a ledger was closed or
        trimmed)."""
        if self._blocks:
            self._move_mark(self._mark, everywhere=True)

    def seek(self, position: Position) -> None:
        """Forget all acks and restart behind `position`: the only way back, at an operator's or client's request. No
        room may be held."""
        for block in self._blocks.values():
            self._forget(block)
        self._blocks.clear()
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
            or any(one.generation != one.stored for one in self._records())
        )

    def block_writes(self) -> Sequence[BlockWrite]:
        """The records that differ from the store, `mark` first, deletions last. Every prefix of this order is valid: a
        deleted block's acks lie at or below the mark; ▲ an ack that left a page is in its stored block before the page
        is rewritten, and one that moved to a page is stored there before its block is rewritten. ▲ After a seek the
        mark comes last: a mark that moved back must never be stored together with older acks."""
        mark: list[BlockWrite] = []
        if self._mark_generation != self._mark_stored:
            value = records.encode(CursorMark(position=self._mark, seeks=self.seeks))
            mark.append(BlockWrite(MARK, value, self._mark_mod_revision, self._mark_generation))
        changed = [one for one in self._records() if one.generation != one.stored]
        blocks: list[BlockWrite] = []
        for one in sorted(changed, key=lambda one: (not one.moved, not isinstance(one, _Block))):
            acked = one.acked if isinstance(one, _Block) else 0
            blocks.append(BlockWrite(one.name, one.encode(acked), one.mod_revision, one.generation))
        gone = [BlockWrite(name, None, mod_revision, 0) for name, mod_revision in self._gone.items()]
        return [*gone, *blocks, *mark] if self._rewound else [*mark, *blocks, *gone]

    def written(self, writes: Iterable[BlockWrite], revisions: Mapping[str, int]) -> None:
        """`writes` are stored; `revisions` has the mod revision of each block that was put."""
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
                block.moved = False
            elif mod_revision:
                self._gone[write.block] = mod_revision
            else:
                self._gone.pop(write.block, None)

    def reload(self, block: str, value: bytes | None, mod_revision: int) -> None:
        """A compare was lost: merge the stored record (acks only add up) and base later writes on it. Raises
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
        dirty = sum(one.generation != one.stored for one in self._records()) + len(self._gone)
        dirty += self._mark_generation != self._mark_stored
        partial = sum(len(block.parts) for block in self._blocks.values())
        return CursorStatistics(self._mark, len(self._blocks), partial, dirty)

    # ---- inside

    def _is_first(self, position: Position) -> bool:
        """Whether it is the first position that is not wholly acked."""
        mark = self._mark
        if position.ledger_id == mark.ledger_id:
            return position.entry_id == mark.entry_id + 1
        return position == self._ledgers.next_after(mark)

    def _check_partial(self, position: Position) -> None:
        if self._room.full and position not in self._room:
            raise Overloaded(
                f"{self._room} are acked in part, or about to be: ack the rest of their messages, oldest first"
            )

    def _ack_in_block(self, first: Position, acked: int) -> bool:
        block = self._block(first, bounded=False)
        if acked & ~block.acked == 0:
            return False
        self._generation += 1
        block.acked |= acked
        block.generation = self._generation
        for entry_id in block.parts:
            if acked >> (entry_id - block.first_entry) & 1:
                self._drop_part(block, entry_id)
        return True

    def _too_spread(self) -> Overloaded:
        return Overloaded(
            f"acks are spread over {self._max_blocks} blocks of {BLOCK_ENTRIES} positions after the first unacked "
            f"entry, {self._ledgers.next_after(self._mark)}: ack that entry, or seek past it"
        )

    def _records(self) -> Iterator[Record]:
        for block in self._blocks.values():
            yield block
            yield from block.parts.pages.values()

    def _put_part(
        self, block: _Block, entry_id: int, messages: int, acked: int, *, stored_in: Record | None = None
    ) -> Record:
        if entry_id not in block.parts:
            self._room.take(Position(block.ledger_id, entry_id), messages)
        record = block.parts.put(entry_id, messages, acked, stored_in=stored_in)
        if (mod_revision := self._gone.pop(record.name, 0)) != 0:  # an earlier page had that number
            record.mod_revision = mod_revision
            record.stored = -1
        return record

    def _drop_part(self, block: _Block, entry_id: int) -> None:
        if entry_id not in block.parts:
            return
        self._room.give(Position(block.ledger_id, entry_id))
        emptied = block.parts.drop(entry_id)
        if emptied is not None and emptied.mod_revision:
            self._gone[emptied.name] = emptied.mod_revision

    def _forget(self, block: _Block) -> None:
        """Drop the block's entries acked in part, and mark its records for deletion."""
        for entry_id in block.parts:
            self._drop_part(block, entry_id)
        if block.mod_revision:
            self._gone[block.name] = block.mod_revision

    def _block(self, position: Position, *, bounded: bool) -> _Block:
        key = block_of(position)
        block = self._blocks.get(key)
        if block is None:
            if bounded and len(self._blocks) >= self._max_blocks:
                raise self._too_spread()
            block = _Block(*key, self._record_bytes)
            if (mod_revision := self._gone.pop(block.name, 0)) != 0:
                block.mod_revision = mod_revision
                block.stored = -1
            self._blocks[key] = block
        return block

    def _named(self, name: str) -> Record | None:
        ledger, number, *page = name.split("-")
        block = self._blocks.get((int(ledger), int(number)))
        return block.parts.pages.get(int(page[0])) if block is not None and page else block

    def _move_mark(self, mark: Position, *, everywhere: bool = False) -> None:
        """Move the mark to `mark` and past the acked entries behind it, and drop blocks that hold nothing beyond.
        Within one block it examines only that block, unless `everywhere`: ten thousand acks in order would otherwise
        examine hundreds of blocks each."""
        if self._blocks:
            mark = self._contiguous(mark)
        within = not everywhere and block_of(mark) == block_of(self._mark)
        if mark != self._mark:
            self._mark = mark
            self._generation = self._mark_generation = self._generation + 1
        for key in (block_of(mark),) if within else tuple(self._blocks):
            block = self._blocks.get(key)
            if block is None:
                continue
            if block.parts and block.ledger_id == mark.ledger_id:
                self._drop_partial(block, mark.entry_id)
            self._drop_if_done(key, block)

    def _contiguous(self, mark: Position) -> Position:
        while True:
            position = self._ledgers.next_after(mark)
            block = self._blocks.get(block_of(position))
            acked = 0 if block is None else trailing_ones(block.acked >> (position.entry_id - block.first_entry))
            if acked == 0:
                return mark
            mark = Position(position.ledger_id, position.entry_id + acked - 1)

    def _drop_partial(self, block: _Block, up_to: int) -> None:
        for entry_id in block.parts:
            if entry_id <= up_to:
                self._drop_part(block, entry_id)

    def _drop_if_done(self, key: tuple[int, int], block: _Block) -> None:
        """Drop a block if the mark has passed all its acks; a later write deletes its record."""
        if block.holds or not block.done_by(self._mark):
            return
        del self._blocks[key]
        self._forget(block)

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
            self._merge_block(name.decode(), records.decode(CursorBlock, value, key=key), mod_revision)
        except ValueError as error:
            raise DataCorrupt(f"{key.decode(errors='replace')}: {error}") from error

    def _merge_block(self, name: str, record: CursorBlock, mod_revision: int) -> None:
        block = self._block(Position(record.ledger_id, record.first_entry), bounded=False)
        page = block.parts.page(int(name.rpartition("-")[2])) if name != block.name else None
        found = page or block
        found.mod_revision = mod_revision
        found.generation = self._generation
        block.acked |= bitmap_of(record.acked)
        for entry_id, messages, text in record.partial:
            acked = block.parts.get(entry_id)[1] | bitmap_of(text)
            changed = self._put_part(block, entry_id, messages, acked, stored_in=page)
            changed.generation = self._generation
            changed.moved = changed.moved or changed is not found
        for entry_id in block.parts:
            if block.acked >> (entry_id - block.first_entry) & 1:
                self._drop_part(block, entry_id)
