"""C12, E8: a data folder that is older than etcd. Nobody serves what lacks entries; repairs drop transactions whole."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import Recovered
from tests.segments.brokering import Client, Cluster, Node
from tests.waiting import until, until_answer
from txnctl.checking.everything import what_is_missing
from txnctl.checking.invariants import broken_invariants
from txnctl.checking.ledgers import broken_ledgers
from txnctl.checking.picture import take_picture
from txnctl.checking.repair import Finding, Repair
from txnctl.process.store_mark import StoreMark
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import ABORTED, COMMITTED, REASON_LOST, CursorBlock, Header, LedgerRecord
from txnstore.store import Commit, Delete, MetadataStore, Put
from txnstore.writes.collection_transitions import Collectable, read_outcomes
from txnwire.clock import SystemClock
from txnwire.errors import DataCorrupt
from txnwire.ids import TxnId
from txnwire.names import SegmentName

NOW_MS = 10


class World:
    """A topic of two segments; etcd goes on while the data folder is put back to `copy`."""

    def __init__(self, etcd: MemoryEtcd, folder: Path) -> None:
        self.etcd = etcd
        self.data, self.saved = folder / "data", folder / "saved"
        self.store = self._store(0)
        self.cluster = Cluster(self._make_store, self.store, self.data)

    def _store(self, seed: int) -> MemoryStore:
        return MemoryStore(self.etcd, SystemClock(), random.Random(seed))

    async def _make_store(self) -> MetadataStore:
        return self._store(1)

    async def start(self) -> tuple[Node, Client]:
        node = await self.cluster.start()
        return node, await self.cluster.connect(node)

    async def copy(self) -> None:
        mark = StoreMark(self.data)
        revision, _ = await self.store.get_many([keys.INCARNATION])
        mark.write(await self.store.identity(), revision)
        shutil.copytree(self.data, self.saved)

    def put_back(self) -> None:
        shutil.rmtree(self.data)
        self.saved.rename(self.data)

    async def repair(self, *, cut_short_at: str = "") -> list[Finding]:
        ledgers = FileLedgerStore(self.data)

        def progress(what: str) -> None:
            if cut_short_at and re.match(cut_short_at, what):
                raise Crash(what)

        work = Repair(
            self.store, ledgers, StoreMark(self.data), SystemClock(), random.Random(7), tcids=2, on_progress=progress
        )
        try:
            return await work.run("the folder is older")
        finally:
            await ledgers.close()

    async def check(self) -> list[Finding]:
        ledgers = FileLedgerStore(self.data)
        picture = await take_picture(self.store)
        found = broken_invariants(picture, now_ms=NOW_MS)
        found += [one async for one in broken_ledgers(picture, ledgers, lambda _: None)]
        await ledgers.close()
        return found

    async def header(self, txn_id: TxnId) -> Header:
        found = await self.store.get(keys.txn(txn_id))
        assert found is not None
        return records.decode(Header, found.value, key=found.key)


class Crash(Exception):
    pass


@pytest.fixture
async def world(memory_etcd: MemoryEtcd, tmp_path: Path) -> AsyncIterator[World]:
    made = World(memory_etcd, tmp_path)
    yield made
    await made.cluster.close()
    await made.store.close()


async def older_folder(world: World) -> tuple[list[str], dict[str, TxnId]]:
    """`whole` was committed before the copy, `torn` has a part before it and one behind it. The segments are in etcd
    as at the end, the files as they were copied."""
    one, two = await world.cluster.create_topic(segments=2)
    node, client = await world.start()
    producers = [await client.producer(segment) for segment in (one, two)]
    txns = {name: await world.cluster.begin() for name in ("whole", "torn", "later")}
    for producer in producers:
        await producer.send("whole", txn=txns["whole"])
        await producer.send("plain")
    await world.cluster.commit(txns["whole"])
    await world.cluster.wait_no_ops(txns["whole"])
    await producers[0].send("torn", txn=txns["torn"])
    await world.copy()
    for number, producer in enumerate(producers):
        await producer.send(f"torn-{number}", txn=txns["torn"])
    await producers[1].send("later", txn=txns["later"])
    for name in ("torn", "later"):
        await world.cluster.commit(txns[name])
        await world.cluster.wait_no_ops(txns[name])
    for segment in (one, two):
        await eventually_watermark(world, segment)
    await node.crash()
    world.put_back()
    return [one, two], txns


async def eventually_watermark(world: World, segment: str) -> None:
    async def stored() -> bool:
        found = await world.store.get(keys.watermark(segment))
        return found is not None and records.decode(records.Watermark, found.value, key=found.key).position[1] >= 2

    await until(stored, f"the watermark of {segment}", within_s=20.0)


async def read(client: Client, segment: str, *expected: str) -> None:
    reader = await client.reader(segment)
    await reader.wait(*expected)
    producer = await client.producer(segment, name="last")
    await producer.send("the end")
    await reader.wait(*expected, "the end")


async def test_c12_a_segment_that_lacks_what_was_decided_is_refused_and_check_says_so(world: World) -> None:
    segments, _ = await older_folder(world)
    before = [await world.store.get(keys.ledger(segment)) for segment in segments]
    node, _ = await world.start()
    for segment in segments:
        with pytest.raises(DataCorrupt, match=r"the watermark is at 1:\d, but ledger 1 ends after .*check --repair"):
            await node.broker.segment(segment)
    assert [await world.store.get(keys.ledger(segment)) for segment in segments] == before
    await node.close()
    told = [text for rule, text in await world.check() if rule == "nothing_acknowledged_is_missing"]
    assert [segment in text and "are missing" in text for segment, text in zip(segments, told, strict=True)] == [
        True
    ] * 2


@pytest.mark.parametrize("cut_short", ["", "files of", "what is left of", "public.*/0000-7fff", "public.*/8000-ffff"])
async def test_c12_a_repair_drops_transactions_that_lost_a_part_whole_and_keeps_the_rest(
    world: World, cut_short: str
) -> None:
    """▲ `torn` is not read by halves, also where its first part lies below the watermark."""
    segments, txns = await older_folder(world)
    if cut_short:
        with pytest.raises(Crash):
            await world.repair(cut_short_at=cut_short)
    found = await world.repair()
    told = (world.data / "repairs.log").read_text()
    assert "are missing" in told
    assert f"{txns['torn']} was committed and is aborted everywhere" in told
    assert ("store", "fit again") in [(rule, text[:9]) for rule, text in found]
    assert [(await world.header(txns[name])).state for name in txns] == [COMMITTED, ABORTED, ABORTED]
    assert [text for rule, text in await world.check() if rule != "open_transactions_are_within_their_deadline"] == []
    _, client = await world.start()
    await read(client, segments[0], "whole", "plain")
    await read(client, segments[1], "whole", "plain")


async def test_c12_a_repair_shortens_the_pages_of_a_cursor_and_its_blocks_each_for_itself(world: World) -> None:
    """▲ A page names the first entry of its block: taken for it, it would be written over the block's own acks."""
    segments, _ = await older_folder(world)
    name = SegmentName.from_path(segments[0]).topic
    await world.cluster.create_subscription("sub", name)
    acks = CursorBlock(ledger_id=1, first_entry=0, acked="12", partial=[])
    page = CursorBlock(ledger_id=1, first_entry=0, acked="", partial=[(0, 4, "01"), (3, 4, "01")])
    gone = CursorBlock(ledger_id=1, first_entry=0, acked="", partial=[(4, 4, "01")])
    stored = {"1-0": acks, "1-0-1": page, "1-0-2": gone}
    at = {block: keys.cursor_block(segments[0], "sub", block) for block in stored}
    await world.store.commit(Commit(puts=tuple(Put(at[block], records.encode(one)) for block, one in stored.items())))
    await world.repair()
    _, found = await world.store.get_many([at[block] for block in stored])
    left = [None if one is None else records.decode(CursorBlock, one.value, key=one.key) for one in found]
    assert left == [
        msgspec.structs.replace(acks, acked="02"),
        msgspec.structs.replace(page, partial=[(0, 4, "01")]),
        None,
    ]


