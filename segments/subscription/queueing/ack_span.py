"""The blocks of a segment in which messages of a queue may be acked out of order: bounded, as the cursor is. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from txnwire.ids import Position
from watchers.acks import Block, block_of


class AckSpan:
    """`blocks`: blocks in which the cursor already has acks. ▲ They count, although a queue that begins behind them
    never reads them again: otherwise the cursor would have too many blocks and refuse acks of delivered entries."""

    def __init__(self, blocks: Iterable[Block], *, most: int) -> None:
        self._blocks = dict.fromkeys(blocks)
        self._most = most

    def __contains__(self, position: Position) -> bool:
        return block_of(position) in self._blocks

    def admits(self, position: Position, first: Position) -> bool:
        """Whether an entry outside of it may be given out. `first`: the first unacked one, which always may: its ack
        makes room. A cursor has room for `most` blocks, and for that of `first`."""
        block, lowest = block_of(position), block_of(first)
        if len(self._blocks) >= self._most:
            self._blocks = {one: None for one in self._blocks if one >= lowest}
        room = self._most - len(self._blocks)
        if room > 0 or (room == 0 and block == lowest):
            self._blocks[block] = None
            return True
        return position == first
