"""The list of what a repair has aborted (C12, E8): whole, also where the repair was cut off and repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.sidecars import encode_sidecar
from tests.txnctl.checking.short_folders import Crash, Ledger, ShortFolder, Written
from txnctl.checking.dropped_list import BEGUN_AFTER, LOST_PART, OPEN_AT_BACKUP, DroppedList
from txnctl.checking.picture import Picture
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.records import ABORTED, COMMITTED, OPEN, Header, SegmentEntry, TopicRecord
from txnwire.errors import DataCorrupt
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


async def test_c12_the_list_of_a_repair_that_was_cut_off_twice_has_all_that_was_aborted(
    memory_etcd: MemoryEtcd, tmp_path: Path
) -> None:
    """▲ The second one dies before it has a list of its own, when it fences an open ledger: only that of the first one
    tells what it has aborted."""
    folder = ShortFolder(memory_etcd, tmp_path / "data")
    await fill(folder)
    whole = SegmentEntry(id=0, lo=0, hi=0xFFFF, state="ACTIVE", parents=[], children=[])
    topic = TopicRecord(epoch=1, next_segment_id=1, segments=[whole], created_segments=1, first_segment_id=0)
    await folder.record(keys.topic("public/nyc/trains"), topic)
    await folder.segment("public/nyc/trains/0000-ffff-0", Ledger(1, [Written("plain")], 1, open=True))
    expected = folder.copy(tmp_path / "expected")
    await expected.repair()
    wanted, last = listed(expected), expected.steps.done
    await expected.close()
    for dies_at in range(3, last + 1):
        one = folder.copy(tmp_path / f"dies at {dies_at}")
        for step in (dies_at, 2):
            with pytest.raises(Crash):
                await one.repair(dies_at=step)
        await one.repair()
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


def header(state: str, reason: str | None = None) -> Header:
    return Header(state=state, timeout_ms=2, created_ms=1, reason=reason)


def test_c12_the_lists_of_several_interrupted_repairs_are_taken_over_with_all_their_lines(tmp_path: Path) -> None:
    ids = [TxnId(1, n) for n in range(1, 7)]
    seen = Picture(headers={txn_id: header(OPEN) for txn_id in ids})
    for number, some in ((1, ids[:2]), (2, ids[2:4])):
        written = DroppedList(tmp_path / f"dropped-{number}.jsonl")
        for txn_id in some:
            written.add(txn_id, BEGUN_AFTER)
            written.left(txn_id, SEGMENT, 3)
        written.were_committed(some)
        written.write()
    repeated = DroppedList(tmp_path / "dropped-3.jsonl")
    aborted = {txn_id: header(ABORTED) for txn_id in ids[:4]}
    repeated.go_on((1, 2), Picture(headers=seen.headers | aborted))
    repeated.list_open(Picture(headers={txn_id: header(OPEN) for txn_id in ids[4:]}))
    repeated.add(TxnId(1, 7), LOST_PART, header=header(COMMITTED))
    repeated.write()
    rows = [json.loads(line) for line in repeated.path.read_text().splitlines()]
    assert [(row["txn"], row["because"], row["was_committed"], row["messages"]) for row in rows] == [
        *((str(txn_id), BEGUN_AFTER, True, {SEGMENT: 3}) for txn_id in ids[:4]),
        *((str(txn_id), OPEN_AT_BACKUP, None, {}) for txn_id in ids[4:]),
        (str(TxnId(1, 7)), LOST_PART, True, {}),
    ]
    assert repeated.summary().startswith(
        "7 transactions are aborted for good (2 open at the backup, 4 begun after the backup, 1 lost a part): 5 of "
        "them are known to have been committed; whether 2 of them had been committed, nothing tells."
    )


def test_c12_what_becomes_known_to_have_been_committed_is_in_the_file_at_once_each_of_it(tmp_path: Path) -> None:
    """▲ What tells it is replaced next: after a kill only the file does."""
    found = DroppedList(tmp_path / "dropped-1.jsonl")
    for txn_id in (LATER, ENDED):
        found.add(txn_id, BEGUN_AFTER)
    found.were_committed([LATER, ENDED])
    rows = [json.loads(line) for line in found.path.read_text().splitlines()]
    assert [(row["txn"], row["was_committed"]) for row in rows] == [(str(LATER), True), (str(ENDED), True)]


def test_c12_a_line_that_cannot_be_read_is_told_with_its_file_and_what_to_do(tmp_path: Path) -> None:
    """Not the end of a line that was cut off: that one was never taken for written."""
    path = tmp_path / "dropped-1.jsonl"
    path.write_bytes(b'{"txn": 7}\n')
    with pytest.raises(DataCorrupt, match=r"dropped-1\.jsonl: .*: move it to another folder and repair again"):
        DroppedList(tmp_path / "dropped-2.jsonl").go_on((1,), Picture())
    path.write_bytes(b'{"txn"')
    DroppedList(tmp_path / "dropped-2.jsonl").go_on((1,), Picture())


def test_c12_a_line_tells_whose_a_transaction_was_when_and_why_it_is_dropped(tmp_path: Path) -> None:
    found = DroppedList(tmp_path / "dropped-1.jsonl")
    found.write()
    assert not found.path.exists(), "no file without a transaction"
    of_alice = Header(state=COMMITTED, timeout_ms=9, created_ms=1_000, finalized_ms=2_500, owner="alice", name="job/1")
    found.add(LATER, BEGUN_AFTER, why="its ledger has it")
    found.add(TORN, LOST_PART, header=of_alice, why="1 of 2 entries are left")
    found.add(UNDECIDED, OPEN_AT_BACKUP, header=Header(state=OPEN, timeout_ms=9, created_ms=0))
    for segment, messages in ((SEGMENT, 2), (SEGMENT, 3), (f"{TOPIC}/8000-ffff-1", 1)):
        found.left(TORN, segment, messages)
    found.write()
    nothing: dict[str, Any] = {"name": None, "begun": None, "committed": None, "messages": {}}
    assert [json.loads(line) for line in found.path.read_text().splitlines()] == [
        {
            **{"txn": str(TORN), "because": LOST_PART, "why": "1 of 2 entries are left", "was_committed": True},
            **{"owner": "alice", "name": "job/1", "begun": "1970-01-01T00:00:01.000+00:00"},
            **{"committed": "1970-01-01T00:00:02.500+00:00", "messages": {SEGMENT: 5, f"{TOPIC}/8000-ffff-1": 1}},
        },
        {
            **{"txn": str(UNDECIDED), "because": OPEN_AT_BACKUP, "why": None, "was_committed": None},
            **{"owner": "anonymous", **nothing},
        },
        {
            **{"txn": str(LATER), "because": BEGUN_AFTER, "why": "its ledger has it", "was_committed": None},
            **{"owner": None, **nothing},
        },
    ]
    assert (len(found), found.holds(TORN), found.holds(ENDED)) == (3, True, False)


@pytest.mark.parametrize(
    ("committed", "others", "said"),
    [
        (0, 1, "(1 begun after the backup): whether 1 of them had been committed, nothing tells"),
        (1, 0, "(1 lost a part): 1 of them are known to have been committed"),
        (1_000, 2_000, "(2,000 begun after the backup, 1,000 lost a part): 1,000 of them are known to have been "
         "committed; whether 2,000 of them had been committed, nothing tells"),
    ],
)  # fmt: skip
def test_c12_the_summary_counts_what_there_is_and_names_the_list(
    tmp_path: Path, committed: int, others: int, said: str
) -> None:
    found = DroppedList(tmp_path / "dropped-1.jsonl")
    for number in range(committed):
        found.add(TxnId(1, number), LOST_PART, header=header(COMMITTED))
    for number in range(others):
        found.add(TxnId(2, number), BEGUN_AFTER)
    assert found.summary() == (
        f"{committed + others:,} transactions are aborted for good {said}. Their ids, and details of each: {found.path}"
    )
