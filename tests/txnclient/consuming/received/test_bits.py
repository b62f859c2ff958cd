"""Bitmaps of the messages of an entry, there and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txnclient.consuming.received.bits import all_bits, bits_of, indexes_of


@given(st.sets(st.integers(0, 300)))
def test_the_indexes_of_a_bitmap_are_those_it_was_made_of(indexes: set[int]) -> None:
    bits = bits_of(indexes)
    assert bits == sum(1 << index for index in indexes)
    assert [*indexes_of(bits)] == sorted(indexes)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 3))
def test_a_range_is_as_its_indexes(start: int, stop: int, step: int) -> None:
    indexes = range(start, stop, step)
    assert bits_of(indexes) == bits_of([*indexes]) == bits_of(reversed(indexes))
    assert [*indexes_of(bits_of(indexes))] == [*indexes]


def test_a_bitmap_may_be_large() -> None:
    """▲ Some hundred times here, each of them would take more than a second if it were made bit by bit."""
    count = 100_000
    for index in range(0, count, 500):
        assert [*indexes_of(1 << index)] == [index]
        assert bits_of(range(index, count)) == all_bits(count) & ~all_bits(index)
