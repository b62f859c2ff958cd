"""Starts by time where publish times come in no order: nothing that is asked for is passed over, and it is looked for
once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.publish_times import STEP, Known, PublishTimes
from segments.log.ledgers.segment_log import SegmentLog
from segments.subscription.starts import before_timestamp
from tests.segments.brokering import TOPIC, Cluster
from tests.segments.log.segment_log import stored_record, take_over, writer_of
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import LedgerInfo, SubscriptionRecord
from txnwire.entry import OutgoingMessage, encode_entry
from txnwire.errors import NotOwner
from txnwire.ids import EARLIEST, Position
from txnwire.proto import txn_pb2 as pb

ROOT_ELSEWHERE = "public/default/orders/0000-ffff-77"


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(0, 6))
def test_what_is_known_to_be_older_is_older(steps: list[int], asked: int) -> None:
    """▲ Each number is the stamp of half a step of entries."""
    stamps = [stamp for stamp in steps for _ in range(STEP // 2)]
    times = PublishTimes()
    for number, stamp in enumerate(stamps):
        times.appended(Position(3, number), stamp)
    found = times.older(3, asked)
    first = next((number for number, stamp in enumerate(stamps) if stamp >= asked), len(stamps))
    assert found.entries <= first < found.entries + STEP or found.entries == first
    assert found == Known(found.entries, max(stamps[: found.entries], default=0))


def test_of_a_ledger_whose_list_does_not_tell_nothing_is_known_until_it_is_read() -> None:
    times = PublishTimes()
    times.listed([LedgerInfo(ledger_id=1, closed_length=5), LedgerInfo(ledger_id=2, closed_length=5, newest_ms=9)])
    assert times.older(1, 10).entries == 0
    assert times.older(2, 10).entries == 5
    assert times.older(2, 9).entries == 0
    times.scanned(1, Known(5, 9))
    assert times.older(1, 10).entries == 5
    times.appended(Position(1, 7), 3)  # not all before it were noted: nothing new is known
    assert times.newest_ms(1, 8) is None


@pytest.fixture
async def ledger_store(tmp_path: Path) -> AsyncIterator[FileLedgerStore]:
    store = FileLedgerStore(tmp_path)
    yield store
    await store.close()


async def append(ledgers: SegmentLog, *stamps: int) -> None:
    writer = writer_of(ledgers)
    for stamp in stamps:
        entry = encode_entry([OutgoingMessage(b"v")], producer="p", incarnation=1, sequence_id=1, publish_time_ms=stamp)
        ledgers.times.appended(Position(writer.ledger_id, writer.append(entry)), stamp)
    await writer.sync()


async def test_a_time_is_found_over_ledgers_that_were_closed_taken_over_and_are_open(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    first = await take_over(memory_store, ledger_store)
    await append(first, 500, 100)
    await first.roll(first.footer(1, 2, b""))
    await append(first, 100, 700, 100)
    second = await take_over(memory_store, ledger_store)  # the second ledger's times are not known here
    assert [info.newest_ms for info in (await stored_record(memory_store)).ledgers] == [500, None, None]
    await append(second, 900, 100)
    for _ in range(2):  # then with what was learned
        for asked, before in [
            (1, EARLIEST),
            (500, EARLIEST),
            (501, Position(2, 0)),
            (700, Position(2, 0)),
            (701, Position(2, 2)),
            (900, Position(2, 2)),
            (901, Position(3, 1)),
        ]:
            assert await before_timestamp(asked, second) == before, asked
    assert second.times.newest_ms(2, 3) == 700
    first.abandon()
    second.abandon()


async def test_a_search_by_time_reads_a_ledger_of_which_nothing_is_known_once(
    memory_store: MemoryStore, ledger_store: FileLedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read takes megabytes."""
    first = await take_over(memory_store, ledger_store)
    await append(first, 100, 300, 200, 500, 400)
    second = await take_over(memory_store, ledger_store)
    read, reads = ledger_store.read, list[int]()

    async def counted(
        segment: str, ledger_id: int, first: int, last: int, *, max_bytes: int
    ) -> Sequence[tuple[int, bytes]]:
        reads.append(first)
        return await read(segment, ledger_id, first, last, max_bytes=max_bytes)

    monkeypatch.setattr(ledger_store, "read", counted)
    for _ in range(2):
        assert await before_timestamp(600, second) == Position(1, 4)
    assert reads == [0]
    first.abandon()
    second.abandon()


