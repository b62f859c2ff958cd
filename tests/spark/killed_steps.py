"""A run that changes a folder, killed before or after each of its steps on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet


class Killed(BaseException):
    """The process is gone: nothing that would handle an error may run."""


class Kills:
    """Kills before or after the `at`-th step that changes the disk, of all there are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, *, after: bool) -> None:
        self.steps = 0
        self._at, self._after = at, after
        for name in ("rename", "fsync", "unlink", "rmdir"):
            monkeypatch.setattr(os, name, self._killing(getattr(os, name)))
        monkeypatch.setattr(parquet, "write_table", self._killing(parquet.write_table))
        for name in ("mkdir", "write_text"):
            monkeypatch.setattr(Path, name, self._killing(getattr(Path, name)))

    def _killing(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def killing(*args: Any, **kwargs: Any) -> Any:
            self.steps += 1
            if self.steps == self._at and not self._after:
                raise Killed
            result = step(*args, **kwargs)
            if self.steps == self._at:
                raise Killed
            return result

        return killing


def killed_at_each(run: Callable[[int], object], *, after: bool, least: int) -> Iterator[int]:
    """`run(at)` once for each of its steps, killed at that one, and once to its end. Whoever iterates looks at what
    each of them left. Of `least` steps it has at least so many, else it was killed at less than there is."""
    at = 0
    while True:
        at += 1
        with pytest.MonkeyPatch.context() as patch:
            kills = Kills(patch, at, after=after)
            try:
                run(at)
            except Killed:
                pass
        yield at
        if kills.steps < at:
            break
    assert at > least
