"""`FileLedgerStore`: the contract, and what only files have: damage, torn tails, full disks, failing syncs."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from segments.ledger import ledger_files
from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import LedgerFailed, LedgerFenced, LedgerUnreadable
from tests.segments.ledger_store_contract import ALL, SEGMENT, LedgerStoreContract, create, filled
from txnwire.errors import DataCorrupt, StoreUnavailable, from_wire, to_wire


@pytest.fixture
async def ledgers(tmp_path: Path) -> AsyncIterator[FileLedgerStore]:
    store = FileLedgerStore(tmp_path)
    yield store
    await store.close()


@pytest.fixture
async def successor(tmp_path: Path) -> AsyncIterator[FileLedgerStore]:
    store = FileLedgerStore(tmp_path)
    yield store
    await store.close()


class HeldSync:
    """The next fdatasync waits in its thread."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._reached, self._ended = threading.Event(), threading.Event()

    def arm(self) -> None:
        real = os.fdatasync

        def held(fd: int) -> None:
            self._patch.setattr(os, "fdatasync", real)
            self._reached.set()
            self._ended.wait(30.0)
            real(fd)

        self._patch.setattr(os, "fdatasync", held)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, 30.0)

    def end(self) -> None:
        self._ended.set()


@pytest.fixture
def pause(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldSync]:
    held = HeldSync(monkeypatch)
    yield held
    held.end()


class MovedFolder:
    def __init__(self, root: Path) -> None:
        self._here, self._away = root / "ledgers", root / "moved"

    def go(self) -> None:
        self._here.rename(self._away)

    def come_back(self) -> None:
        assert not self._here.exists()  # nothing was made in its place
        self._away.rename(self._here)


@pytest.fixture
def place(tmp_path: Path) -> MovedFolder:
    return MovedFolder(tmp_path)


class BrokenDisk:
    """Neither syncs nor takes a file."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._real = (os.fdatasync, os.link)

    def begin(self) -> None:
        self._patch.setattr(os, "fdatasync", lambda _: _fail_sync())
        self._patch.setattr(os, "link", lambda *_: _fail_sync())

    def end(self) -> None:
        self._patch.setattr(os, "fdatasync", self._real[0])
        self._patch.setattr(os, "link", self._real[1])


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> BrokenDisk:
    return BrokenDisk(monkeypatch)


class TestContract(LedgerStoreContract):
    pass


def ledger_file(root: Path) -> Path:
    return ledger_files.paths_of(root / "ledgers", SEGMENT, 1).ledger


def unfence(path: Path) -> None:
    for suffix in (".fence", ".count"):
        path.with_suffix(suffix).unlink(missing_ok=True)


def flip(path: Path, offset: int) -> None:
    """One bit, another one in the next byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << offset % 8
    path.write_bytes(data)


async def grouped(store: FileLedgerStore, *groups: list[bytes]) -> list[int]:
    """One sync per group; returns the file offset at which each group begins, and the end."""
    writer = await create(store)
    path = ledger_file(store._root.parent)
    starts = [path.stat().st_size]
    for group in groups:
        for entry in group:
            writer.append(entry)
        await writer.sync()
        starts.append(path.stat().st_size)
    writer.abandon()
    return starts


THREE = ([b"a" * 700, b"b"], [b"c" * 900], [b"d" * 300])


async def test_files_stand_where_the_layout_says(ledgers: FileLedgerStore, tmp_path: Path) -> None:
    await (await filled(ledgers, 1)).close(b"f")
    await ledgers.fence(SEGMENT, 1)
    folder = tmp_path / "ledgers" / "public" / "default" / "orders" / "0000-7fff-3"
    assert sorted(path.name for path in folder.iterdir()) == [
        "1.count", "1.fence", "1.footer", "1.ledger",
    ]  # fmt: skip


async def test_l5_every_flip_below_an_acked_entry_names_file_and_offset(
    ledgers: FileLedgerStore, successor: FileLedgerStore, tmp_path: Path
) -> None:
    """Each bit of a small file: `test_ledger_format.py`."""
    starts = await grouped(ledgers, *THREE)
    path = ledger_file(tmp_path)
    whole = path.read_bytes()
    for offset in range(0, starts[2], 7):
        flip(path, offset)
        with pytest.raises(DataCorrupt, match=r"1\.ledger.*offset \d+"):
            await successor.fence(SEGMENT, 1)
        path.write_bytes(whole)
    assert (await successor.fence(SEGMENT, 1)).entries == 4


