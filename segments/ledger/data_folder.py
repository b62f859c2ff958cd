"""Checks at the start of a broker that it uses the cluster's data folder, which all brokers share.

▲ Taking a segment over in the wrong folder would silently lose data: a listed ledger without a file counts as one
whose creator died before creating it. So the folder carries a mark, and `/data-folder` in etcd names that mark. An
unmounted disk has no mark; a copy of the folder has the same one, so never serve a copy beside its original.
"""

from __future__ import annotations

from segments.ledger.ledger import LedgerStore
from txnstore import keys, records
from txnstore.records import DataFolder
from txnstore.store import Commit, MetadataStore, Put, Read, absent
from txnwire.errors import NotAllowed
from txnwire.ports import Random


async def expect_shared_folder(
    store: MetadataStore, ledgers: LedgerStore, random: Random, *, broker_id: str, claim: bool = True
) -> None:
    """Raises `NotAllowed` if this cluster's ledgers are elsewhere; `StoreUnavailable`, `LedgerFailed`.

    The first broker of a cluster sets the folder; among concurrent ones, one wins. Without `claim` it sets nothing."""
    found = await store.get(keys.DATA_FOLDER)
    if found is None and not claim:
        return
    mark = f"{random.getrandbits(64):016x}" if found is None else None
    mine = await ledgers.identity(mark)
    if found is None and mine.id is not None:
        record = DataFolder(id=mine.id, broker=broker_id, path=mine.place)
        put = Put(keys.DATA_FOLDER, records.encode(record))
        result = await store.commit(Commit((absent(put.key),), (put,), (), (Read(put.key),)))
        if result.succeeded:
            return
        found = result.reads[0][0]
    known = None if found is None else records.decode(DataFolder, found.value, key=found.key)
    if known is not None and known.id != mine.id:
        raise NotAllowed(
            f"{broker_id} would keep its ledgers in {mine.place}, which is "
            + ("another cluster's data folder" if mine.id else "no data folder yet (is its disk mounted?)")
            + f"; this cluster's is {known.path}, of {known.broker}: all brokers need the same one (data_dir)"
        )
