"""All brokers of a cluster keep their ledgers in one place; one that was pointed elsewhere is refused at its start.

▲ Taking a segment over in the wrong place would lose data without a word: a ledger that is listed and not there counts
as one whose creator died before it made it. So the place carries a mark, and etcd (`/data-folder`) says which one.
A disk that is not mounted has none; a copy of the folder has the same: no copy may be served beside its original.
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
    """Raises `NotAllowed` where this cluster's ledgers are elsewhere; `StoreUnavailable`, `LedgerFailed`.

    The first broker of a cluster decides; of several at once, one of them. Without `claim` nothing is decided yet."""
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
