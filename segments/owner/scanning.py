"""Reads heads of stored entries a page at a time: a client plans its reads of a range without the messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from segments.owner.segment import Segment
from segments.subscription.dispatch import trimmed_from_snapshot
from txnwire.entry import parse_metadata, txn_of
from txnwire.errors import InvalidArgument
from txnwire.ids import Position, TxnId
from txnwire.proto import txn_pb2 as pb
from txnwire.turns import in_turns

T = TypeVar("T")

PAGE_ENTRIES: Final = 10_000
"""The most entries of a page, even if a client asks for more: a quarter of a megabyte on the wire."""

PAGE_READ_BYTES: Final = 64 * 1024 * 1024
"""About the most read for one page. Entries are read whole, so their bytes, not their number, bound its time."""

HEADS_AT_ONCE: Final = 500
"""Heads made in one turn of the event loop."""


class _HeadRow(NamedTuple):
    """The numbers of one entry's head, in the order of the columns of `pb.HeadColumns`."""

    ledger_id: int
    entry_id: int
    txn: int
    writer: int
    messages: int
    size_bytes: int
    publish_time_ms: int
    aborted: bool
    sequence_id: int
    producer: int


class Heads:
    """Collects the heads of one page, and encodes them."""

    def __init__(self, is_aborted: Callable[[TxnId, int], bool]) -> None:
        self._is_aborted = is_aborted
        self._rows: list[_HeadRow] = []
        self._txn_ids: dict[tuple[int, int], tuple[int, TxnId]] = {}
        """Bits (most, least) of a transaction id → (its place, from 1, and the id)."""
        self._names: dict[tuple[str, int], int] = {}
        self._pieces: dict[int, pb.PieceHead] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, position: Position, entry: bytes) -> None:
        """Raises `DataCorrupt`."""
        metadata = parse_metadata(entry)
        producer, incarnation, writer = metadata.producer, metadata.incarnation, metadata.writer
        place, aborted = self._txn(metadata, writer)
        if metadata.chunk_count:
            self._pieces[len(self._rows)] = pb.PieceHead(
                producer=producer,
                incarnation=incarnation,
                chunk_id=metadata.chunk_id,
                chunk_index=metadata.chunk_index,
                chunk_count=metadata.chunk_count,
            )
        self._rows.append(
            _HeadRow(
                *position,
                place,
                writer,
                metadata.count,
                len(entry),
                metadata.publish_time_ms,
                aborted,
                metadata.sequence_id,
                self._names.setdefault((producer, incarnation), len(self._names)),
            )
        )

    def _txn(self, metadata: pb.EntryMetadata, writer: int) -> tuple[int, bool]:
        """The place of the entry's transaction, and whether it is aborted or this writer does not count."""
        bits = metadata.txnid_most_bits, metadata.txnid_least_bits
        found = self._txn_ids.get(bits)
        if found is None:
            txn_id = txn_of(metadata)
            if txn_id is None:
                return 0, False
            found = self._txn_ids[bits] = len(self._txn_ids) + 1, txn_id
        place, txn_id = found
        return place, self._is_aborted(txn_id, writer)

    def columns(self) -> pb.HeadColumns:
        if not self._rows:
            return pb.HeadColumns()
        ledgers, entries, txns, writers, counts, sizes, times, aborted, sequences, producers = zip(
            *self._rows, strict=True
        )
        return pb.HeadColumns(
            ledger_ids=ledgers,
            entry_ids=entries,
            txns=_unless_zero(txns),
            writers=_unless_zero(writers),
            counts=counts,
            sizes_bytes=sizes,
            publish_times_ms=times,
            aborted=_unless_zero(aborted),
            sequence_ids=sequences,
            producers=_unless_zero(producers),
            txn_ids=[pb.TxnIdBits(txnid_most_bits=most, txnid_least_bits=least) for most, least in self._txn_ids],
            producer_names=[pb.HeadProducer(name=name, incarnation=life) for name, life in self._names],
            pieces_at=list(self._pieces),
            pieces=list(self._pieces.values()),
        )

    def one_by_one(self) -> list[pb.EntryHead]:
        """The heads as messages, for older clients."""
        bits = [(0, 0), *self._txn_ids]
        return [
            pb.EntryHead(
                ledger_id=row.ledger_id,
                entry_id=row.entry_id,
                txnid_most_bits=bits[row.txn][0],
                txnid_least_bits=bits[row.txn][1],
                writer=row.writer,
                count=row.messages,
                size_bytes=row.size_bytes,
                publish_time_ms=row.publish_time_ms,
                aborted=row.aborted,
                piece=self._pieces.get(index),
            )
            for index, row in enumerate(self._rows)
        ]


def _unless_zero(column: tuple[T, ...]) -> tuple[T, ...]:
    return column if any(column) else ()


class ScannedPage(NamedTuple):
    """`through`: the last position scanned. `ended`: no stored entry follows up to the requested end."""

    heads: Heads
    through: Position
    ended: bool


async def scan(
    segment: Segment, after: Position, end: Position, *, max_entries: int, skip_trimmed: bool, read_bytes: int
) -> ScannedPage:
    """The heads of (after, end], at most one page. Raises `DataTrimmed`, `DataCorrupt`, `NotOwner`.

    Reads `read_bytes` at a time and keeps only the heads."""
    ledgers = segment.ledgers
    heads = Heads(segment.buffer.is_aborted)
    through, read = after, 0
    while True:
        segment.check()
        if not skip_trimmed and through < ledgers.trimmed_through:
            raise trimmed_from_snapshot(ledgers.trimmed_through)
        last = min(end, segment.last_confirmed)
        at = ledgers.next_after(through)
        if at > last:
            return ScannedPage(heads, max(through, last), ended=True)
        if len(heads) >= max_entries or read >= PAGE_READ_BYTES:
            return ScannedPage(heads, through, ended=False)
        try:
            found = await ledgers.read(at, last, max_bytes=read_bytes)
        except InvalidArgument:
            segment.check()  # ▲ a later owner may have deleted the files of trimmed ledgers
            if ledgers.contains(at):
                raise
            continue  # trimmed meanwhile
        async for some in in_turns(found[: max_entries - len(heads)], HEADS_AT_ONCE):
            segment.check()
            if some[0][0] <= ledgers.trimmed_through:
                break  # ▲ trimmed meanwhile, and its aborted transactions are forgotten
            for position, entry in some:
                heads.add(position, entry)
                through = position
                read += len(entry)
