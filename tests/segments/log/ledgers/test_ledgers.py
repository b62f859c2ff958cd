"""A segment's ledgers as one log, over the file ledgers and the in-memory store."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import LedgerFailed, LedgerFenced
from segments.log.ledgers.dedup_footer import covered_by, encode_footer
from segments.log.ledgers.segment_log import SegmentLog
from tests.segments.gates import GatedStore
from tests.segments.log.segment_log import SEGMENT, append, own, stored_record, take_over, whole_log, writer_of
from tests.segments.stopping import Steps, StoppingStore
from tests.waiting import until, until_turn
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore
from txnstore.records import AbortedRecord, LedgerRecord, Watermark
from txnstore.store import Commit, Delete, KeyValue, Put
from txnwire.clock import SystemClock
from txnwire.errors import DataCorrupt, NotOwner, StoreUnavailable
from txnwire.ids import EARLIEST, Position, TxnId


async def test_a_take_over_fences_closes_and_opens_a_ledger_of_its_own(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    first = await take_over(memory_store, ledger_store)
    await append(first, b"a", b"b")
    second = await take_over(memory_store, ledger_store)

    assert [(one.ledger_id, one.closed_length) for one in (await stored_record(memory_store)).ledgers] == [
        (1, 2),
        (2, None),
    ]
    assert second.last_confirmed == Position(1, 1)
    assert await whole_log(second) == [b"a", b"b"]


async def test_a_ledger_is_listed_before_there_is_a_file_of_it_or_anything_in_it(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    """A successor fences what is listed: an entry in a ledger that is not would be acked and never be seen again."""
    store = GatedStore(memory_store)
    ledgers = SegmentLog(store, ledger_store, SEGMENT, epoch=await own(memory_store), incarnation="i")  # type: ignore[arg-type]
    store.hold(lambda commit: any(put.key == keys.ledger(SEGMENT) for put in commit.puts))
    taking = asyncio.create_task(ledgers.take_over())
    await until(lambda: store.waiting, "the write of the ledger list", within_s=10.0)
    done, _ = await asyncio.wait([taking], timeout=0.1)  # files take less
    assert not done
    assert await ledger_store.list() == []
    store.open()
    await asyncio.wait_for(taking, 10.0)
    assert await ledger_store.list() == [(SEGMENT, 1)]
    assert [one.ledger_id for one in (await stored_record(memory_store)).ledgers] == [1]


async def test_l3_a_paused_owner_that_wakes_can_neither_confirm_an_entry_nor_change_the_list(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    old = await take_over(memory_store, ledger_store)
    await append(old, b"a")
    writer_of(old).append(b"late")
    new = await take_over(memory_store, ledger_store)

    with pytest.raises(LedgerFenced):
        await writer_of(old).sync()
    assert old.last_confirmed == Position(1, 0)
    with pytest.raises((NotOwner, LedgerFenced)):
        await old.roll(b"footer")
    assert await whole_log(new) == [b"a"]


async def test_a_successor_that_lost_the_ownership_itself_does_not_touch_the_list(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    stale = SegmentLog(memory_store, ledger_store, SEGMENT, epoch=await own(memory_store), incarnation="i")
    current = await take_over(memory_store, ledger_store)
    with pytest.raises(NotOwner):
        await stale.take_over()
    assert (await stored_record(memory_store)).ledgers == current.record.ledgers


async def test_l3_a_successor_that_slept_since_its_claim_does_not_fence_the_one_that_came_after_it(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    """▲ It would find the open ledger of its own successor in the list, and end that one's ownership."""
    sleeper = SegmentLog(memory_store, ledger_store, SEGMENT, epoch=await own(memory_store), incarnation="i")
    current = await take_over(memory_store, ledger_store)
    await append(current, b"a")
    with pytest.raises(NotOwner):
        await sleeper.take_over()
    await append(current, b"b")
    assert await whole_log(current) == [b"a", b"b"]


