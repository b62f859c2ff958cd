"""Bitmaps of the messages of an entry. Pure.

▲ Linear in the entry's size. One bit after the other is quadratic, as each step copies the bitmap: of a batch of
100 000 jobs each single one would take a second of the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable


def bits_of(indexes: Iterable[int]) -> int:
    """The bitmap of these indexes."""
    named = list(indexes)
    if not named:
        return 0
    digits = bytearray(b"0") * (max(named) + 1)
    for index in named:
        digits[-1 - index] = 0x31
    return int(digits, 2)


def all_bits(count: int) -> int:
    return (1 << count) - 1


def indexes_of(bits: int) -> list[int]:
    """The indexes of a bitmap, in order."""
    digits, found, at = bin(bits)[:1:-1], [], -1
    while (at := digits.find("1", at + 1)) >= 0:
        found.append(at)
    return found
