"""What a trimmed log says of what it has lost."""

from __future__ import annotations

from pathlib import Path

from segments.ledger.file_ledger import FileLedgerStore
from tests.segments.log.segment_log import append, take_over, writer_of
from txnstore.memory.memory_store import MemoryStore
from txnwire.ids import Position


async def test_an_empty_ledger_behind_what_is_trimmed_is_not_counted_as_lost(
    memory_store: MemoryStore, tmp_path: Path
) -> None:
    """A read that ended at the last entry that went has missed nothing, and goes on."""
    ledger_store = FileLedgerStore(tmp_path)
    await append(await take_over(memory_store, ledger_store), b"a", b"b")
    await take_over(memory_store, ledger_store)  # and nothing is sent
    ledgers = await take_over(memory_store, ledger_store)
    assert [info.closed_length for info in ledgers.record.ledgers] == [2, 0, None]
    await ledgers.trim(writer_of(ledgers).ledger_id)
    assert ledgers.trimmed_through == Position(1, 1)
    await ledger_store.close()
