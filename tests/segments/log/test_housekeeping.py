"""Retention at work: aborted records move into sidecars, ledgers are trimmed, and whoever stops halfway is followed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.log.ledgers.retention import Retention
from tests.segments.brokering import TOPIC, Client, Cluster
from tests.segments.changing import controlling
from tests.segments.log.small_logs import (
    ONE_ENTRY_EACH,
    aborted_in_store,
    expected,
    files,
    ledger_list,
    read_to_sentinel,
    set_policies,
    settle,
    write,
)
from tests.segments.log.test_room import Disk
from tests.segments.owner.seals import begin
from tests.segments.stopping import Steps, StoppingLedgers, StoppingStore
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import TopicRecord
from txnstore.store import Commit, MetadataStore, Put
from txnwire.clock import SystemClock
from txnwire.errors import DataCorrupt, InvalidArgument, TxnError
from txnwire.ids import EARLIEST, Position
from txnwire.proto import txn_pb2 as pb

QUIET = replace(ONE_ENTRY_EACH, ledger_roll_bytes=1 << 30, housekeeping_s=3600.0)


async def test_r3_aborted_records_leave_etcd_for_sidecars_and_are_aborted_all_the_same(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=ONE_ENTRY_EACH)
    client = await cluster.connect(node)
    await write(cluster, client, segment, 4)

    async def moved() -> bool:
        return await aborted_in_store(cluster, segment) == 0

    await until(moved, what="every aborted record in a sidecar")
    assert files(cluster, segment, "sidecar")
    listed = {info.ledger_id: info.aborted for info in (await ledger_list(cluster, segment)).ledgers}
    assert [ledger_id for ledger_id, aborted in listed.items() if aborted] == files(cluster, segment, "sidecar")
    assert sum(listed.values()) == 4
    assert node.broker.segments[segment].statistics().keeping.records_moved == 4
    assert await read_to_sentinel(client, segment, "s1") == expected(4)
    await node.crash()
    node = await cluster.start(settings=ONE_ENTRY_EACH)
    client = await cluster.connect(node)
    assert await read_to_sentinel(client, segment, "s2") == expected(4)
    assert await aborted_in_store(cluster, segment) == 0


async def test_r3_each_loser_of_a_transaction_leaves_etcd_for_the_sidecar_and_goes_with_its_ledger(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where their records do not go in one commit: one that is left behind would be nobody's to delete."""
    monkeypatch.setattr("segments.log.housekeeping.RECORDS_AT_ONCE", 1)
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    client = await cluster.connect(node)
    producer, txn = await client.producer(segment), await cluster.begin()
    for writer in (1, 2, 3):
        await producer.send(f"of {writer}", txn=txn, writer=writer)
    await cluster.commit(txn, writers=["1"])
    await cluster.wait_no_ops(txn)
    assert await aborted_in_store(cluster, segment) == 2
    served = node.broker.segments[segment]
    await served.roll()
    await served.keep(Retention())
    assert await aborted_in_store(cluster, segment) == 0
    assert served.statistics().keeping.records_moved == 2
    assert await read_to_sentinel(client, segment, "s1") == ["of 1"]
    await node.crash()
    node = await cluster.start(settings=QUIET)
    client = await cluster.connect(node)
    assert await read_to_sentinel(client, segment, "s2") == ["of 1"]
    served = node.broker.segments[segment]
    await served.keep(Retention(ms=1))
    assert served.buffer.aborted_records() == {}


async def test_r3_a_record_that_no_sidecar_holds_stays_in_etcd_as_the_ledger_before_its_own_is_trimmed(
    memory_cluster: Cluster,
) -> None:
    """Headers collected, no room for sidecars: the records in etcd are all that a new owner knows of the aborts."""
    cluster = memory_cluster
    cluster.make_ledgers = Disk
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    node.ledgers.no_room_for = (".sidecar",)
    producer = await (await cluster.connect(node)).producer(segment)
    served = node.broker.segments[segment]
    for ledger_id in (1, 2):
        txn = await cluster.begin()
        await producer.send(f"aborted in {ledger_id}", txn=txn)
        await cluster.abort(txn)
        await cluster.collect(txn)
        await producer.send(f"plain in {ledger_id}")
        await served.roll()
    await until(lambda: served.buffer.watermark == served.last_confirmed)
    assert await aborted_in_store(cluster, segment) == 2
    await served.keep(Retention(bytes_kept=served.ledgers.record.ledgers[1].bytes))
    assert [info.ledger_id for info in (await ledger_list(cluster, segment)).ledgers] == [2, 3]
    found = (await cluster.store.range(prefix := keys.aborted_records(segment), keys.prefix_end(prefix))).records
    assert [keys.aborted_parts(one.key) for one in found] == [(txn, None)]
    await node.crash()
    client = await cluster.connect(await cluster.start(settings=QUIET))
    assert await read_to_sentinel(client, segment, "s") == ["plain in 2"]


