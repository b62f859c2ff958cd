"""`ledger_store`: ledgers in a folder of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from segments.ledger.file_ledger import FileLedgerStore


@pytest.fixture
async def ledger_store(tmp_path: Path) -> AsyncIterator[FileLedgerStore]:
    store = FileLedgerStore(tmp_path)
    yield store
    await store.close()
