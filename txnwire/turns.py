"""Splits work whose size a user controls into turns, so that none blocks the event loop for more than some
milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""Work of a pure core that returns a T: other tasks may run wherever it yields. ▲ Its input must not change until it
returns."""

_divided_by: ContextVar[int] = ContextVar("turns divided by", default=1)


def turn_size(items: int) -> int:
    """How many items to process in one turn: `items`, or fewer in a simulation, which must reach the gaps between turns
    with little data."""
    return max(1, items // _divided_by.get())


@contextmanager
def turns_divided_by(divisor: int) -> Iterator[None]:
    """Divide turn sizes in this context and in tasks started in it."""
    token = _divided_by.set(divisor)
    try:
        yield
    finally:
        _divided_by.reset(token)


async def in_turns(items: Sequence[T], size: int = 1000) -> AsyncIterator[Sequence[T]]:
    """`items` in order, at most `size` at a time; after each full part other tasks get a turn of the event loop.

    ▲ State that the caller does not own may have changed by the next part."""
    size = turn_size(size)
    for at in range(0, len(items), size):
        yield items[at : at + size]
        if at + size <= len(items):
            await asyncio.sleep(0)


def in_steps(items: Iterable[T], size: int = 1000) -> Iterator[list[T]]:
    """`items` in order, at most `size` at a time, for `Steps` that yield after each part."""
    iterator, size = iter(items), turn_size(size)
    while part := list(islice(iterator, size)):
        yield part


def in_weighed_steps(items: Iterable[T], weight: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """`items` in order, in parts of one item, or of several that weigh at most `most` together."""
    part: list[T] = []
    weighed, most = 0, turn_size(most)
    for item in items:
        own = weight(item)
        if part and weighed + own > most:
            yield part
            part, weighed = [], 0
        part.append(item)
        weighed += own
    if part:
        yield part


async def taking_turns(steps: Steps[T]) -> T:
    """Run `steps` with turns for other tasks; returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


def at_once(steps: Steps[T]) -> T:
    """Run `steps` without a break; returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