async def test_no_sidecar_beside_a_ledger_that_is_not_decided(memory_cluster: Cluster) -> None:
    """▲ It is immutable: what is aborted later would find no room in it, and stay in etcd."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    served_by = await cluster.connect(node)
    producer = await served_by.producer(segment)
    still_open, aborted = await cluster.begin(), await cluster.begin()
    await producer.send("open", txn=still_open)
    await producer.send("aborted", txn=aborted)
    await cluster.abort(aborted)
    await cluster.wait_no_ops(aborted)
    served = node.broker.segments[segment]
    await served.roll()
    await served.keep(Retention())
    assert files(cluster, segment, "sidecar") == []
    assert await aborted_in_store(cluster, segment) == 1
    await cluster.abort(still_open)
    await cluster.wait_no_ops(still_open)

    async def moved() -> bool:
        await served.keep(Retention())
        return await aborted_in_store(cluster, segment) == 0

    await until(moved, what="both records in the sidecar")
    assert len(files(cluster, segment, "sidecar")) == 1
    await node.crash()
    again = await cluster.connect(await cluster.start(settings=QUIET))
    assert await read_to_sentinel(again, segment, "s") == []


@pytest.mark.parametrize("damage", ["gone", "flipped"])
async def test_a_sidecar_that_is_listed_and_missing_or_damaged_is_corruption(
    memory_cluster: Cluster, damage: str
) -> None:
    """▲ Its records are gone from etcd: served without it, what was aborted would be read as committed."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=ONE_ENTRY_EACH)
    client = await cluster.connect(node)
    await write(cluster, client, segment, 1)

    async def moved() -> bool:
        return await aborted_in_store(cluster, segment) == 0

    await until(moved, what="the aborted record in a sidecar")
    await node.crash()
    [path] = (cluster.data_dir / "ledgers" / segment).glob("*.sidecar")
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-6] + b"000000")
    client = await cluster.connect(await cluster.start(settings=ONE_ENTRY_EACH))
    with pytest.raises(DataCorrupt, match="sidecar"):
        await client.reader(segment)


