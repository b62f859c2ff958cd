"""What a broker tells of entries without their messages, and permits by size."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from segments.owner import scanning
from tests.segments.brokering import Client, Cluster
from tests.segments.log.small_logs import ONE_ENTRY_EACH, set_policies
from tests.waiting import until
from txnclient.reading.entry_heads import heads_of
from txnclient.reading.reader import behind
from txnwire.errors import DataTrimmed, TopicNotFound
from txnwire.ids import EARLIEST, Position
from txnwire.proto import txn_pb2 as pb

END = Position(999, 0)


async def scan(
    client: Client,
    segment: str,
    *,
    after: Position = EARLIEST,
    end: Position = END,
    max_entries: int = 0,
    min_revision: int = 0,
    trimmed: int = pb.TRIMMED_DATA_BY_START,
    columns: bool = False,
) -> pb.ScanEntriesOk:
    request = pb.ScanEntries(
        segment=segment,
        after=pb.Position(ledger_id=after.ledger_id, entry_id=after.entry_id),
        end=pb.Position(ledger_id=end.ledger_id, entry_id=end.entry_id),
        max_entries=max_entries,
        min_revision=min_revision,
        trimmed=trimmed,  # type: ignore[arg-type]
        columns=columns,
    )
    return (await client.call(scan_entries=request)).scan_entries_ok


def places(page: pb.ScanEntriesOk) -> list[Position]:
    return [Position(head.ledger_id, head.entry_id) for head in page.heads]


def through(page: pb.ScanEntriesOk) -> Position:
    return Position(page.through.ledger_id, page.through.entry_id)


async def test_a_scan_shows_what_is_open_and_what_was_aborted_by_a_revision(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    undecided, aborted, committed = [await cluster.begin() for _ in range(3)]
    stored = [
        await producer.send("a", "b", txn=undecided),
        await producer.send("c", txn=aborted),
        await producer.send("d", txn=committed),
        await producer.send("e"),
    ]
    await cluster.commit(committed)
    revision = await cluster.abort(aborted)
    page = await scan(client, segment, min_revision=revision)
    assert places(page) == stored
    assert [head.count for head in page.heads] == [2, 1, 1, 1]
    assert [head.aborted for head in page.heads] == [False, True, False, False]
    assert [head.txnid_least_bits for head in page.heads] == [undecided.counter, aborted.counter, committed.counter, 0]
    assert not any(head.HasField("piece") for head in page.heads)
    assert (page.ended, through(page)) == (True, stored[-1]), "what is not stored yet is not waited for"


async def test_columns_tell_what_heads_do_and_who_sent_what(cluster: Cluster) -> None:
    """▲ As heads, one by one, older programs ask for them; and an older owner sends them whatever is asked for."""
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    one, other = await client.producer(segment, "one"), await client.producer(segment, "other", incarnation=9)
    opened, aborted = await cluster.begin(), await cluster.begin()
    await one.send("a", "b")
    await other.send("c", txn=opened, writer=5)
    await one.send("d", txn=aborted, publish_time_ms=77)
    await one.send("e", txn=opened)
    revision = await cluster.abort(aborted)
    heads = heads_of(await scan(client, segment, min_revision=revision))
    columns = heads_of(await scan(client, segment, min_revision=revision, columns=True))
    assert [head._replace(producer="", incarnation=0, sequence_id=0) for head in columns] == heads
    assert [(head.producer, head.incarnation, head.sequence_id) for head in columns] == [
        ("one", 1, 0),
        ("other", 9, 0),
        ("one", 1, 2),
        ("one", 1, 3),
    ]
    assert [(head.txn_id, head.writer, head.messages, head.aborted) for head in heads] == [
        (None, 0, 2, False),
        (opened, 5, 1, False),
        (aborted, 0, 1, True),
        (opened, 0, 1, False),
    ]
    assert heads[2].publish_time_ms == 77


async def test_a_page_of_nothing_is_a_page_of_no_heads(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    for columns in (False, True):
        page = await scan(client, segment, columns=columns)
        assert (heads_of(page), page.ended) == ([], True)


async def test_a_scan_waits_until_decisions_are_followed_to_its_revision(cluster: Cluster) -> None:
    """▲ Else a plan made of heads would take what was aborted for committed."""
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    first, second = await cluster.begin(), await cluster.begin()
    await producer.send("a", txn=first)
    await producer.send("b", txn=second)
    revision = await cluster.abort(first)
    ahead = revision + 100
    waiting = asyncio.create_task(scan(client, segment, min_revision=ahead))
    page = await scan(client, segment, min_revision=revision)
    assert [head.aborted for head in page.heads] == [True, False]
    assert not waiting.done(), "nothing is known of that revision yet"
    assert await cluster.abort(second) < ahead
    while await cluster.abort(await cluster.begin()) < ahead:
        pass
    assert [head.aborted for head in (await waiting).heads] == [True, True]


async def test_pages_are_bounded_by_entries_and_by_what_is_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    stored = [await producer.send(f"{number}" * 100) for number in range(9)]
    page = await scan(client, segment, max_entries=4)
    assert (places(page), page.ended, through(page)) == (stored[:4], False, stored[3])
    page = await scan(client, segment, after=stored[3], max_entries=5)
    assert (places(page), page.ended, through(page)) == (stored[4:], True, stored[-1])
    page = await scan(client, segment, after=stored[1], end=stored[5])
    assert (places(page), page.ended, through(page)) == (stored[2:6], True, stored[5])
    assert places(await scan(client, segment, after=stored[-1])) == []
    monkeypatch.setattr("segments.broker.broker_service.PAGE_ENTRIES", 3)
    assert places(await scan(client, segment, max_entries=1000)) == stored[:3]
    monkeypatch.setattr("segments.broker.broker_service.PAGE_ENTRIES", 1000)
    monkeypatch.setattr(scanning, "PAGE_READ_BYTES", 1)
    page = await scan(client, segment)
    assert 0 < len(places(page)) <= 9
    assert page.ended == (len(places(page)) == 9)


async def test_a_page_ends_with_the_entry_that_takes_it_to_the_bytes_that_may_be_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries are read whole, one at a time here."""
    [segment] = await cluster.create_topic()
    client = await cluster.connect(node := await cluster.start())
    producer = await client.producer(segment)
    for number in range(9):
        await producer.send(f"{number}" * 100)
    served, after = node.broker.segments[segment], EARLIEST
    sizes = [head.size_bytes for head in (await scan(client, segment)).heads]
    monkeypatch.setattr(scanning, "PAGE_READ_BYTES", sum(sizes[:4]))
    pages = []
    for _ in range(3):
        page = await scanning.scan(served, after, END, max_entries=100, skip_trimmed=False, read_bytes=1)
        pages.append((len(page.heads), page.ended))
        after = page.through
    assert pages == [(4, False), (4, False), (1, True)]


