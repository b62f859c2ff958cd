"""Computes what a cumulative ack adds to a cursor if some messages that it covers are left out. Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol

from txnwire.ids import Position
from watchers.acks import BLOCK_ENTRIES, WHOLE, AckPosition, Block, LeftOut, bit_of, block_of


class CursorLedgers(Protocol):
    """The segment's ledgers, as a cursor uses them."""

    def next_after(self, position: Position) -> Position:
        """The position of the entry behind `position`: an existing entry, or the place of the next append. Entry id -1
        is the place before a ledger's first entry."""


def acks_around(ledgers: CursorLedgers, ack: AckPosition, kept: LeftOut) -> tuple[dict[Block, int], list[AckPosition]]:
    """The messages from the first of `kept` up to those that `ack` names, without those that `kept` names; all of
    `kept` lies up to `ack`. As bitmaps of whole entries by block, and entries acked in part. O(blocks and parts)."""
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
    """Set the entries behind `after` up to `last` in the bitmaps of their blocks."""
    position = ledgers.next_after(after)
    while position <= last:
        block = ledger_id, number = block_of(position)
        first = number * BLOCK_ENTRIES
        end = first + BLOCK_ENTRIES - 1
        end = min(end, last.entry_id) if ledger_id == last.ledger_id else _last_entry(ledgers, position, end)
        blocks[block] = blocks.get(block, 0) | (1 << end + 1 - first) - (1 << position.entry_id - first)
        position = ledgers.next_after(Position(ledger_id, end))


def _last_entry(ledgers: CursorLedgers, position: Position, end: int) -> int:
    """The last entry up to `end` of the ledger of `position`, which another ledger follows."""
    ledger_id, first = position
    others = range(first, end)
    return first + bisect_left(
        others, True, key=lambda entry_id: ledgers.next_after(Position(ledger_id, entry_id)).ledger_id != ledger_id
    )
