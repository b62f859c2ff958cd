"""What a cumulative ack means for a cursor where some of what it covers is kept out of it. Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol

from txnwire.ids import Position
from watchers.acks import BLOCK_ENTRIES, WHOLE, AckPosition, Block, LeftOut, bit_of, block_of


class CursorLedgers(Protocol):
    """The segment's ledgers, as far as a cursor cares."""

    def next_after(self, position: Position) -> Position:
        """The place of the entry behind `position`: an entry that exists, or where the next one will be appended. Entry
        id -1 is the place before a ledger's first."""


def acks_around(ledgers: CursorLedgers, ack: AckPosition, kept: LeftOut) -> tuple[dict[Block, int], list[AckPosition]]:
    """What lies between the first of `kept` and `ack`, and of that entry what `ack` names, but for what `kept` names,
    which lies up to `ack`. As bitmaps of whole entries by block, and entries of which a part is left. O(blocks and
    parts)."""
    run: dict[Block, int] = {}
    _add_run(ledgers, run, kept.first, ack.position if ack.indexes == WHOLE else _before(ack.position))
    out = dict(kept.whole)
    parts: list[AckPosition] = []
    for held in kept.parts:
        position = held.position
        out[block_of(position)] = out.get(block_of(position), 0) | bit_of(position)
        named = ack.indexes if position == ack.position else WHOLE
        left = ((1 << held.messages) - 1 if named == WHOLE else named) & ~held.indexes
        if left:
            parts.append(AckPosition(position, held.messages, left))
    if ack.indexes != WHOLE and not out.get(block_of(ack.position), 0) & bit_of(ack.position):
        parts.append(ack)
    return {block: left for block, bits in run.items() if (left := bits & ~out.get(block, 0))}, parts


def _before(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id - 1)


def _add_run(ledgers: CursorLedgers, blocks: dict[Block, int], after: Position, last: Position) -> None:
    """Add the entries behind `after` up to `last` to the bitmaps of their blocks."""
    position = ledgers.next_after(after)
    while position <= last:
        block = ledger_id, number = block_of(position)
        first = number * BLOCK_ENTRIES
        end = first + BLOCK_ENTRIES - 1
        end = min(end, last.entry_id) if ledger_id == last.ledger_id else _last_entry(ledgers, position, end)
        blocks[block] = blocks.get(block, 0) | (1 << end + 1 - first) - (1 << position.entry_id - first)
        position = ledgers.next_after(Position(ledger_id, end))


def _last_entry(ledgers: CursorLedgers, position: Position, end: int) -> int:
    """The last one of that ledger, which another one follows, up to `end`."""
    ledger_id, first = position
    others = range(first, end)
    return first + bisect_left(
        others, True, key=lambda entry_id: ledgers.next_after(Position(ledger_id, entry_id)).ledger_id != ledger_id
    )
