"""Working on what a user can multiply in turns with others: no more of it in one go than keeps the event loop for some
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
"""Work that returns a T, of a core that knows of no event loop: others may have their turn wherever it yields. ▲ What
it works on has to stay as it is until it returns."""

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


def in_steps(items: Iterable[T], size: int = 1000) -> Iterator[list[T]]:
    """`items` in order, at most `size` at a time, for `Steps` that yield behind each of these."""
    iterator, size = iter(items), turn_size(size)
    while part := list(islice(iterator, size)):
        yield part


def in_weighed_steps(items: Iterable[T], weight: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """`items` in order: one of them, or several that weigh at most `most` together."""
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
    """What `steps` return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


def at_once(steps: Steps[T]) -> T:
    """The same where nobody else waits for the loop."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
