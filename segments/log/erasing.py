"""Erases a segment, or one subscription in it, as the segment's owner (DESIGN §5, S8, P9).

▲ Erases only under a new ownership epoch, claimed after the segment stopped: late writes of the previous epoch then
fail their compare, so no record appears after it was erased. A crash may follow any step; the next owner repeats all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeVar

import structlog
from msgspec.structs import replace

from segments.layout.topology import Topology
from segments.ledger.ledger import LedgerFailed, LedgerStore
from txnstore import keys, records
from txnstore.records import LedgerRecord, TopicRecord
from txnstore.store import Commit, KeyValue, MetadataStore
from txnstore.writes.deletion_transitions import (
    KEYS_AT_ONCE,
    SegmentRemains,
    check_owned,
    plan_erase,
    plan_forget_segment,
    plan_ledger_list,
)
from txnwire.errors import DataCorrupt, InvalidArgument, NotOwner, TopicNotFound, TxnError
from txnwire.names import SegmentName, TopicName

log = structlog.get_logger(__name__)
T = TypeVar("T")


class SegmentGone(TopicNotFound):
    """The topic exists, but without this segment."""


class TopicFound(NamedTuple):
    """The topic of a segment, read from the store. `going`: the segment is to be erased, with its topic (`deleting`) or
    alone."""

    record: KeyValue
    deleting: bool
    going: bool

    def gone(self) -> TopicNotFound:
        topic = f"topic://{self.record.key[len(keys.TOPIC) :].decode()}"
        if self.deleting:
            return TopicNotFound(f"{topic} is being deleted")
        return SegmentGone(f"the segment of {topic} is sealed and empty, and is being forgotten")


def why_gone(path: str, topology: Topology) -> TxnError:
    """The error for users of a segment that is to be erased."""
    if topology.deleting:
        return TopicNotFound(f"{topology.topic} is being deleted")
    return NotOwner(f"{path} is sealed and empty, and is being forgotten: look up the layout again")


async def find_topic(store: MetadataStore, segment: str) -> TopicFound:
    """Raises `TopicNotFound` if the topic does not exist, or has no such segment (any more); `DataCorrupt`."""
    topic = SegmentName.from_path(segment).topic
    found = await store.get(keys.topic(topic.path))
    if found is None:
        raise TopicNotFound(f"{topic} does not exist")
    topology = _layout(topic, found.value)
    segment_id = SegmentName.from_path(segment).segment_id
    if topology.paths.get(segment_id) != segment:
        raise SegmentGone(f"{topic} has no segment {segment} at layout epoch {topology.epoch}")
    return TopicFound(found, topology.deleting, topology.is_going(segment_id))


@lru_cache(maxsize=16)
def _layout(topic: TopicName, record: bytes) -> Topology:
    """Parse the record once for all segments of a topic that are taken over in a row: each parse is O(segments).
    Raises `DataCorrupt`."""
    return Topology(topic, records.decode(TopicRecord, record, key=keys.topic(topic.path)))


async def anything_left(store: MetadataStore, segment: str) -> bool:
    """Whether a segment of a topic that is being deleted has something to erase. An owner writes the ledger list before
    anything else, and deletes it last."""
    return await store.get(keys.ledger(segment)) is not None


async def erase_segment(store: MetadataStore, ledgers: LedgerStore, segment: str, epoch: int) -> None:
    """Delete the files and every record of a segment that is to be erased, the ownership key last.

    ▲ Files first: a successor finds them only by `/ledger`. Raises `NotOwner`, `LedgerFailed`, `StoreUnavailable`,
    `OutcomeUnknown`.
    """
    await _fence(store, ledgers, segment, epoch)
    await ledgers.delete_segment(segment)
    await _erase(store, segment, epoch, keys.writes_by_segment(segment), _written)
    await _erase(store, segment, epoch, keys.acks_by_segment(segment), _acked)
    await _erase(store, segment, epoch, keys.cursors(segment), _plain)
    await _erase(store, segment, epoch, keys.aborted_records(segment), _plain)
    await _erase(store, segment, epoch, keys.ledger_pages(segment), _plain)
    await _commit(store, plan_forget_segment(segment, epoch))
    log.info("segment_erased", segment=segment, epoch=epoch)


async def erase_subscription(store: MetadataStore, segment: str, epoch: int, subscription: str) -> None:
    """Delete the records of one subscription in a segment: acks in transactions, then its cursor. The owner has stopped
    it before, and waited for its writes. Raises as `erase_segment`."""
    await _erase(store, segment, epoch, keys.acks_by_segment_subscription(segment, subscription), _acked)
    await _erase(store, segment, epoch, keys.cursor_blocks(segment, subscription), _plain)


async def _fence(store: MetadataStore, ledgers: LedgerStore, segment: str, epoch: int) -> None:
    """Fence the ledgers that are listed as open, and list them as closed.

    ▲ Such a ledger may not exist yet: its creator may still come, and must find the fence, which outlives the deletion.
    ▲ List them as closed before deleting any file: else, after a crash, the next eraser would treat a deleted ledger as
    never created. Damage in them no longer matters.
    """
    key = keys.ledger(segment)
    found = await store.get(key)
    if found is None:
        return
    try:
        record = records.decode(LedgerRecord, found.value, key=key)
    except DataCorrupt as error:
        log.warning("erasing_unreadable_ledger_list", segment=segment, error=str(error))
        return
    still_open = [info for info in record.ledgers if info.closed_length is None]
    for info in still_open:
        await _fence_one(ledgers, segment, info.ledger_id)
    if still_open:
        closed = [info if info not in still_open else replace(info, closed_length=0) for info in record.ledgers]
        await _commit(store, plan_ledger_list(segment, epoch, found, replace(record, ledgers=closed)))


async def _fence_one(ledgers: LedgerStore, segment: str, ledger_id: int) -> None:
    try:
        try:
            await ledgers.fence(segment, ledger_id)
        except LedgerFailed as error:
            log.warning("erasing_closed_ledgers_first", segment=segment, error=str(error))
            await _delete_older(ledgers, segment, ledger_id)
            await ledgers.fence(segment, ledger_id)
    except DataCorrupt as error:
        log.warning("erasing_corrupt_ledger", segment=segment, error=str(error))


async def _delete_older(ledgers: LedgerStore, segment: str, below: int) -> None:
    """Make room for a fence on a full disk. ▲ Ledgers older than the open one are closed, and listed so: they need no
    fence and may be deleted first."""
    for path, ledger_id in await ledgers.list():
        if path == segment and ledger_id < below:
            await ledgers.delete(segment, ledger_id)


async def _erase(
    store: MetadataStore, segment: str, epoch: int, prefix: bytes, read: Callable[[list[KeyValue]], SegmentRemains]
) -> None:
    """Erase page by page, until the range is empty."""
    while True:
        found = await store.range(prefix, keys.prefix_end(prefix), keys_only=True, limit=KEYS_AT_ONCE)
        remains = read(list(found.records))
        if not remains:
            return
        for commit in plan_erase(segment, epoch, remains):
            await _commit(store, commit)


async def _commit(store: MetadataStore, commit: Commit) -> None:
    """▲ Waits until the outcome is definite, however long that takes: a deletion given up is still retried, and could
    delete the cursor of a subscription created again under the same name and ownership."""
    check_owned(commit, await store.commit(commit, timeout_s=math.inf))


def _written(found: list[KeyValue]) -> SegmentRemains:
    written, unreadable = _sorted(found, keys.txn_of)
    return SegmentRemains(written=written, keys=unreadable)


def _acked(found: list[KeyValue]) -> SegmentRemains:
    acked, unreadable = _sorted(found, lambda key: keys.ack_index_parts(key)[1:])
    return SegmentRemains(acked=acked, keys=unreadable)


def _sorted(found: list[KeyValue], read: Callable[[bytes], T]) -> tuple[list[T], list[bytes]]:
    """Parse the keys with `read`; returns the parsed ones, and the keys that it cannot parse. ▲ The caller deletes
    unparsed keys too: a single one left behind would block its segment and the topic's name for ever."""
    readable, unreadable = [], []
    for record in found:
        try:
            readable.append(read(record.key))
        except (InvalidArgument, ValueError) as error:  # ValueError: not UTF-8, or too few parts
            log.warning("erasing_unreadable_key", key=repr(record.key), error=str(error))
            unreadable.append(record.key)
    return readable, unreadable


def _plain(found: list[KeyValue]) -> SegmentRemains:
    return SegmentRemains(keys=[record.key for record in found])
