"""What one worker did, line by line on disk: what it had begun when it was killed is still known."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from simulation.clients.recorder import Draft
from simulation.judges.history import Operation


class _Line(msgspec.Struct, array_like=True):
    """The state of an operation after its latest change; the last line of a `life` and `number` counts."""

    life: str
    number: int
    operation: Operation


class Journal:
    """Lines reach the kernel before the caller goes on: SIGKILL takes none of them back."""

    def __init__(self, file: int, life: str) -> None:
        """`file`: as `open_journal` gives it, the same for all lives of a client."""
        self._file = file
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


def open_journal(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


class JournalReader:
    """Follows a journal that is still being written. `operations`: in the order in which they were begun."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._found: dict[tuple[str, int], Operation] = {}

    @property
    def operations(self) -> list[Operation]:
        return list(self._found.values())

    def read_on(self) -> list[Operation]:
        """The states that operations have come to since the last call. A last line that is not whole is left out."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        lines = [msgspec.json.decode(line, type=_Line) for line in whole.splitlines()]
        self._found.update({(line.life, line.number): line.operation for line in lines})
        return [line.operation for line in lines]


def draft_of(operation: Operation) -> Draft:
    draft = Draft(operation.process, operation.invoked, operation.name, operation.completed, operation.outcome)
    draft.sends = [(send.key, send.value) for send in operation.sends]
    draft.places = {send.value: send.place for send in operation.sends if send.place is not None}
    draft.polls, draft.acks, draft.reports = operation.polls, operation.acks, operation.reports
    draft.shared, draft.told, draft.left = operation.shared, operation.told, operation.left
    draft.calls = operation.calls
    return draft
