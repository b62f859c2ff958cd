"""Reading whole entries of a range, against a scripted broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.consuming.feeds.test_queue_inbox import entry
from tests.txnclient.consuming.received.test_pieces import large
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, ScriptedServer, connected
from tests.waiting import until
from txnclient import Snapshot, WholeEntry
from txnclient.reading.entries import _EntryInbox
from txnclient.reading.reader import behind
from txnclient.reading.snapshot import SegmentBounds, Span, TopicBounds
from txnwire.errors import DataCorrupt, DataTrimmed, InvalidArgument, Timeout, to_wire
from txnwire.ids import EARLIEST, Position
from txnwire.proto import txn_pb2 as pb

LEFT, RIGHT = SEGMENTS
END = Position(1, 9)


@asynccontextmanager
async def reading(
    client: txnclient.Client, *, after: Position = EARLIEST, end: Position = END, **options: Any
) -> AsyncIterator[tuple[list[WholeEntry], asyncio.Task[None]]]:
    """What has been read so far, and the task that reads."""
    found: list[WholeEntry] = []

    async def read() -> None:
        async for entries in client.read_entries(LEFT, after=after, end=end, **options):
            assert entries, "no list is empty"
            found.extend(entries)

    task = asyncio.ensure_future(read())
    try:
        yield found, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def end_of(server: ScriptedServer, *, sealed: bool = False) -> None:
    push = pb.EndOfSegment(consumer_id=server.consumer_of(LEFT), sealed=sealed)
    server.push_to_consumer(LEFT, pb.Command(end_of_segment=push))


def request(server: ScriptedServer) -> pb.Subscribe:
    return server.consumers[server.consumer_of(LEFT)][1]


def values(found: list[WholeEntry]) -> list[bytes]:
    return [value for entry in found for value in entry.block.values()]


def span(end: int, *, start: int | None = None) -> Span:
    def cut(entry_id: int) -> Snapshot:
        bounds = SegmentBounds(Position(1, entry_id), Position(1, entry_id))
        return Snapshot(7 + entry_id, {TOPIC: TopicBounds(0, {LEFT: bounds})}, store="ours")

    return Span(None if start is None else cut(start), cut(end))


@virtual_time
async def test_a_range_is_read_to_its_end_in_order() -> None:
    async with connected() as (cluster, client), reading(client, after=Position(1, 2)) as (found, task):
        server = cluster.servers["broker:1"]
        await until(lambda: server.consumers)
        asked = request(server)
        assert (asked.start, asked.end) == (behind(LEFT, Position(1, 2)), pb.Position(ledger_id=1, entry_id=9))
        assert asked.trimmed == pb.TRIMMED_DATA_REFUSE
        assert asked.isolation == pb.ISOLATION_READ_COMMITTED
        server.deliver(LEFT, 3, b"a", b"b")
        server.deliver(LEFT, 4, b"c")
        end_of(server)
        await task
        assert values(found) == [b"a", b"b", b"c"]
        assert [(entry.position, entry.sequence_id, entry.txn_id) for entry in found] == [
            (Position(1, 3), 300, None),
            (Position(1, 4), 400, None),
        ]
        await until(lambda: not server.consumers)
        assert server.seen["close_consumer"] == 1


@virtual_time
async def test_an_empty_range_asks_nobody() -> None:
    async with connected() as (cluster, client):
        for end in (EARLIEST, Position(1, 2)):
            assert [one async for one in client.read_entries(LEFT, after=Position(1, 2), end=end)] == []
        assert not cluster.servers["broker:1"].seen["subscribe"]


@virtual_time
async def test_what_a_span_leaves_out_is_not_shown_and_its_revision_is_waited_for() -> None:
    async with (
        connected() as (cluster, client),
        reading(client, span=span(9, start=1), after=Position(1, 0)) as (found, task),
    ):
        server = cluster.servers["broker:1"]
        await until(lambda: server.consumers)
        asked = request(server)
        assert asked.isolation == pb.ISOLATION_SNAPSHOT
        assert (asked.min_revision, asked.store) == (16, "ours")
        for number in range(1, 4):
            server.deliver(LEFT, number, b"%d" % number)
        end_of(server)
        await task
        assert values(found) == [b"2", b"3"]


@virtual_time
async def test_before_any_snapshot_what_is_kept_is_read() -> None:
    for options, trimmed, earliest in (
        ({"span": span(9)}, pb.TRIMMED_DATA_BY_START, True),
        ({"span": span(9, start=1)}, pb.TRIMMED_DATA_REFUSE, False),
        ({"span": span(9), "after": Position(1, 0)}, pb.TRIMMED_DATA_REFUSE, False),
        ({"span": span(9), "trimmed": "skip"}, pb.TRIMMED_DATA_SKIP, True),
        ({}, pb.TRIMMED_DATA_REFUSE, False),
        ({"trimmed": "skip"}, pb.TRIMMED_DATA_SKIP, False),
    ):
        async with connected() as (cluster, client), reading(client, **options):  # type: ignore[arg-type]
            server = cluster.servers["broker:1"]
            await until(lambda server=server: server.consumers)
            assert (request(server).trimmed, request(server).start.earliest) == (trimmed, earliest), options


@virtual_time
async def test_it_goes_on_behind_the_last_entry_after_a_lost_connection_and_is_strict_from_there() -> None:
    async with connected() as (cluster, client), reading(client, span=span(9)) as (found, task):
        server = cluster.servers["broker:1"]
        await until(lambda: server.permits)
        server.deliver(LEFT, 3, b"a")
        await until(lambda: found)
        await server.cut()
        await until(lambda: server.seen["subscribe"] == 2)
        assert request(server).start == behind(LEFT, Position(1, 3))
        assert request(server).trimmed == pb.TRIMMED_DATA_REFUSE, "behind a gap it would be a part of a transaction"
        server.deliver(LEFT, 4, b"b")
        end_of(server)
        await task
        assert values(found) == [b"a", b"b"]


@virtual_time
async def test_memory_is_bounded_by_bytes_whatever_the_sizes_of_the_entries() -> None:
    """▲ Small ones first, then large ones: permits that were learnt from the small ones would let thousands come."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        entries = client.read_entries(LEFT, after=EARLIEST, end=Position(1, 99), prefetch_bytes=64 * 1024)
        async with aclosing(entries):
            first = asyncio.ensure_future(anext(entries))
            await until(lambda: server.permits)
            assert request(server).permits_are_kib
            consumer = server.consumer_of(LEFT)
            assert server.permits[consumer] == 64
            for number in range(30):
                server.deliver(LEFT, number, b"small")
            await asyncio.sleep(1.0)
            assert len(await first) == 30
            granted = server.permits[consumer]
            assert granted <= 64 + 30
            for number in range(30, 34):
                server.deliver(LEFT, number, bytes(16_000))
            await asyncio.sleep(1.0)
            assert server.permits[consumer] == granted, "nothing more while nobody takes what has come"
            assert len(await anext(entries)) == 4
            await asyncio.sleep(1.0)
            assert server.permits[consumer] >= granted + 4 * 16


