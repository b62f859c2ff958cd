"""C12: below a watermark of free bytes nothing is admitted, and everything else goes on."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from segments.ledger import ledger_files, ledger_reserve
from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import DiskRoom, LedgerFailed, LedgerUnreadable, Recovered
from segments.ledger.ledger_reserve import Reserve
from segments.log.erasing import erase_segment
from segments.log.ledgers.retention import Retention
from segments.log.room import CLOSE_LOOK_S, EXHAUSTED_BYTES, LOOK_S, FreeSpace, watermark_of
from segments.owner.segment import Segment
from tests.segments.brokering import Cluster
from tests.segments.changing import controlling
from tests.segments.log.test_erasing import SEGMENT, furnish, names, own
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore.memory.memory_store import MemoryStore
from txnwire.errors import NotOwner, StoreFull
from txnwire.ids import TxnId

T = TypeVar("T")

MIB = 1024 * 1024
GIB = 1024 * MIB


class Disk(FileLedgerStore):
    """Real ledgers; how much is free, and which files find no room, is said by the test."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.free = 100 * GIB
        self.unreadable = False
        self.no_room_for: tuple[str, ...] = ()

    async def room(self) -> DiskRoom:
        if self.unreadable:
            raise LedgerUnreadable("the disk does not answer")
        return DiskRoom(self.free, 100 * GIB)

    async def run(self, job: Callable[[], T], what: str, *, discard: Callable[[T], None] | None = None) -> T:
        if any(what.endswith(suffix) for suffix in self.no_room_for):
            raise LedgerFailed(f"{what}: no space left on device")
        return await super().run(job, what, discard=discard)


class Looked:
    """What a broker looks at, alone."""

    def __init__(self, free: int, total: int = 100 * GIB) -> None:
        self.found: DiskRoom | LedgerFailed = DiskRoom(free, total)
        self.kept: list[int] = []
        self.keeps = True
        self.looks = 0

    async def room(self) -> DiskRoom:
        self.looks += 1
        if isinstance(self.found, LedgerFailed):
            raise self.found
        return self.found

    async def keep_reserve(self, size: int) -> None:
        if not self.keeps:
            raise LedgerFailed("no space left on device")
        self.kept.append(size)


def admits(room: FreeSpace) -> bool:
    try:
        room.check()
    except StoreFull as error:
        assert "min_free_bytes" in str(error)
        return False
    return True


async def watched(looked: Looked, in_flight: int = 0) -> FreeSpace:
    room = FreeSpace(looked, min_free_bytes=GIB, in_flight=lambda: in_flight)  # type: ignore[arg-type]
    await room.start()
    return room


