"""What is wrong with ledgers is found in each of several ledgers of several segments, and not in the first alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.sidecars import encode_sidecar
from txnctl.checking.dropping import few
from txnctl.checking.everything import what_is_missing
from txnctl.checking.ledgers import Now, broken_ledgers, missing_entries, missing_sidecars
from txnctl.checking.picture import Picture, take_picture
from txnctl.checking.written import AbortedAt, unlisted_sidecars
from txnstore import keys
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import LedgerInfo, LedgerRecord, SegmentEntry, TopicRecord, encode
from txnstore.store import Commit, Put
from txnwire.ids import Position, TxnId

TOPIC = "public/nyc/flights"
LOW, HIGH = f"{TOPIC}/0000-7fff-0", f"{TOPIC}/8000-ffff-1"
SEGMENTS = (LOW, HIGH)


@pytest.fixture
async def ledgers(tmp_path: Path) -> AsyncIterator[FileLedgerStore]:
    made = FileLedgerStore(tmp_path)
    yield made
    await made.close()


async def write(ledgers: FileLedgerStore, segment: str, ledger_id: int, entries: int) -> None:
    writer = await ledgers.create(segment, ledger_id, incarnation="i")
    for _ in range(entries):
        writer.append(b"entry")
    await writer.close(b"")


def listed(*infos: tuple[int, int | None, int]) -> LedgerRecord:
    """Of (id, length, aborted records)."""
    return LedgerRecord(
        ledgers=[
            LedgerInfo(ledger_id=number, closed_length=length, aborted=aborted) for number, length, aborted in infos
        ]
    )


async def in_etcd(store: MemoryStore, record: LedgerRecord) -> None:
    entries = [
        SegmentEntry(id=number, lo=lo, hi=hi, state="ACTIVE", parents=[], children=[])
        for number, lo, hi in ((0, 0, 0x7FFF), (1, 0x8000, 0xFFFF))
    ]
    topic = Put(keys.topic(TOPIC), encode(TopicRecord(epoch=1, next_segment_id=2, segments=entries)))
    await store.commit(Commit(puts=(topic, *(Put(keys.ledger(segment), encode(record)) for segment in SEGMENTS))))


async def test_each_broken_ledger_of_each_segment_is_named_with_all_that_is_broken_there(
    ledgers: FileLedgerStore, memory_store: MemoryStore
) -> None:
    """Of each ledger entries and the sidecar; and a file of a ledger that is not listed, in each segment."""
    for segment in SEGMENTS:
        for ledger_id in (1, 2, 3):
            await write(ledgers, segment, ledger_id, 1)
    await in_etcd(memory_store, listed((2, 2, 1), (3, 2, 1)))
    picture = await take_picture(memory_store)
    found = [one async for one in broken_ledgers(picture, ledgers, lambda _: None, now=Now(memory_store))]
    named = [(rule, segment, n) for rule, text in found for segment in SEGMENTS for n in (1, 2, 3)
             if segment in text and f"ledger {n}" in text]  # fmt: skip
    assert sorted(named) == sorted(
        [
            (rule, segment, n)
            for rule in ("closed_ledgers_are_whole", "sidecars_are_whole")
            for segment in SEGMENTS
            for n in (2, 3)
        ]
        + [("ledger_files_are_listed", segment, 1) for segment in SEGMENTS]
    )


async def test_a_file_between_listed_ledgers_is_not_taken_for_one_that_is_newer_than_the_picture(
    ledgers: FileLedgerStore, memory_store: MemoryStore
) -> None:
    for ledger_id in (1, 2, 3):
        await write(ledgers, LOW, ledger_id, 1)
    await in_etcd(memory_store, listed((1, 1, 0), (3, 1, 0)))
    picture = await take_picture(memory_store)
    del picture.ledgers[HIGH]
    [(rule, text)] = [one async for one in broken_ledgers(picture, ledgers, lambda _: None)]
    assert (rule, f"{LOW} has a file of ledger 2" in text) == ("ledger_files_are_listed", True)


async def test_open_ledgers_of_several_segments_that_lack_entries_are_all_told(
    ledgers: FileLedgerStore, memory_store: MemoryStore
) -> None:
    picture = Picture(ledgers=dict.fromkeys(SEGMENTS, LedgerRecord(ledgers=[LedgerInfo(ledger_id=1)], made=1)))
    found = [text async for rule, text in broken_ledgers(picture, ledgers, lambda _: None)]
    assert [segment in text for segment, text in zip(SEGMENTS, found, strict=True)] == [True, True]


async def test_every_short_ledger_and_every_lost_sidecar_counts_as_missing(
    ledgers: FileLedgerStore, memory_store: MemoryStore
) -> None:
    for segment in SEGMENTS:
        for ledger_id in (1, 2, 3):
            await write(ledgers, segment, ledger_id, 1)
    await in_etcd(memory_store, listed((1, 1, 0), (2, 2, 1), (3, 3, 1)))
    picture = await take_picture(memory_store)
    short = [one async for one in missing_entries(picture, ledgers, lambda _: None, closed=True)]
    assert [(one.segment, one.ledger_id, one.found) for one in short] == [(s, n, 1) for s in SEGMENTS for n in (2, 3)]
    lost = [one async for one in missing_sidecars(picture, ledgers)]
    assert lost == [(segment, ledger_id) for segment in SEGMENTS for ledger_id in (2, 3)]
    told = await what_is_missing(memory_store, ledgers, lambda _: None)
    assert told == "the data folder lacks entries of 4 ledgers in 2 segments that etcd knows of"
    await in_etcd(memory_store, listed((1, 1, 0), (2, 1, 1), (3, 1, 1)))
    told = await what_is_missing(memory_store, ledgers, lambda _: None)
    assert told == "the data folder lacks the sidecars of 4 ledgers that etcd knows of"


async def test_a_damaged_sidecar_is_another_finding_and_hides_no_lost_one(
    ledgers: FileLedgerStore, memory_store: MemoryStore, tmp_path: Path
) -> None:
    for segment in SEGMENTS:
        for ledger_id in (1, 2, 3):
            await write(ledgers, segment, ledger_id, 1)
        await ledgers.write_sidecar(segment, 2, encode_sidecar(2, {(TxnId(1, 1), None): Position(2, 0)}))
    for file in (tmp_path / "ledgers").rglob("2.sidecar"):
        file.write_bytes(file.read_bytes()[:-1])
    await in_etcd(memory_store, listed((1, 1, 1), (2, 1, 1), (3, 1, 1)))
    lost = [one async for one in missing_sidecars(await take_picture(memory_store), ledgers)]
    assert lost == [(segment, ledger_id) for segment in SEGMENTS for ledger_id in (1, 3)]
    told = await what_is_missing(memory_store, ledgers, lambda _: None)
    assert told == "the data folder lacks the sidecars of 4 ledgers that etcd knows of"


async def test_what_is_damaged_hides_nothing_that_is_broken_behind_it(
    ledgers: FileLedgerStore, memory_store: MemoryStore, tmp_path: Path
) -> None:
    """Sidecars of both segments, and the open ledger of the first one; that of the second has gone."""
    for segment in SEGMENTS:
        await write(ledgers, segment, 1, 1)
        await ledgers.write_sidecar(segment, 1, encode_sidecar(1, {(TxnId(1, 1), None): Position(1, 0)}))
    await write(ledgers, LOW, 2, 1)
    for file in (*(tmp_path / "ledgers").rglob("1.sidecar"), *(tmp_path / "ledgers").rglob("2.ledger")):
        file.write_bytes(b"damaged" + file.read_bytes()[7:])
    picture = Picture(ledgers=dict.fromkeys(SEGMENTS, replace(listed((1, 1, 1), (2, None, 0)), made=2)))
    found = [one async for one in broken_ledgers(picture, ledgers, lambda _: None)]
    assert [(rule, segment) for rule, text in found for segment in SEGMENTS if segment in text] == [
        ("sidecars_are_whole", LOW),
        ("sidecars_are_whole", HIGH),
        ("nothing_acknowledged_is_missing", HIGH),
    ]


@pytest.mark.parametrize("entries", [1, 3])
async def test_damage_is_found_in_whichever_entry_of_a_closed_ledger_it_is(
    ledgers: FileLedgerStore, tmp_path: Path, entries: int
) -> None:
    for damaged in range(entries):
        writer = await ledgers.create(LOW, damaged + 1, incarnation="i")
        for number in range(entries):
            writer.append(b"entry %d of all" % number)
        await writer.close(b"")
        [file] = (tmp_path / "ledgers").rglob(f"{damaged + 1}.ledger")
        content = file.read_bytes()
        file.write_bytes(content.replace(b"entry %d of" % damaged, b"damage %d f" % damaged))
        assert file.read_bytes() != content
    picture = Picture(ledgers={LOW: listed(*((number + 1, entries, 0) for number in range(entries)))})
    found = [one async for one in broken_ledgers(picture, ledgers, lambda _: None)]
    assert [(rule, text.partition(":")[0]) for rule, text in found] == [
        ("closed_ledgers_are_whole", f"{LOW} ledger {number + 1}") for number in range(entries)
    ]


async def test_a_sidecar_of_which_a_later_record_lies_beyond_its_ledger_is_not_whole(ledgers: FileLedgerStore) -> None:
    await write(ledgers, LOW, 1, 2)
    aborted: AbortedAt = {(TxnId(1, n), None): Position(1, n) for n in range(4)}
    await ledgers.write_sidecar(LOW, 1, encode_sidecar(1, aborted))
    picture = Picture(ledgers={LOW: listed((1, 2, 4))})
    [(rule, text)] = [one async for one in broken_ledgers(picture, ledgers, lambda _: None)]
    assert (rule, "4 aborted records of 4, 2 of them beyond its end" in text) == ("sidecars_are_whole", True)


async def test_all_sidecars_that_etcd_does_not_list_are_read(ledgers: FileLedgerStore) -> None:
    for ledger_id in (1, 2, 3):
        await write(ledgers, LOW, ledger_id, 1)
        await ledgers.write_sidecar(
            LOW, ledger_id, encode_sidecar(ledger_id, {(TxnId(1, 1), None): Position(ledger_id, 0)})
        )
    assert sorted(await unlisted_sidecars(ledgers, LOW, listed((1, 1, 0), (2, 1, 1), (3, 1, 0)))) == [1, 3]


async def test_whichever_ledger_of_a_list_is_asked_for_it_is_kept(memory_store: MemoryStore) -> None:
    await in_etcd(memory_store, listed((1, 1, 0), (2, 1, 0), (3, None, 0)))
    now = Now(memory_store)
    assert [await now.is_kept(HIGH, n) for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert [await now.is_listed(HIGH, n) for n in (1, 2, 3, 4)] == [True, True, True, False]


def test_a_few_are_named_each_and_of_many_the_first_and_how_many_there_are() -> None:
    assert few(["a", 1, "c"]) == "a, 1, c"
    assert few(range(22)) == f"{', '.join(map(str, range(20)))}, … 22 in all"
