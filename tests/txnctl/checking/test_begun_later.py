"""E8: what a restored etcd does not know of several transactions, ledgers and segments is aborted in each of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.sidecars import encode_sidecar
from tests.txnctl.checking.short_folders import Ledger, ShortFolder, Written
from txnctl.checking.written import AbortedAt, read_sidecar
from txnctl.process.store_mark import StoreMark
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.records import ABORTED, OPEN, SegmentEntry, TopicRecord
from txnstore.store import Commit, Delete
from txnwire.ids import Position, TxnId

TOPIC = "public/nyc/flights"
SEGMENT = f"{TOPIC}/0000-ffff-0"
LATER = [TxnId(1, n) for n in range(2000, 2006)]
"""Unknown to etcd."""
GONE = [TxnId(1, n) for n in (1, 2)]
"""Known to it as aborted."""


@pytest.fixture
async def folder(memory_etcd: MemoryEtcd, tmp_path: Path) -> AsyncIterator[ShortFolder]:
    made = ShortFolder(memory_etcd, tmp_path / "data")
    whole = SegmentEntry(id=0, lo=0, hi=0xFFFF, state="ACTIVE", parents=[], children=[])
    topic = TopicRecord(epoch=1, next_segment_id=1, segments=[whole], created_segments=1, first_segment_id=0)
    await made.record(keys.topic(TOPIC), topic)
    for txn_id in GONE:
        await made.header(txn_id, ABORTED)
    await made.mark()
    yield made
    await made.close()


async def sidecars(folder: ShortFolder) -> dict[int, list[TxnId] | None]:
    """By ledger, what the sidecar there lists."""
    files = FileLedgerStore(folder.data)
    found: dict[int, list[TxnId] | None] = {}
    for info in (await folder.picture()).ledgers[SEGMENT].ledgers:
        there = await read_sidecar(files, SEGMENT, info.ledger_id)
        found[info.ledger_id] = None if there is None else sorted(txn_id for txn_id, _ in there)
        assert info.aborted == len(there or ())
    await files.close()
    return found


async def beside(folder: ShortFolder, listed: dict[int, TxnId]) -> None:
    """Sidecars of a former owner, that etcd does not know of."""
    files = FileLedgerStore(folder.data)
    for ledger_id, txn_id in listed.items():
        at = Position(ledger_id, 1)
        await files.write_sidecar(SEGMENT, ledger_id, encode_sidecar(ledger_id, {(txn_id, None): at}))
    await files.close()


async def test_e8_each_ledger_lists_all_that_was_begun_later_and_ends_there(folder: ShortFolder) -> None:
    ledgers = [Ledger(n, [Written("a", LATER[2 * n - 2]), Written("b", LATER[2 * n - 1])], 2) for n in (1, 2, 3)]
    await folder.segment(SEGMENT, *ledgers)
    found = [text for rule, text in await folder.repair() if rule == "transactions"]
    assert await sidecars(folder) == {1: LATER[:2], 2: LATER[2:4], 3: LATER[4:]}
    assert found[0].startswith("6 transactions with 6 messages were begun after the backup")
    assert found[1:] == [f"{txn_id}: 1 messages" for txn_id in LATER]
    assert await folder.findings() == []


async def test_e8_what_was_begun_later_is_in_etcd_where_its_ledgers_have_sidecars_already(folder: ShortFolder) -> None:
    """▲ A listed sidecar does not change; entries that neither names would be read as committed."""
    ledgers = [
        Ledger(
            n,
            [Written("gone", GONE[n - 1]), Written("a", LATER[2 * n]), Written("b", LATER[2 * n + 1])],
            3,
            aborted={GONE[n - 1]: Position(n, 0)},
        )
        for n in (1, 2)
    ]
    await folder.segment(SEGMENT, *ledgers)
    await folder.repair()
    assert await folder.aborted() == {(SEGMENT, LATER[2 * n + at], None): (n, 1 + at) for n in (1, 2) for at in (0, 1)}
    assert await sidecars(folder) == {1: GONE[:1], 2: GONE[1:]}


async def test_e8_sidecars_of_later_owners_tell_in_each_ledger_what_was_committed_and_are_replaced(
    folder: ShortFolder,
) -> None:
    for number in (1, 2):
        await folder.header(TxnId(1, 10 + number), OPEN)
    ledgers = [
        Ledger(
            n,
            [Written("open", TxnId(1, 10 + n)), Written("gone", LATER[n + 3]), Written("later", LATER[n])],
            3,
        )
        for n in (1, 2)
    ]
    await folder.segment(SEGMENT, *ledgers)
    await beside(folder, {1: LATER[4], 2: LATER[5]})
    found = [text for rule, text in await folder.repair() if rule == "transactions"]
    [path] = folder.data.glob("dropped-*.jsonl")
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    committed = [TxnId(1, 11), TxnId(1, 12), *LATER[1:3]]
    assert {row["txn"] for row in rows if row["was_committed"]} == set(map(str, committed))
    assert {row["txn"] for row in rows if not row["was_committed"]} == set(map(str, LATER[4:]))
    assert found[0].endswith("so they are aborted; 2 of them are known to have been committed")
    assert await sidecars(folder) == {n: [TxnId(1, 10 + n), LATER[n], LATER[n + 3]] for n in (1, 2)}


async def test_e8_sidecars_of_later_owners_beside_ledgers_without_anything_new_go(folder: ShortFolder) -> None:
    """▲ The next owner would adopt their positions."""
    await folder.segment(SEGMENT, *[Ledger(n, [Written("a"), Written("b")], 2) for n in (1, 2)])
    await beside(folder, {1: GONE[0], 2: GONE[1]})
    await folder.repair()
    assert await sidecars(folder) == {1: None, 2: None}


async def test_e8_every_transaction_that_was_open_is_aborted_and_named(folder: ShortFolder) -> None:
    opened = [TxnId(1, n) for n in range(20, 23)]
    for txn_id in opened:
        await folder.header(txn_id, OPEN)
    found = [text for rule, text in await folder.repair() if rule == "open"]
    assert [text.split()[0] for text in found] == list(map(str, opened))
    assert {one.state for one in (await folder.picture()).headers.values()} == {ABORTED}


async def test_e8_ledgers_of_every_segment_without_a_topic_are_set_aside_and_counted(folder: ShortFolder) -> None:
    orphans = [f"public/nyc/gone/{name}" for name in ("0000-7fff-4", "8000-ffff-5")]
    for segment in orphans:
        await folder.segment(segment, *[Ledger(n, [Written("a"), Written("b")], 2) for n in (1, 2)])
        await folder.store.commit(Commit(deletes=(Delete(keys.ledger(segment)),)))
    found = [text for rule, text in await folder.repair() if rule == "orphans"]
    assert [(segment in text, "4 entries" in text) for segment, text in zip(orphans, found, strict=True)] == [
        (True, True)
    ] * 2
    assert not list((folder.data / "ledgers" / "public/nyc/gone").rglob("*.ledger"))
    assert len(list((folder.data).rglob("*.ledger"))) == 4


async def test_e8_ledgers_that_were_made_or_are_gone_since_are_all_told(folder: ShortFolder) -> None:
    ledgers = [Ledger(n, [Written("a")], 1 if n > 2 else None) for n in range(1, 6)]
    await folder.segment(SEGMENT, *ledgers)
    stored = (await folder.picture()).ledgers[SEGMENT]
    await folder.record(keys.ledger(SEGMENT), msgspec.structs.replace(stored, ledgers=stored.ledgers[:3]))
    StoreMark(folder.data).write(await folder.store.identity(), 1_000_000)  # etcd has gone back
    found = [text for rule, text in await folder.repair() if rule == "ledgers"]
    assert f"{SEGMENT}: 2 entries in ledgers 4, 5, written after the backup: kept" in found
    assert [text for text in found if "the files of ledgers 1, 2 are missing" in text], found


async def test_e8_all_that_the_sidecar_of_a_later_owner_lists_was_not_committed(folder: ShortFolder) -> None:
    entries = [Written("one", LATER[1]), Written("two", LATER[2]), Written("three", LATER[3])]
    await folder.segment(SEGMENT, Ledger(1, entries, 3))
    files = FileLedgerStore(folder.data)
    aborted: AbortedAt = {(LATER[n], None): Position(1, n - 1) for n in (1, 2)}
    await files.write_sidecar(SEGMENT, 1, encode_sidecar(1, aborted))
    await files.close()
    await folder.repair()
    [path] = folder.data.glob("dropped-*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["txn"] for row in rows if row["was_committed"]} == {str(LATER[3])}


async def test_e8_a_repair_comes_to_its_end_where_closed_ledgers_and_files_without_a_topic_are_damaged(
    folder: ShortFolder,
) -> None:
    orphans = [f"public/nyc/gone/{name}" for name in ("0000-7fff-4", "8000-ffff-5")]
    for segment in (SEGMENT, *orphans):
        await folder.segment(segment, *[Ledger(n, [Written("a"), Written("b")], 2) for n in (1, 2)])
    for segment in orphans:
        await folder.store.commit(Commit(deletes=(Delete(keys.ledger(segment)),)))
    damaged = {SEGMENT: "2.ledger", orphans[0]: "1.ledger"}
    for segment, name in damaged.items():
        file = folder.data / "ledgers" / segment / name
        file.write_bytes(b"damaged" + file.read_bytes()[7:])
    found = await folder.repair()
    told = [text for rule, text in found if rule in ("missing", "orphans") and ".ledger" in text]
    assert [(segment in text, name in text) for (segment, name), text in zip(damaged.items(), told, strict=True)] == [
        (True, True)
    ] * 2
    kept = [text for rule, text in found if rule == "orphans" and "no broker reads them" in text]
    assert [f"{orphans[0]}: 2 entries" in kept[0], f"{orphans[1]}: 4 entries" in kept[1]] == [True, True]
    assert found[-1][1].startswith("fit again")
