"""Finds stretches of a segment that hold all wanted entries and little else. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark_txnstore.shared.offsets import Head, before
from txnwire.ids import Position

MOST: Final = 32
"""Most stretches: each is a read of its own."""

GAP_BYTES: Final = 1 << 20
"""A gap between two wanted entries is read with them if it is smaller than this, or if more than `MOST` stretches would
result."""


class Stretch(NamedTuple):
    """(after, end]."""

    after: Position
    end: Position


class Stretches:
    """Heads are added in the order of the segment, all of them."""

    def __init__(self, *, most: int = MOST, gap_bytes: int = GAP_BYTES) -> None:
        self._most = most
        self._gap_bytes = gap_bytes
        self._found: list[tuple[Stretch, int]] = []
        """Each stretch with the bytes between it and the previous one."""
        self._passed = 0
        """Bytes behind the last of them."""
        self._begun: set[tuple[str, int]] = set()
        """Producers whose large value has begun."""

    def add(self, head: Head, *, wanted: bool) -> None:
        """▲ A large value is read at once from its first to its last piece: a read of some pieces shows nothing, and
        later pieces may differ from the first in their heads."""
        inside = bool(self._begun)
        if head.piece is not None:
            # A producer that begins another large value has given up the one before it.
            producer = head.piece.producer, head.piece.incarnation
            if head.piece.number + 1 == head.piece.pieces:
                self._begun.discard(producer)
            elif wanted:
                self._begun.add(producer)
        if not wanted and not inside:
            self._passed += head.size_bytes
            return
        if inside or (self._found and self._passed < self._gap_bytes):
            last, gap = self._found[-1]
            self._found[-1] = last._replace(end=head.position), gap
        else:
            self._found.append((Stretch(before(head.position), head.position), self._passed))
            while len(self._found) > self._most:
                self._gap_bytes *= 2
                self._join()
        self._passed = 0

    def _join(self) -> None:
        joined = self._found[:1]
        for stretch, gap in self._found[1:]:
            if gap < self._gap_bytes:
                last, before_it = joined[-1]
                joined[-1] = last._replace(end=stretch.end), before_it
            else:
                joined.append((stretch, gap))
        self._found = joined

    def all(self) -> list[Stretch]:
        return [stretch for stretch, _ in self._found]
