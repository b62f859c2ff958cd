"""Several ledgers of a store together: their order, and what is counted of all their syncs."""

from __future__ import annotations

from pathlib import Path

from segments.ledger.file_ledger import FileLedgerStatistics, FileLedgerStore
from tests.segments.ledger_store_contract import SEGMENT, create


async def test_ledgers_are_listed_by_their_numbers(tmp_path: Path) -> None:
    """A repair goes through them from the oldest on: the tenth comes behind the second."""
    store = FileLedgerStore(tmp_path)
    for ledger_id in (2, 10, 1, 9, 11):
        (await create(store, ledger_id)).abandon()
    assert await store.present(SEGMENT) == [1, 2, 9, 10, 11]
    assert await store.list() == [(SEGMENT, ledger_id) for ledger_id in (1, 2, 9, 10, 11)]
    await store.close()


async def test_syncs_add_up_and_the_slowest_is_remembered(tmp_path: Path) -> None:
    store = FileLedgerStore(tmp_path)
    for seconds, written in ((0.25, 10), (1.5, 20), (0.25, 30)):
        store.count_sync(seconds, written)
    assert store.statistics() == FileLedgerStatistics(3, 2.0, 1.5, 60, 0)
    await store.close()
