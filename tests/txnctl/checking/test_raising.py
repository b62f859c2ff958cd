"""E8: what a repair raises, so that nothing is given out twice: every id, epoch and count of a restored etcd."""

from __future__ import annotations

import msgspec
import pytest

from segments.layout.topology import Topology
from txnctl.checking.picture import Picture
from txnctl.checking.raising import Used, raise_ids, tcids_of
from txnctl.checking.rewound import EPOCH_STEP, IDS_STEP
from txnstore import keys
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import (
    AssignmentRecord,
    CursorMark,
    SegmentEntry,
    SegmentIds,
    TopicRecord,
    TransactionKey,
    TxnSeq,
    encode,
)
from txnstore.store import Commit, Put
from txnwire.ids import TxnId
from txnwire.names import TopicName

ONE, TWO = "public/nyc/flights", "public/nyc/trains"


def topology(path: str) -> Topology:
    whole = SegmentEntry(id=0, lo=0, hi=0xFFFF, state="ACTIVE", parents=[], children=[])
    return Topology(TopicName.from_path(path), TopicRecord(epoch=1, next_segment_id=1, segments=[whole]))


async def test_e8_ids_epochs_and_counts_of_all_topics_keys_subscriptions_and_cursors_rise(
    memory_store: MemoryStore,
) -> None:
    topics = (ONE, TWO)
    picture = Picture(
        topics={path: topology(path) for path in topics},
        id_blocks={0: TxnSeq(next=5), 1: TxnSeq(next=6)},
        txn_keys={keys.txn_key("alice", name): TransactionKey(epoch=2, attempt="7", begins=3) for name in "ab"},
        assignments={(path, "job"): AssignmentRecord(epoch=3, consumers={}) for path in topics},
        marks={(f"{path}/0000-ffff-0", "job"): CursorMark(position=(1, 1), seeks=4) for path in topics},
    )
    on_disk = [f"{ONE}/0000-7fff-4", f"{ONE}/8000-ffff-9", f"{TWO}/0000-ffff-7", f"{ONE}/0000-ffff-2"]
    raised: dict[bytes, msgspec.Struct] = {}

    async def put(key: bytes, record: msgspec.Struct) -> None:
        raised[key] = record

    floor = await raise_ids(memory_store, put, picture, Used(3, on_disk, steps=2, generation=1), 1)
    step = 2 * EPOCH_STEP
    told = {
        **{keys.txn_seq(tcid): {"next": IDS_STEP} for tcid in range(3)},
        keys.topic(ONE): {"epoch": 1 + step, "next_segment_id": 10},
        keys.topic(TWO): {"epoch": 1 + step, "next_segment_id": 8},
        **{keys.txn_key("alice", name): {"epoch": 2 + step, "attempt": "", "begins": 3} for name in "ab"},
        **{keys.assignment(path, "job"): {"epoch": 3 + step} for path in topics},
        **{keys.cursor_block(f"{path}/0000-ffff-0", "job", "mark"): {"seeks": 4 + step} for path in topics},
        keys.SEGMENT_IDS: {"floor": 10},
    }
    assert floor == 10
    assert {
        key: {name: getattr(raised.get(key), name, None) for name in wanted} for key, wanted in told.items()
    } == told
    assert raised.keys() == told.keys()
    assert isinstance(raised[keys.SEGMENT_IDS], SegmentIds)


@pytest.mark.parametrize(
    ("stands", "given", "on_disk", "returned", "put_there"),
    [(50, 7, [], 7, 50), (50, 60, [], 60, 60), (50, 7, [f"{ONE}/0000-ffff-59"], 60, 60), (None, 0, [], 0, 0)],
)
async def test_e8_the_floor_of_segment_ids_is_never_lowered(
    memory_store: MemoryStore, stands: int | None, given: int, on_disk: list[str], returned: int, put_there: int
) -> None:
    """▲ A topic of before would get segments whose files are there."""
    if stands is not None:
        await memory_store.commit(Commit(puts=(Put(keys.SEGMENT_IDS, encode(SegmentIds(floor=stands))),)))
    raised: dict[bytes, msgspec.Struct] = {}

    async def put(key: bytes, record: msgspec.Struct) -> None:
        raised[key] = record

    assert await raise_ids(memory_store, put, Picture(), Used(0, on_disk, steps=1, generation=1), given) == returned
    assert raised == {keys.SEGMENT_IDS: SegmentIds(floor=put_there)}


@pytest.mark.parametrize(
    ("configured", "blocks", "lost", "expected"),
    [
        (4, (0, 1), (TxnId(2, 1),), 4),
        (1, (0, 5), (TxnId(2, 1), TxnId(3, 1)), 6),
        (1, (0, 1), (TxnId(2, 1), TxnId(8, 1)), 9),
    ],
)
def test_e8_coordinator_ids_reach_to_the_highest_that_anything_names(
    configured: int, blocks: tuple[int, ...], lost: tuple[TxnId, ...], expected: int
) -> None:
    picture = Picture(id_blocks={tcid: TxnSeq(next=1) for tcid in blocks})
    assert tcids_of(picture, configured, lost) == expected
