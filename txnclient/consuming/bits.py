"""Bitmaps of the messages of an entry. Pure.

▲ Linear in the stretch that is named. One bit after the other is quadratic, as each step copies the bitmap: of a batch
of 100 000 jobs each single one would take a second of the event loop. Linear in the entry is too much where many
consumers divide it: each names a hundred messages of thousands.
"""

from __future__ import annotations

from collections.abc import Iterable


def bits_of(indexes: Iterable[int]) -> int:
    """The bitmap of these indexes."""
    named = list(indexes)
    if not named:
        return 0
    first = min(named)
    if named == [*range(first, first + len(named))]:  # the usual case, ten times as fast
        return all_bits(len(named)) << first
    digits = bytearray(b"0") * (max(named) - first + 1)
    for index in named:
        digits[first - index - 1] = 0x31
    return int(digits, 2) << first


def all_bits(count: int) -> int:
    return (1 << count) - 1


def indexes_of(bits: int) -> list[int]:
    """The indexes of a bitmap, in order."""
    first = (bits & -bits).bit_length() - 1
    digits, found, at = bin(bits >> max(first, 0))[:1:-1], [], -1
    while (at := digits.find("1", at + 1)) >= 0:
        found.append(first + at)
    return found
