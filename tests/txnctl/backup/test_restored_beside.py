"""Which restored etcd a backup's ledgers are put beside: one with all changes of its first revision and none behind its
last one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.etcd_members import etcdctl
from txnctl.backup.manifest import BackupManifest, EtcdCopy
from txnctl.backup.restoring import _expect_restored, _revisions
from txnctl.checking.everything import connect_etcd
from txnctl.process.settings import ServerSettings, load
from txnstore import keys
from txnstore.access.paging import in_parts
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand, free_port
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import Commit, Put
from txnwire.errors import NotAllowed

CHANGES = 20


def settings_of(etcd: EmbeddedEtcd) -> ServerSettings:
    return load(None, etcd=etcd.url, allow_development_etcd=True)


async def changed(etcd: EmbeddedEtcd) -> tuple[str, int]:
    """The identity of a store that has changed several times, and its newest revision but for the data folder's."""
    store = await connect_etcd(settings_of(etcd), repairing=False)
    identity = await store.identity()
    for number in range(CHANGES):
        await store.commit(Commit(puts=(Put(keys.TOPIC + b"public/default/%d" % number, b"x"),)))
    revision, _ = await store.get_many([keys.INCARNATION])
    await store.commit(Commit(puts=(Put(keys.DATA_FOLDER, b"{}"),)))  # as each restore writes it again
    await store.close()
    return identity.id, revision


def manifest(store: str, first: int, last: int) -> BackupManifest:
    return BackupManifest(
        store=store,
        former=[],
        generation=0,
        segment_floor=0,
        prefix="",
        taken_ms=0,
        etcd=EtcdCopy(size=0, sha256="", revision=first),
        revision=last,
        files=[],
    )


async def test_it_is_this_backup_s_if_its_changes_end_between_the_backup_s_revisions(
    etcd_process: EmbeddedEtcd, tmp_path: Path
) -> None:
    """▲ Of a cluster at work etcd's copy holds changes that came after the backup's first revision."""
    saved = tmp_path / "saved"
    store, newest = await changed(etcd_process)
    with pytest.raises(NotAllowed, match="is in use"):
        await _expect_restored(settings_of(etcd_process), manifest(store, newest, newest), saved)
    await etcdctl(f"--endpoints={etcd_process.url}", "snapshot", "save", str(saved))
    await etcdctl("snapshot", "restore", str(saved), f"--data-dir={tmp_path / 'restored'}")
    restored = EmbeddedEtcd(EtcdCommand(data_dir=tmp_path / "restored", client_port=free_port()))
    await restored.start()
    try:
        settings = settings_of(restored)
        for first, last in ((newest - 5, newest), (newest - 5, newest + 5), (newest, newest), (newest, newest + 5)):
            await _expect_restored(settings, manifest(store, first, last), saved)
        for first, last in ((newest - 5, newest - 1), (newest + 2, newest + 5)):
            with pytest.raises(NotAllowed, match=f"changes up to revision {newest}, .* revisions {first} to {last}"):
                await _expect_restored(settings, manifest(store, first, last), saved)
        with pytest.raises(NotAllowed, match=f"it is store {store}, the backup is of another"):
            await _expect_restored(settings, manifest("another", newest, newest), saved)
    finally:
        await restored.stop()


async def test_the_newest_change_is_found_behind_more_records_than_are_read_at_once(memory_store: MemoryStore) -> None:
    """▲ Otherwise an etcd that has gone on since the backup would pass for the one that was restored from it."""
    puts = [Put(keys.TOPIC + b"public/default/%04d" % number, b"x") for number in range(2000)]
    for some in in_parts(puts, 100):
        await memory_store.commit(Commit(puts=tuple(some)))
    newest = (await memory_store.commit(Commit(puts=(Put(keys.TXN + b"last", b"x"),)))).revision
    assert await _revisions(memory_store) == (newest, newest)
