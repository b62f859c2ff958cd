"""Reads a task's part of a segment as record batches, and fetches no more than these need.

    columns that heads tell       heads alone: no message leaves the broker
    a condition on entries        heads first, then the stretches with entries that it holds of
    anything else                 the entries of the part

▲ Each way shows the same: what a committed read shows of the part, without the rows that fail the condition. So a
transaction that meets the condition is there whole.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_txnstore.shared.condition import Condition
from pyspark_txnstore.shared.offsets import before
from pyspark_txnstore.source.columns import OF_PRODUCERS, Batches, heads_tell
from pyspark_txnstore.source.stretches import Stretch, Stretches
from txnclient import EntryHead, WholeEntry, WholeHeads
from txnclient.reading.snapshot import Span
from txnwire.errors import DataTrimmed, NotOwner
from txnwire.ids import EARLIEST, Position
from txnwire.names import SegmentName

FAIL: Final = "fail"
SKIP: Final = "skip"


class Reads(Protocol):
    """The methods used of `txnclient.sync.Client`, which documents them."""

    def scan_entries(
        self, segment: str, *, after: Position, end: Position, min_revision: int, trimmed: str
    ) -> Generator[list[EntryHead], None, None]: ...

    def read_entries(
        self, segment: str, *, after: Position, end: Position, span: Span | None, isolation: str, trimmed: str
    ) -> Generator[list[WholeEntry], None, None]: ...


@dataclass(frozen=True)
class SegmentPart:
    """(after, end] of a segment, named by its path. `span`: None if all stored entries are read. `trimmed`: "fail" or
    "skip" what retention has taken."""

    segment: str
    after: Position
    end: Position
    span: Span | None
    trimmed: str

    @property
    def from_anywhere(self) -> bool:
        """▲ A part with a start is read whole or refused; one without a start as far as it is kept. Without a span only
        `trimmed` says which."""
        topic = str(SegmentName.from_path(self.segment).topic)
        return self.after == EARLIEST and self.span is not None and not self.span.continues(topic)

    def shows(self, head: EntryHead) -> bool:
        """▲ Asks both: a cut need not name what the broker calls aborted, and the broker already knows decisions behind
        the cut."""
        if self.span is None:
            return True
        return not head.aborted and self.span.shows(self.segment, head.position, head.txn_id, head.writer)


def batches(client: Reads, part: SegmentPart, schema: StructType, where: Condition) -> Iterator[pa.RecordBatch]:
    """Raises as `Client.read_entries`."""
    made = Batches(part.segment, schema, keys=where.keys)
    if heads_tell(schema) and where.keys is None:
        with closing(_heads(client, part)) as pages:
            first = next(pages, None)
            if first is None:
                return
            producers = not OF_PRODUCERS.isdisjoint(schema.names)
            if not producers or _tell_producers(first):
                yield from made.of(_shown(part, where, chain([first], pages), producers=producers))
                return
    with closing(_entries(client, part, where)) as entries:
        yield from made.of(entries)


def _shown(
    part: SegmentPart, where: Condition, pages: Iterable[list[EntryHead]], *, producers: bool
) -> Iterator[list[EntryHead]]:
    """One head for each shown entry. Raises `NotOwner`, for which Spark repeats the task."""
    whole = WholeHeads()
    for page in pages:
        if producers and not _tell_producers(page):
            # ▲ No head may be invented, and reading entries cannot take over here: a large value may have begun. On the
            # repeat the older owner says at once that it has no heads.
            raise NotOwner(f"segment://{part.segment} has an owner of an older version now: to be read again")
        yield [head for head in whole.of(filter(part.shows, page)) if where.holds_of(head)]


def _tell_producers(page: list[EntryHead]) -> bool:
    return all(head.producer for head in page)


def _heads(client: Reads, part: SegmentPart) -> Generator[list[EntryHead], None, None]:
    """Heads of all stored entries of the part. ▲ Entries trimmed meanwhile are not skipped in the middle, unless data
    may be lost: the kept part may begin late, but is complete from there on."""
    revision = 0 if part.span is None else part.span.revision

    def scan(after: Position, trimmed: str) -> Generator[list[EntryHead], None, None]:
        return client.scan_entries(part.segment, after=after, end=part.end, min_revision=revision, trimmed=trimmed)

    came = False
    try:
        with closing(scan(part.after, part.trimmed)) as pages:
            for page in pages:
                came = True
                yield page
            return
    except DataTrimmed:
        if came or not part.from_anywhere:
            raise
    with closing(scan(part.after, SKIP)) as pages:
        kept = next(pages, None)
    if kept is not None:
        with closing(scan(before(kept[0].position), FAIL)) as pages:
            yield from pages


def _entries(client: Reads, part: SegmentPart, where: Condition) -> Generator[list[WholeEntry], None, None]:
    if not where.asks_entries:
        yield from _read(client, part, Stretch(part.after, part.end))
        return
    found = Stretches()
    with closing(_heads(client, part)) as pages:
        for page in pages:
            for head in page:
                found.add(head, wanted=part.shows(head) and where.holds_of(head))
    for stretch in found.all():
        for entries in _read(client, part, stretch):
            yield [entry for entry in entries if where.holds_of(entry)]


def _read(client: Reads, part: SegmentPart, stretch: Stretch) -> Generator[list[WholeEntry], None, None]:
    entries = client.read_entries(
        part.segment,
        after=stretch.after,
        end=stretch.end,
        span=part.span,
        isolation="read_uncommitted" if part.span is None else "read_committed",
        trimmed=part.trimmed,
    )
    with closing(entries):
        yield from entries
