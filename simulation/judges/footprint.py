"""Measures what a process holds in memory: the sizes of its collections and numbers, by class and attribute.

Production code does not help: this walks the objects of a server or client from outside, only those of our own
packages. Objects held only by a running coroutine are not seen.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Container, Iterator
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

PACKAGES = ("txnstore", "watchers", "segments", "coordinator_v5", "txnclient", "txnctl", "txnwire")
OUTSIDE = ("txnstore.memory.memory_etcd", "txnstore.memory.mvcc")
"""Classes that stand for another process."""
_CONTAINERS = (dict, list, deque, set, frozenset, tuple, OrderedDict, defaultdict)
MOST_FOLLOWED = 5000
"""Members of one collection: the others are of the same kind."""


class Footprint(NamedTuple):
    """Of all that can be reached from an object."""

    lengths: dict[str, int]
    """`Class.attribute` → the length of the longest such collection."""
    numbers: dict[str, int]
    """`Class.attribute` → the largest such number."""


def footprint_of(root: object, numbers: Container[str] = ()) -> Footprint:
    """All collections, and the numbers that are asked for."""
    found = Footprint({}, {})
    for label, one in _walk(root):
        cls: type[Any] = type(one)
        if not issubclass(cls, _CONTAINERS):
            for name in _attributes(cls, one) if numbers else ():
                if (number := f"{cls.__name__}.{name}") in numbers:
                    found.numbers[number] = max(found.numbers.get(number, 0), int(getattr(one, name, 0)))
        elif not hasattr(cls, "_fields"):
            found.lengths[label] = max(found.lengths.get(label, 0), len(one))  # type: ignore[arg-type]
    return found


def _walk(root: object) -> Iterator[tuple[str, object]]:
    """Everything that can be reached, with the label of what holds it."""
    seen: dict[int, object] = {id(root): root}  # ▲ held, so that no id is used twice
    todo: list[tuple[str, object]] = [("", root)]
    while todo:
        label, one = todo.pop()
        yield label, one
        for name, part in _parts(label, one):
            if _is_followed(type(part)) and id(part) not in seen:  # type: ignore[arg-type]  # it is hashable
                seen[id(part)] = part
                todo.append((name, part))


@cache
def _is_followed(cls: type[Any]) -> bool:
    if issubclass(cls, _CONTAINERS):
        return True
    return cls.__module__.partition(".")[0] in PACKAGES and cls.__module__ not in OUTSIDE


def _parts(label: str, one: object) -> Iterator[tuple[str, object]]:
    """The objects it refers to, with their labels. Sets are not followed: they hold plain values."""
    if isinstance(one, dict):
        yield from ((label, part) for part in islice(one, MOST_FOLLOWED))
        yield from ((label, part) for part in islice(one.values(), MOST_FOLLOWED))
    elif isinstance(one, list | deque | tuple):
        yield from ((label, part) for part in islice(one, MOST_FOLLOWED))
    elif not isinstance(one, set | frozenset):
        cls: type[Any] = type(one)
        for name in _attributes(cls, one):
            yield f"{cls.__name__}.{name}", getattr(one, name, None)


def _attributes(cls: type[Any], one: object) -> Iterator[str]:
    yield from vars(one) if hasattr(one, "__dict__") else ()
    yield from _slots(cls)  # type: ignore[arg-type]  # it is hashable


@cache
def _slots(cls: type[Any]) -> tuple[str, ...]:
    found: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += (name for name in ((slots,) if isinstance(slots, str) else slots) if name != "__dict__")
    return tuple(found)
