"""Several ledgers of a store together: their order, and what is counted of all their syncs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from segments.ledger.file_ledger import FileLedgerStore
from tests.segments.ledger_store_contract import SEGMENT, create, filled


async def test_ledgers_are_listed_by_their_numbers(tmp_path: Path) -> None:
    """A repair goes through them from the oldest on: the tenth comes behind the second."""
    store = FileLedgerStore(tmp_path)
    for ledger_id in (2, 10, 1, 9, 11):
        (await create(store, ledger_id)).abandon()
    assert await store.present(SEGMENT) == [1, 2, 9, 10, 11]
    assert await store.list() == [(SEGMENT, ledger_id) for ledger_id in (1, 2, 9, 10, 11)]
    await store.close()


def open_ledgers(data_dir: Path) -> list[int]:
    """Ids of the ledgers whose files this process has open."""
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    targets = [Path(os.readlink(link)) for link in links if link.is_symlink()]
    return sorted(
        int(one.name.partition(".")[0]) for one in targets if data_dir in one.parents and ".ledger" in one.name
    )


async def test_of_the_closed_ledgers_those_that_were_read_last_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each can be read, however many there are."""
    monkeypatch.setattr("segments.ledger.file_ledger.OPEN_CLOSED_LEDGERS", 2)
    store = FileLedgerStore(tmp_path)
    for ledger_id in (1, 2, 3, 4):
        await (await filled(store, 3, ledger_id)).close(b"")
    for ledger_id, kept in ((1, [1]), (2, [1, 2]), (3, [2, 3]), (2, [2, 3]), (4, [2, 4]), (1, [1, 4])):
        found = await store.read(SEGMENT, ledger_id, 0, 2, max_bytes=1000)
        assert [entry for _, entry in found] == [b"entry-0", b"entry-1", b"entry-2"]
        assert open_ledgers(tmp_path) == kept
    await store.delete(SEGMENT, 4)
    assert open_ledgers(tmp_path) == [1]
    await store.delete_segment(SEGMENT)
    assert open_ledgers(tmp_path) == [], "or the disk would keep the bytes of what was deleted"
    await store.close()
