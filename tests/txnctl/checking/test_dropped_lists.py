"""The list of what a repair has aborted (C12, E8): whole, also where the repair was cut off and repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.sidecars import encode_sidecar
from tests.txnctl.checking.short_folders import Ledger, ShortFolder, Written
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.records import COMMITTED, OPEN, SegmentEntry, TopicRecord
from txnwire.ids import Position, TxnId

TOPIC = "public/nyc/flights"
SEGMENT = f"{TOPIC}/0000-ffff-0"
TORN, UNDECIDED, LATER, ENDED = TxnId(1, 1), TxnId(1, 2), TxnId(1, 2000), TxnId(1, 2001)
"""TORN was committed and lost a part, UNDECIDED is open, LATER and ENDED are unknown to etcd."""


async def fill(folder: ShortFolder) -> None:
    whole = SegmentEntry(id=0, lo=0, hi=0xFFFF, state="ACTIVE", parents=[], children=[])
    topic = TopicRecord(epoch=1, next_segment_id=1, segments=[whole], created_segments=1, first_segment_id=0)
    await folder.record(keys.topic(TOPIC), topic)
    await folder.header(TORN, COMMITTED)
    await folder.header(UNDECIDED, OPEN)
    await folder.mark()
    entries = [Written("torn", TORN), Written("undecided", UNDECIDED), Written("torn", TORN)]
    await folder.segment(SEGMENT, Ledger(1, entries, 2), Ledger(2, [Written("later", LATER)], 1))
    await folder.ops(TORN, SEGMENT, 2)


def listed(folder: ShortFolder) -> dict[str, Any]:
    """By the newest list: by transaction, all but times and reasons in words."""
    lists = sorted(folder.data.glob("dropped-*.jsonl"), key=lambda path: int(path.stem.partition("-")[2]))
    rows = [json.loads(line) for line in lists[-1].read_text().splitlines()]
    return {row["txn"]: (row["because"], row["was_committed"], row["messages"]) for row in rows}


async def test_c12_the_list_of_a_repair_that_was_cut_off_and_repeated_has_all_that_was_aborted(
    memory_etcd: MemoryEtcd, tmp_path: Path
) -> None:
    """▲ It is what tells which committed transactions vanish; their headers say no more than that they are aborted."""
    folder = ShortFolder(memory_etcd, tmp_path / "data")
    await fill(folder)
    expected = folder.copy(tmp_path / "expected")
    await expected.repair()
    wanted, last = listed(expected), expected.steps.done
    await expected.close()
    assert wanted == {
        str(TORN): ("lost a part", True, {SEGMENT: 1}),
        str(UNDECIDED): ("open at the backup", None, {SEGMENT: 1}),
        str(LATER): ("begun after the backup", None, {SEGMENT: 1}),
    }
    for dies_at in range(1, last + 1):
        one = folder.copy(tmp_path / f"dies at {dies_at}")
        assert await one.repair_again_and_again(dies_at=dies_at)
        assert listed(one) == wanted, dies_at
        await one.close()
    await folder.close()


async def test_c12_a_repeated_repair_lists_as_committed_what_the_interrupted_one_knew_to_be(
    memory_etcd: MemoryEtcd, tmp_path: Path
) -> None:
    """▲ Only a sidecar of the former owner tells that, and the repair replaces it by one that lists it as aborted."""
    folder = ShortFolder(memory_etcd, tmp_path / "data")
    whole = SegmentEntry(id=0, lo=0, hi=0xFFFF, state="ACTIVE", parents=[], children=[])
    topic = TopicRecord(epoch=1, next_segment_id=1, segments=[whole], created_segments=1, first_segment_id=0)
    await folder.record(keys.topic(TOPIC), topic)
    await folder.header(UNDECIDED, OPEN)
    await folder.mark()
    await folder.segment(SEGMENT, Ledger(1, [Written("later", LATER), Written("ended", ENDED)], 2))
    files = FileLedgerStore(folder.data)
    await files.write_sidecar(SEGMENT, 1, encode_sidecar(1, {(ENDED, None): Position(1, 1)}))
    await files.close()
    expected = folder.copy(tmp_path / "expected")
    await expected.repair()
    last = expected.steps.done
    await expected.close()
    for dies_at in range(1, last + 1):
        one = folder.copy(tmp_path / f"dies at {dies_at}")
        assert await one.repair_again_and_again(dies_at=dies_at)
        assert {txn: known for txn, (_, known, _) in listed(one).items()} == {
            str(UNDECIDED): None,
            str(LATER): True,
            str(ENDED): None,
        }, dies_at
        await one.close()
    await folder.close()