@pytest.mark.parametrize(("left", "expected"), [(True, ["one", "two"]), (False, [])], ids=["cut off", "gone"])
async def test_c12_a_closed_ledger_that_lost_entries_keeps_no_footer_that_covers_them(
    world: World, left: bool, expected: list[str]
) -> None:
    """▲ Nobody would serve the segment, and what is sent again would be taken for stored."""
    [segment] = await world.cluster.create_topic(segments=1)
    node, client = await world.start()
    producer = await client.producer(segment)
    for text in ("one", "two", "three"):
        await producer.send(text)
    await world.copy()
    await node.close()
    [file] = (world.data / "ledgers").rglob("1.ledger")
    if left:
        os.truncate(file, file.stat().st_size - 1)
    else:
        file.unlink()
    await world.repair()
    assert await world.check() == []
    _, client = await world.start()
    producer = await client.producer(segment)
    assert producer.last == len(expected) - 1
    await read(client, segment, *expected)


async def test_c12_where_etcd_stands_at_the_folder_s_mark_a_file_that_is_gone_is_lost_and_not_trimmed(
    world: World,
) -> None:
    """▲ Nothing was trimmed since then. Told as retention's work, the loss of all that stood in it would pass for
    normal."""
    [segment] = await world.cluster.create_topic(segments=1)
    node, client = await world.start()
    await (await client.producer(segment)).send("one")
    await node.close()
    await world.copy()
    mark, (revision, _) = StoreMark(world.data).read(), await world.store.get_many([keys.INCARNATION])
    assert mark is not None
    assert mark.revision == revision
    [file] = (world.data / "ledgers").rglob("1.ledger")
    file.unlink()
    told = [text for rule, text in await world.repair() if rule == "missing"]
    assert [text.startswith(f"{segment}: ledger 1 ") for text in told] == [True]


