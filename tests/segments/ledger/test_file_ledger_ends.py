"""Where a ledger of files ends: what is found of it is made durable, and what only this process knows is kept."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from segments.ledger import file_ledger, ledger_files
from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import LedgerFailed, LedgerFenced
from segments.ledger.ledger_files import LedgerPaths
from segments.ledger.ledger_format import MAX_GROUP_BYTES
from simulation.judges.leftovers import files_left
from tests.segments.ledger_store_contract import SEGMENT, filled
from tests.waiting import until
from txnwire.errors import DataCorrupt


@pytest.mark.parametrize("make", [ledger_files.create_fence, partial(ledger_files.create_count, entries=3)])
def test_a_fence_or_count_that_is_found_is_durable_before_anybody_goes_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[LedgerPaths], object]
) -> None:
    """▲ Whoever gave it its name may have died before the folder was synced: a power failure would take it, and with it
    what a successor has told its clients since."""
    paths = ledger_files.paths_of(tmp_path, SEGMENT, 1)
    make(paths)
    real, synced = os.fsync, list[str]()

    def noted(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    make(paths)
    assert str(paths.directory) in synced


async def test_l5_a_fence_that_fails_forgets_no_end_that_the_disk_has_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ The next one would count what the kernel has and the disk has not."""

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    ledgers = FileLedgerStore(tmp_path)
    writer = await filled(ledgers, 3)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fails)
        broken.setattr(os, "link", fails)
        writer.append(b"lost")
        with pytest.raises(LedgerFailed):
            await writer.sync()
        with pytest.raises(LedgerFailed):
            await ledgers.fence(SEGMENT, 1)
    assert (await ledgers.fence(SEGMENT, 1)).entries == 3
    await ledgers.close()


@pytest.mark.parametrize("taken_over", [False, True])
async def test_a_footer_that_is_damaged_hides_no_entry(tmp_path: Path, taken_over: bool) -> None:
    """▲ Its index only spares a scan. Readers and consumers would stand before that ledger for ever."""
    writer = await filled(FileLedgerStore(tmp_path), 3)
    ledgers = FileLedgerStore(tmp_path)
    if taken_over:
        await ledgers.fence(SEGMENT, 1)
        await ledgers.write_footer(SEGMENT, 1, b"producers")
    else:
        await writer.close(b"producers")
    footer = ledger_files.paths_of(tmp_path / "ledgers", SEGMENT, 1).footer
    footer.write_bytes(footer.read_bytes()[:-1] + b"?")
    reader = FileLedgerStore(tmp_path)
    assert [entry for _, entry in await reader.read(SEGMENT, 1, 0, 2, max_bytes=100)] == [
        b"entry-0",
        b"entry-1",
        b"entry-2",
    ]
    with pytest.raises(DataCorrupt, match="footer"):
        await reader.read_footer(SEGMENT, 1)
    with pytest.raises(DataCorrupt, match="ends after 3 whole entries"):
        await reader.read(SEGMENT, 1, 0, 3, max_bytes=100)
    writer.abandon()
    for one in (ledgers, reader):
        await one.close()


async def test_a_data_folder_below_one_that_its_user_may_not_read_takes_ledgers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where an operator gives the user a folder of root's."""
    sync, refused = ledger_files.sync_directory, list[Path]()

    def refuses(path: Path) -> None:
        if path == tmp_path.parent:
            refused.append(path)
            raise PermissionError(errno.EACCES, "permission denied", str(path))
        sync(path)

    monkeypatch.setattr(ledger_files, "sync_directory", refuses)
    ledgers = FileLedgerStore(tmp_path)
    assert (await (await filled(ledgers, 3)).close(b"")).entries == 3
    assert refused
    await ledgers.close()


