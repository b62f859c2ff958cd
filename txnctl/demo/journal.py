"""What a worker writes down about its transactions, one JSON line each, flushed: the judge's evidence.

A line is written *before* the end is asked for (`intent`) and again with the answer, so that a worker killed in between
leaves its transaction as undecided rather than unmentioned.
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
    """`commit_ms`: from asking to answer. `at_s`: when it happened (for an end: was answered), on the machine's
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
    """Whole lines, none where there is no file; the torn last line of a killed worker is passed over."""
    decoder = msgspec.json.Decoder(JournalLine)
    if path.exists():
        for text in path.read_bytes().split(b"\n")[:-1]:
            yield decoder.decode(text)