async def test_r5_a_bit_flip_in_the_last_group_is_told_from_a_torn_one(
    ledgers: FileLedgerStore, successor: FileLedgerStore, tmp_path: Path
) -> None:
    """The last group was written whole and may have been acked: it is not cut off silently."""
    starts = await grouped(ledgers, *THREE)
    path = ledger_file(tmp_path)
    whole = path.read_bytes()
    for offset in range(starts[2], starts[3], 5):
        flip(path, offset)
        with pytest.raises(DataCorrupt, match=rf"1\.ledger: offset {starts[2]}: .* entry 3"):
            await successor.fence(SEGMENT, 1)
        path.write_bytes(whole)


async def test_a_torn_tail_is_cut_at_the_last_whole_group(
    ledgers: FileLedgerStore, successor: FileLedgerStore, tmp_path: Path
) -> None:
    starts = await grouped(ledgers, *THREE)
    path = ledger_file(tmp_path)
    whole = path.read_bytes()
    for size, entries in [
        (starts[3] - 1, 3),
        (starts[2] + 1, 3),
        (starts[2] + 28, 3),
        (starts[2], 3),
        (starts[1] + 500, 2),
    ]:
        path.write_bytes(whole[:size])
        unfence(path)
        assert (await successor.fence(SEGMENT, 1)).entries == entries
        assert path.read_bytes() == whole[:size], "nothing is written to a foreign ledger"


async def test_sectors_that_never_reached_the_disk_are_a_torn_tail(
    ledgers: FileLedgerStore, successor: FileLedgerStore, tmp_path: Path
) -> None:
    """Unsynced sectors arrive in any order: zeros before whole bytes, also before a whole later group."""
    starts = await grouped(ledgers, [b"a" * 700], [b"b" * 2000, b"c" * 900])
    path = ledger_file(tmp_path)
    whole = path.read_bytes()
    first_sector = starts[1] // 512 * 512
    for lost in range(first_sector, starts[2], 512):
        torn = bytearray(whole)
        begin, end = max(lost, starts[1]), min(lost + 512, starts[2])
        torn[begin:end] = bytes(end - begin)
        path.write_bytes(torn)
        unfence(path)
        assert (await successor.fence(SEGMENT, 1)).entries == 1


async def test_lost_sectors_below_an_acked_entry_are_corruption(
    ledgers: FileLedgerStore, successor: FileLedgerStore, tmp_path: Path
) -> None:
    starts = await grouped(ledgers, [b"a" * 2000], [b"b" * 2000], [b"c"])
    path = ledger_file(tmp_path)
    torn = bytearray(path.read_bytes())
    torn[starts[0] : starts[1]] = bytes(starts[1] - starts[0])
    path.write_bytes(torn)
    with pytest.raises(DataCorrupt, match=rf"offset {starts[0]}: .*acknowledged.* offset {starts[1]}"):
        await successor.fence(SEGMENT, 1)


@pytest.mark.parametrize("size", [0, 3, 10, 30, 60])
async def test_a_truncated_header_is_an_error(
    ledgers: FileLedgerStore, successor: FileLedgerStore, tmp_path: Path, size: int
) -> None:
    await grouped(ledgers, *THREE)
    path = ledger_file(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataCorrupt, match=r"1\.ledger: the ledger header is truncated"):
        await successor.fence(SEGMENT, 1)
    with pytest.raises(DataCorrupt, match="truncated"):
        await successor.read(SEGMENT, 1, 0, 0, max_bytes=ALL)


async def test_a_ledger_under_another_name_is_an_error(
    ledgers: FileLedgerStore, successor: FileLedgerStore, tmp_path: Path
) -> None:
    await grouped(ledgers, *THREE)
    path = ledger_file(tmp_path)
    path.rename(path.with_name("2.ledger"))
    with pytest.raises(DataCorrupt, match=r"2\.ledger: .*it is ledger 1 of .*its path says 2"):
        await successor.fence(SEGMENT, 2)


async def test_reads_of_damaged_entries_are_errors(
    ledgers: FileLedgerStore, successor: FileLedgerStore, tmp_path: Path
) -> None:
    writer = await filled(ledgers, 3)
    await writer.close(b"f")
    path = ledger_file(tmp_path)
    flip(path, path.stat().st_size - 1)
    with pytest.raises(DataCorrupt, match=r"1\.ledger: offset \d+"):
        await successor.read(SEGMENT, 1, 2, 2, max_bytes=ALL)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataCorrupt, match=r"1\.ledger: offset \d+"):
        await successor.read(SEGMENT, 1, 2, 2, max_bytes=ALL)