async def test_a_search_by_time_goes_on_behind_what_is_trimmed_meanwhile(
    memory_store: MemoryStore, ledger_store: FileLedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await take_over(memory_store, ledger_store)
    await append(first, 100, 100)
    second = await take_over(memory_store, ledger_store)
    await append(second, 200, 300)
    read = second.read

    async def as_it_is_trimmed(first: Position, last: Position, *, max_bytes: int) -> list[tuple[Position, bytes]]:
        await second.trim(2)
        return await read(first, last, max_bytes=max_bytes)

    monkeypatch.setattr(second, "read", as_it_is_trimmed)
    assert await before_timestamp(250, second) == Position(2, 0)
    first.abandon()
    second.abandon()


async def test_a_search_by_time_ends_where_the_log_is_given_up(
    memory_store: MemoryStore, ledger_store: FileLedgerStore
) -> None:
    """▲ It would look at the same entry for ever, and the broker's event loop with it."""
    ledgers = await take_over(memory_store, ledger_store)
    await append(ledgers, 100, 200)
    ledgers.abandon()
    with pytest.raises(NotOwner):
        await before_timestamp(150, ledgers)


async def test_a_reader_by_time_gets_all_that_was_published_since(memory_cluster: Cluster) -> None:
    [segment] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    client = await memory_cluster.connect(node)
    producer = await client.producer(segment)
    for value, stamp in [("old", 100), *zip("abcd", [500, 100, 100, 500], strict=True)]:
        await producer.send(value, publish_time_ms=stamp)
    asked = pb.SegmentPositions(segment=segment, timestamp_ms=400)
    assert (await client.call(segment_positions=asked)).segment_positions_ok.before_timestamp.entry_id == 0
    await (await client.reader(segment, start=pb.Start(timestamp_ms=400))).wait(*"abcd")
    await node.crash()
    client = await memory_cluster.connect(await memory_cluster.start())
    await (await client.reader(segment, start=pb.Start(timestamp_ms=400))).wait(*"abcd")


async def test_what_was_delivered_from_a_time_and_not_acked_comes_again(memory_cluster: Cluster) -> None:
    """▲ Whoever takes over finds where the subscription began, and retention keeps what stands behind that."""
    [segment] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    client = await memory_cluster.connect(node)
    producer = await client.producer(segment)
    await producer.send("before", publish_time_ms=100)
    start = {"kind": "timestamp", "timestamp_ms": 400}
    record = SubscriptionRecord(type="stream", start=start, positions={segment: (1, 0)})
    await memory_cluster.create_subscription(record=record)
    for value in "abc":
        await producer.send(value, publish_time_ms=100)
    assert await (await node.broker.segment(segment)).subscriptions.drained() == Position(1, 0)
    await (await memory_cluster.subscribe(client, segment)).wait(*"abc")
    await node.crash()
    node = await memory_cluster.start()
    client = await memory_cluster.connect(node)
    await (await memory_cluster.subscribe(client, segment, epoch=2)).wait(*"abc")


async def test_a_segment_that_came_later_is_read_from_its_beginning(memory_cluster: Cluster) -> None:
    """▲ Of a child of what the time was resolved in, whose producers' clocks may be late."""
    [segment] = await memory_cluster.create_topic()
    client = await memory_cluster.connect(await memory_cluster.start())
    producer = await client.producer(segment)
    for value in "abc":
        await producer.send(value, publish_time_ms=100)
    start = {"kind": "timestamp", "timestamp_ms": 400}
    record = SubscriptionRecord(type="stream", start=start, positions={ROOT_ELSEWHERE: (1, 0)})
    await memory_cluster.create_subscription(record=record, topic=TOPIC)
    await (await memory_cluster.subscribe(client, segment)).wait(*"abc")
