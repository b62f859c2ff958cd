"""What the audit asks of a service: each segment to its end, however many answers that takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_txnstore.jobs import stored_entries
from pyspark_txnstore.jobs.stored_entries import ServiceAddress
from txnclient import EntryHead, Snapshot, WholeEntry
from txnclient.reading.snapshot import SegmentBounds, TopicBounds
from txnwire.block import OutgoingMessage, decode_block, encode_block
from txnwire.errors import TxnNotFound
from txnwire.ids import EARLIEST, Position, TxnId

TOPIC = "topic://t/n/name"
PARENT, LEFT, RIGHT = "t/n/name/0000-ffff-0", "t/n/name/0000-7fff-1", "t/n/name/8000-ffff-2"
SERVICE = ServiceAddress("txn://h:1", 5.0)
END = Position(1, 9)
TXN = TxnId(1, 7)


class Pages:
    """A service that answers in pages of two."""

    def __init__(self, kept: dict[str, list[EntryHead]]) -> None:
        self._kept = kept

    def scan_entries(self, path: str, *, after: Position, end: Position, trimmed: str) -> Iterator[list[EntryHead]]:
        assert (after, trimmed) == (EARLIEST, "skip")
        heads = [head for head in self._kept[path] if head.position <= end]
        yield from (heads[at : at + 2] for at in range(0, len(heads), 2))

    def read_entries(self, path: str, *, isolation: str, **asked: Any) -> Iterator[list[WholeEntry]]:
        assert isolation == "read_uncommitted"
        block = decode_block(encode_block([OutgoingMessage(b"x")]))
        for page in self.scan_entries(path, **asked):
            yield [WholeEntry(one.position, one.txn_id, one.writer, "p", 0, 0, block, 1) for one in page]


def head(entry: int, writer: int = 0, *, aborted: bool = False) -> EntryHead:
    return EntryHead(Position(1, entry), TXN if writer else None, writer, 1, 1, 0, aborted, None)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[EntryHead]]:
    found: dict[str, list[EntryHead]] = {}
    monkeypatch.setattr(stored_entries, "client_of", lambda *_, **__: Pages(found))
    return found


def test_entries_of_all_answers_are_stored(kept: dict[str, list[EntryHead]]) -> None:
    kept[LEFT] = [head(entry) for entry in range(3, 8)]
    batches = stored_entries._batches(SERVICE, LEFT, END)
    assert [row["entry_id"] for batch in batches for row in batch.to_pylist()] == [3, 4, 5, 6, 7]


def test_writers_in_all_answers_are_told(kept: dict[str, list[EntryHead]]) -> None:
    kept[LEFT] = [head(3), head(4, 1), head(5, 1), head(6), head(7, 2, aborted=True), head(8, 3)]
    told = dict(stored_entries._told(SERVICE, LEFT, END))
    assert told == {(str(TXN), f"{writer:016x}"): writer != 2 for writer in (1, 2, 3)}


def test_what_is_kept_begins_elsewhere_in_each_segment(kept: dict[str, list[EntryHead]]) -> None:
    kept |= {PARENT: [], LEFT: [head(3), head(4), head(5)], RIGHT: [head(0)]}
    bounds = dict.fromkeys((PARENT, LEFT, RIGHT), SegmentBounds(END, END))
    found = stored_entries.first_kept(SERVICE, Snapshot(5, {TOPIC: TopicBounds(1, bounds)}))
    assert found == {PARENT: END, LEFT: Position(1, 2), RIGHT: Position(1, -1)}


def test_writers_of_a_transaction_that_is_collected_meanwhile_are_not_known() -> None:
    def collected(txn_id: str) -> dict[str, Any]:
        raise TxnNotFound(txn_id)

    assert stored_entries._writers(collected, str(TXN), asks=True) == {"writers": None, "writers_known": False}