async def test_a_file_that_cannot_be_put_in_place_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again for as long as the disk fails, and each try would take room from it."""

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    ledgers = FileLedgerStore(tmp_path)
    await (await filled(ledgers, 3)).close(b"")
    folder = ledger_files.paths_of(tmp_path / "ledgers", SEGMENT, 1).directory
    before = sorted(folder.iterdir())
    for name in ("fsync", "replace"):
        with monkeypatch.context() as broken:
            broken.setattr(os, name, fails)
            with pytest.raises(LedgerFailed, match="input/output error"):
                await ledgers.write_footer(SEGMENT, 1, b"producers")
        assert sorted(folder.iterdir()) == before
    await ledgers.close()


async def test_l3_a_damaged_fence_keeps_no_ledger_from_being_deleted_and_fences_on(tmp_path: Path) -> None:
    ledgers = FileLedgerStore(tmp_path)
    assert not (await ledgers.fence(SEGMENT, 1)).present
    fence = ledger_files.paths_of(tmp_path / "ledgers", SEGMENT, 1).fence
    fence.write_bytes(b"damaged")
    await ledgers.delete(SEGMENT, 1)
    await ledgers.delete_segment(SEGMENT)
    with pytest.raises(LedgerFenced):
        await ledgers.create(SEGMENT, 1, incarnation="i")
    await ledgers.close()


async def test_l5_what_the_disk_takes_in_parts_stands_one_behind_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ A write may take less than it is given, close to the end of a quota or of a signal's patience."""
    real, writes = os.pwrite, 0

    def takes_little(fd: int, data: memoryview, offset: int) -> int:
        nonlocal writes
        writes += 1
        return real(fd, data[:7], offset)

    monkeypatch.setattr(os, "pwrite", takes_little)
    ledgers, reader = FileLedgerStore(tmp_path), FileLedgerStore(tmp_path)
    writer = await filled(ledgers, 3)
    await writer.close(b"producers")
    assert writes > 10
    found = await reader.read(SEGMENT, 1, 0, 2, max_bytes=100)
    assert [entry for _, entry in found] == [b"entry-0", b"entry-1", b"entry-2"]
    assert await reader.read_footer(SEGMENT, 1) == b"producers"
    for one in (ledgers, reader):
        await one.close()


async def test_a_ledger_that_has_lost_its_last_entries_is_read_up_to_them(tmp_path: Path) -> None:
    """▲ Its readers and consumers keep what they can still have, until a repair."""
    ledgers, reader = FileLedgerStore(tmp_path), FileLedgerStore(tmp_path)
    writer = await filled(ledgers, 3)
    path = ledger_files.paths_of(tmp_path / "ledgers", SEGMENT, 1).ledger
    whole = path.stat().st_size
    writer.append(b"lost")
    await writer.sync()
    assert (await ledgers.fence(SEGMENT, 1)).entries == 4
    os.truncate(path, whole + 1)
    found = await reader.read(SEGMENT, 1, 0, 2, max_bytes=100)
    assert [entry for _, entry in found] == [b"entry-0", b"entry-1", b"entry-2"]
    with pytest.raises(DataCorrupt, match="4 entries were acknowledged here, only 3 are whole"):
        await reader.read(SEGMENT, 1, 0, 3, max_bytes=100)
    for one in (ledgers, reader):
        await one.close()


async def test_a_fence_whose_count_finds_no_room_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A take-over is tried again and again for as long as the disk is full."""
    known = list(files_left())
    ledgers = FileLedgerStore(tmp_path)
    (await filled(ledgers, 3)).abandon()

    def finds_no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as full:
        full.setattr(ledger_files, "create_count", finds_no_room)
        for _ in range(3):
            with pytest.raises(LedgerFailed, match="no space left"):
                await ledgers.fence(SEGMENT, 1)
    assert list(files_left()) == known
    assert (await ledgers.fence(SEGMENT, 1)).entries == 3
    await ledgers.close()


@pytest.mark.parametrize("work", ["create", "fence", "read"])
async def test_a_file_that_is_opened_for_nobody_any_more_is_closed(tmp_path: Path, work: str) -> None:
    """A take-over that is given up, a reader that has gone: what their job opens behind their backs."""
    known = list(files_left())
    ledgers = FileLedgerStore(tmp_path)
    await (await filled(ledgers, 3)).close(b"")
    jobs: dict[str, Coroutine[object, object, object]] = {
        "create": ledgers.create(SEGMENT, 2, incarnation="i"),
        "fence": ledgers.fence(SEGMENT, 1),
        "read": ledgers.read(SEGMENT, 1, 0, 2, max_bytes=1000),
    }
    working = asyncio.ensure_future(jobs.pop(work))
    for other in jobs.values():
        other.close()
    await asyncio.sleep(0)
    working.cancel()
    await asyncio.wait([working])
    assert working.cancelled()
    await asyncio.gather(*ledgers._threads.under_way)
    await asyncio.sleep(0)
    assert list(files_left()) == known
    await ledgers.close()


async def test_a_fence_that_cannot_be_looked_for_is_an_error_and_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ It may be there: another owner may have counted without what is acked now."""
    ledgers = FileLedgerStore(tmp_path)
    writer = await filled(ledgers, 3)
    known, stat = list(files_left()), os.stat

    def refuses(path: str | Path | int, **how: bool) -> os.stat_result:
        if str(path).endswith(".fence"):
            raise OSError(errno.EIO, "input/output error")
        return stat(path, **how)  # type: ignore[arg-type]

    with monkeypatch.context() as broken:
        broken.setattr(os, "stat", refuses)
        with pytest.raises(LedgerFailed, match="input/output error"):
            await ledgers.create(SEGMENT, 2, incarnation="i")
        assert list(files_left()) == known
        writer.append(b"not acked")
        with pytest.raises(LedgerFailed, match="input/output error"):
            await writer.sync()
    await ledgers.close()