async def test_many_aborts_close_the_open_ledger_early(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    settings = replace(ONE_ENTRY_EACH, ledger_roll_bytes=1 << 30, aborted_in_store=5)
    client = await cluster.connect(await cluster.start(settings=settings))
    await write(cluster, client, segment, 8)

    async def bounded() -> bool:
        return await aborted_in_store(cluster, segment) <= 5

    await until(bounded, what="few aborted records in etcd")
    assert len((await ledger_list(cluster, segment)).ledgers) > 1
    assert await read_to_sentinel(client, segment, "s") == expected(8)


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("stop_behind", [None, 0, 1, 2, 3])
async def test_all_of_a_sealed_segment_is_trimmed_and_its_producers_are_known(
    memory_etcd: MemoryEtcd, memory_store: MemoryStore, tmp_path: Path, stop_behind: int | None, silent: bool
) -> None:
    """▲ L7: they may still ask what of theirs is stored, whoever owns it by then. Steps: the footer, the list, the
    trim, the file."""
    armed = Armed()

    async def make_store() -> MetadataStore:
        return StoppingStore(memory_etcd, armed.steps, counts=armed.counts)

    cluster = Cluster(make_store, memory_store, tmp_path, QUIET)
    cluster.make_ledgers = lambda data_dir: StoppingLedgers(data_dir, armed.steps)
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(parent, "p", 4)
    for number in range(3):
        await producer.send(f"old {number}")
    async with controlling(cluster) as controller:
        await controller.split(parent)
    served = node.broker.segments[parent]
    await until(lambda: served.ledgers.ended and served.buffer.watermark == served.last_confirmed)
    if stop_behind is not None:
        armed.steps.left, armed.steps.silent = armed.steps.taken + stop_behind, silent
    with suppress(TxnError):
        await served.keep(Retention(ms=-1))
    await node.crash()
    armed.steps = Steps()
    node = await cluster.start()
    await until(lambda: parent in node.broker.segments)
    served = node.broker.segments[parent]
    await until(lambda: served.ledgers.ended)
    assert served.last_sequence_id("p", 4) == 2
    await served.keep(Retention(ms=-1))
    assert served.ledgers.entries == 0
    assert files(cluster, parent) == []
    record = await ledger_list(cluster, parent)
    assert [info.closed_length for info in record.ledgers] == [0]
    await served.keep(Retention(ms=-1))
    await node.close()
    node = await cluster.start()
    await until(lambda: parent in node.broker.segments)
    assert node.broker.segments[parent].last_sequence_id("p", 4) == 2
    reader = await (await cluster.connect(node)).reader(parent)
    await until(lambda: reader.ended == "sealed")
    assert reader.values == []
    await cluster.close()


class LaterClock(SystemClock):
    later_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.later_ms


async def test_l7_what_is_sealed_and_may_yet_be_opened_again_keeps_its_footer(memory_cluster: Cluster) -> None:
    """▲ Of a seal that the layout does not have yet nothing is trimmed, whatever the wall clock says: its footer is the
    only one, and a producer that was told "nothing" would store what is stored once more."""
    cluster = memory_cluster
    clock = cluster.clock = LaterClock()
    [parent] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    await (await (await cluster.connect(node)).producer(parent, "p", 4)).send("stored")
    served = node.broker.segments[parent]
    await served.sealing.seal(await begin(cluster, parent))
    await until(lambda: served.buffer.watermark == served.last_confirmed)
    clock.later_ms = int(QUIET.producer_idle_s * 2000)
    await served.keep(Retention(ms=1))
    await node.crash()
    node = await cluster.start(settings=QUIET)
    await until(lambda: parent in node.broker.segments)
    assert node.broker.segments[parent].last_sequence_id("p", 4) == 0


async def test_l7_a_resend_is_known_after_everything_before_it_was_trimmed_and_two_crashes(
    memory_cluster: Cluster,
) -> None:
    """▲ The newest footer never goes without another: what is known of producers outlives their messages."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    settings = replace(ONE_ENTRY_EACH, housekeeping_s=0.01)
    node = await cluster.start(settings=settings)
    client = await cluster.connect(node)
    producer = await client.producer(segment, "p", 7)
    sent = await producer.send("once")
    await set_policies(cluster, retention_ms=1)
    await until(lambda: files(cluster, segment) and files(cluster, segment)[0] > sent.ledger_id)
    for _ in range(3):
        await node.crash()
        node = await cluster.start(settings=settings)
        client = await cluster.connect(node)
        again = await client.producer(segment, "p", 7)
        assert again.last == 0
        assert await again.send("once", sequence_id=0, previous=-1) == sent


class Armed:
    """Counts the writes of housekeeping, once it is told to begin."""

    def __init__(self) -> None:
        self.steps = Steps()

    def counts(self, commit: Commit) -> bool:
        return any(put.key.startswith(keys.LEDGER) for put in commit.puts) or any(
            b"/aborted/" in delete.key for delete in commit.deletes
        )


@pytest.mark.parametrize("silent", [False, True], ids=["lost", "landed"])
@pytest.mark.parametrize("trimming", [False, True], ids=["sidecars", "trim"])
@pytest.mark.parametrize("stop_behind", range(11))
async def test_a_successor_goes_on_behind_any_step(
    memory_etcd: MemoryEtcd, memory_store: MemoryStore, tmp_path: Path, stop_behind: int, trimming: bool, silent: bool
) -> None:
    """Steps: the roll, the sidecar, its listing, the records' deletion; the checkpoint, the trim, each file's deletion,
    the end of the trim."""
    armed = Armed()

    async def make_store() -> MetadataStore:
        return StoppingStore(memory_etcd, armed.steps, counts=armed.counts)

    cluster = Cluster(make_store, memory_store, tmp_path, QUIET)
    cluster.make_ledgers = lambda data_dir: StoppingLedgers(data_dir, armed.steps)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    await write(cluster, client, segment, 2)
    armed.steps.left, armed.steps.silent = armed.steps.taken + stop_behind, silent
    served = node.broker.segments[segment]
    with suppress(TxnError):
        await served.roll()
        await served.keep(Retention(ms=-1) if trimming else Retention())
    await node.crash()
    armed.steps = Steps()
    client = await cluster.connect(await cluster.start())
    values = await read_to_sentinel(client, segment, "s")
    assert values in ((expected(2), []) if trimming else (expected(2),))

    async def finished() -> bool:
        listed = {info.ledger_id: info.closed_length for info in (await ledger_list(cluster, segment)).ledgers}
        missing = [ledger_id for ledger_id in listed if ledger_id not in files(cluster, segment)]
        if any(listed[ledger_id] != 0 for ledger_id in missing):  # an empty one may never have been created
            return False
        return (
            all(ledger_id in listed for ledger_id in files(cluster, segment))
            and await aborted_in_store(cluster, segment) == 0
        )

    await until(finished, what=f"what was stopped behind step {stop_behind} is finished")
    await cluster.close()


async def snapshot_reader(client: Client, segment: str, *, after: Position | None, end: Position, permits: int) -> Any:
    """As a client reads from one snapshot to another: behind a whole entry, or from the earliest."""
    start = pb.Start(earliest=True)
    if after is not None:
        start = pb.Start(segment=segment, ledger_id=after[0], entry_id=after[1], index=0xFFFF_FFFF, after=True)
    return await client.reader(segment, start=start, end=end, isolation=pb.ISOLATION_SNAPSHOT, permits=permits)


async def test_a_read_between_snapshots_says_what_it_has_missed_and_nothing_else_is_refused(
    memory_cluster: Cluster,
) -> None:
    """Never a part of it: neither at the beginning nor in mid-read, and also after a restart."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(node := await cluster.start(settings=ONE_ENTRY_EACH))
    producer = await client.producer(segment)
    places = [await producer.send(f"{number}") for number in range(6)]
    slow = await snapshot_reader(client, segment, after=places[0], end=places[5], permits=1)
    await slow.wait("1")
    await set_policies(cluster, retention_ms=1)
    served = node.broker.segments[segment]
    await until(lambda: served.ledgers.trimmed_through == places[5], what="all is trimmed")
    await set_policies(cluster)
    places += [await producer.send(f"{number}") for number in range(6, 8)]
    slow.flow(100)
    await until(lambda: slow.closed is not None)
    assert "trimmed" in str(slow.closed)
    assert slow.values == ["1"]
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="trimmed"):
            await snapshot_reader(client, segment, after=places[4], end=places[7], permits=100)
        whole = await snapshot_reader(client, segment, after=places[5], end=places[7], permits=100)
        await whole.wait("6", "7")
        kept = await snapshot_reader(client, segment, after=None, end=places[7], permits=100)
        await kept.wait("6", "7")
        with pytest.raises(InvalidArgument, match="trimmed"):  # the older snapshot found nothing in it yet
            await snapshot_reader(client, segment, after=EARLIEST, end=places[7], permits=100)
        await node.close()
        client = await cluster.connect(node := await cluster.start(settings=ONE_ENTRY_EACH))


