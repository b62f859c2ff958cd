"""Finds a queue's messages that the application holds for too long without an ack. Pure.

The held messages are looked at `TICKS` times within the timeout, and what was there at the first and the last look is
too old. So a message that is acked in time costs nothing, and one that is not is found after one to one and a quarter
times the timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from txnclient.consuming.received.bits import indexes_of
from txnclient.consuming.received.message import Message, ReceivedEntry
from txnwire.ids import Position

TICKS: Final = 8

Held = Mapping[Position, Mapping[ReceivedEntry, int]]
"""Bitmaps of what the application holds, by position and copy of its entry."""


class AckTimeouts:
    """Ages of the messages held of one segment, in looks."""

    def __init__(self) -> None:
        self._looks = 0
        self._seen: dict[ReceivedEntry, list[tuple[int, int]]] = {}
        """(number of the look that found them first, bitmap) for each copy held."""
        self._exempt: dict[ReceivedEntry, int] = {}

    def exempt(self, entry: ReceivedEntry, bits: int) -> None:
        """These messages are on their way to the dead letters, which ends in an ack or a nack."""
        self._exempt[entry] = self._exempt.get(entry, 0) | bits

    def look(self, held: Held) -> list[Message[Any]]:
        """The messages that were there `TICKS` looks ago; marks them `late` in their entries. O(entries held)."""
        self._looks += 1
        seen: dict[ReceivedEntry, list[tuple[int, int]]] = {}
        exempt: dict[ReceivedEntry, int] = {}
        expired: list[Message[Any]] = []
        for copies in held.values():
            for entry, bits in copies.items():
                if entry in self._exempt:
                    exempt[entry] = self._exempt[entry]
                    bits &= ~exempt[entry]
                old, seen[entry] = self._aged(entry, bits)
                entry.late |= old
                expired += entry.messages(indexes_of(old))
        self._seen, self._exempt = seen, exempt
        return expired

    def _aged(self, entry: ReceivedEntry, bits: int) -> tuple[int, list[tuple[int, int]]]:
        """The expired ones of `bits`, and when each was seen first."""
        old, rows = 0, []
        for look, found in self._seen.get(entry, ()):
            if here := found & bits:
                rows.append((look, here))
                bits &= ~here
                if self._looks - look >= TICKS:
                    old |= here
        if bits:
            rows.append((self._looks, bits))
        return old, rows