async def test_who_looks_again_and_again_as_the_log_rolls_gets_no_further(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    """The next ledger is not listed yet: whoever got past its first place would never read it."""
    gates = GatedStore(memory_store)
    ledgers = SegmentLog(gates, ledger_store, SEGMENT, epoch=await own(memory_store), incarnation="i")
    await ledgers.take_over()
    await append(ledgers, b"a", b"b")
    gates.hold(lambda _: True)
    rolling = asyncio.create_task(ledgers.roll(ledgers.footer(1, 2, b"{}")))
    await until_turn(lambda: gates.waiting, "the write of the next ledger")
    at = Position(1, 2)
    for _ in range(3):
        at = ledgers.settle(at)
        assert at == Position(2, 0)
    gates.open()
    await rolling
    await append(ledgers, b"c")
    assert ledgers.settle(at) == Position(2, 0) == ledgers.last_confirmed


async def test_rolling_goes_on_in_the_next_ledger_and_readers_cross_over(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    ledgers = await take_over(memory_store, ledger_store)
    await append(ledgers, b"a", b"b")
    parked = ledgers.next_after(Position(1, 1))
    assert parked == Position(1, 2)
    await ledgers.roll(ledgers.footer(1, 2, b"{}"))
    assert ledgers.last_confirmed == Position(1, 1)
    assert ledgers.settle(parked) == Position(2, 0)
    await append(ledgers, b"c")
    assert await whole_log(ledgers) == [b"a", b"b", b"c"]
    assert ledgers.entries == 3
    assert ledgers.entries_between(Position(1, 0), Position(2, 0)) == 2
    assert [ledgers.nth(index) for index in range(4)] == [
        Position(1, 0),
        Position(1, 1),
        Position(2, 0),
        Position(2, 1),
    ]


async def test_an_open_ledger_is_not_read_once_the_log_is_given_up(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    """▲ To find nothing there would mean that it was trimmed, or to ask again for ever. Closed ones are still read."""
    ledgers = await take_over(memory_store, ledger_store)
    await append(ledgers, b"closed")
    await ledgers.roll(ledgers.footer(1, 2, b""))
    await append(ledgers, b"open")
    ledgers.abandon()
    assert await ledgers.read(Position(1, 0), ledgers.last_confirmed, max_bytes=1) == [(Position(1, 0), b"closed")]
    with pytest.raises(NotOwner, match="no open ledger here"):
        await ledgers.read(Position(2, 0), ledgers.last_confirmed, max_bytes=1)


async def test_empty_ledgers_are_crossed_and_do_not_pile_up_in_the_record(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    first = await take_over(memory_store, ledger_store)
    await append(first, b"a")
    for _ in range(4):
        last = await take_over(memory_store, ledger_store)
    await append(last, b"b")
    assert [one.ledger_id for one in last.record.ledgers] == [1, 4, 5]
    assert [ledger_id for _, ledger_id in await ledger_store.list()] == [1, 4, 5]
    assert last.next_after(Position(1, 0)) == Position(5, 0)
    assert await whole_log(last) == [b"a", b"b"]
    assert last.contains(Position(5, 0))
    assert not last.contains(Position(5, 1))
    assert not last.contains(Position(4, 0))
    assert not last.contains(Position(1, -1))


async def test_empty_ledgers_that_could_not_be_deleted_go_later_all_at_once(
    memory_store: MemoryStore, ledger_store: FileLedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with a footer stays, and keeps none behind it: it holds what is known of producers."""
    first = await take_over(memory_store, ledger_store)
    await append(first, b"a")
    second = await take_over(memory_store, ledger_store)
    await second.close(lambda: second.footer(2, 0, b"dedup"))
    with monkeypatch.context() as patched:
        patched.setattr(ledger_store, "delete", _is_not_deleted)
        for _ in range(3):
            last = await take_over(memory_store, ledger_store)
    assert [one.ledger_id for one in last.record.ledgers] == [1, 2, 3, 4, 5]
    last = await take_over(memory_store, ledger_store)
    assert [one.ledger_id for one in last.record.ledgers] == [1, 2, 5, 6]
    assert await ledger_store.present(SEGMENT) == [1, 2, 5, 6]
    assert await last.last_footer() == (Position(2, -1), b"dedup")


async def _is_not_deleted(segment: str, ledger_id: int) -> None:
    raise LedgerFailed(f"ledger {ledger_id}: the disk does not answer")


async def test_the_newest_footer_counts_and_a_successor_can_write_the_missing_one(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    first = await take_over(memory_store, ledger_store)
    assert await first.last_footer() == (EARLIEST, None)
    await append(first, b"a")
    await first.close(lambda: first.footer(1, 1, b"one"))
    second = await take_over(memory_store, ledger_store)
    assert await second.last_footer() == (Position(1, 0), b"one")
    await append(second, b"b", b"c", b"d")
    await second.checkpoint(b"two", 2)
    third = await take_over(memory_store, ledger_store)
    assert await third.last_footer() == (Position(2, 1), b"two")
    await third.write_closed_footer(b"three")
    assert await third.last_footer() == (Position(2, 2), b"three")


@pytest.mark.parametrize("damaged", [b"?", encode_footer(9, 2, b""), encode_footer(1, 3, b"")])
async def test_a_footer_that_is_damaged_or_covers_something_else_is_named(
    memory_store: MemoryStore, ledger_store: FileLedgerStore, damaged: bytes
) -> None:
    first = await take_over(memory_store, ledger_store)
    await append(first, b"a", b"b")
    await first.close(lambda: damaged)
    second = await take_over(memory_store, ledger_store)
    with pytest.raises(DataCorrupt, match=f"footer of ledger 1 of {SEGMENT}"):
        await second.last_footer()
    if damaged == b"?":
        with pytest.raises(DataCorrupt, match="where it stands"):
            covered_by(damaged, "where it stands")


async def test_a_ledger_that_is_made_and_cannot_be_listed_as_made_is_let_go(
    memory_etcd: MemoryEtcd, ledger_store: FileLedgerStore, memory_store: MemoryStore
) -> None:
    """Each try of a take-over would keep a file open."""
    store = StoppingStore(memory_etcd, Steps(left=1))
    ledgers = SegmentLog(store, ledger_store, SEGMENT, epoch=await own(memory_store), incarnation="i")
    with pytest.raises(StoreUnavailable):
        await ledgers.take_over()
    assert await ledger_store.present(SEGMENT) == [1]
    assert not ledger_store._writers
    await store.close()


async def test_a_sealed_segment_opens_nothing(memory_store: MemoryStore, ledger_store: FileLedgerStore) -> None:
    first = await take_over(memory_store, ledger_store)
    await append(first, b"a")
    await first.close(lambda: first.footer(1, 1, b"{}"))
    sealed = LedgerRecord(ledgers=(await stored_record(memory_store)).ledgers, sealed=(1, 0))
    await memory_store.commit(Commit(puts=(Put(keys.ledger(SEGMENT), records.encode(sealed)),)))

    ledgers = await take_over(memory_store, ledger_store)
    assert ledgers.sealed
    assert ledgers.writer is None
    assert ledgers.last_confirmed == Position(1, 0)
    assert ledgers.next_after(Position(1, 0)) > Position(1, 0)
    assert await whole_log(ledgers) == [b"a"]


async def test_a_sealed_segment_ends_where_its_seal_says_also_when_all_of_it_is_trimmed(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    """▲ For every owner alike: of two snapshots that hold all of it neither goes on behind the other, nor before it."""
    topic = KeyValue(b"/topic/t", b"", 0, 0, 0)

    async def look() -> KeyValue | None:
        return topic

    first = await take_over(memory_store, ledger_store)
    await append(first, b"a", b"b")
    assert await first.seal(b"", "change", look)
    end = first.last_confirmed
    assert end == Position(1, 1)
    await first.keep_footer(b"")
    await first.trim(2)
    await first.finish_trim()
    assert first.last_confirmed == end
    second = await take_over(memory_store, ledger_store)
    assert second.last_confirmed == end
    assert second.next_after(EARLIEST) > end
    assert await whole_log(second) == []


async def test_a_seal_that_is_undone_is_followed_by_a_ledger_of_an_id_that_was_never_used(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    topic = KeyValue(b"/topic/t", b"", 0, 0, 0)

    async def look() -> KeyValue | None:
        return topic

    ledgers = await take_over(memory_store, ledger_store)
    await append(ledgers, b"a")
    await ledgers.roll(ledgers.footer(1, 1, b""))
    await append(ledgers, b"b")
    assert await ledgers.seal(ledgers.footer(2, 1, b""), "change", look)
    assert await ledgers.unseal(topic)
    await append(ledgers, b"c")
    assert ledgers.last_confirmed == Position(3, 0)
    assert await whole_log(ledgers) == [b"a", b"b", b"c"]


async def test_one_read_takes_all_entries_of_a_ledger_that_its_bytes_allow(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    """Of a closed ledger, and of the open one."""
    ledgers = await take_over(memory_store, ledger_store)
    for ledger_id in (1, 2):
        await append(ledgers, b"a", b"b", b"c")
        found = await ledgers.read(Position(ledger_id, 0), ledgers.last_confirmed, max_bytes=1000)
        assert found == [(Position(ledger_id, number), bytes([entry])) for number, entry in enumerate(b"abc")]
        await ledgers.roll(ledgers.footer(ledger_id, 3, b""))
        assert await ledgers.read(Position(ledger_id, 0), ledgers.last_confirmed, max_bytes=1000) == found


async def test_c12_a_ledger_that_was_made_and_is_not_there_is_no_empty_one(
    memory_store: MemoryStore, ledger_store: FileLedgerStore, tmp_path: Path
) -> None:
    """▲ Nobody writes down that it is: once its files are put back all of it is there."""
    first = await take_over(memory_store, ledger_store)
    await append(first, b"a", b"b")
    before = await stored_record(memory_store)
    (tmp_path / "ledgers" / "public").rename(tmp_path / "lost")
    with pytest.raises(DataCorrupt, match=r"ledger 1 was made and is not there.*check --repair"):
        await take_over(memory_store, ledger_store)
    assert await stored_record(memory_store) == before
    shutil.rmtree(tmp_path / "ledgers" / "public")
    (tmp_path / "lost").rename(tmp_path / "ledgers" / "public")
    assert await whole_log(await take_over(memory_store, ledger_store)) == [b"a", b"b"]


async def test_a_ledger_whose_creator_died_before_it_was_made_is_an_empty_one(
    memory_store: MemoryStore, ledger_store: FileLedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", _fails)
        with pytest.raises(LedgerFailed):
            await take_over(memory_store, ledger_store)
    assert [one.ledger_id for one in (await stored_record(memory_store)).ledgers] == [1]
    ledgers = await take_over(memory_store, ledger_store)
    assert [(one.ledger_id, one.closed_length) for one in ledgers.record.ledgers] == [(1, 0), (2, None)]


async def test_l5_the_end_of_a_ledger_that_the_disk_does_not_take_goes_to_the_list(
    memory_store: MemoryStore, ledger_store: FileLedgerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ A successor in another process reads what only the kernel has, and every sync of it succeeds by now."""
    first = await take_over(memory_store, ledger_store)
    await append(first, b"a", b"b")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", _fails)
        patched.setattr(os, "link", _fails)
        with pytest.raises(LedgerFailed):
            await append(first, b"lost")
    first.abandon()
    await first.record_end()
    last = (await stored_record(memory_store)).ledgers[-1]
    assert (last.ledger_id, last.closed_length, last.bytes) == (1, 2, 2)
    other = FileLedgerStore(tmp_path)
    assert await whole_log(await take_over(memory_store, other)) == [b"a", b"b"]
    await other.close()


@pytest.mark.parametrize("lands_s", [None, 0.0, 0.03], ids=["never", "unheard", "late"])
async def test_e2_an_end_that_was_given_up_and_lands_late_is_recorded(
    memory_etcd: MemoryEtcd,
    memory_store: MemoryStore,
    ledger_store: FileLedgerStore,
    monkeypatch: pytest.MonkeyPatch,
    lands_s: float | None,
) -> None:
    """▲ A try is planned again from what the store has: the refusal of one's own late write is no foreign change."""
    fates: list[Fate] = []

    class Faults:
        def fate(self, request: str, client: str) -> Fate:
            return fates.pop(0) if fates and request == "commit" else NO_FAULT

        def watch_delay_s(self, client: str) -> float:
            return 0.0

    store = MemoryStore(memory_etcd, SystemClock(), random.Random(1), name="broker", faults=Faults())
    ledgers = await take_over(store, ledger_store)
    await append(ledgers, b"a", b"b")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", _fails)
        patched.setattr(os, "link", _fails)
        with pytest.raises(LedgerFailed):
            await append(ledgers, b"lost")
    ledgers.abandon()
    fates += [Fate(arrive_s=lands_s, fail_s=0.02)]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await ledgers.record_end()
    await ledgers.record_end()
    await asyncio.sleep(0)
    last = (await stored_record(memory_store)).ledgers[-1]
    assert (last.ledger_id, last.closed_length) == (1, 2)
    assert ledgers.record.ledgers[-1].closed_length == 2
    await store.close()


def _fails(*_: object) -> None:
    raise OSError(errno.EIO, "input/output error")


@pytest.mark.parametrize(("what", "at_once"), [("watermark", 1000), ("aborted record", 1), ("aborted record", 1000)])
async def test_c12_a_folder_that_lacks_what_was_decided_is_not_believed(
    memory_store: MemoryStore,
    ledger_store: FileLedgerStore,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    at_once: int,
) -> None:
    """▲ It is older than etcd: what is missing was parts of transactions, of which the others would be read. Whichever
    aborted record tells it."""
    monkeypatch.setattr("segments.log.ledgers.ledger_folder.ABORTED_AT_ONCE", at_once)
    first = await take_over(memory_store, ledger_store)
    await append(first, b"a", b"b")
    before = await stored_record(memory_store)
    put = {
        "watermark": Put(keys.watermark(SEGMENT), records.encode(Watermark(position=(1, 2)))),
        "aborted record": Put(
            keys.aborted(SEGMENT, TxnId(0, 7), None), records.encode(AbortedRecord(max_position=(1, 2)))
        ),
    }[what]
    there = records.encode(AbortedRecord(max_position=(1, 1)))
    others = [Put(keys.aborted(SEGMENT, TxnId(0, number), None), there) for number in (1, 2, 3)]
    await memory_store.commit(Commit(puts=(*others, put)))
    with pytest.raises(DataCorrupt, match=rf"{what} is at 1:2, but ledger 1 ends after 2 entries.*check --repair"):
        await take_over(memory_store, ledger_store)
    assert await stored_record(memory_store) == before
    await memory_store.commit(Commit(deletes=(Delete(put.key),)))
    assert await whole_log(await take_over(memory_store, ledger_store)) == [b"a", b"b"]


@pytest.mark.parametrize("empty_behind", [False, True], ids=["the newest", "before an empty one"])
async def test_c12_a_closed_ledger_that_is_shorter_than_it_was_is_not_served(
    memory_store: MemoryStore, ledger_store: FileLedgerStore, tmp_path: Path, empty_behind: bool
) -> None:
    """▲ Its predecessor had handed it over, so nobody counts it again; but the folder is older than etcd."""
    first = await take_over(memory_store, ledger_store)
    await append(first, b"a")
    shutil.copytree(tmp_path / "ledgers", tmp_path / "older")
    await append(first, b"b")
    await first.close(lambda: first.footer(1, 2, b"{}"))
    if empty_behind:
        second = await take_over(memory_store, ledger_store)
        await second.close(lambda: second.footer(2, 0, b"{}"))
    (tmp_path / "ledgers").rename(tmp_path / "newer")
    (tmp_path / "older").rename(tmp_path / "ledgers")
    older = FileLedgerStore(tmp_path)
    with pytest.raises(DataCorrupt, match=r"ledger 1 was closed with 2 entries, and 1 are there.*check --repair"):
        await take_over(memory_store, older)
    await older.close()
    shutil.rmtree(tmp_path / "ledgers")
    (tmp_path / "newer").rename(tmp_path / "ledgers")
    assert await whole_log(await take_over(memory_store, ledger_store)) == [b"a", b"b"]


async def test_a_newest_ledger_that_is_damaged_keeps_nobody_from_the_rest_of_its_log(
    memory_store: MemoryStore, ledger_store: FileLedgerStore, tmp_path: Path
) -> None:
    """Those who read it are told; the log is taken over, read elsewhere and goes on."""
    first = await take_over(memory_store, ledger_store)
    await append(first, b"a")
    await first.roll(first.footer(1, 1, b"{}"))
    await append(first, b"b")
    await first.close(lambda: first.footer(2, 1, b"{}"))
    (tmp_path / "ledgers" / SEGMENT / "2.ledger").write_bytes(b"nothing of a ledger")
    other = FileLedgerStore(tmp_path)
    second = await take_over(memory_store, other)
    await append(second, b"c")
    assert await second.read(Position(1, 0), second.last_confirmed, max_bytes=1) == [(Position(1, 0), b"a")]
    with pytest.raises(DataCorrupt):
        await second.read(Position(2, 0), second.last_confirmed, max_bytes=1)
    assert await second.read(Position(3, 0), second.last_confirmed, max_bytes=1) == [(Position(3, 0), b"c")]
    await other.close()
