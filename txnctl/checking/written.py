"""Reads the entries of transactions in closed ledgers, and the aborted records beside them, for a repair."""

from __future__ import annotations

from typing import Final, NamedTuple

from segments.ledger.ledger import LedgerStore
from segments.ledger.sidecars import decode_sidecar
from txnstore.records import LedgerRecord
from txnwire.entry import parse_metadata, txn_of
from txnwire.ids import Position, TxnId

READ_BYTES: Final = 4 * 1024 * 1024

AbortedAt = dict[tuple[TxnId, int | None], Position]


class WrittenEntry(NamedTuple):
    position: Position
    txn_id: TxnId
    writer: int
    messages: int


async def written_behind(
    start: Position, ledgers: LedgerStore, segment: str, ledger_id: int, length: int
) -> list[WrittenEntry]:
    """The entries of transactions after `start` in a ledger of `length` entries: for one of 64 MiB a few percent of
    that. Raises `DataCorrupt`, `LedgerUnreadable`."""
    found = []
    at = start.entry_id + 1 if ledger_id == start.ledger_id else (length if ledger_id < start.ledger_id else 0)
    while at < length:
        for entry_id, entry in await ledgers.read(segment, ledger_id, at, length - 1, max_bytes=READ_BYTES):
            metadata = parse_metadata(entry)
            if (txn_id := txn_of(metadata)) is not None:
                found.append(WrittenEntry(Position(ledger_id, entry_id), txn_id, metadata.writer, metadata.count))
            at = entry_id + 1
    return found


async def read_sidecar(ledgers: LedgerStore, segment: str, ledger_id: int) -> AbortedAt | None:
    raw = await ledgers.read_sidecar(segment, ledger_id)
    return None if raw is None else decode_sidecar(raw, ledger_id, f"sidecar of {segment} {ledger_id}")


async def unlisted_sidecars(ledgers: LedgerStore, segment: str, record: LedgerRecord) -> dict[int, AbortedAt]:
    """Sidecars written beside ledgers after the backup: everything in such a ledger was decided then."""
    found = {}
    for info in record.ledgers:
        if not info.aborted and (aborted := await read_sidecar(ledgers, segment, info.ledger_id)) is not None:
            found[info.ledger_id] = aborted
    return found
