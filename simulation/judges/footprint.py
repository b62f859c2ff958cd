"""Measures what a process holds in memory: the sizes of its collections and numbers, by class and attribute.

Production code does not help: this walks the objects of a server or client from outside, only those of our own
packages. Objects held only by a running coroutine are not seen.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Container, Iterator, Sized

PACKAGES = ("txnstore", "watchers", "segments", "coordinator_v5", "txnclient", "txnctl", "txnwire")
OUTSIDE = ("txnstore.memory.memory_etcd", "txnstore.memory.mvcc")
"""Classes that stand for another process."""
_CONTAINERS = (dict, list, deque, set, frozenset, tuple, OrderedDict, defaultdict)


def collections_of(root: object) -> dict[str, int]:
    """`Class.attribute` → the length of the longest such collection that can be reached from `root`."""
    found: dict[str, int] = {}
    for label, one in _walk(root):
        if isinstance(one, _CONTAINERS) and not hasattr(one, "_fields"):
            found[label] = max(found.get(label, 0), len(one))
    return found


def numbers_of(root: object, wanted: Container[str]) -> dict[str, int]:
    """`Class.attribute` → the largest such number among the objects that can be reached from `root`."""
    found: dict[str, int] = {}
    for _, one in _walk(root):
        for name in () if isinstance(one, _CONTAINERS) else _attributes(type(one), one):
            if (label := f"{type(one).__name__}.{name}") in wanted:
                found[label] = max(found.get(label, 0), int(getattr(one, name, 0)))
    return found


def _walk(root: object) -> Iterator[tuple[str, object]]:
    """Everything that can be reached, with the label of what holds it."""
    seen: dict[int, object] = {id(root): root}  # ▲ held, so that no id is used twice
    todo: list[tuple[str, object]] = [("", root)]
    while todo:
        label, one = todo.pop()
        yield label, one
        for name, part in _parts(label, one):
            if id(part) not in seen and _is_followed(part):
                seen[id(part)] = part
                todo.append((name, part))


def _is_followed(one: object) -> bool:
    if isinstance(one, _CONTAINERS):
        return True
    module = type(one).__module__
    return module.partition(".")[0] in PACKAGES and module not in OUTSIDE


def _parts(label: str, one: object) -> Iterator[tuple[str, object]]:
    """The objects it refers to, with their labels. Sets are not followed: they hold plain values."""
    if isinstance(one, dict):
        yield from ((label, part) for part in one)
        yield from ((label, part) for part in one.values())
    elif isinstance(one, list | deque | tuple):
        yield from ((label, part) for part in one)
    elif not isinstance(one, Sized) or _is_followed(one):
        for name in _attributes(type(one), one):
            yield f"{type(one).__name__}.{name}", getattr(one, name, None)


def _attributes(cls: type, one: object) -> Iterator[str]:
    yield from vars(one) if hasattr(one, "__dict__") else ()
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        yield from (name for name in ((slots,) if isinstance(slots, str) else slots) if name != "__dict__")
