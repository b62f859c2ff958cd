"""Working on what a user can multiply in turns with others: no more of it in one go than keeps the event loop for some
milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_divided_by: ContextVar[int] = ContextVar("turns divided by", default=1)


def turn_size(items: int) -> int:
    """How many to work on in one go where `items` is meant: as many, or fewer in a simulation, which is to meet what
    happens between two turns with little data."""
    return max(1, items // _divided_by.get())


@contextmanager
def turns_divided_by(divisor: int) -> Iterator[None]:
    """For what runs in this context, and in tasks begun in it."""
    token = _divided_by.set(divisor)
    try:
        yield
    finally:
        _divided_by.reset(token)


async def in_turns(items: Sequence[T], size: int = 1000) -> AsyncIterator[Sequence[T]]:
    """`items` in order, at most `size` at a time; behind each whole part others have their turn of the event loop.

    ▲ Whatever is not the caller's own may have changed by the next part."""
    size = turn_size(size)
    for at in range(0, len(items), size):
        yield items[at : at + size]
        if at + size <= len(items):
            await asyncio.sleep(0)
