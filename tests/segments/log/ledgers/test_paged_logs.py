"""Logs whose list of ledgers stands in pages."""

from __future__ import annotations

import asyncio

from segments.ledger.file_ledger import FileLedgerStore
from segments.log.ledgers.segment_log import SegmentLog
from tests.segments.log.segment_log import SEGMENT, append, own, stored_record, take_over, whole_log, writer_of
from txnstore import keys
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import MAX_COMMIT_BYTES, Commit, Put
from txnwire.ids import EARLIEST, Position, TxnId
from watchers.visibility import AbortedKey

PAGE = 2


async def take_over_in_pages(store: MemoryStore, ledger_store: FileLedgerStore) -> SegmentLog:
    ledgers = SegmentLog(store, ledger_store, SEGMENT, epoch=await own(store), incarnation="i", page_ledgers=PAGE)
    await ledgers.take_over()
    return ledgers


async def page_keys(store: MemoryStore) -> list[bytes]:
    prefix = keys.ledger_pages(SEGMENT)
    return [one.key for one in (await store.range(prefix, keys.prefix_end(prefix))).records]


async def test_a_log_whose_list_stands_in_pages_is_one_log_for_its_owner_and_for_the_next(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    first = await take_over_in_pages(memory_store, ledger_store)
    written = [f"{n}".encode() for n in range(12)]
    for entry in written:
        await append(first, entry)
        await first.roll(first.footer(writer_of(first).ledger_id, 1, b"dedup"))
    assert len(await page_keys(memory_store)) >= 4
    assert len((await stored_record(memory_store)).ledgers) <= PAGE + 1
    second = await take_over_in_pages(memory_store, ledger_store)

    for ledgers in (first, second):
        assert await whole_log(ledgers) == written
        assert [ledgers.nth(n) for n in range(12)] == [Position(n + 1, 0) for n in range(12)]
        assert [ledgers.entries_between(EARLIEST, Position(n + 1, 0)) for n in range(12)] == list(range(1, 13))
    assert await second.last_footer() == (Position(12, 0), b"dedup")


async def test_trimming_takes_whole_pages_along_and_leaves_the_rest_listed(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    ledgers = await take_over_in_pages(memory_store, ledger_store)
    for n in range(12):
        await append(ledgers, f"{n}".encode())
        await ledgers.roll(ledgers.footer(writer_of(ledgers).ledger_id, 1, b""))
    before = await page_keys(memory_store)
    await ledgers.trim(8)
    assert await page_keys(memory_store) == before, "read no more, and still listed: their files stand"
    assert ledgers.to_delete == tuple(range(1, 8))
    await ledgers.finish_trim()
    assert ledgers.to_delete == ()
    assert await page_keys(memory_store) == before[3:]
    again = await take_over_in_pages(memory_store, ledger_store)
    assert await whole_log(again) == [f"{n}".encode() for n in range(7, 12)]
    assert [ledger_id for _, ledger_id in await ledger_store.list()] == [8, 9, 10, 11, 12, 13, 14]


async def test_a_sidecar_of_a_ledger_that_stands_in_a_page_is_listed_there(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    """A transaction that stays open holds the watermark back, and with it the ledger that the next sidecar is for."""
    ledgers = await take_over_in_pages(memory_store, ledger_store)
    for n in range(9):
        await append(ledgers, f"{n}".encode())
        await ledgers.roll(ledgers.footer(writer_of(ledgers).ledger_id, 1, b""))
    aborted: dict[int, dict[AbortedKey, Position]] = {
        ledger_id: {(TxnId(1, ledger_id), None): Position(ledger_id, 0)} for ledger_id in (2, 5)
    }
    for ledger_id, found in aborted.items():
        await ledgers.add_sidecar(ledger_id, found)
    assert not any(info.aborted for info in (await stored_record(memory_store)).ledgers)
    again = await take_over_in_pages(memory_store, ledger_store)
    assert await again.load_sidecars() == aborted


async def test_a_list_that_had_filled_its_one_record_is_taken_over_and_goes_on(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    """As programs wrote it that knew of no pages: every field, close to a megabyte. 7 300 ledgers are 456 GiB."""
    now = 1_790_000_000_000
    row = f'"closed_length":65536,"bytes":67108864,"store":"file","opened_ms":{now},"closed_ms":{now},"aborted":0}}'
    rows = ",".join(f'{{"ledger_id":{n},{row}' for n in range(1, 7_301))
    value = f'{{"v":1,"ledgers":[{rows}],"sealed":null,"trimmed_below":null,"trimmed_through":null}}'.encode()
    assert 990_000 < len(value) < MAX_COMMIT_BYTES
    await memory_store.commit(Commit(puts=(Put(keys.ledger(SEGMENT), value),)))
    last = await ledger_store.create(SEGMENT, 7_300, incarnation="i")  # a take-over looks at the newest one's file
    for _ in range(65_536):
        last.append(b"")
    await last.sync()
    await last.close(b"")
    for next_id in (7_301, 7_302):
        ledgers = await take_over(memory_store, ledger_store)
        assert len(ledgers.record.ledgers) == next_id
        assert ledgers.last_confirmed == Position(7_300, 65_535)
        assert writer_of(ledgers).ledger_id == next_id
    found = await memory_store.get(keys.ledger(SEGMENT))
    assert found is not None
    assert len(found.value) < 64 * 1024


async def test_a_head_and_its_pages_are_written_by_one_commit(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    """A ledger in neither would be gone; one write that is lost leaves both as they were."""
    ledgers = await take_over_in_pages(memory_store, ledger_store)
    watch = memory_store.watch(keys.LEDGER_PAGE, keys.prefix_end(keys.LEDGER), from_revision=1)
    for n in range(6):
        await append(ledgers, f"{n}".encode())
        await ledgers.roll(ledgers.footer(writer_of(ledgers).ledger_id, 1, b""))
    pages = 0
    async with asyncio.timeout(10.0):
        async for batch in watch:
            by_revision: dict[int, list[bytes]] = {}
            for event in batch.events:
                by_revision.setdefault(event.record.mod_revision, []).append(event.record.key)
            for changed in by_revision.values():
                assert keys.ledger(SEGMENT) in changed
                pages += len(changed) - 1
            if batch.revision >= ledgers.revision:
                break
    await watch.close()
    assert pages >= 2