async def test_every_damage_of_a_footer_is_an_error(
    ledgers: FileLedgerStore, successor: FileLedgerStore, tmp_path: Path
) -> None:
    await (await filled(ledgers, 3)).close(b"snapshot")
    path = ledger_file(tmp_path).with_suffix(".footer")
    whole = path.read_bytes()
    for offset in range(len(whole)):
        flip(path, offset)
        with pytest.raises(DataCorrupt, match=r"1\.footer: "):
            await successor.read_footer(SEGMENT, 1)
        path.write_bytes(whole[:offset])
        with pytest.raises(DataCorrupt, match=r"1\.footer: "):
            await successor.read_footer(SEGMENT, 1)
        path.write_bytes(whole)
    path.with_suffix(".fence").write_bytes(b"{nonsense")
    with pytest.raises(DataCorrupt, match=r"1\.fence: "):
        await successor.fence(SEGMENT, 1)


async def test_l5_a_failed_sync_kills_the_ledger_for_good(
    ledgers: FileLedgerStore, successor: FileLedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ Never retried: not by this writer, and not by a successor whose own sync the kernel might report as done."""
    writer = await filled(ledgers, 3)
    real = os.fdatasync
    failures = [OSError(errno.EIO, "input/output error")]

    def fails_once(fd: int) -> None:
        if failures:
            raise failures.pop()
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fails_once)
    writer.append(b"lost")
    with pytest.raises(LedgerFailed, match=r"1\.ledger.*input/output error"):
        await writer.sync()
    with pytest.raises(LedgerFailed):
        await writer.sync()
    with pytest.raises(LedgerFailed):
        writer.append(b"x")
    assert writer.last_confirmed == 2
    assert (await successor.fence(SEGMENT, 1)).entries == 3


async def test_a_failed_sync_does_not_shorten_what_a_successor_has_counted(
    ledgers: FileLedgerStore, successor: FileLedgerStore, pause: HeldSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ The successor came while that sync was under way: what it counted is in `/ledger`, and read already."""
    writer = await filled(ledgers, 3)
    monkeypatch.setattr(os, "fdatasync", lambda _: _fail_sync())
    pause.arm()
    writer.append(b"unsynced")
    syncing = asyncio.ensure_future(writer.sync())
    await pause.reached()
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    counted = await successor.fence(SEGMENT, 1)
    pause.end()
    with pytest.raises(LedgerFailed, match="input/output error"):
        await syncing
    assert await ledgers.fence(SEGMENT, 1) == counted
    assert counted.entries == 4


def _fail_sync() -> None:
    raise OSError(errno.EIO, "input/output error")


async def test_a_full_disk_fails_the_ledger_and_loses_nothing_acked(
    ledgers: FileLedgerStore, successor: FileLedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await filled(ledgers, 3)
    real = os.pwrite

    def half_then_full(fd: int, data: memoryview, offset: int) -> int:
        if len(data) > 100:
            return real(fd, data[:60], offset)
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "pwrite", half_then_full)
    writer.append(b"x" * 120)
    with pytest.raises(LedgerFailed, match="no space left"):
        await writer.sync()
    with pytest.raises(LedgerFailed, match="no space left"):
        await ledgers.create(SEGMENT, 2, incarnation="i")
    monkeypatch.undo()
    assert (await successor.fence(SEGMENT, 1)).entries == 3
    assert (await filled(successor, 1, ledger_id=2)).last_confirmed == 0


async def test_the_fence_is_checked_after_the_sync(
    ledgers: FileLedgerStore, successor: FileLedgerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ A fence that appears while the sync runs: the writer must not ack, however whole the data."""
    writer = await filled(ledgers, 1)
    real = os.fdatasync

    def fenced_meanwhile(fd: int) -> None:
        real(fd)
        ledger_file(tmp_path).with_suffix(".fence").write_bytes(b'{"v":1}')

    monkeypatch.setattr(os, "fdatasync", fenced_meanwhile)
    writer.append(b"x")
    with pytest.raises(LedgerFenced):
        await writer.sync()
    assert writer.last_confirmed == 0


async def test_the_successor_syncs_what_it_counts(
    ledgers: FileLedgerStore, successor: FileLedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ What a dead process had written may still be in the page cache alone."""
    await filled(ledgers, 2)

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(LedgerFailed, match="fencing"):
        await successor.fence(SEGMENT, 1)


async def test_a_folder_that_somebody_else_has_just_made_is_synced_before_a_ledger_in_it_counts(
    ledgers: FileLedgerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ Its maker may not have come to that: a power failure would take the folder with all that we were told is
    durable in it."""
    folder = ledger_file(tmp_path).parent
    folder.mkdir(parents=True)
    real, synced = os.fsync, list[str]()

    def noted(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    await create(ledgers)
    assert str(folder.parent) in synced
    assert str(folder) in synced


@pytest.mark.parametrize("who", ["the owner", "its successor"])
async def test_behind_a_failed_sync_the_kernel_is_told_to_drop_what_it_holds(
    ledgers: FileLedgerStore, successor: FileLedgerStore, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """▲ It may tell what it could not write for as long as it likes, and every later sync as done."""
    writer = await filled(ledgers, 3)
    writer.append(b"lost")
    dropped = list[str]()

    def noted(fd: int, offset: int, length: int, advice: int) -> None:
        assert (offset, length, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        dropped.append(os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2][:8])

    monkeypatch.setattr(os, "fdatasync", lambda _: _fail_sync())
    monkeypatch.setattr(os, "posix_fadvise", noted)
    with pytest.raises(LedgerFailed):
        await (writer.sync() if who == "the owner" else successor.fence(SEGMENT, 1))
    assert dropped == ["1.ledger"]


async def test_a_failing_read_is_told_as_what_may_pass_and_names_the_file(
    ledgers: FileLedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients were told of an internal error, and a consumer that met it was at its end (seeds 30014, 30060)."""
    writer = await filled(ledgers, 2)
    await (await filled(ledgers, 2, ledger_id=2)).close(b"")

    def fails(*_: object) -> bytes:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", fails)
        patched.setattr(Path, "read_bytes", fails)
        for ledger, reading in (
            (1, writer.read(0, 1, max_bytes=ALL)),
            (2, ledgers.read(SEGMENT, 2, 0, 1, max_bytes=ALL)),
            (1, ledgers.read_footer(SEGMENT, 1)),
            (1, ledgers.read_sidecar(SEGMENT, 1)),
        ):
            with pytest.raises(LedgerUnreadable, match=rf"/{ledger}\..*input/output error") as failed:
                await reading
            told = from_wire(to_wire(failed.value))
            assert type(told) is StoreUnavailable
            assert str(told) == str(failed.value)
    assert len(await writer.read(0, 1, max_bytes=ALL)) == 2  # ▲ no other than a failed sync it is not the ledger's end


async def test_leftovers_of_a_crashed_creation_are_no_ledger(ledgers: FileLedgerStore, tmp_path: Path) -> None:
    path = ledger_file(tmp_path)
    path.parent.mkdir(parents=True)
    for leftover in ("1.ledger.tmp-0", "1.ledger.tmp-1", "1.footer.tmp-0"):
        path.with_name(leftover).write_bytes(b"TXNL")
    assert list(await ledgers.list()) == []
    assert (await filled(ledgers, 1)).last_confirmed == 0
    await ledgers.delete(SEGMENT, 1)
    assert list(path.parent.iterdir()) == []


async def test_a_cancelled_reader_leaves_its_file_to_the_running_job(ledgers: FileLedgerStore) -> None:
    await (await filled(ledgers, 1000)).close(b"")
    for _ in range(20):
        reading = asyncio.ensure_future(ledgers.read(SEGMENT, 1, 0, 999, max_bytes=ALL))
        await asyncio.sleep(0)
        reading.cancel()
        await ledgers.delete("public/default/orders/8000-ffff-4", 1)
    assert len(await ledgers.read(SEGMENT, 1, 0, 999, max_bytes=ALL)) == 1000


async def test_s8_segments_of_one_topic_are_deleted_at_once_by_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever removes the topic's folder leaves the other with nothing to sync, which is no failure."""
    other = SEGMENT.rpartition("/")[0] + "/8000-ffff-9"
    one, two = FileLedgerStore(tmp_path), FileLedgerStore(tmp_path)
    for store, segment in ((one, SEGMENT), (two, other)):
        await (await store.create(segment, 1, incarnation="i")).close(b"footer")
    root, sync = tmp_path / "ledgers", ledger_files.sync_directory

    def meanwhile(path: Path) -> None:
        if path == root.joinpath(*SEGMENT.split("/")[:-1]):
            monkeypatch.setattr(ledger_files, "sync_directory", sync)
            ledger_files.delete_segment(root, other)
        sync(path)

    monkeypatch.setattr(ledger_files, "sync_directory", meanwhile)
    await one.delete_segment(SEGMENT)
    assert await two.list() == []
    await one.close()
    await two.close()
