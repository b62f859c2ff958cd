"""What a mutant is, and how it is applied to a copy of the tree. Imports no production code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Kinds of faults, for mutants that most of them do nothing to show.
UNANSWERED = "etcd unanswered"
ZOMBIES = "pause,early expiry,lose etcd,isolate a server"
"""Who has lost its lease and does not know."""
TAKE_OVERS = "kill a server,stop a server,etcd unanswered"
OWNERLESS = "no brokers for long"
"""Segments that nobody owns for a while."""
DAMAGE = "flipped bits,wrong reads,kill a server"
"""Bits that flip, beside take-overs."""


class CodeHasMoved(Exception):
    """A mutant's old text is not there exactly once: update the mutant."""


@dataclass(frozen=True, slots=True)
class Edit:
    """`old` stands in `file` exactly once (file: relative to the root of the tree) and becomes `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One broken rule.

    `rule` in words as a reader of DESIGN would say it; `section` where it stands there. `more`: further edits, for a
    rule that is kept in two places. `tests`: pytest node ids that catch it, for what the simulation cannot reach (real
    files, real etcd, grpc); `why_tests` then says why it cannot. Otherwise seeds of the simulation are run until one
    catches it: `work_s` virtual seconds each, under `faults` (kinds as in `python -m simulation --faults`).
    """

    name: str
    rule: str
    section: str
    file: str
    old: str
    new: str
    more: tuple[Edit, ...] = ()
    faults: str = "all"
    work_s: float = 30.0
    tests: tuple[str, ...] = ()
    why_tests: str = ""

    @property
    def edits(self) -> tuple[Edit, ...]:
        return (Edit(self.file, self.old, self.new), *self.more)

    def mutated(self, root: Path) -> Iterator[tuple[Path, str]]:
        """The files as they are to be, nothing written. Raises `CodeHasMoved`."""
        texts: dict[Path, str] = {}
        for edit in self.edits:
            path = root / edit.file
            text = texts.get(path) or path.read_text()
            if (found := text.count(edit.old)) != 1:
                raise CodeHasMoved(
                    f"mutant {self.name}: the code has moved: its old text stands {found} times in {edit.file}, "
                    f"expected once: update the mutant in simulation/mutants/\n{edit.old}"
                )
            texts[path] = text.replace(edit.old, edit.new)
        yield from texts.items()

    def apply(self, root: Path) -> None:
        for path, text in self.mutated(root):
            path.write_text(text)
