"""Several ledgers of a store together: their order, and what is counted of all their syncs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import LedgerFailed
from tests.segments.ledger_store_contract import OTHER, SEGMENT, create, filled
from txnwire.errors import InvalidArgument


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


@pytest.mark.parametrize("how", ["deleted", "set aside"])
async def test_of_a_segment_that_goes_no_ledger_stays_open(tmp_path: Path, how: str) -> None:
    """Or the disk would keep the bytes, and a reader would still find what is gone."""
    store = FileLedgerStore(tmp_path)
    for ledger_id in (1, 2, 3):
        await (await filled(store, 3, ledger_id)).close(b"")
        await store.read(SEGMENT, ledger_id, 0, 2, max_bytes=1000)
    other = await create(store, 7, OTHER)
    other.append(b"stays")
    await other.close(b"")
    await store.read(OTHER, 7, 0, 0, max_bytes=1000)
    if how == "deleted":
        await store.delete_segment(SEGMENT)
    else:
        await store.set_aside(SEGMENT, "repair")
    assert open_ledgers(tmp_path) == [7]
    for ledger_id in (1, 2, 3):
        with pytest.raises(InvalidArgument, match="is not there"):
            await store.read(SEGMENT, ledger_id, 0, 2, max_bytes=1000)
    await store.close()


async def test_a_store_that_closes_leaves_none_of_its_ledgers_open(tmp_path: Path) -> None:
    store = FileLedgerStore(tmp_path)
    for ledger_id in (1, 2):
        await (await filled(store, 3, ledger_id)).close(b"")
        await store.read(SEGMENT, ledger_id, 0, 2, max_bytes=1000)
    writers = [await filled(store, 1, ledger_id) for ledger_id in (3, 4)]
    assert open_ledgers(tmp_path) == [1, 2, 3, 4]
    await store.close()
    assert open_ledgers(tmp_path) == []
    for writer in writers:
        with pytest.raises(LedgerFailed, match="given up"):
            writer.append(b"late")


async def test_a_second_ledger_of_one_id_is_refused_and_harms_the_first_one_in_nothing(tmp_path: Path) -> None:
    store = FileLedgerStore(tmp_path)
    await (await filled(store, 2)).close(b"")
    with pytest.raises(LedgerFailed, match=r"/1\.ledger exists already: ledger ids are never used twice"):
        await create(store)
    assert len(await store.read(SEGMENT, 1, 0, 1, max_bytes=1000)) == 2
    await store.close()


async def test_with_its_last_segment_the_folder_of_a_topic_goes(tmp_path: Path) -> None:
    store = FileLedgerStore(tmp_path)
    for segment in (SEGMENT, OTHER):
        await (await create(store, 1, segment)).close(b"")
    topic = tmp_path.joinpath("ledgers", *SEGMENT.split("/")[:-1])
    await store.delete_segment(SEGMENT)
    assert [one.name for one in topic.iterdir()] == [OTHER.rpartition("/")[2]]
    await store.delete_segment(OTHER)
    assert not topic.exists()
    assert topic.parent.exists(), "another process may be about to make a topic there"
    await store.close()