class SlowSidecars(FileLedgerStore):
    """Whose sidecars wait for `go_on`."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.waiting = 0
        self.go_on = asyncio.Event()

    async def write_sidecar(self, segment: str, ledger_id: int, sidecar: bytes) -> bytes:
        self.waiting += 1
        await self.go_on.wait()
        return await super().write_sidecar(segment, ledger_id, sidecar)


async def test_s8_a_round_that_is_under_way_as_its_segment_goes_leaves_no_sidecar_behind(
    memory_cluster: Cluster,
) -> None:
    """▲ What erases waits for it: files know no epochs (simulation, over many layout changes)."""
    cluster = memory_cluster
    made: list[SlowSidecars] = []

    def make(data_dir: Path) -> SlowSidecars:
        made.append(SlowSidecars(data_dir))
        return made[-1]

    cluster.make_ledgers = make
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    await write(cluster, await cluster.connect(node), segment, 1)
    served = node.broker.segments[segment]
    await served.roll()
    await until(lambda: served.buffer.watermark == served.last_confirmed)
    keeping = asyncio.ensure_future(served.keep(Retention()))
    await until(lambda: sum(one.waiting for one in made))
    found = await cluster.store.get(keys.topic(TOPIC.path))
    assert found is not None
    marked = msgspec.structs.replace(records.decode(TopicRecord, found.value, key=found.key), deleting_ms=5)
    await cluster.store.commit(Commit(puts=(Put(found.key, records.encode(marked)),)))
    await until(lambda: segment not in node.broker.segments)
    await settle(40)  # time enough to erase all
    for one in made:
        one.go_on.set()
    with suppress(TxnError):
        await keeping

    async def erased() -> bool:
        return await cluster.store.get(keys.ledger(segment)) is None

    await until(erased, what="it is erased")
    assert not (cluster.data_dir / "ledgers" / segment).exists()
