"""`txnctl serve` that stops itself (SIGSTOP) once, between an op record and its append: as soon as the file named by
`PAUSE_FILE` is there. Whoever wants it to go on sends SIGCONT."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import txnctl.process.serve
from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.file_ledger_writer import FileLedgerWriter
from txnctl.main import main

PAUSE_FILE = "TEST_PAUSE_FILE"


class PausingWriter:
    """A ledger whose next append comes late."""

    def __init__(self, writer: FileLedgerWriter) -> None:
        self._writer = writer

    def append(self, entry: bytes) -> int:
        asked = Path(os.environ[PAUSE_FILE])
        if asked.exists():
            asked.rename(asked.with_suffix(".paused"))
            os.kill(os.getpid(), signal.SIGSTOP)
        return self._writer.append(entry)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class PausingLedgers(FileLedgerStore):
    async def create(self, segment: str, ledger_id: int, *, incarnation: str) -> Any:
        return PausingWriter(await super().create(segment, ledger_id, incarnation=incarnation))


if __name__ == "__main__":
    txnctl.process.serve.FileLedgerStore = PausingLedgers  # type: ignore[misc]
    main()
