"""Entries acked only in part: bounds their number, and chooses the record for each. Pure.

Most are in the record of their block. Entries that would make it too large go to pages: separate records, bounded in
bytes. So no record exceeds the store's limit, even with acks spread over many large entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from txnstore import records
from txnstore.records import CursorBlock
from txnwire.ids import Position
from watchers.acks import bitmap_bytes

RECORD_BYTES: Final = 200_000
"""Bound for the entries of one record, as `stored_bytes` counts them. The largest entry takes 25 KB."""


class AckedBlock(NamedTuple):
    """The acks of one block: `acked`, the bitmap of whole entries from `first_entry` on, and `parts`: entry id →
    (messages, bitmap of acked indexes)."""

    ledger_id: int
    first_entry: int
    acked: int
    parts: dict[int, tuple[int, int]]


def stored_bytes(messages: int) -> int:
    """Upper bound for an entry acked in part within a record: its bitmap in hex, and the numbers around it."""
    return messages // 4 + 64


class PartialRoom:
    """Counts the room a cursor has promised. An entry acked in part, held by pending acks or with a consumer takes room
    once, until the last of these ends. Callers that respect the bound check `full`."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._taken: dict[Position, tuple[int, int]] = {}
        """(times taken, bytes)"""
        self.bytes = 0

    def __contains__(self, position: Position) -> bool:
        return position in self._taken

    def __str__(self) -> str:
        return f"{len(self._taken)} entries of {self.bytes} bytes"

    @property
    def full(self) -> bool:
        return len(self._taken) >= self._max_entries or self.bytes >= self._max_bytes

    def take(self, position: Position, messages: int) -> None:
        times, size = self._taken.get(position, (0, stored_bytes(messages)))
        self._taken[position] = (times + 1, size)
        if not times:
            self.bytes += size

    def give(self, position: Position) -> None:
        times, size = self._taken[position]
        if times > 1:
            self._taken[position] = (times - 1, size)
            return
        del self._taken[position]
        self.bytes -= size


class Record:
    """One record of a cursor besides the mark. `partial`: entry id → (messages, bitmap of acked indexes). `generation`
    names its last change, `stored` the last written one. `moved`: another record still stores some of its entries."""

    __slots__ = (
        "bytes",
        "first_entry",
        "generation",
        "ledger_id",
        "mod_revision",
        "moved",
        "name",
        "partial",
        "stored",
    )

    def __init__(self, name: str, ledger_id: int, first_entry: int) -> None:
        self.name = name
        self.ledger_id = ledger_id
        self.first_entry = first_entry
        self.partial: dict[int, tuple[int, int]] = {}
        self.bytes = 0
        self.generation = 0
        self.stored = 0
        self.mod_revision = 0
        self.moved = False

    def encode(self, acked: int = 0) -> bytes:
        partial = [
            (entry_id, messages, bitmap_bytes(indexes).hex()) for entry_id, (messages, indexes) in self.partial.items()
        ]
        return records.encode(
            CursorBlock(
                ledger_id=self.ledger_id,
                first_entry=self.first_entry,
                acked=bitmap_bytes(acked).hex(),
                partial=partial,
            )
        )


class Parts:
    """Holds the entries of one block that are acked in part. `own` is the block's record, which is filled first."""

    __slots__ = ("_places", "_record_bytes", "own", "pages")

    def __init__(self, own: Record, record_bytes: int) -> None:
        self.own = own
        self._record_bytes = record_bytes
        self.pages: dict[int, Record] = {}
        """By number, from 1 on: `<block>-<number>`."""
        self._places: dict[int, Record] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, entry_id: int) -> bool:
        return entry_id in self._places

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._places))

    def all(self) -> dict[int, tuple[int, int]]:
        """Entry id → (messages, bitmap)."""
        return {entry_id: record.partial[entry_id] for entry_id, record in self._places.items()}

    def get(self, entry_id: int) -> tuple[int, int]:
        """(messages, bitmap); zeros for an entry not acked in part."""
        record = self._places.get(entry_id)
        return (0, 0) if record is None else record.partial[entry_id]

    def put(self, entry_id: int, messages: int, indexes: int, *, stored_in: Record | None = None) -> Record:
        """Returns the changed record, perhaps a new page. `stored_in`: the page from which the entry was read."""
        record = self._places.get(entry_id)
        if record is None:
            record = self._places[entry_id] = stored_in or self._with_room(stored_bytes(messages))
            record.bytes += stored_bytes(messages)
        record.partial[entry_id] = (messages, indexes)
        return record

    def drop(self, entry_id: int) -> Record | None:
        """Returns the page if it is now empty: its record must be deleted. ▲ A page is not rewritten for an entry that
        left it: the stored page keeps that entry until the block, which holds the whole ack, is stored."""
        record = self._places.pop(entry_id)
        messages, _ = record.partial.pop(entry_id)
        record.bytes -= stored_bytes(messages)
        if record is self.own or record.partial:
            return None
        del self.pages[self._number(record)]
        return record

    def page(self, number: int) -> Record:
        page = self.pages.get(number)
        if page is None:
            page = Record(f"{self.own.name}-{number}", self.own.ledger_id, self.own.first_entry)
            self.pages[number] = page
        return page

    def _with_room(self, size: int) -> Record:
        for record in (self.own, *self.pages.values()):
            # ▲ The store would refuse a record above its limit for ever, and with it every later ack.
            if record.bytes + size <= self._record_bytes:
                return record
        number = 1
        while number in self.pages:
            number += 1
        return self.page(number)

    @staticmethod
    def _number(page: Record) -> int:
        return int(page.name.rpartition("-")[2])
