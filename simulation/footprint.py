"""What a server process holds in memory: how long each of its collections is, by the class and attribute that has it.

Nothing is asked of production code: the objects that hang on a `Server` are walked from outside, those of our own
packages alone. What only a running coroutine holds is not seen.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sized

PACKAGES = ("txnstore", "watchers", "segments", "coordinator_v5", "txnctl", "txnwire")
OUTSIDE = ("txnstore.memory_etcd", "txnstore.mvcc")
"""What stands for another process."""
_CONTAINERS = (dict, list, deque, set, frozenset, tuple, OrderedDict, defaultdict)


def collections_of(root: object) -> dict[str, int]:
    """`Class.attribute` → the length of the longest such collection that can be reached from `root`."""
    found: dict[str, int] = {}
    seen: dict[int, object] = {id(root): root}  # ▲ held, so that no id is used twice
    todo: list[tuple[str, object]] = [("", root)]
    while todo:
        label, one = todo.pop()
        if isinstance(one, _CONTAINERS) and not hasattr(one, "_fields"):
            found[label] = max(found.get(label, 0), len(one))
        for name, part in _parts(label, one):
            if id(part) not in seen and _is_followed(part):
                seen[id(part)] = part
                todo.append((name, part))
    return found


def _is_followed(one: object) -> bool:
    if isinstance(one, _CONTAINERS):
        return True
    module = type(one).__module__
    return module.partition(".")[0] in PACKAGES and module not in OUTSIDE


def _parts(label: str, one: object) -> Iterator[tuple[str, object]]:
    """What hangs on it, with the label of what that is. Of sets nothing is followed: they hold plain values."""
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