@pytest.mark.parametrize(("total", "watermark"), [(100 * GIB, GIB), (20 * GIB, GIB), (64 * MIB, 64 * MIB // 20)])
def test_the_watermark_leaves_a_small_disk_of_use(total: int, watermark: int) -> None:
    assert watermark_of(GIB, total) == watermark


@virtual_time
async def test_nothing_is_admitted_below_the_watermark_and_all_of_it_again_with_a_quarter_more() -> None:
    looked = Looked(free=2 * GIB)
    room = await watched(looked)
    steps = [(GIB - 1, False), (GIB, False), (GIB * 5 // 4 - 1, False), (GIB * 5 // 4, True), (GIB, True)]
    assert admits(room)
    for free, admitted in steps:
        looked.found = DiskRoom(free, 100 * GIB)
        await asyncio.sleep(3.0)
        assert admits(room) is admitted, free
    assert room.free_bytes == GIB
    await room.close()


@virtual_time
async def test_what_is_admitted_between_two_looks_counts_and_so_does_what_is_in_flight() -> None:
    """Or a fast producer would be past the reserve before anybody looks."""
    looked = Looked(free=GIB + 1000)
    room = await watched(looked, in_flight=300)
    room.take(700)
    assert admits(room)
    room.take(1)
    assert not admits(room)
    await room.close()


@virtual_time
async def test_it_is_looked_at_once_where_a_write_has_failed_and_a_disk_that_does_not_answer_changes_nothing() -> None:
    looked = Looked(free=90 * GIB)
    room = await watched(looked)
    looked.found = DiskRoom(0, 100 * GIB)
    room.look()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not admits(room)
    looked.found = LedgerUnreadable("the disk does not answer")
    before = looked.looks
    await asyncio.sleep(5.0)
    assert looked.looks > before
    assert not admits(room)
    looked.found = DiskRoom(90 * GIB, 100 * GIB)
    await asyncio.sleep(3.0)
    assert admits(room)
    await room.close()


@pytest.mark.parametrize("unreadable", [True, False], ids=["unreadable", "no reserve"])
@virtual_time
async def test_a_disk_that_fails_at_first_keeps_no_broker_from_starting(unreadable: bool) -> None:
    looked = Looked(free=2 * GIB)
    looked.keeps = False
    found = looked.found
    if unreadable:
        looked.found = LedgerUnreadable("the disk does not answer")
    room = await watched(looked)
    assert admits(room)
    looked.found, looked.keeps = found, True
    await asyncio.sleep(2.0)
    assert looked.kept
    await room.close()


@virtual_time
async def test_the_reserve_is_kept_while_there_is_room_and_let_alone_while_there_is_none() -> None:
    looked = Looked(free=0)
    room = await watched(looked)
    await asyncio.sleep(5.0)
    assert looked.kept == []
    looked.found = DiskRoom(2 * GIB, 100 * GIB)
    await asyncio.sleep(2.0)
    assert looked.kept
    assert dict.fromkeys(looked.kept) == {GIB // 4: None}
    await room.close()


# ---- of a broker ----------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(memory_cluster: Cluster, tmp_path: Path) -> Disk:
    made = Disk(tmp_path)
    memory_cluster.make_ledgers = lambda _: made
    return made


async def test_c12_sends_are_refused_and_what_was_stored_is_read_and_told_again(
    memory_cluster: Cluster, disk: Disk
) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(segment)
    stored = await producer.send("stored")
    disk.free = 0
    await until(lambda: node.broker.full_disk() is not None)
    with pytest.raises(StoreFull, match="min_free_bytes"):
        await producer.send("refused")
    again = await producer.send("stored", sequence_id=0, previous=-1)
    assert again == stored, "an answer that was lost is told, not refused: the message would be sent anew"
    reader = await client.reader(segment)
    await reader.wait("stored")
    disk.free = 100 * GIB
    await until(lambda: node.broker.full_disk() is None)
    producer = await client.producer(segment)
    await producer.send("taken again")
    await reader.wait("stored", "taken again")


async def test_c12_a_checkpoint_without_room_costs_the_segment_nothing(memory_cluster: Cluster, disk: Disk) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=replace(cluster.settings, checkpoint_entries=2))
    producer = await (await cluster.connect(node)).producer(segment)
    await producer.send("first")
    served = node.broker.segments[segment]
    disk.no_room_for = (".footer",)
    with pytest.raises(LedgerFailed):
        await served.checkpoint()
    for number in range(5):
        await producer.send(f"{number}")
    assert node.broker.segments[segment] is served


ALL = Retention(bytes_kept=0, undrained=True)


async def rolled(cluster: Cluster, disk: Disk, ledgers: int) -> tuple[str, Segment]:
    """A segment of so many closed ledgers of one entry each, in the first of them an aborted one."""
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=replace(cluster.settings, housekeeping_s=3600.0))
    producer = await (await cluster.connect(node)).producer(segment)
    txn = await cluster.begin()
    await producer.send("aborted", txn=txn)
    await cluster.abort(txn)
    await cluster.wait_no_ops(txn)
    served = node.broker.segments[segment]
    for number in range(ledgers):
        await producer.send(f"{number}")
        await served.roll()
    await until(lambda: served.buffer.watermark == served.last_confirmed)
    return segment, served


async def test_c12_a_sidecar_without_room_keeps_nothing_from_being_trimmed(memory_cluster: Cluster, disk: Disk) -> None:
    disk.no_room_for = (".sidecar",)
    _, served = await rolled(memory_cluster, disk, 3)
    await served.keep(ALL)
    assert [info.ledger_id for info in served.ledgers.record.ledgers] == [4]
    assert not served.buffer.is_aborted(TxnId(1, 1), -1), "its record went with its data"


async def test_c12_without_room_for_a_footer_all_goes_but_the_newest_that_stands(
    memory_cluster: Cluster, disk: Disk
) -> None:
    """What is known of producers stands there: without it an entry that is sent again would be stored twice."""
    cluster = memory_cluster
    segment, served = await rolled(cluster, disk, 4)
    disk.no_room_for = (".footer",)
    await served.keep(ALL)
    assert [info.ledger_id for info in served.ledgers.record.ledgers] == [4, 5]
    with pytest.raises(LedgerFailed):
        await served.keep(ALL)
    assert cluster.nodes[0].broker.segments[segment] is served
    disk.no_room_for = ()
    client = await cluster.connect(cluster.nodes[0])
    assert (await client.producer(segment)).last == 4
    await served.keep(ALL)
    assert [info.ledger_id for info in served.ledgers.record.ledgers] == [5]


async def test_c12_without_room_for_a_footer_a_sealed_segment_keeps_its_last_ledger_alone(
    memory_cluster: Cluster, disk: Disk
) -> None:
    """The older ones make room for the footer that the last one waits for."""
    cluster = memory_cluster
    segment, served = await rolled(cluster, disk, 3)
    await (await (await cluster.connect(cluster.nodes[0])).producer(segment, "q")).send("last")
    async with controlling(cluster) as controller:
        await controller.split(segment)
    await until(lambda: served.ledgers.ended and served.buffer.watermark == served.last_confirmed)
    disk.no_room_for = (".footer",)
    await served.keep(Retention(ms=-1))
    assert [info.ledger_id for info in served.ledgers.record.ledgers] == [4]
    disk.no_room_for = ()
    await served.keep(Retention(ms=-1))
    assert served.ledgers.entries == 0


async def test_c12_nothing_is_rolled_where_no_room_is_left_for_the_next_ledger(
    memory_cluster: Cluster, disk: Disk
) -> None:
    """Who tried would lose the open ledger, and with it the owner that can still be read from."""
    [segment] = await memory_cluster.create_topic()
    settings = replace(memory_cluster.settings, housekeeping_s=3600.0, roll_least_bytes=1)
    node = await memory_cluster.start(settings=settings)
    await (await (await memory_cluster.connect(node)).producer(segment)).send("x")
    served = node.broker.segments[segment]
    disk.free, disk.no_room_for = 0, (".footer", ".ledger")
    await until(lambda: node.broker.full_disk() is not None)
    await served.keep(ALL)
    assert node.broker.segments[segment] is served
    disk.free, disk.no_room_for = 100 * GIB, ()
    await until(lambda: node.broker.full_disk() is None)
    await served.keep(ALL)
    assert [info.ledger_id for info in served.ledgers.record.ledgers] == [2]


async def test_c12_where_no_fence_has_room_a_segment_that_is_erased_gives_its_closed_ledgers_first(
    memory_store: MemoryStore, tmp_path: Path
) -> None:
    disk = Disk(tmp_path)
    await furnish(memory_store, disk)
    fence = disk.fence

    async def fence_where_there_is_room(segment: str, ledger_id: int) -> Recovered:
        if any(one < ledger_id for one in await disk.present(segment)):
            raise LedgerFailed("no space left on device")
        return await fence(segment, ledger_id)

    disk.fence = fence_where_there_is_room  # type: ignore[method-assign]
    await erase_segment(memory_store, disk, SEGMENT, await own(memory_store))
    assert await names(memory_store) == []
    await disk.close()


# ---- the reserve ----------------------------------------------------------------------------------------------------


def test_a_job_without_room_is_done_with_the_reserve_once(tmp_path: Path) -> None:
    reserve, target = Reserve(tmp_path), tmp_path / "1.fence"
    tries: list[bool] = []

    def job() -> None:
        tries.append((tmp_path / "reserve").exists())
        if tries[-1]:
            raise OSError(errno.ENOSPC, "no space left on device")
        ledger_files.replace_file(target, b"fence")

    reserve.keep(MIB)
    reserve.backed(job)()
    assert (tries, target.read_bytes()) == ([True, False], b"fence")
    with pytest.raises(OSError, match="no space"):
        reserve.backed(partial(_fail, errno.ENOSPC))()
    reserve.keep(MIB)
    with pytest.raises(OSError, match="broken"):
        reserve.backed(partial(_fail, errno.EIO))()
    assert (tmp_path / "reserve").stat().st_size == MIB, "it is for want of room alone"


def test_jobs_that_find_no_room_at_once_are_all_done_with_the_one_reserve(tmp_path: Path) -> None:
    """▲ A broker takes over the segments of a dead one together: all but the first would be given up again, and a roll
    would cost its segment."""
    reserve, other_broker = Reserve(tmp_path), Reserve(tmp_path)
    reserve.keep(MIB)
    tries: list[str] = []

    def job(name: str, meanwhile: Callable[[], None]) -> str:
        tries.append(name)
        if tries.count(name) == 1:
            meanwhile()
            raise OSError(errno.ENOSPC, "no space left on device")
        return name

    def first() -> None:
        assert other_broker.backed(partial(job, "first", lambda: None))() == "first"

    assert reserve.backed(partial(job, "second", first))() == "second"
    assert tries == ["second", "first", "first", "second"]


def _fail(number: int) -> None:
    raise OSError(number, "no space" if number == errno.ENOSPC else "broken")


def test_the_reserve_really_takes_room_and_no_folder_is_made_for_it(tmp_path: Path) -> None:
    Reserve(tmp_path).keep(MIB)
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= MIB
    with pytest.raises(FileNotFoundError):
        Reserve(tmp_path / "unmounted").keep(MIB)


def test_c12_a_disk_whose_quota_is_used_up_has_no_room_either(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path)
    reserve.keep(MIB)
    with pytest.raises(OSError, match="broken"):
        reserve.backed(partial(_fail, errno.EDQUOT))()
    assert not (tmp_path / "reserve").exists(), "it was given up"


@pytest.mark.parametrize("room", [True, False])
def test_c12_a_reserve_takes_no_more_than_it_should_and_nothing_where_it_is_half_made(
    room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_room(fd: int, offset: int, size: int) -> None:
        os.pwrite(fd, b"half made", offset)
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(ledger_reserve, "MOST_BYTES", MIB)
    files = len(os.listdir("/proc/self/fd"))
    if room:
        Reserve(tmp_path).keep(4 * MIB)
        assert (tmp_path / "reserve").stat().st_size == MIB
    else:
        monkeypatch.setattr(os, "posix_fallocate", out_of_room)
        with pytest.raises(OSError, match="no space"):
            Reserve(tmp_path).keep(MIB)
        assert not (tmp_path / "reserve").exists()
    assert len(os.listdir("/proc/self/fd")) == files


@virtual_time
async def test_c12_what_is_too_little_for_the_next_ledger_counts_as_nothing() -> None:
    looked = Looked(EXHAUSTED_BYTES)
    room = await watched(looked)
    assert not room.exhausted
    looked.found = DiskRoom(EXHAUSTED_BYTES - 1, 100 * GIB)
    room.look()
    await asyncio.sleep(1.0)
    assert room.exhausted
    await room.close()


@pytest.mark.parametrize("why", ["a write has failed", "too much was admitted"])
@virtual_time
async def test_c12_the_disk_is_looked_at_once_more_for_what_happens_during_a_look(why: str) -> None:
    looked = Looked(2 * GIB + 10)
    room = await watched(looked)
    answered = asyncio.Event()
    look = looked.room

    async def slow() -> DiskRoom:
        await answered.wait()
        return await look()

    looked.room = slow  # type: ignore[method-assign]
    room.look()
    await asyncio.sleep(0.01)
    if why == "a write has failed":
        room.look()
    else:
        room.take(GIB + 11)
    before = looked.looks
    answered.set()
    await asyncio.sleep(2 * CLOSE_LOOK_S)
    assert looked.looks == before + 2
    await room.close()


@virtual_time
async def test_c12_sends_are_taken_again_soon_though_the_last_look_was_a_moment_ago() -> None:
    """It was full by what had been admitted, and is not by what is free."""
    looked = Looked(3 * GIB)
    room = await watched(looked)
    room.take(2 * GIB + 1)
    assert not admits(room)
    await asyncio.sleep(2 * CLOSE_LOOK_S)
    assert admits(room)
    await room.close()


async def test_c12_a_broker_whose_write_has_failed_looks_at_its_disk_at_once(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the next regular look: meanwhile it would take sends in, and lose the segment anew with each."""
    monkeypatch.setattr("segments.log.room.LOOK_S", 3600.0)
    memory_cluster.make_ledgers = Disk
    [path] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    producer = await (await memory_cluster.connect(node)).producer(path)
    await producer.send("x")
    disk = node.ledgers
    assert isinstance(disk, Disk)
    disk.free = 0
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", partial(_fail, errno.ENOSPC))
        with pytest.raises(NotOwner):
            await producer.send("y")
    await until(lambda: node.broker.full_disk() is not None)


@pytest.mark.parametrize(("free", "most"), [(2 * GIB - 1, 2 * CLOSE_LOOK_S), (2 * GIB, LOOK_S + CLOSE_LOOK_S)])
@virtual_time
async def test_a_disk_is_looked_at_more_often_the_closer_it_is_to_the_watermark(free: int, most: float) -> None:
    """What others write between two looks is not counted."""
    looked = Looked(free)
    room = await watched(looked)
    await asyncio.sleep(most * 9.5)
    assert looked.looks == 10
    await room.close()
