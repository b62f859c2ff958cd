"""Finds the faults that a failing run needs to fail: delta debugging (ddmin: Zeller, Hildebrandt, "Simplifying and
Isolating Failure-Inducing Input", TSE 2002).

A run with fewer faults is another run: everything after the first omitted fault happens at other times. So the result
is seldom minimal, and "fails" means "with a finding of the same kind".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Generator, Iterable, Sequence

KIND_WORDS = 8
_PARTICULAR = re.compile(r"\S*[0-9/'\"{}()\[\]<>]\S*")


def kind_of(finding: str) -> str:
    """The common part of findings with one cause: the first words, without numbers, names and values."""
    words = _PARTICULAR.sub(" ", finding.splitlines()[0]).split()
    return " ".join(words[:KIND_WORDS])


def kinds_of(findings: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(kind_of, findings)))


def fails_likewise(findings: Iterable[str], kinds: Iterable[str]) -> bool:
    wanted = dict.fromkeys(kinds)
    return any(kind in wanted for kind in kinds_of(findings))


def reduction(numbers: Sequence[int]) -> Generator[tuple[int, ...], bool, None]:
    """Yields the numbers to try next and is sent whether they fail. The last failing ones are the shortest found so
    far. Tries nothing twice."""
    current, parts = tuple(numbers), 2
    tried: dict[tuple[int, ...], None] = {current: None, (): None}
    if not current or (yield ()):
        return
    while len(current) > 1:
        for candidate, parts_then in _candidates(current, min(parts, len(current))):
            if candidate in tried:
                continue
            tried[candidate] = None
            if (yield candidate):
                current, parts = candidate, parts_then
                break
        else:
            if parts >= len(current):
                return
            parts *= 2


def _candidates(current: tuple[int, ...], parts: int) -> Iterable[tuple[tuple[int, ...], int]]:
    """Each part alone, then each one left out; with the number of parts to go on with if it fails."""
    bounds = [len(current) * index // parts for index in range(parts + 1)]
    spans = list(itertools.pairwise(bounds))
    for begin, end in spans:
        yield current[begin:end], 2
    if parts > 2:
        for begin, end in spans:
            yield current[:begin] + current[end:], max(parts - 1, 2)
