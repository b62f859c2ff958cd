"""A segment's ledger files held against what etcd knows of them, before anybody is served from them.

What is believed and what is not: `segments.ledger.ledger_evidence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from segments.ledger.ledger import LedgerStore
from segments.ledger.ledger_evidence import expect_whole, expect_within
from segments.log.retention import kept_ledgers
from txnstore import keys, records
from txnstore.access.paging import in_pages
from txnstore.records import AbortedRecord, LedgerInfo, LedgerRecord, Watermark
from txnstore.store import MetadataStore
from txnwire.errors import DataCorrupt
from txnwire.ids import Position

ABORTED_AT_ONCE: Final = 1000
"""Aborted records, read at once."""


async def expect_evidence(store: MetadataStore, segment: str, closed: Sequence[LedgerInfo]) -> None:
    """▲ Before the lengths go to `/ledger`: a folder that lacks what was acknowledged must not be believed. What
    transactions lost there nobody could tell, and their other parts would be read. Raises `DataCorrupt`."""
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
    """▲ As `expect_evidence`, where a predecessor had closed its ledger: of a folder that is older than etcd it is
    the newest ledgers that lack something. One that is damaged is told to whoever reads it."""
    last = next((info for info in reversed(kept_ledgers(record)) if info.closed_length), None)
    if last is None:
        return
    try:
        found = await ledger_store.look_at(segment, last.ledger_id)
    except DataCorrupt:
        return
    expect_whole(segment, last, found)