async def test_whoever_waits_for_the_sync_behind_a_failed_one_is_told_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ No further one is begun in that ledger: its sends would wait until they are given up."""
    ledgers = FileLedgerStore(tmp_path)
    writer = await filled(ledgers, 3)
    begun, go_on = threading.Event(), threading.Event()

    def fails(_: int) -> None:
        begun.set()
        go_on.wait(30.0)
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fails)
        writer.append(b"lost")
        first = asyncio.ensure_future(writer.sync())
        await asyncio.to_thread(begun.wait, 30.0)
        writer.append(b"lost too")
        others = [asyncio.ensure_future(writer.sync()) for _ in range(2)]
        await asyncio.sleep(0)
        go_on.set()
        async with asyncio.timeout(30.0):
            for one in (first, *others):
                with pytest.raises(LedgerFailed, match="the ledger ends at entry 2"):
                    await one
    await ledgers.close()


class _Held:
    """One of `os`'s functions waits in its thread until `go_on`."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(os, name)
        self.reached, self.go_on = threading.Event(), threading.Event()

        def held(*given: object, **named: object) -> object:
            self.reached.set()
            self.go_on.wait(30.0)
            return real(*given, **named)

        patch.setattr(os, name, held)


@pytest.mark.parametrize("late", ["create", "fence", "read"])
async def test_what_a_store_opens_while_it_closes_stays_neither_open_nor_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    known = list(files_left())
    ledgers = FileLedgerStore(tmp_path)
    (await filled(ledgers, 3)).abandon()
    with monkeypatch.context() as patch:
        held = _Held(patch, "link" if late == "create" else "fdatasync")
        opening: asyncio.Future[object]
        if late == "create":
            opening = asyncio.ensure_future(ledgers.create(SEGMENT, 2, incarnation="i"))
        elif late == "fence":
            opening = asyncio.ensure_future(ledgers.fence(SEGMENT, 1))
        else:
            opening = asyncio.ensure_future(ledgers.read(SEGMENT, 1, 0, 2, max_bytes=100))
        assert await asyncio.to_thread(held.reached.wait, 30.0)
        closing = asyncio.ensure_future(ledgers.close())
        await asyncio.sleep(0)
        held.go_on.set()
        await closing
        with pytest.raises(LedgerFailed, match="closed"):
            await opening
    assert list(files_left()) == known


