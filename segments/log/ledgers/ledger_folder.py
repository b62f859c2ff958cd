"""Checks a segment's ledger files against the records in etcd, before the segment is served.

The rules are in `segments.ledger.ledger_evidence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from segments.ledger.ledger import LedgerStore
from segments.ledger.ledger_evidence import expect_whole, expect_within
from segments.log.ledgers.retention import kept_ledgers
from txnstore import keys, records
from txnstore.access.paging import in_pages
from txnstore.records import AbortedRecord, LedgerInfo, LedgerRecord, Watermark
from txnstore.store import MetadataStore
from txnwire.errors import DataCorrupt
from txnwire.ids import Position

ABORTED_AT_ONCE: Final = 1000
"""Aborted records per read."""


async def expect_evidence(store: MetadataStore, segment: str, closed: Sequence[LedgerInfo]) -> None:
    """▲ Before the lengths go to `/ledger`: do not trust a folder that lacks acknowledged entries. Otherwise
    transactions would silently lose some entries, and readers would see the others. Raises `DataCorrupt`."""
    found = await store.get(keys.watermark(segment))
    if found is not None:
        mark = records.decode(Watermark, found.value, key=found.key)
        expect_within(segment, "the watermark", Position(*mark.position), closed)
    prefix = keys.aborted_records(segment)
    async for page in in_pages(store, prefix, keys.prefix_end(prefix), at_once=ABORTED_AT_ONCE):
        for one in page:
            position = records.decode(AbortedRecord, one.value, key=one.key).max_position
            if position is not None:
                expect_within(segment, "an aborted record", Position(*position), closed)


async def expect_last(ledger_store: LedgerStore, segment: str, record: LedgerRecord) -> None:
    """▲ As `expect_evidence`, if a predecessor had closed its ledger: a folder older than etcd lacks entries in the
    newest ledgers. Ignores a damaged ledger: its readers get the error."""
    last = next((info for info in reversed(kept_ledgers(record)) if info.closed_length), None)
    if last is None:
        return
    try:
        found = await ledger_store.look_at(segment, last.ledger_id)
    except DataCorrupt:
        return
    expect_whole(segment, last, found)
