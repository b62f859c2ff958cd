"""`txnctl check` that was led to another place than its cluster's."""

from __future__ import annotations

from pathlib import Path

from segments.ledger.file_ledger import FileLedgerStore
from tests.txnctl.command_line import txnctl
from txnctl.process.store_mark import StoreMark
from txnstore.etcd.etcd_store import EtcdStore


async def test_a_forgotten_prefix_is_told_in_place_of_ledgers_that_nobody_knows(
    tmp_path: Path, etcd: str, store: EtcdStore, key_prefix: str
) -> None:
    identity = await store.identity()
    StoreMark(tmp_path).write(identity, 1)
    files = FileLedgerStore(tmp_path)
    writer = await files.create("public/default/orders/0000-ffff-0", 1, incarnation=identity.id)
    await writer.close(b"")
    await files.close()
    words = ("check", "--etcd", etcd, "--data-dir", str(tmp_path), "--etcd-prefix")
    forgotten = await txnctl(*words, f"{key_prefix}-of-nobody")
    assert (forgotten.code, "holds no cluster under the prefix" in forgotten.err) == (2, True), forgotten
    named = await txnctl(*words, key_prefix)
    assert "ledger_files_are_listed" in named.out, named
