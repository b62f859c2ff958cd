"""A worker's journal of its transactions, one flushed JSON line each: the judge's evidence.

A worker writes a line *before* it requests the end (`intent`) and another with the answer. So a worker killed in
between leaves its transaction undecided, not unmentioned.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

BEGUN = "begun"
INTENT = "intent"
COMMITTED = "committed"
ABORTED = "aborted"


class JournalLine(msgspec.Struct, frozen=True):
    """`commit_ms`: from request to answer. `at_s`: when it happened (an end: when it was answered), on the machine's
    monotonic clock."""

    txn_id: str
    event: str
    flights: int
    on_purpose: bool = False
    commit_ms: float = 0.0
    at_s: float = 0.0


class Journal:
    """Append-only; one writer. `close` is idempotent."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab")

    def write(self, line: JournalLine) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_lines(folder: Path) -> Iterator[JournalLine]:
    """Every whole line of every journal in `folder`."""
    for path in sorted(folder.glob("*.jsonl")):
        yield from read_journal(path)


def read_journal(path: Path) -> Iterator[JournalLine]:
    """Whole lines, none without a file; skips the torn last line of a killed worker."""
    decoder = msgspec.json.Decoder(JournalLine)
    if path.exists():
        for text in path.read_bytes().split(b"\n")[:-1]:
            yield decoder.decode(text)
