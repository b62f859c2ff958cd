"""What a disk has of a folder after a power failure: every call that changes files is recorded on its way to the real
file system, and a folder can be made of what was certain at any moment.

A file's content is certain up to its last sync; a name in a directory, made or taken away, once that directory was
synced. What was not synced may be there or not, so each moment has several outcomes: see `RecordedDisk.outcomes`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SYNCS = ("fsync", "fdatasync")

Tree = Mapping[str, bytes | None]
"""Paths below the folder; None is a directory."""


class Died(BaseException):
    """The process was killed at this call: it did nothing, and nothing that the process does afterwards counts."""


@dataclass(slots=True)
class _File:
    written: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass(slots=True)
class _Directory:
    names: dict[str, _File | _Directory] = field(default_factory=dict)
    synced: dict[str, _File | _Directory] = field(default_factory=dict)

    def tree(self, *, names: bool, contents: bool, also: _Change | None = None) -> Tree:
        """`names`, `contents`: those that are not synced count, too; or `also` this one name."""
        found: dict[str, bytes | None] = {}
        listed = dict(self.names if names else self.synced)
        if also is not None and also[0] is self:
            listed.pop(also[1], None)
            if also[1] in self.names:
                listed[also[1]] = self.names[also[1]]
        for name, one in listed.items():
            if isinstance(one, _Directory):
                below = one.tree(names=names, contents=contents, also=also)
                found |= {name: None, **{f"{name}/{path}": data for path, data in below.items()}}
            else:
                found[name] = bytes(one.written) if contents else one.synced
        return found

    def changes(self) -> Iterator[_Change]:
        """Names that are not synced."""
        for name in {**self.names, **self.synced}:
            if self.names.get(name) is not self.synced.get(name):
                yield self, name
        for one in {id(one): one for one in (*self.names.values(), *self.synced.values())}.values():
            if isinstance(one, _Directory):
                yield from one.changes()


_Change = tuple[_Directory, str]


class RecordedDisk:
    """Of a folder that is empty and certain to be there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._top = _Directory()
        self._opened: dict[int, _File | _Directory] = {}
        self._lock = threading.RLock()
        self.calls = 0
        """That change something or make it certain, so far."""
        self.dies_at: int | None = None
        """The number of the call that the process does not survive."""
        self.fails: dict[str, OSError] = {}
        """By the call's name, what its next one fails with, having done nothing."""
        self.happened: Callable[[str], None] = lambda _: None
        """Called after each, in its thread."""

    def outcomes(self) -> dict[str, Tree]:
        """What a power failure now may leave, by what of the unsynced stays. With all of it nothing was lost."""
        with self._lock:
            found = {
                "nothing unsynced stays": self._top.tree(names=False, contents=False),
                "unsynced names stay": self._top.tree(names=True, contents=False),
                "unsynced contents stay": self._top.tree(names=False, contents=True),
            }
            for number, change in enumerate(self._top.changes()):
                tree = self._top.tree(names=False, contents=False, also=change)
                found[f"unsynced name {change[1]} stays ({number})"] = tree
            return found

    def everything(self) -> Tree:
        return self._top.tree(names=True, contents=True)

    def close_files(self) -> None:
        """Those that dead processes have left open: all of these have ended."""
        for fd in self._opened:
            with suppress(OSError):
                if Path(os.readlink(f"/proc/self/fd/{fd}")).is_relative_to(self._folder):
                    os.close(fd)

    @contextmanager
    def recording(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name, note in {
                "open": self._note_open,
                "pwrite": self._note_write,
                "fsync": self._note_sync,
                "fdatasync": self._note_sync,
                "link": self._note_link,
                "unlink": self._note_removal,
                "rmdir": self._note_removal,
                "rename": self._note_rename,
                "replace": self._note_rename,
                "mkdir": self._note_directory,
            }.items():
                patch.setattr(os, name, self._recorded(name, getattr(os, name), note))
            yield

    def _recorded(self, name: str, real: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if not self._is_about(name, args):
                return real(*args, **kwargs)
            with self._lock:
                self.calls += self._changes(name, args)
                if self.dies_at is not None and self.calls >= self.dies_at:
                    raise Died(f"killed at call {self.calls}, {name}")
                if (error := self.fails.pop(name, None)) is not None:
                    raise error
                result = None if name in SYNCS else real(*args, **kwargs)  # what is recorded need not be synced
                note(result, *args)
                if not self._changes(name, args):
                    return result
                self.happened(f"{name} {args[0]}")
                return result

        return recorded

    def _is_about(self, name: str, args: tuple[Any, ...]) -> bool:
        if name in SYNCS or name == "pwrite":
            return args[0] in self._opened
        return Path(args[0]).is_relative_to(self._folder)

    def _changes(self, name: str, args: tuple[Any, ...]) -> bool:
        """Or makes certain."""
        return name != "open" or bool(args[1] & os.O_CREAT)

    # ---- what they do -----------------------------------------------------------------------------------------------

    def _place(self, path: Any) -> tuple[_Directory, str]:
        at = self._top
        *above, name = Path(path).relative_to(self._folder).parts
        for one in above:
            below = at.names[one]
            assert isinstance(below, _Directory)
            at = below
        return at, name

    def _at(self, path: Any) -> _File | _Directory:
        if Path(path) == self._folder:
            return self._top
        directory, name = self._place(path)
        return directory.names.setdefault(name, _File())  # one that Python's own `open` made: its content is not known

    def _note_open(self, fd: int, path: Any, flags: int, *_: Any) -> None:
        if flags & os.O_CREAT:
            directory, name = self._place(path)
            directory.names.setdefault(name, _File())
        self._opened[fd] = self._at(path)

    def _note_write(self, written: int, fd: int, data: Any, offset: int) -> None:
        file = self._opened[fd]
        assert isinstance(file, _File)
        file.written.extend(bytes(max(0, offset - len(file.written))))
        file.written[offset : offset + written] = bytes(data)[:written]

    def _note_sync(self, _: None, fd: int) -> None:
        one = self._opened[fd]
        if isinstance(one, _File):
            one.synced = bytes(one.written)
        else:
            one.synced = dict(one.names)

    def _note_link(self, _: None, source: Any, target: Any) -> None:
        directory, name = self._place(target)
        directory.names[name] = self._at(source)

    def _note_removal(self, _: None, path: Any) -> None:
        directory, name = self._place(path)
        del directory.names[name]

    def _note_rename(self, _: None, source: Any, target: Any) -> None:
        moved = self._at(source)
        self._note_removal(None, source)
        directory, name = self._place(target)
        directory.names[name] = moved

    def _note_directory(self, _: None, path: Any, *__: Any) -> None:
        directory, name = self._place(path)
        directory.names[name] = _Directory()


def tree_of(folder: Path) -> Tree:
    """What is really there."""
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    return {name: None if path.is_dir() else path.read_bytes() for name, path in found.items()}


def make_tree(folder: Path, tree: Tree) -> None:
    for name, content in sorted(tree.items()):
        if content is None:
            (folder / name).mkdir(parents=True, exist_ok=True)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