def test_an_entry_uses_permits_by_its_size_until_it_is_handed_out_left_out_or_kept_as_a_piece() -> None:
    inbox = _EntryInbox(64 * 1024)
    assert inbox.attached() == 64
    inbox.arrived(entry(0, size=16_000), b"")
    assert inbox.buffered == 16
    assert inbox.attached() == 48, "behind a lost connection"
    assert len(inbox.take_entries(1_000_000)) == 1
    assert inbox.buffered == 0
    inbox.left_out(entry(1, size=16_000), b"")
    assert inbox.permits_due() == 32
    for piece in large(2, bytes(16_000), bytes(16_000), b"")[:2]:
        inbox.arrived(piece, b"")
    assert inbox.permits_due() == 32


@virtual_time
async def test_what_is_handed_out_at_once_is_bounded_once_it_is_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txnclient.reading.entries.BATCH_BYTES", 10_000)
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        entries = client.read_entries(LEFT, after=EARLIEST, end=Position(1, 9))
        first = asyncio.ensure_future(anext(entries))
        await until(lambda: server.permits)
        for number in range(5):
            server.deliver(LEFT, number, bytes(4_000))
        end_of(server)
        lists = [await first, *[one async for one in entries]]
        assert [len(one) for one in lists] in ([1, 2, 2], [2, 2, 1])


@virtual_time
async def test_nothing_for_so_long_is_an_error_that_leaves_nothing_behind() -> None:
    async with connected() as (cluster, client), reading(client, timeout=5.0) as (found, task):
        server = cluster.servers["broker:1"]
        await until(lambda: server.permits)
        for number in range(3):  # each begins the time anew
            await asyncio.sleep(4.0)
            server.deliver(LEFT, number, b"x")
        with pytest.raises(Timeout, match=f"reading segment://{LEFT} after 1:2: not done within 5 s"):
            await task
        assert len(found) == 3
        await until(lambda: not server.consumers)
        assert not client._opened


