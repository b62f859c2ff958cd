"""How each transaction of a copier has ended, a line each: what was written is not lost to SIGKILL."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from txnwire.ids import TxnId

Outcome = Literal["committed", "aborted", "failed"]


@dataclass(frozen=True, slots=True)
class Ended:
    """`failed`: aborted because of an error, with some of its `messages` sent."""

    txn: str
    outcome: Outcome
    messages: int


class Journal:
    """Of one copier, through all its lives."""

    def __init__(self, path: Path) -> None:
        self.ended = sum(1 for one in read_journal(path) if one.outcome != "failed")
        """Transactions that ended as they were meant to."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, txn: TxnId, outcome: Outcome, messages: int) -> None:
        line = f"{txn} {outcome} {messages}\n".encode()
        if os.write(self._file, line) != len(line):
            raise OSError("a line of the journal was not written whole")
        self.ended += outcome != "failed"

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def read_journal(path: Path) -> list[Ended]:
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        txn, outcome, messages = line.split()
        found.append(Ended(txn, cast(Outcome, outcome), int(messages)))
    return found
