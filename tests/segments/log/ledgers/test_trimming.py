"""What a trimmed log says of what it has lost."""

from __future__ import annotations

from pathlib import Path

from segments.ledger.file_ledger import FileLedgerStore
from tests.segments.log.segment_log import append, take_over, whole_log, writer_of
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


async def test_a_log_of_which_nothing_is_left_goes_on_behind_what_was_trimmed(
    memory_store: MemoryStore, tmp_path: Path
) -> None:
    """▲ Positions of trimmed entries count as consumed: what is sent under one of them, nobody would ever get."""
    ledger_store = FileLedgerStore(tmp_path)
    first = await take_over(memory_store, ledger_store)
    await append(first, b"a", b"b")
    await first.close(lambda: first.footer(1, 2, b"{}"))
    await first.trim(8)
    await first.finish_trim()
    assert first.record.ledgers == []
    ledgers = await take_over(memory_store, ledger_store)
    await append(ledgers, b"c")
    assert await whole_log(ledgers) == [b"c"]
    assert ledgers.next_after(ledgers.trimmed_through) == ledgers.last_confirmed == Position(8, 0)
    await ledger_store.close()