@virtual_time
async def test_what_is_left_out_counts_as_progress() -> None:
    async with (
        connected() as (cluster, client),
        reading(client, timeout=5.0, span=span(9, start=8), after=Position(1, 0)) as (found, task),
    ):
        server = cluster.servers["broker:1"]
        await until(lambda: server.permits)
        for number in range(1, 9):
            await asyncio.sleep(4.0)
            server.deliver(LEFT, number, b"x")
        server.deliver(LEFT, 9, b"y")
        end_of(server)
        await task
        assert values(found) == [b"y"]


@virtual_time
async def test_a_seal_ends_it_only_once_the_layout_says_so() -> None:
    async with connected() as (cluster, client), reading(client, timeout=1000.0) as (found, task):
        server = cluster.servers["broker:1"]
        await until(lambda: server.permits)
        server.deliver(LEFT, 1, b"a")
        end_of(server, sealed=True)
        await asyncio.sleep(1.0)
        assert not task.done()
        server.deliver(LEFT, 2, b"the split was given up")
        await asyncio.sleep(1.0)
        assert not task.done()
        end_of(server, sealed=True)
        cluster.seal(0, told=False)
        cluster.split(0)
        await asyncio.wait_for(task, 30.0)
        assert len(found) == 2


def _take_away(cluster: Cluster) -> None:
    """Retention has taken all of the left segment, and its owner serves it no more."""
    cluster.seal(0, told=False)
    cluster.split(0)
    del cluster.topology.segments[0]
    for server in cluster.servers.values():
        error = to_wire(txnclient.TopicNotFound("gone"))
        for consumer_id, (peer, one) in list(server.consumers.items()):
            if one.segment == LEFT:
                del server.consumers[consumer_id]
                peer.push(pb.Command(consumer_closed=pb.ConsumerClosed(consumer_id=consumer_id, error=error)))
    cluster.announce()


@pytest.mark.parametrize("trimmed", ["fail", "skip"])
@virtual_time
async def test_a_segment_that_goes_amid_a_read(trimmed: str) -> None:
    async with connected() as (cluster, client), reading(client, trimmed=trimmed, timeout=60.0) as (found, task):
        server = cluster.servers["broker:1"]
        await until(lambda: server.permits)
        server.deliver(LEFT, 1, b"a")
        await until(lambda: found)
        _take_away(cluster)
        if trimmed == "fail":
            with pytest.raises(DataTrimmed, match="is no longer in its topic"):
                await task
        else:
            await task
        assert values(found) == [b"a"]


@virtual_time
async def test_a_segment_that_has_gone_before() -> None:
    async with connected() as (cluster, client):
        await client.describe_topic(TOPIC)
        _take_away(cluster)
        for read in (client.read_entries, client.scan_entries):
            with pytest.raises(DataTrimmed, match="is no longer in its topic"):
                await anext(read(LEFT, after=EARLIEST, end=END))  # type: ignore[operator]
            assert [one async for one in read(LEFT, after=EARLIEST, end=END, trimmed="skip")] == []
        before = [one async for one in client.read_entries(LEFT, after=EARLIEST, end=END, span=span(9))]
        assert before == [], "what lies before any snapshot, as far as it is kept"
        with pytest.raises(DataTrimmed):
            await anext(client.read_entries(LEFT, after=Position(1, 1), end=END, span=span(9, start=1)))
        assert not client._opened


@virtual_time
async def test_a_broker_that_has_trimmed_it_says_so() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.refuse["subscribe"] = [DataTrimmed("what was to be read has been trimmed, up to 1:4")]
        async with reading(client) as (_, task):
            with pytest.raises(DataTrimmed, match="trimmed, up to 1:4"):
                await task


@pytest.mark.parametrize("how", ["cancel", "aclose"])
@virtual_time
async def test_whoever_leaves_early_leaves_nothing(how: str) -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        tasks = len(asyncio.all_tasks())
        entries = client.read_entries(LEFT, after=EARLIEST, end=Position(1, 9))
        waiting = asyncio.ensure_future(anext(entries))
        await until(lambda: server.permits)
        if how == "cancel":
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        else:
            server.deliver(LEFT, 1, b"a")
            assert len(await waiting) == 1
            await entries.aclose()
        await until(lambda: not server.consumers)
        await until(lambda: len(asyncio.all_tasks()) == tasks)
        assert not client._opened
        assert len(client._directory._listeners) == 1, "the coordinators'"


