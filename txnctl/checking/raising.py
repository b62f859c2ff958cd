"""Raises ids, epochs and counts in a restored etcd above all that may have been given out since its backup (E8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from txnctl.checking.picture import Picture
from txnctl.checking.rewound import EPOCH_STEP, raised_ids, raised_topic
from txnstore import keys, records
from txnstore.access.store_client import StoreClient
from txnwire.ids import TxnId
from txnwire.names import SegmentName

PutRecord = Callable[[bytes, msgspec.Struct], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Used:
    """Ids that may have been given out: coordinator ids below `tcids`, the ids of `segments`, and `steps` times the
    amount that one repair raises. `generation`: of the repair."""

    tcids: int
    segments: Sequence[str]
    steps: int
    generation: int


def tcids_of(picture: Picture, configured: int, lost: Iterable[TxnId]) -> int:
    """One above the highest coordinator id that the settings, etcd or a transaction lost from it names."""
    return max([configured, *(tcid + 1 for tcid in picture.id_blocks), *(one.tcid + 1 for one in lost)])


async def raise_ids(store: StoreClient, put: PutRecord, picture: Picture, used: Used, floor: int) -> int:
    """Returns the new floor of segment ids, at least `floor`."""
    step = used.steps * EPOCH_STEP
    for tcid in range(used.tcids):
        await put(keys.txn_seq(tcid), raised_ids(picture.id_blocks.get(tcid), used.generation))
    highest: dict[str, int] = {}
    for segment in used.segments:
        name = SegmentName.from_path(segment)
        highest[name.topic.path] = max(name.segment_id, highest.get(name.topic.path, 0))
    for path, topology in picture.topics.items():
        await put(keys.topic(path), raised_topic(topology.record, highest.get(path, 0), used.steps))
    floor = max(floor, max(highest.values(), default=-1) + 1)
    await _raise_floor(store, put, floor)
    for key, txn_key in picture.txn_keys.items():
        raised = msgspec.structs.replace(txn_key, epoch=txn_key.epoch + step, attempt="")
        await put(key, raised)
    for (topic, subscription), assignment in picture.assignments.items():
        raised_one = msgspec.structs.replace(assignment, epoch=assignment.epoch + step)
        await put(keys.assignment(topic, subscription), raised_one)
    for (segment, subscription), mark in picture.marks.items():
        raised_mark = msgspec.structs.replace(mark, seeks=mark.seeks + step)
        await put(keys.cursor_block(segment, subscription, "mark"), raised_mark)
    return floor


async def _raise_floor(store: StoreClient, put: PutRecord, floor: int) -> None:
    """A topic made after the backup may be made again under its name, but not with segment ids that have files."""
    found = await store.get(keys.SEGMENT_IDS)
    before = 0 if found is None else records.decode(records.SegmentIds, found.value, key=keys.SEGMENT_IDS).floor
    await put(keys.SEGMENT_IDS, records.SegmentIds(floor=max(before, floor)))
