"""Finds the position at which a reader or a new subscription begins in one segment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from segments.layout import subscription_records as kinds
from segments.layout.topology import Topology
from segments.ledger.publish_times import Known
from segments.log.ledgers.segment_log import SegmentLog
from txnstore import keys, records
from txnstore.records import SubscriptionRecord, TopicRecord
from txnstore.store import MetadataStore
from txnwire.entry import parse_metadata
from txnwire.errors import InvalidArgument, TopicNotFound
from txnwire.ids import EARLIEST, Position
from txnwire.names import SegmentName
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_BLOCK_BYTES
from txnwire.turns import turn_size

SCAN_BYTES: Final = 4 * 1024 * 1024
ENTRIES_AT_ONCE: Final = 1000
MOST_MESSAGES = MAX_BLOCK_BYTES // 4
"""No entry has more: each message takes an offset of four bytes. A client that means a whole entry of unknown count
names an index beyond it; bitmaps must not grow with that index."""


class StartPoint(NamedTuple):
    """`after`: the last position *not* to be delivered. `left_out`: messages of the entry behind it that are not."""

    after: Position
    left_out: int = 0


class Start(NamedTuple):
    """The start that a client requested. `position` and `message` (its index) name a message of `segment`; the start
    is at that message, or `behind` it. `passed`: this segment lies wholly before it."""

    kind: str = kinds.EARLIEST
    timestamp_ms: int = 0
    segment: str = ""
    position: Position = EARLIEST
    message: int = 0
    behind: bool = False
    passed: bool = False

    @staticmethod
    def from_wire(start: pb.Start) -> Start:
        """The first field that is set counts; none means the earliest."""
        if start.earliest:
            return Start()
        if start.latest:
            return Start(kinds.LATEST)
        if start.timestamp_ms:
            return Start(kinds.TIMESTAMP, timestamp_ms=start.timestamp_ms)
        if not start.segment:
            return Start()
        position = Position(start.ledger_id, start.entry_id)
        return Start(kinds.MESSAGE_ID, 0, start.segment, position, start.index, start.after)

    @staticmethod
    def from_record(record: SubscriptionRecord, segment: str) -> Start:
        """A subscription's start in `segment`. "latest" and a time were resolved when the record was made; a segment
        that it does not name is newer and is read from its beginning. Raises `InvalidArgument` for an unknown kind, or
        if something is missing."""
        try:
            return Start._from_record(record, segment)
        except (LookupError, TypeError, ValueError) as error:
            if isinstance(error, InvalidArgument):
                raise
            # ▲ Not as a defect: that would end the work for other subscriptions, too.
            raise InvalidArgument(f"start {record.start!r} cannot be read: {error!r}") from error

    @staticmethod
    def _from_record(record: SubscriptionRecord, segment: str) -> Start:
        start = record.start
        kind = start.get("kind")
        if kind == kinds.LATEST or (kind == kinds.TIMESTAMP and record.positions):
            # ▲ Do not look for the time again: delivered and unacked messages here may be older than it.
            at = record.positions.get(segment)
            if at is None:
                return Start()
            return Start(kinds.MESSAGE_ID, 0, segment, Position(at[0], at[1] + 1))
        if kind == kinds.TIMESTAMP:  # made by an older version, which resolved no time
            return Start(kinds.TIMESTAMP, timestamp_ms=int(start["timestamp_ms"]))
        if kind == kinds.MESSAGE_ID:
            position = Position(int(start["ledger_id"]), int(start["entry_id"]))
            message, behind = int(start.get("index", 0)), bool(start.get("after"))
            passed = SegmentName.from_path(segment).segment_id in start.get("ancestors", ())
            return Start(kinds.MESSAGE_ID, 0, str(start["segment"]), position, message, behind, passed)
        if kind == kinds.POSITIONS:
            return _at_positions(start, segment)
        if kind != kinds.EARLIEST:
            raise InvalidArgument(
                f"start {start!r}: expected kind earliest, latest, timestamp, message_id or positions"
            )
        return Start()


def _at_positions(start: Mapping[str, Any], segment: str) -> Start:
    """A segment that is not named is newer than the positions, or lies wholly before a named one."""
    at = start["segments"].get(segment)
    if at is None:
        passed = SegmentName.from_path(segment).segment_id in start.get("ancestors", ())
        return Start(kinds.MESSAGE_ID, passed=True) if passed else Start()
    ledger_id, entry_id, index = at
    return Start(kinds.MESSAGE_ID, 0, segment, Position(ledger_id, entry_id), index)


async def placed(start: Start, segment: str, store: MetadataStore) -> Start:
    """Completes the start of a seek: sets `passed` if the named segment descends from this one. ▲ Reads the topic's
    record in the store: a copy may not know the named segment yet.

    Raises `InvalidArgument` if the topic has no such segment, `TopicNotFound`, `StoreUnavailable`, `DataCorrupt`.
    """
    if start.kind != kinds.MESSAGE_ID or start.segment == segment:
        return start
    topology = await _layout(segment, store)
    # ▲ A message of another topic, or of a deleted one of this name, would mean "earliest" and reset every cursor.
    topology.check_has(start.segment)
    ancestors = topology.ancestors(SegmentName.from_path(start.segment).segment_id)
    return start._replace(passed=SegmentName.from_path(segment).segment_id in ancestors)


async def of_this_life(start: Start, segment: str, store: MetadataStore) -> Start:
    """Checks the start of a reader. It may name a message of another of its topics, or of a segment pruned since;
    a message of a deleted topic of the same name is refused.

    Raises `InvalidArgument`, `TopicNotFound`, `StoreUnavailable`, `DataCorrupt`.
    """
    if start.kind != kinds.MESSAGE_ID or start.segment == segment:
        return start
    named = SegmentName.from_path(start.segment)
    if named.topic == SegmentName.from_path(segment).topic:
        topology = await _layout(segment, store)
        if not topology.is_pruned(named.segment_id):
            topology.check_has(start.segment)
    return start


async def _layout(segment: str, store: MetadataStore) -> Topology:
    topic = SegmentName.from_path(segment).topic
    key = keys.topic(topic.path)
    if (record := await store.get(key)) is None:
        raise TopicNotFound(f"{topic} does not exist")
    return Topology(topic, records.decode(TopicRecord, record.value, key=key))


async def resolve_start(start: Start, segment: str, ledgers: SegmentLog, max_read_position: Position) -> StartPoint:
    """The start point in this segment. A message of another segment starts this one at its beginning, or at its end if
    that segment descends from this one (API.md, "MessageId"). Raises `DataCorrupt`."""
    if start.kind == kinds.LATEST:
        return StartPoint(max_read_position)  # V5: entries of open transactions are still to come
    if start.kind == kinds.TIMESTAMP:
        return StartPoint(await before_timestamp(start.timestamp_ms, ledgers))
    if start.kind == kinds.MESSAGE_ID and start.segment == segment:
        before = Position(start.position.ledger_id, start.position.entry_id - 1)
        if start.position.entry_id < 0 or (start.behind and start.message >= MOST_MESSAGES):
            return StartPoint(start.position)
        if ledgers.next_after(before) != start.position:
            # ▲ The entry is trimmed: `left_out` would hide the first messages of the next entry instead.
            return StartPoint(before)
        return StartPoint(before, min(start.message + start.behind, MOST_MESSAGES))
    if start.passed:
        return StartPoint(ledgers.last_confirmed)
    return StartPoint(EARLIEST)


async def before_timestamp(timestamp_ms: int, ledgers: SegmentLog) -> Position:
    """The position before the first entry published at or after `timestamp_ms`; the last one if there is none.

    ▲ No such entry lies before the result, even with stamps out of order: the search skips only entries that it has
    read or that `PublishTimes` knows to be older. Raises `DataCorrupt`, `LedgerFailed`, `NotOwner`.
    """
    before, end, scanned = EARLIEST, ledgers.last_confirmed, 0
    while (at := ledgers.next_after(before)) <= end:
        older = ledgers.times.older(at.ledger_id, timestamp_ms)
        if older.entries > at.entry_id:
            before = min(Position(at.ledger_id, older.entries - 1), end)
            continue
        newest_ms = older.newest_ms if older.entries == at.entry_id else None
        try:
            found = await ledgers.read(at, end, max_bytes=SCAN_BYTES)
        except InvalidArgument:
            if ledgers.contains(at):
                raise
            continue  # trimmed meanwhile
        for position, data in found:
            published_ms = parse_metadata(data).publish_time_ms
            if published_ms >= timestamp_ms:
                return before
            before, scanned = position, scanned + 1
            newest_ms = None if newest_ms is None else max(newest_ms, published_ms)
            if scanned % turn_size(ENTRIES_AT_ONCE) == 0:
                await asyncio.sleep(0)
        if newest_ms is not None:
            ledgers.times.scanned(before.ledger_id, Known(before.entry_id + 1, newest_ms))
    return before