@pytest.mark.parametrize("how", ["cancelled", "time is up"])
@virtual_time
async def test_a_read_that_was_given_up_does_not_look_as_if_it_were_through(how: str) -> None:
    """Dies where whoever goes on behind the failure takes the part that was read for the whole."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        entries = client.read_entries(LEFT, after=EARLIEST, end=Position(1, 9), timeout=5.0)
        first = asyncio.ensure_future(anext(entries))
        await until(lambda: server.permits)
        server.deliver(LEFT, 1, b"a")
        assert len(await first) == 1
        if how == "cancelled":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(entries), 1.0)
        else:
            with pytest.raises(Timeout):
                await anext(entries)
        for _ in range(2):
            with pytest.raises(txnclient.TxnError, match=r"was cancelled|not done within 5 s") as raised:
                await anext(entries)
            assert raised.value.fatal


@pytest.mark.parametrize("options", [{"span": True}, {"trimmed": "skip"}])
@virtual_time
async def test_a_range_of_a_deleted_topic_does_not_look_empty(options: dict[str, Any]) -> None:
    """▲ As one that retention has emptied may. The next topic of the name may be heard of before the deletion."""
    async with connected() as (cluster, client):
        cluster.life = 1
        cluster.announce()
        if "span" in options:
            options = {"span": span(9)}
        async with reading(client, **options) as (found, task):
            await until(lambda: cluster.servers["broker:1"].permits)
            cluster.make_again()
            cluster.announce()
            with pytest.raises(txnclient.TopicNotFound):
                await asyncio.wait_for(task, 10.0)
            assert not found


@virtual_time
async def test_closing_the_client_ends_a_read() -> None:
    async with connected() as (cluster, client), reading(client) as (_, task):
        await until(lambda: cluster.servers["broker:1"].permits)
        await client.close()
        with pytest.raises(InvalidArgument, match="is closed"):
            await task
        with pytest.raises(InvalidArgument, match="this client is closed"):
            client.read_entries(LEFT, after=EARLIEST, end=Position(1, 9))
        with pytest.raises(InvalidArgument, match="this client is closed"):
            client.scan_entries(LEFT, after=EARLIEST, end=Position(1, 9))


@virtual_time
async def test_an_entry_that_is_damaged_is_named() -> None:
    async with connected() as (cluster, client), reading(client) as (_, task):
        server = cluster.servers["broker:1"]
        await until(lambda: server.permits)
        server.deliver(LEFT, 3, b"a" * 50)
        consumer_id, (peer, _) = server.consumer_of(LEFT), server.consumers[server.consumer_of(LEFT)]
        entry = bytearray(server.encoded(4, b"b" * 50))
        entry[-10] ^= 1
        delivered = pb.DeliveredEntry(ledger_id=1, entry_id=4, entry=bytes(entry))
        peer.push(pb.Command(deliver=pb.Deliver(consumer_id=consumer_id, entries=[delivered])))
        with pytest.raises(DataCorrupt, match=f"segment://{LEFT} at 1:4: entry checksum"):
            await task


@virtual_time
async def test_a_topic_that_is_not_there_and_one_that_is_not_known_here_yet() -> None:
    async with connected() as (cluster, client):
        entries = client.read_entries("public/default/other/0000-ffff-0", after=EARLIEST, end=Position(1, 1))
        with pytest.raises(txnclient.TopicNotFound):
            await anext(entries)
        ahead = "public/default/orders/0000-3fff-2"
        cuts = client.read_entries(ahead, after=EARLIEST, end=Position(1, 1), timeout=30.0)
        waiting = asyncio.ensure_future(anext(cuts))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        cluster.seal(0, told=False)
        cluster.split(0)
        server = cluster.servers["broker:1"]
        await until(lambda: any(one.segment == ahead for _, one in server.consumers.values()))
        server.deliver(ahead, 1, b"a")
        assert len(await waiting) == 1
        await cuts.aclose()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"isolation": "dirty"}, "isolation 'dirty'"),
        ({"trimmed": "ignore"}, "trimmed 'ignore': expected 'fail' or 'skip'"),
        ({"prefetch_bytes": 0}, "prefetch_bytes"),
        ({"isolation": "read_uncommitted", "span": span(1)}, "read it with isolation 'read_committed'"),
    ],
)
@virtual_time
async def test_wrong_arguments_are_refused_at_once(options: dict[str, Any], reason: str) -> None:
    async with connected() as (_, client):
        with pytest.raises(InvalidArgument, match=reason):
            client.read_entries(LEFT, after=EARLIEST, end=Position(1, 1), **options)
        with pytest.raises(InvalidArgument):
            client.read_entries("no segment", after=EARLIEST, end=Position(1, 1))
        with pytest.raises(InvalidArgument):
            client.scan_entries("no segment", after=EARLIEST, end=Position(1, 1))
        with pytest.raises(InvalidArgument, match="trimmed 'no'"):
            client.scan_entries(LEFT, after=EARLIEST, end=Position(1, 1), trimmed="no")
