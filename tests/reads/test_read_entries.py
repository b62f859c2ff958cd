"""Whole entries and their heads, end to end: what a reader shows of the same span, over new owners, trims and early
leavers. Real client, servers, etcd, ledgers and gRPC."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import txnclient
import txnclient.sync
from tests.both_topics import ORDERS, heads_of
from tests.cluster import InProcessCluster, running_cluster
from tests.waiting import until
from txnclient import EntryHead, Snapshot, WholeEntry, WholeHeads
from txnclient.reading.snapshot import Span
from txnwire.errors import DataTrimmed, InvalidArgument
from txnwire.ids import EARLIEST, Position
from txnwire.protocol import MIB


async def fill(client: txnclient.Client, *, messages: int = 400, size: int = 20_000) -> tuple[str, Snapshot]:
    """One segment of some megabytes, a third of it aborted."""
    await client.create_topic(ORDERS, segments=1, autoscale="off")
    async with client.producer(ORDERS, compression=None, batch_bytes=50_000) as producer:
        for number in range(0, messages, 20):
            txn = await client.begin()
            await producer.send_many([b"%08d" % (number + one) * (size // 8) for one in range(20)], txn=txn)
            await (txn.commit() if number % 60 else txn.abort())
    cut = await client.snapshot(ORDERS)
    [path] = cut.segments
    return path, cut


def numbers(entries: Sequence[WholeEntry]) -> list[int]:
    return [int(value[:8]) for entry in entries for value in entry.block.values()]


EXPECTED = [number for number in range(400) if number // 20 % 3]


async def test_a_read_and_a_scan_go_on_at_a_new_owner(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnclient.reading.entries.SCAN_ENTRIES", 20)
    async with cluster.connect() as client:
        path, cut = await fill(client)
        end = cut.segments[path].end
        reads = client.read_entries(
            path, after=EARLIEST, end=end, span=Span(None, cut), prefetch_bytes=200_000, timeout=60.0
        )
        pages = client.scan_entries(path, after=EARLIEST, end=end, min_revision=cut.revision, timeout=60.0)
        entries, heads = [*await anext(reads)], [*await anext(pages)]
        assert len(heads) == 20
        await cluster.start_server("broker-2", "broker")
        await cluster.stop_server("broker")
        async with asyncio.timeout(60):
            entries += [entry async for batch in reads for entry in batch]
            heads += [head async for page in pages for head in page]
        assert numbers(entries) == EXPECTED
        assert [head.position for head in heads] == sorted({head.position for head in heads})
        assert sum(head.messages for head in heads) == 400
        assert sum(head.messages for head in heads if not head.aborted) == len(EXPECTED)
        assert [fact_of(entry, len(entry.block)) for entry in entries] == [
            fact_of(head, head.messages) for head in WholeHeads().of(head for head in heads if not head.aborted)
        ]


def fact_of(one: WholeEntry | EntryHead, messages: int) -> tuple[Any, ...]:
    """What both an entry and its head tell."""
    sender = one.producer, one.incarnation, one.sequence_id
    return one.position, one.txn_id, one.writer, one.publish_time_ms, *sender, messages


@pytest.mark.parametrize("moves", [False, True])
async def test_a_read_gets_over_more_than_one_turn_of_aborted_entries(
    cluster: InProcessCluster, client: txnclient.Client, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    """To a snapshot, and without one; also where its owner leaves in the midst of them."""
    monkeypatch.setattr("segments.subscription.dispatch.BATCH_ENTRIES", 10)
    await client.create_topic(ORDERS, segments=1)
    async with client.producer(ORDERS, batch_bytes=1) as producer:
        await producer.send(b"first")
        txn = await client.begin()
        await producer.send_many([b"%d" % number for number in range(1_000)], txn=txn)
        await txn.abort()
        await producer.send(b"last")
    cut = await client.snapshot(ORDERS)
    [(path, bounds)] = cut.segments.items()
    for span in (Span(None, cut), None):
        reads = client.read_entries(path, after=EARLIEST, end=bounds.end, span=span, timeout=60.0)
        async with asyncio.timeout(60):
            shown = await anext(reads)
            if moves and span is not None:
                await cluster.start_server("broker-2", "broker")
                await cluster.stop_server("broker")
            shown += [entry async for batch in reads for entry in batch]
        assert [value for entry in shown for value in entry.block.values()] == [b"first", b"last"]


async def test_a_scan_ends_at_what_is_stored_and_tells_what_is_open(client: txnclient.Client) -> None:
    await client.create_topic(ORDERS, segments=1)
    async with client.producer(ORDERS) as producer:
        txn = await client.begin(name="job/1")
        await producer.send(b"one", txn=txn)
        await producer.send(b"two")
        await producer.send(b"three!" * MIB, chunk=True, txn=txn)
        [path] = [one.path for one in (await client.describe_topic(ORDERS)).active]
        heads = await heads_of(client, path, Position(99, 99))
        assert [(head.txn_id, head.writer, head.messages) for head in heads[:2]] == [
            (txn.id, txn.writer_id, 1),
            (None, 0, 1),
        ]
        assert not any(head.aborted for head in heads)
        pieces = [head.piece for head in heads[2:]]
        assert [piece and (piece.number, piece.pieces, piece.chunk_id) for piece in pieces] == [
            (number, 6, 2) for number in range(6)
        ]
        assert {piece and piece.producer for piece in pieces} == {producer.name}
        assert await heads_of(client, path, heads[1].position) == heads[:2]
        behind = client.scan_entries(path, after=heads[1].position, end=Position(99, 99))
        assert [head async for page in behind for head in page] == heads[2:]
        assert await heads_of(client, path, EARLIEST) == []
        await txn.abort()


@pytest.fixture
async def small_ledgers(etcd: str, tmp_path: Path) -> AsyncIterator[InProcessCluster]:
    async with running_cluster(etcd, tmp_path, ledger_roll_bytes=1_048_576) as running:
        yield running


async def test_what_retention_has_taken_is_an_error_or_is_skipped(small_ledgers: InProcessCluster) -> None:
    folder = small_ledgers.data_dir / "ledgers" / "acme/orders/placed"
    async with small_ledgers.connect() as client:
        path, cut = await fill(client)
        end, whole = cut.segments[path].end, Span(None, cut)
        reads = client.read_entries(path, after=EARLIEST, end=end, span=whole, prefetch_bytes=100_000)
        first = await anext(reads)
        await client.update_topic(ORDERS, retention_bytes=2_500_000)
        await until(lambda: len(list(folder.glob("*/*.ledger"))) <= 5, within_s=20)
        with pytest.raises(DataTrimmed, match="have been trimmed"):  # behind what has come
            await _rest(reads)

        async def read(after: Position, **options: Any) -> list[int]:
            batches = client.read_entries(path, after=after, end=end, **options)
            return [number async for batch in batches for number in numbers(batch)]

        kept = await read(EARLIEST, span=whole)
        assert 0 < len(kept) < len(EXPECTED)
        assert kept == EXPECTED[-len(kept) :], "from the earliest on, as far as it is kept"
        with pytest.raises(DataTrimmed):
            await read(EARLIEST)
        with pytest.raises(DataTrimmed):
            await read(first[0].position, span=whole)
        with pytest.raises(DataTrimmed):
            await heads_of(client, path, end)
        for after in (EARLIEST, first[0].position):
            assert await read(after, trimmed="skip") == kept
            assert await read(after, span=whole, trimmed="skip") == kept
        skipped = await heads_of(client, path, end, trimmed="skip", min_revision=cut.revision)
        assert sum(head.messages for head in skipped if not head.aborted) == len(kept)
        assert await read(skipped[-1].position) == []


async def consumers_at(client: txnclient.Client, path: str) -> int:
    link = await client._directory.owner_link(path, client._session.deadline())
    return len(link.consumers)


@pytest.mark.parametrize("how", ["cancelled", "closed", "let go of", "left"])
async def test_whoever_leaves_amid_a_read_leaves_nothing(
    cluster: InProcessCluster, client: txnclient.Client, how: str
) -> None:
    path, cut = await fill(client)
    segment = cluster.servers["broker"].server.broker.segments[path]  # type: ignore[union-attr]
    tasks = len(asyncio.all_tasks())
    reads = client.read_entries(path, after=EARLIEST, end=cut.segments[path].end, prefetch_bytes=100_000)
    assert await anext(reads)
    assert len(segment.dispatcher.consumers) == 1
    if how == "cancelled":
        waiting = asyncio.ensure_future(_drain(client, path))
        await until(lambda: len(segment.dispatcher.consumers) >= 2, within_s=20)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    if how in ("cancelled", "closed"):
        await reads.aclose()
    elif how == "left":
        async for _ in reads:
            break
    del reads
    gc.collect()
    await until(
        lambda: not (segment.dispatcher.consumers or len(asyncio.all_tasks()) > tasks or client._opened), within_s=20
    )
    assert await consumers_at(client, path) == 0


async def _rest(reads: AsyncGenerator[list[WholeEntry], None]) -> None:
    async for _ in reads:
        pass


async def _drain(client: txnclient.Client, path: str) -> None:
    await _rest(client.read_entries(path, after=EARLIEST, end=Position(99, 99)))


async def test_without_await(cluster: InProcessCluster) -> None:
    def scenario() -> None:
        with txnclient.sync.connect(cluster.url) as client:
            client.create_topic(ORDERS, segments=1)
            with client.producer(ORDERS) as producer, client.transaction() as txn:
                producer.send_many([b"%d" % number for number in range(1000)], txn=txn)
            cut = client.snapshot(ORDERS)
            [(path, bounds)] = cut.segments.items()
            span = Span(None, cut)
            found = [
                value
                for entries in client.read_entries(path, after=EARLIEST, end=bounds.end, span=span)
                for entry in entries
                for value in entry.block.values()
            ]
            assert found == [b"%d" % number for number in range(1000)]
            heads = [head for page in client.scan_entries(path, after=EARLIEST, end=bounds.end) for head in page]
            assert sum(head.messages for head in heads) == 1000
            with pytest.raises(txnclient.InvalidArgument, match="trimmed"):
                client.read_entries(path, after=EARLIEST, end=bounds.end, trimmed="no")
            left = client.read_entries(path, after=EARLIEST, end=Position(99, 99))
            assert next(left)
            left.close()
            assert not client._inner._opened
            with pytest.raises(txnclient.Timeout):
                list(client.read_entries(path, after=bounds.end, end=Position(99, 99), timeout=0.2))
            forgotten = client.read_entries(path, after=EARLIEST, end=Position(99, 99))
            assert next(forgotten)
        with pytest.raises(txnclient.InvalidArgument, match="closed"):
            next(forgotten)

    await asyncio.to_thread(scenario)


async def test_without_await_too_a_read_that_was_given_up_does_not_look_as_if_it_were_through(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await client.create_topic(ORDERS, segments=1)
    async with client.producer(ORDERS) as producer:
        await producer.send(b"a")
    cut = await client.snapshot(ORDERS)
    ((path, bounds),) = cut.segments.items()
    beyond = Position(bounds.end.ledger_id, bounds.end.entry_id + 1)  # not there yet

    def work() -> None:
        with (
            txnclient.sync.connect(cluster.url) as same,
            closing(same.read_entries(path, after=EARLIEST, end=beyond, timeout=1.0)) as entries,
        ):
            assert len(next(entries)) == 1
            for _ in range(2):
                with pytest.raises(txnclient.Timeout):
                    next(entries, None)

    await asyncio.to_thread(work)


async def test_a_page_has_so_many_heads(client: txnclient.Client) -> None:
    await client.create_topic(ORDERS, autoscale="off")
    async with client.producer(ORDERS) as producer:
        for number in range(5):
            await producer.send(b"%d" % number)
    ((path, bounds),) = (await client.snapshot(ORDERS)).segments.items()

    async def pages(size: int) -> list[int]:
        scan = client.scan_entries(path, after=EARLIEST, end=bounds.end, page_entries=size)
        return [len(page) async for page in scan]

    assert await pages(2) == [2, 2, 1]
    assert await pages(1) == [1] * 5
    for size in (0, 10_001):
        with pytest.raises(InvalidArgument, match="page_entries"):
            await pages(size)


async def test_a_scan_of_a_deleted_topic_does_not_look_done(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    """▲ Nor where it skips what is trimmed: another topic of the name has been made meanwhile."""
    async with cluster.connect() as other:
        path, cut = await fill(client, messages=40)
        end = cut.segments[path].end
        pages = other.scan_entries(path, after=EARLIEST, end=end, page_entries=2, trimmed="skip")
        assert len(await anext(pages)) == 2
        await client.delete_topic(ORDERS, force=True)
        await client.create_topic(ORDERS)
        with pytest.raises(txnclient.TopicNotFound):
            await anext(pages)
