"""▲ A broker in another folder would count its predecessors' ledgers as never created: it is refused at its start."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from segments.ledger.data_folder import expect_shared_folder
from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger_files import FOLDER_MARK
from tests.segments.brokering import Cluster
from txnstore import keys
from txnstore.memory.memory_store import MemoryStore
from txnwire.clock import SystemRandom
from txnwire.errors import NotAllowed


async def join(store: MemoryStore, folder: Path, broker_id: str = "b1") -> None:
    ledgers = FileLedgerStore(folder)
    try:
        await expect_shared_folder(store, ledgers, SystemRandom(), broker_id=broker_id)
    finally:
        await ledgers.close()


async def test_the_first_broker_decides_and_all_others_must_share_its_folder(
    memory_store: MemoryStore, tmp_path: Path
) -> None:
    for broker_id in ("b1", "b1", "b2"):
        await join(memory_store, tmp_path / "data", broker_id)
    with pytest.raises(NotAllowed, match=r"elsewhere/ledgers, which is no data folder yet .*; this cluster's .* of b1"):
        await join(memory_store, tmp_path / "elsewhere", "b2")
    assert not (tmp_path / "elsewhere" / "ledgers" / FOLDER_MARK).exists()  # nothing is left in a folder of others


async def test_who_only_looks_decides_nothing_and_is_refused_all_the_same(
    memory_store: MemoryStore, tmp_path: Path
) -> None:
    looking = FileLedgerStore(tmp_path / "looking")
    await expect_shared_folder(memory_store, looking, SystemRandom(), broker_id="b1", claim=False)
    assert await memory_store.get(keys.DATA_FOLDER) is None
    await join(memory_store, tmp_path / "data")
    with pytest.raises(NotAllowed, match="is no data folder yet"):
        await expect_shared_folder(memory_store, looking, SystemRandom(), broker_id="b1", claim=False)
    await looking.close()


async def test_the_folder_of_another_cluster_or_an_unmounted_one_is_refused(
    memory_store: MemoryStore, tmp_path: Path
) -> None:
    await join(memory_store, tmp_path / "data")
    other = FileLedgerStore(tmp_path / "other")
    assert (await other.identity("0123")).id == "0123"
    await other.close()
    with pytest.raises(NotAllowed, match="another cluster's data folder"):
        await join(memory_store, tmp_path / "other")
    shutil.move(tmp_path / "data", tmp_path / "moved")  # the same folder somewhere else is the same folder
    await join(memory_store, tmp_path / "moved")
    with pytest.raises(NotAllowed, match="is its disk mounted"):
        await join(memory_store, tmp_path / "data")


async def test_of_brokers_that_start_at_once_in_two_folders_those_of_one_are_refused(
    memory_store: MemoryStore, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in "ababab"]
    ended = await asyncio.gather(
        *(join(memory_store, folder, f"b{number}") for number, folder in enumerate(folders)), return_exceptions=True
    )
    served = dict.fromkeys(folder for folder, error in zip(folders, ended, strict=True) if error is None)
    refused = dict.fromkeys(folder for folder, error in zip(folders, ended, strict=True) if error is not None)
    assert len(served) == len(refused) == 1
    assert all(error is None or isinstance(error, NotAllowed) for error in ended)


async def test_a_broker_in_another_folder_does_not_start_and_owns_nothing(cluster: Cluster, tmp_path: Path) -> None:
    one = await cluster.start("b1")
    cluster.data_dir = tmp_path / "elsewhere"
    with pytest.raises(NotAllowed):
        await cluster.start("b2")
    assert list(one.directory.brokers()) == ["b1"]
