"""Closed ledgers against `/ledger`: every entry that was counted is there, whole, and nothing unknown lies around."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from segments.ledger import LedgerStore
from txnctl.checking.picture import Picture
from txnstore.records import LedgerInfo
from txnwire.errors import TxnError

READ_BYTES = 4 * 1024 * 1024


async def broken_ledgers(
    picture: Picture, ledgers: LedgerStore, on_progress: Callable[[str], None]
) -> AsyncIterator[tuple[str, str]]:
    """(rule, finding) of everything broken. Open ledgers belong to their owners and are not read."""
    listed = {(segment, one.ledger_id): one for segment, record in picture.ledgers.items() for one in record.ledgers}
    for (segment, ledger_id), info in listed.items():
        if info.closed_length:
            on_progress(f"{segment} ledger {ledger_id}")
            if (finding := await _unreadable(ledgers, segment, info)) is not None:
                yield "closed_ledgers_are_whole", finding
    for segment, ledger_id in await ledgers.list():
        if (segment, ledger_id) not in listed and not _may_be_new(picture, segment, ledger_id):
            yield "ledger_files_are_listed", f"{segment} has a file of ledger {ledger_id}, which /ledger does not list"


def _may_be_new(picture: Picture, segment: str, ledger_id: int) -> bool:
    """A ledger is created before it is listed, so one above the last may be on its way."""
    record = picture.ledgers.get(segment)
    return segment in picture.segments() and (record is None or ledger_id > record.ledgers[-1].ledger_id)


async def _unreadable(ledgers: LedgerStore, segment: str, info: LedgerInfo) -> str | None:
    first, length = 0, info.closed_length or 0
    try:
        while first < length:
            entries = await ledgers.read(segment, info.ledger_id, first, length - 1, max_bytes=READ_BYTES)
            ids = [entry_id for entry_id, _ in entries]
            if ids != list(range(first, first + len(ids))) or not ids:
                return f"{segment} ledger {info.ledger_id}: entry {first} is missing of {length}"
            first += len(ids)
    except TxnError as error:
        return f"{segment} ledger {info.ledger_id}: {error}"
    return None