async def test_a_store_that_closes_tells_of_jobs_that_its_disk_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other trace is left of them: the process ends without waiting for their threads."""
    monkeypatch.setattr(file_ledger, "CLOSE_TIMEOUT_S", 0.05)
    ledgers = FileLedgerStore(tmp_path)
    writer = await filled(ledgers, 3)
    with monkeypatch.context() as patch:
        held = _Held(patch, "fdatasync")
        writer.append(b"hangs")
        syncing = asyncio.ensure_future(writer.sync())
        assert await asyncio.to_thread(held.reached.wait, 30.0)
        with capture_logs() as logs:
            await ledgers.close()
        assert [(log["event"], log["jobs"]) for log in logs] == [("ledger_jobs_left", 1)]
        held.go_on.set()
        with pytest.raises(LedgerFailed, match="given up"):
            await syncing
    with capture_logs() as logs:
        await ledgers.close()
    assert logs == []


@pytest.mark.parametrize("finds", ["nothing", "no file", "no folder"])
async def test_c12_a_folder_that_goes_while_something_is_looked_for_in_it_hides_nothing(
    tmp_path: Path, finds: str
) -> None:
    """▲ What is not found there would count as never made, or as deleted."""
    ledgers = FileLedgerStore(tmp_path)
    await ledgers.identity("a")
    root = tmp_path / "ledgers"

    def look() -> str | None:
        root.rename(tmp_path / "moved")
        if finds == "no folder":
            return (root / "1.ledger").read_text()
        if finds == "no file":
            root.mkdir()
            return (root / "1.ledger").read_text()
        return None

    with pytest.raises(LedgerFailed, match="is missing"):
        await ledgers._work(look, "looking")
    await ledgers.close()


async def test_l5_a_group_that_reached_the_disk_before_another_of_its_sync_acknowledges_none_of_it(
    tmp_path: Path,
) -> None:
    """▲ What a group says of acknowledged entries tells damage from a torn tail: the segment would be corrupt."""
    ledgers, successor = FileLedgerStore(tmp_path), FileLedgerStore(tmp_path)
    writer = await filled(ledgers, 1)
    path = ledger_files.paths_of(tmp_path / "ledgers", SEGMENT, 1).ledger
    begin = path.stat().st_size
    for entry in (b"a" * MAX_GROUP_BYTES, b"b" * 2000):
        writer.append(entry)
    await writer.sync()
    writer.abandon()
    torn = bytearray(path.read_bytes())
    lost = begin // 512 * 512 + 512
    torn[lost : lost + 512] = bytes(512)
    path.write_bytes(torn)
    assert (await successor.fence(SEGMENT, 1)).entries == 1
    for one in (ledgers, successor):
        await one.close()


async def test_a_caller_that_is_cancelled_in_the_turn_of_the_close_ends_as_cancelled(tmp_path: Path) -> None:
    """▲ A task that took it for a failure of the disk would go on, and whoever waits for its end with it."""
    ledgers, begun, gate = FileLedgerStore(tmp_path, threads=1), threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        gate.wait()

    busy = asyncio.ensure_future(ledgers.run(wait, "waiting"))
    await until(begun.is_set)
    cancelled, told = (asyncio.ensure_future(ledgers.run(wait, "waiting")) for _ in range(2))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(ledgers.close())
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(LedgerFailed, match="the ledger store was closed"):
        await told
    gate.set()
    await asyncio.gather(closing, busy)


def fail_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a network file system does: `close` of a ledger frees the descriptor and reports an error."""
    real = os.close

    def closed(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        real(fd)
        if ".ledger" in path:
            raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "close", closed)


async def test_l5_a_ledger_whose_close_fails_takes_no_file_from_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ The other ledger would write its entries into whichever file gets its descriptor next."""
    ledgers, successor = FileLedgerStore(tmp_path), FileLedgerStore(tmp_path)
    writer = await filled(ledgers, 3)
    with monkeypatch.context() as broken, capture_logs() as logs:
        fail_closing(broken)
        assert (await writer.close(b"")).entries == 3
    assert [(log["event"], log["error"]) for log in logs] == [("file_not_closed", "[Errno 5] input/output error")]
    other = await filled(ledgers, 3, ledger_id=2)
    writer.abandon()
    third = await filled(ledgers, 3, ledger_id=3)
    other.append(b"acked")
    await other.sync()
    assert [(await successor.fence(SEGMENT, ledger_id)).entries for ledger_id in (1, 2, 3)] == [3, 4, 3]
    third.abandon()
    for one in (ledgers, successor):
        await one.close()


async def test_a_close_that_fails_hides_no_fence_and_keeps_no_store_from_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = FileLedgerStore(tmp_path)
    await ledgers.fence(SEGMENT, 4)
    for ledger_id in (1, 2, 3):
        await filled(ledgers, 3, ledger_id)
    await ledgers.fence(SEGMENT, 3)
    with monkeypatch.context() as broken:
        fail_closing(broken)
        with pytest.raises(LedgerFenced):
            await ledgers.create(SEGMENT, 4, incarnation="i")
        await ledgers.close()
    with pytest.raises(LedgerFailed, match="is closed"):
        await ledgers.list()
