"""Bitmaps of the messages of an entry. Pure.

▲ Linear in the stretch that is named. One bit after the other is quadratic, as each step copies the bitmap: of a batch
of 100 000 jobs each single one would take a second of the event loop. Linear in the entry is too much where many
consumers divide it: each names a hundred messages of thousands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def bits_of(indexes: Iterable[int]) -> int:
    """The bitmap of these indexes."""
    if isinstance(indexes, range) and indexes.step == 1:
        return all_bits(len(indexes)) << indexes.start
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


def indexes_of(bits: int) -> Sequence[int]:
    """The indexes of a bitmap, in order."""
    if not bits:
        return ()
    first = (bits & -bits).bit_length() - 1
    stretch = bits >> first
    if not stretch & stretch + 1:  # the usual case: no gap
        return range(first, bits.bit_length())
    digits, found, at = bin(stretch)[:1:-1], list[int](), -1
    while (at := digits.find("1", at + 1)) >= 0:
        found.append(first + at)
    return found
