"""Heads of stored entries, a page at a time: what a reader needs to know of a range without reading it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from segments.dispatch import trimmed_from_snapshot
from segments.segment import Segment
from txnwire.entry import parse_metadata, txn_of
from txnwire.errors import InvalidArgument
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb

PAGE_ENTRIES: Final = 10_000
"""Of a page, at most, whatever is asked for: a megabyte on the wire."""

PAGE_READ_BYTES: Final = 64 * 1024 * 1024
"""Read for one page, about. Entries are read whole, so this, and not their number, bounds how long a page takes."""


class Page(NamedTuple):
    """`through`: the last position that was looked at. `ended`: nothing that is stored follows up to the end.
    `producers`: of the heads, with their incarnations."""

    heads: list[pb.EntryHead]
    producers: list[tuple[str, int]]
    through: Position
    ended: bool


async def scan(
    segment: Segment, after: Position, end: Position, *, max_entries: int, skip_trimmed: bool, read_bytes: int
) -> Page:
    """The heads of (after, end], as many as make a page. Raises `DataTrimmed`, `DataCorrupt`, `NotOwner`.

    One read of `read_bytes` at a time, of which nothing but the heads is kept."""
    ledgers = segment.ledgers
    heads: list[pb.EntryHead] = []
    producers: dict[tuple[str, int], int] = {}
    through, read = after, 0
    while True:
        segment.check()
        if not skip_trimmed and through < ledgers.trimmed_through:
            raise trimmed_from_snapshot(ledgers.trimmed_through)
        last = min(end, segment.last_confirmed)
        at = ledgers.next_after(through)
        if at > last:
            return Page(heads, list(producers), max(through, last), ended=True)
        if len(heads) >= max_entries or read >= PAGE_READ_BYTES:
            return Page(heads, list(producers), through, ended=False)
        try:
            found = await ledgers.read(at, last, max_bytes=read_bytes)
        except InvalidArgument:
            if ledgers.contains(at):
                raise
            continue  # trimmed meanwhile
        for position, entry in found[: max_entries - len(heads)]:
            heads.append(_head(position, entry, segment.buffer.is_aborted, producers))
            through = position
            read += len(entry)


def _head(
    position: Position, entry: bytes, is_aborted: Callable[..., bool], producers: dict[tuple[str, int], int]
) -> pb.EntryHead:
    """`producers`: of the page so far, with their places from 1; its own is added."""
    metadata = parse_metadata(entry)
    txn_id = txn_of(metadata)
    ledger_id, entry_id = position
    head = pb.EntryHead(
        ledger_id=ledger_id,
        entry_id=entry_id,
        txnid_most_bits=metadata.txnid_most_bits,
        txnid_least_bits=metadata.txnid_least_bits,
        writer=metadata.writer,
        count=metadata.count,
        size_bytes=len(entry),
        publish_time_ms=metadata.publish_time_ms,
        aborted=txn_id is not None and is_aborted(txn_id, metadata.writer),
        sequence_id=metadata.sequence_id,
        producer=producers.setdefault((metadata.producer, metadata.incarnation), len(producers) + 1),
    )
    if metadata.chunk_count:
        head.piece.producer = metadata.producer
        head.piece.incarnation = metadata.incarnation
        head.piece.chunk_id = metadata.chunk_id
        head.piece.chunk_index = metadata.chunk_index
        head.piece.chunk_count = metadata.chunk_count
    return head
