"""Cursors over ledgers of a few entries, and what is stored of them."""

from __future__ import annotations

from segments.subscription.cursors.cursor import Cursor
from tests.segments.ledger_lengths import LedgerLengths
from txnstore import keys
from txnstore.store import KeyValue
from txnwire.ids import EARLIEST, Position
from watchers.acks import AckPosition

PREFIX = keys.cursor_blocks("public/default/orders/0000-ffff-0", "sub")


def at(entry_id: int, ledger_id: int = 1) -> Position:
    return Position(ledger_id, entry_id)


def whole(entry_id: int, ledger_id: int = 1, messages: int = 4) -> AckPosition:
    return AckPosition(at(entry_id, ledger_id), messages)


class Stored:
    """The records of one cursor as etcd would hold them, compares included."""

    def __init__(self) -> None:
        self.records: dict[str, KeyValue] = {}
        self.revision = 0

    def flush(self, cursor: Cursor) -> list[str]:
        writes = cursor.block_writes()
        self.revision += 1
        for write in writes:
            found = self.records.get(write.block)
            assert write.mod_revision == (found.mod_revision if found else 0)
            if write.value is None:
                del self.records[write.block]
            else:
                self.put(write.block, write.value)
        cursor.written(writes, {write.block: self.revision for write in writes if write.value is not None})
        return [write.block for write in writes]

    def put(self, block: str, value: bytes) -> None:
        self.records[block] = KeyValue(PREFIX + block.encode(), value, 1, self.revision, self.revision)

    def load(self, ledgers: LedgerLengths, start: Position = EARLIEST) -> Cursor:
        return Cursor.load(ledgers, start, list(self.records.values()))
