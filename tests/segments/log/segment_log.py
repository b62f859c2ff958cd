"""A segment's log over both kinds of ledger stores."""

from __future__ import annotations

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import LedgerWriter
from segments.log.ledgers.segment_log import SegmentLog
from txnstore import keys, records
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import LedgerRecord, OwnerRecord
from txnstore.store import Commit, Delete, Put
from txnwire.ids import EARLIEST

SEGMENT = "public/nyc/flights/0000-ffff-0"


async def own(store: MemoryStore) -> int:
    """Take the segment, whoever had it; the ownership epoch."""
    key = keys.owner(SEGMENT)
    await store.commit(Commit(deletes=(Delete(key),)))
    result = await store.commit(Commit(puts=(Put(key, records.encode(OwnerRecord(broker="b", address="a"))),)))
    return result.revision


async def take_over(store: MemoryStore, ledger_store: FileLedgerStore) -> SegmentLog:
    ledgers = SegmentLog(store, ledger_store, SEGMENT, epoch=await own(store), incarnation="i")
    await ledgers.take_over()
    return ledgers


async def stored_record(store: MemoryStore) -> LedgerRecord:
    found = await store.get(keys.ledger(SEGMENT))
    assert found is not None
    return records.decode(LedgerRecord, found.value, key=found.key)


def writer_of(ledgers: SegmentLog) -> LedgerWriter:
    assert ledgers.writer is not None
    return ledgers.writer


async def append(ledgers: SegmentLog, *entries: bytes) -> None:
    writer = writer_of(ledgers)
    for entry in entries:
        writer.append(entry)
    await writer.sync()


async def whole_log(ledgers: SegmentLog) -> list[bytes]:
    found: list[bytes] = []
    at = ledgers.next_after(EARLIEST)
    while at <= ledgers.last_confirmed:
        for position, entry in await ledgers.read(at, ledgers.last_confirmed, max_bytes=3):
            found.append(entry)
            at = ledgers.next_after(position)
    return found