async def test_of_a_page_that_is_made_in_several_turns_no_head_is_missing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ A plan made of heads would leave the messages out."""
    monkeypatch.setattr(scanning, "HEADS_AT_ONCE", 4)
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    stored = [await producer.send(f"{number}") for number in range(10)]
    page = await scan(client, segment)
    assert (places(page), page.ended) == (stored, True)


async def test_a_scan_over_what_is_trimmed(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(node := await cluster.start(settings=ONE_ENTRY_EACH))
    producer = await client.producer(segment)
    stored = [await producer.send(f"{number}") for number in range(6)]
    await set_policies(cluster, retention_ms=1)
    served = node.broker.segments[segment]
    await until(lambda: served.ledgers.trimmed_through == stored[5], what="all is trimmed")
    await set_policies(cluster)
    stored.append(await producer.send("6"))
    for after in (EARLIEST, stored[2]):
        for trimmed in (pb.TRIMMED_DATA_BY_START, pb.TRIMMED_DATA_REFUSE):
            with pytest.raises(DataTrimmed, match="have been trimmed"):
                await scan(client, segment, after=after, trimmed=trimmed)
        skipping = await scan(client, segment, after=after, trimmed=pb.TRIMMED_DATA_SKIP)
        assert places(skipping) == stored[6:]
    assert places(await scan(client, segment, after=stored[5])) == stored[6:]


async def test_a_scan_goes_on_behind_what_is_trimmed_as_it_is_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(node := await cluster.start())
    producer = await client.producer(segment)
    served, stored = node.broker.segments[segment], []
    for number in range(3):
        stored.append(await producer.send(f"{number}"))
        await served.roll()
    read = served.ledgers.read

    async def trimmed_first(*what: Position, max_bytes: int) -> Sequence[tuple[Position, bytes]]:
        monkeypatch.setattr(served.ledgers, "read", read)
        await served.ledgers.trim(stored[2].ledger_id)
        return await read(*what, max_bytes=max_bytes)

    monkeypatch.setattr(served.ledgers, "read", trimmed_first)
    page = await scan(client, segment, trimmed=pb.TRIMMED_DATA_SKIP)
    assert (places(page), page.ended) == (stored[2:], True)


async def test_a_reader_says_what_it_wants_where_something_is_trimmed(cluster: Cluster) -> None:
    """▲ Of itself one that names no snapshot goes on behind a gap; one that reads in bulk says that it must not."""
    [segment] = await cluster.create_topic()
    client = await cluster.connect(node := await cluster.start(settings=ONE_ENTRY_EACH))
    store = await cluster.store.incarnation()
    producer = await client.producer(segment)
    stored = [await producer.send(f"{number}") for number in range(6)]
    start = behind(segment, stored[0])
    strict = await client.reader(segment, start=start, permits=1, trimmed=pb.TRIMMED_DATA_REFUSE)
    lenient = await client.reader(segment, start=start, permits=1, store=store, trimmed=pb.TRIMMED_DATA_SKIP)
    for reader in (strict, lenient):
        await reader.wait("1")
    await set_policies(cluster, retention_ms=1)
    served = node.broker.segments[segment]
    await until(lambda: served.ledgers.trimmed_through == stored[5], what="all is trimmed")
    await set_policies(cluster)
    await producer.send("6")
    for reader in (strict, lenient):
        reader.flow(100)
    await lenient.wait("1", "6")
    await until(lambda: strict.closed is not None)
    assert isinstance(strict.closed, DataTrimmed)
    with pytest.raises(DataTrimmed):
        await client.reader(segment, start=behind(segment, EARLIEST), trimmed=pb.TRIMMED_DATA_REFUSE)
    again = await client.reader(segment, start=start, store=store, trimmed=pb.TRIMMED_DATA_SKIP)
    await again.wait("6")


async def test_permits_by_size_are_spent_by_what_entries_take(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    for number in range(4):
        await producer.send(f"{number}" * 3000)  # four KiB begun each
    await producer.send(*["small"] * 100)
    by_size = await client.reader(segment, permits=8, permits_are_kib=True)
    by_count = await client.reader(segment, permits=2)
    expected = [f"{number}" * 3000 for number in range(4)]
    for reader in (by_size, by_count):
        await reader.wait(*expected[:2])
    assert by_size.values == expected[:2]
    by_size.flow(9)
    await by_size.wait(*expected, *["small"] * 100)
    assert by_count.values == expected[:2]


async def test_a_segment_that_is_not_here(cluster: Cluster) -> None:
    await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    with pytest.raises(TopicNotFound):
        await scan(client, "public/default/none/0000-ffff-0")
