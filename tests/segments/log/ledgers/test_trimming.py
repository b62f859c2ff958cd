"""What a trimmed log says of what it has lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from segments.ledger.file_ledger import FileLedgerStore
from tests.segments.log.segment_log import SEGMENT, append, stored_record, take_over, whole_log, writer_of
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


async def test_of_many_trimmed_ledgers_all_are_deleted_some_at_a_time(
    memory_store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit has room for some pages of the list only."""
    monkeypatch.setattr("segments.log.ledgers.segment_log.DELETED_AT_ONCE", 2)
    ledger_store = FileLedgerStore(tmp_path)
    ledgers = await take_over(memory_store, ledger_store)
    for number in range(5):
        await append(ledgers, b"%d" % number)
        await ledgers.roll(ledgers.footer(writer_of(ledgers).ledger_id, 1, b"{}"))
    await ledgers.trim(6)
    assert list(ledgers.to_delete) == [1, 2, 3, 4, 5]
    assert ledgers.trimmed_through == Position(5, 0)
    await ledgers.finish_trim()
    assert list(ledgers.to_delete) == []
    assert await ledger_store.present(SEGMENT) == [6]
    assert [info.ledger_id for info in (await stored_record(memory_store)).ledgers] == [6]
    await ledger_store.close()
