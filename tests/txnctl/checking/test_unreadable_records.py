"""A repair of an etcd with records that it cannot read: those of a newer version, or damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.txnctl.checking.short_folders import Ledger, ShortFolder, Written
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.records import COMMITTED, Incarnation, SegmentEntry, TopicRecord, decode
from txnstore.store import Commit, Put
from txnwire.errors import DataCorrupt
from txnwire.ids import TxnId

TOPIC = "public/nyc/flights"
SEGMENT = f"{TOPIC}/0000-ffff-0"
NEWER = b'{"v": 1000}'


@pytest.mark.parametrize(
    ("key", "refused"),
    [
        (keys.topic(TOPIC), True),
        (keys.txn(TxnId(1, 1)), True),
        (keys.ledger(SEGMENT), True),
        (keys.load(SEGMENT), False),
        (keys.owner(SEGMENT), False),
    ],
    ids=["topic", "header", "ledgers", "load", "owner"],
)
async def test_e8_what_cannot_be_read_is_not_repaired_as_if_it_were_lost(
    memory_etcd: MemoryEtcd, tmp_path: Path, key: bytes, refused: bool
) -> None:
    """▲ Such as by a program that is older than the servers: it set the ledgers of all topics aside."""
    folder = ShortFolder(memory_etcd, tmp_path / "data")
    whole = SegmentEntry(id=0, lo=0, hi=0xFFFF, state="ACTIVE", parents=[], children=[])
    topic = TopicRecord(epoch=1, next_segment_id=1, segments=[whole], created_segments=1, first_segment_id=0)
    await folder.record(keys.topic(TOPIC), topic)
    await folder.header(TxnId(1, 1), COMMITTED)
    await folder.segment(SEGMENT, Ledger(1, [Written("committed", TxnId(1, 1)), Written("plain")], 2))
    await folder.mark()
    await folder.store.commit(Commit(puts=(Put(key, NEWER),)))
    before = await folder.store.identity()
    if refused:
        with pytest.raises(DataCorrupt, match="Nothing is repaired") as raised:
            await folder.repair()
        assert key.decode() in str(raised.value)
    else:
        await folder.repair()
    found = await folder.store.get(keys.INCARNATION)
    assert found is not None
    assert (decode(Incarnation, found.value, key=found.key) == before) is refused
    assert (folder.data / "ledgers" / SEGMENT / "1.ledger").exists()
    assert not (folder.data / "set-aside").exists()
    await folder.close()