async def test_c12_what_was_counted_in_a_ledger_that_nobody_listed_as_closed_is_missing_too(world: World) -> None:
    """An owner that died right behind its fence has left a count; the watermark lags."""
    [segment] = await world.cluster.create_topic(segments=1)
    node, client = await world.start()
    producer = await client.producer(segment)
    txns = {name: await world.cluster.begin() for name in ("whole", "torn")}
    await producer.send("plain")
    for name, txn_id in txns.items():
        await producer.send(name, txn=txn_id)
        await world.cluster.commit(txn_id)
        if name == "whole":
            await world.copy()
    await node.crash()
    ledgers = FileLedgerStore(world.data)
    assert (await ledgers.fence(segment, 1)).entries == 3
    await ledgers.close()
    [file] = (world.data / "ledgers").rglob("1.ledger")
    os.truncate(file, file.stat().st_size - 1)
    await world.store.commit(Commit(deletes=(Delete(keys.watermark(segment)),)))
    await world.repair()
    assert [(await world.header(txn_id)).state for txn_id in txns.values()] == [COMMITTED, ABORTED]
    assert await world.check() == []
    _, client = await world.start()
    await read(client, segment, "plain", "whole")


async def test_c12_an_open_ledger_that_is_damaged_keeps_its_own_segment_alone(world: World) -> None:
    segments, txns = await older_folder(world)
    [file] = (world.data / "ledgers").rglob(f"{segments[1].rpartition('/')[2]}/1.ledger")
    intact = file.read_bytes()
    damaged = bytearray(intact)
    damaged[len(damaged) // 2] ^= 255
    file.write_bytes(damaged)
    found = await world.repair()
    assert [text for rule, text in found if "open ledger 1 is damaged" in text and segments[1] in text]
    assert (await world.header(txns["torn"])).state == ABORTED
    node, client = await world.start()
    await read(client, segments[0], "whole", "plain")
    with pytest.raises(DataCorrupt, match="damaged"):
        await node.broker.segment(segments[1])


async def aborted_in_a_later_sidecar(world: World) -> tuple[str, TxnId]:
    """An entry of an aborted transaction in ledger 1, which the sidecar of ledger 2 lists; the copy has neither."""
    [segment] = await world.cluster.create_topic(segments=1)
    node, client = await world.start()
    producer = await client.producer(segment)
    txn_id = await world.cluster.begin()
    await producer.send("aborted", txn=txn_id)
    await producer.send("plain")
    await world.copy()
    await node.close()
    node, client = await world.start()
    await (await client.producer(segment, name="another")).send("two")
    await world.cluster.end(txn_id, ABORTED)
    await world.cluster.wait_no_ops(txn_id)
    await node.close()
    node, _ = await world.start()
    await node.broker.segment(segment)
    await until_answer(
        lambda: world.store.get(keys.aborted(segment, txn_id)),
        lambda found: found is None,
        "no record of it",
        within_s=20.0,
    )
    await node.close()
    return segment, txn_id


@pytest.mark.parametrize("lost", ["the folder is older", "2.ledger", "2.sidecar"])
@pytest.mark.parametrize("collected", [False, True], ids=["", "collected"])
async def test_c12_what_a_lost_ledger_or_sidecar_had_listed_as_aborted_stays_so(
    world: World, lost: str, collected: bool
) -> None:
    """▲ Also what stands in older ledgers that are whole."""
    segment, txn_id = await aborted_in_a_later_sidecar(world)
    if collected:
        outcomes = read_outcomes(1, 0, None).with_finals([Collectable(txn_id.counter, False, 1)], NOW_MS)
        await world.store.commit(Commit(puts=(Put(outcomes.key, records.encode(outcomes.record())),)))
        await world.cluster.collect(txn_id)
    if lost.startswith("2."):
        [file] = (world.data / "ledgers").rglob(lost)
        file.unlink()
    else:
        world.put_back()
    ledgers = FileLedgerStore(world.data)
    assert await what_is_missing(world.store, ledgers, lambda _: None) is not None
    await world.repair()
    assert await what_is_missing(world.store, ledgers, lambda _: None) is None
    await ledgers.close()
    assert await world.check() == []
    _, client = await world.start()
    await read(client, segment, "plain", *(["two"] if lost == "2.sidecar" else []))


async def test_c12_where_nothing_tells_what_a_lost_sidecar_had_listed_nobody_serves(world: World) -> None:
    segment, txn_id = await aborted_in_a_later_sidecar(world)
    await world.cluster.collect(txn_id)
    world.put_back()
    found = await world.repair()
    assert [str(txn_id) in text for rule, text in found if "sidecars of ledgers 2 are lost" in text] == [True]
    node, _ = await world.start()
    with pytest.raises(DataCorrupt, match=r"sidecar of ledger 2 .* is missing"):
        await node.broker.segment(segment)


async def test_c12_a_sidecar_that_is_damaged_is_found_by_check_and_no_reason_to_repair(world: World) -> None:
    await aborted_in_a_later_sidecar(world)
    [file] = (world.data / "ledgers").rglob("2.sidecar")
    file.write_bytes(file.read_bytes()[:-1])
    ledgers = FileLedgerStore(world.data)
    assert await what_is_missing(world.store, ledgers, lambda _: None) is None
    await ledgers.close()
    assert "sidecars_are_whole" in [rule for rule, _ in await world.check()]


class TrimmingLedgers(FileLedgerStore):
    """The first ledger of a segment is trimmed as somebody looks at its file."""

    def __init__(self, world: World) -> None:
        super().__init__(world.data)
        self._world = world

    async def look_at(self, segment: str, ledger_id: int) -> Recovered | None:
        if ledger_id == 1:
            store, key = self._world.store, keys.ledger(segment)
            found = await store.get(key)
            assert found is not None
            record = records.decode(LedgerRecord, found.value, key=key)
            trimmed = msgspec.structs.replace(record, ledgers=record.ledgers[1:], trimmed_below=(2, 0))
            await store.commit(Commit(puts=(Put(key, records.encode(trimmed)),)))
            await self.delete(segment, 1)
        return await super().look_at(segment, ledger_id)


async def test_c12_what_is_trimmed_while_somebody_looks_is_not_missing(world: World) -> None:
    """▲ `check --repair` of a cluster that is at work would stop it, and abort all it has open."""
    [segment] = await world.cluster.create_topic(segments=1)
    for text in ("one", "two"):
        node, client = await world.start()
        await (await client.producer(segment)).send(text)
        await node.close()
    ledgers = TrimmingLedgers(world)
    assert await what_is_missing(world.store, ledgers, lambda _: None) is None
    [file] = (world.data / "ledgers").rglob("2.ledger")
    file.unlink()
    assert "lacks entries of 1 ledgers" in (await what_is_missing(world.store, ledgers, lambda _: None) or "")
    await ledgers.close()


async def test_c12_what_nothing_tells_any_more_is_said_and_stays(world: World) -> None:
    segments, txns = await older_folder(world)
    outcomes = read_outcomes(1, 0, None).with_finals(
        [Collectable(txns[name].counter, True, 1) for name in ("torn", "later")], NOW_MS
    )
    await world.store.commit(Commit(puts=(Put(outcomes.key, records.encode(outcomes.record())),)))
    for name in ("torn", "later"):
        await world.cluster.collect(txns[name])
    [told] = [text for rule, text in await world.repair() if rule == "unsure"]
    assert told.startswith("1 transactions were committed at about the time of the folder's last mark")
    assert told.endswith(f"STAY VISIBLE: {txns['torn']}")
    _, client = await world.start()
    await read(client, segments[0], "whole", "plain", "torn")


async def test_c12_a_ledger_whose_file_is_lost_is_told_and_what_was_in_it_dropped(world: World) -> None:
    segments, txns = await older_folder(world)
    [file] = (world.data / "ledgers").rglob(f"{segments[1].rpartition('/')[2]}/1.ledger")
    file.unlink()
    found = await world.repair()
    [told] = [text for rule, text in found if rule == "missing" and segments[1] in text]
    assert told.startswith(f"{segments[1]}: ledger 1 had at least ")
    assert "its file is not there" in told
    assert (await world.header(txns["torn"])).reason == REASON_LOST
    _, client = await world.start()
    await read(client, segments[0], "whole", "plain")
    await read(client, segments[1])
