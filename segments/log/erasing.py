"""What is left of a segment, or of one subscription in it, is erased by the segment's owner (DESIGN §5, S8, P9).

▲ Always under an ownership epoch of its own, taken after the segment was stopped: whatever was in flight under the one
before is refused by its compare, so nothing appears behind the eraser's back. Every step may be the last before a
crash; the next owner does all of it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

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
from txnwire.errors import DataCorrupt, NotOwner, TopicNotFound, TxnError
from txnwire.names import SegmentName, TopicName

log = structlog.get_logger(__name__)


class SegmentGone(TopicNotFound):
    """The topic stands, without this segment."""


class TopicFound(NamedTuple):
    """The topic of a segment, straight from the store. `going`: the segment is to be erased, with its topic
    (`deleting`) or by itself."""

    record: KeyValue
    deleting: bool
    going: bool

    def gone(self) -> TopicNotFound:
        topic = f"topic://{self.record.key[len(keys.TOPIC) :].decode()}"
        if self.deleting:
            return TopicNotFound(f"{topic} is being deleted")
        return SegmentGone(f"the segment of {topic} is sealed and empty, and is being forgotten")


def why_gone(path: str, topology: Topology) -> TxnError:
    """What those are told who use a segment that is to be erased."""
    if topology.deleting:
        return TopicNotFound(f"{topology.topic} is being deleted")
    return NotOwner(f"{path} is sealed and empty, and is being forgotten: look up the layout again")


async def find_topic(store: MetadataStore, segment: str) -> TopicFound:
    """Raises `TopicNotFound` where it does not exist, or has no such segment (any more); `DataCorrupt`."""
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
    """Read once for all of a topic's segments that are taken over in a row: each would cost as much as there are
    segments. Raises `DataCorrupt`."""
    return Topology(topic, records.decode(TopicRecord, record, key=keys.topic(topic.path)))


async def anything_left(store: MetadataStore, segment: str) -> bool:
    """Whether a segment of a topic that is being deleted has something to erase. Whoever owns one lists its ledger
    before anything else, and the list is the last to go."""
    return await store.get(keys.ledger(segment)) is not None


async def erase_segment(store: MetadataStore, ledgers: LedgerStore, segment: str, epoch: int) -> None:
    """Delete the files and every record of a segment whose topic is being deleted, the ownership key last.

    ▲ Files first: `/ledger` is what a successor knows them by. Raises `NotOwner`, `LedgerFailed`, `StoreUnavailable`,
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
    """Delete what one subscription has left in a segment: acks in transactions, then its cursor. The owner has stopped
    it before, and waited for its own writes. Raises as `erase_segment`."""
    await _erase(store, segment, epoch, keys.acks_by_segment_subscription(segment, subscription), _acked)
    await _erase(store, segment, epoch, keys.cursor_blocks(segment, subscription), _plain)


async def _fence(store: MetadataStore, ledgers: LedgerStore, segment: str, epoch: int) -> None:
    """Fence what is listed as open, and list it as closed.

    ▲ Such a ledger may not have been created yet: its creator may still come, and must find the fence, which outlives
    the deletion. ▲ Listed as closed before any file goes, so that whoever erases again, after a crash, does not take
    what is deleted for what was never created. Whatever is damaged in it does not matter any more.
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
    """A full disk takes no fence. ▲ What is older than the open ledger is closed, and listed so: it needs none, and its
    files make room for this one."""
    for path, ledger_id in await ledgers.list():
        if path == segment and ledger_id < below:
            await ledgers.delete(segment, ledger_id)


async def _erase(
    store: MetadataStore, segment: str, epoch: int, prefix: bytes, read: Callable[[list[KeyValue]], SegmentRemains]
) -> None:
    """Page by page, until the range is empty."""
    while True:
        found = await store.range(prefix, keys.prefix_end(prefix), keys_only=True, limit=KEYS_AT_ONCE)
        remains = read(list(found.records))
        if not remains:
            return
        for commit in plan_erase(segment, epoch, remains):
            await _commit(store, commit)


async def _commit(store: MetadataStore, commit: Commit) -> None:
    """▲ Until its fate is definite, however long that takes: a deletion that is given up goes on being repeated, and
    may find the cursor of a subscription made anew under the same name and ownership."""
    check_owned(commit, await store.commit(commit, timeout_s=math.inf))


def _written(found: list[KeyValue]) -> SegmentRemains:
    return SegmentRemains(written=[keys.txn_of(record.key) for record in found])


def _acked(found: list[KeyValue]) -> SegmentRemains:
    return SegmentRemains(acked=[keys.ack_index_parts(record.key)[1:] for record in found])


def _plain(found: list[KeyValue]) -> SegmentRemains:
    return SegmentRemains(keys=[record.key for record in found])
