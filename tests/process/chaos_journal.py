"""What one worker did, line by line on disk: what it had begun when it was killed is still known."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from simulation.history import Operation
from simulation.recorder import Draft


class _Line(msgspec.Struct, array_like=True):
    """The state of an operation after its latest change; the last line of a `life` and `number` counts."""

    life: str
    number: int
    operation: Operation


class Journal:
    """Lines reach the kernel before the caller goes on: SIGKILL takes none of them back."""

    def __init__(self, path: Path, life: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._life = life
        self._numbers: dict[int, int] = {}
        self._drafts: list[Draft] = []

    def write(self, draft: Draft) -> None:
        number = self._numbers.get(id(draft))
        if number is None:
            number = self._numbers[id(draft)] = len(self._drafts)
            self._drafts.append(draft)  # held, so that its id stays its own
        line = msgspec.json.encode(_Line(self._life, number, draft.operation())) + b"\n"
        if os.write(self._file, line) != len(line):
            raise OSError("a line of the journal was not written whole")


def read_journal(path: Path) -> list[Operation]:
    """Operations in the order in which they were begun. A last line that a kill has cut is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    found: dict[tuple[str, int], Operation] = {}
    for text in lines:
        line = msgspec.json.decode(text, type=_Line)
        found[line.life, line.number] = line.operation
    return list(found.values())


def draft_of(operation: Operation) -> Draft:
    draft = Draft(operation.process, operation.invoked, operation.name, operation.completed, operation.outcome)
    draft.sends = [(send.key, send.value) for send in operation.sends]
    draft.places = {send.value: send.place for send in operation.sends if send.place is not None}
    draft.polls, draft.acks, draft.reports = operation.polls, operation.acks, operation.reports
    draft.shared = operation.shared
    return draft
