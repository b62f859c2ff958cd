"""A reader tells where it stands, and goes elsewhere."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, connected
from tests.txnclient.scripted_server import TOPIC as SCRIPTED
from tests.waiting import until
from txnclient import Positions
from txnwire.clock import SystemClock
from txnwire.ids import EARLIEST

TOPIC = "topic://public/default/orders"


async def sent(client: txnclient.Client, values: range) -> None:
    async with client.producer(TOPIC, batch_bytes=1) as producer:
        for value in values:
            await producer.send(b"%d" % value, key=f"k{value % 7}")


async def read(reader: txnclient.Reader[bytes], count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count and (messages := await reader.receive_many(count - len(found), timeout=10)):
        found += [int(message.value) for message in messages]
    return sorted(found)


async def test_another_reader_goes_on_behind_what_was_handed_out(client: txnclient.Client) -> None:
    """Wherever the first began, how ever far it came, and over a split."""
    await client.create_topic(TOPIC, segments=2)
    await sent(client, range(40))
    async with client.reader(TOPIC) as reader:
        found = await read(reader, 15)
        positions = Positions.from_json(reader.positions().to_json())
        async with client.reader(TOPIC, start=positions, end="latest") as other:
            assert await read(other, 1000) == sorted({*range(40)} - {*found})
        await client.split((await client.describe_topic(TOPIC)).active[0].name)
        await sent(client, range(40, 80))
        found += await read(reader, 50)
        async with client.reader(TOPIC, start=reader.positions()) as other:
            untouched = other.positions()
            assert await read(other, 15) == sorted({*range(80)} - {*found})
            async with client.reader(TOPIC, start=untouched, end="latest") as third:
                assert await read(third, 1000) == sorted({*range(80)} - {*found})
    async with client.reader(TOPIC, start="latest") as reader:
        latest = reader.positions()
        await sent(client, range(80, 90))
        async with client.reader(TOPIC, start=latest, end="latest") as other:
            assert await read(other, 1000) == list(range(80, 90))


@pytest.mark.parametrize("stored", [0, 5])
async def test_a_start_by_a_time_before_all_messages_has_positions_too(client: txnclient.Client, stored: int) -> None:
    """▲ They name no message, and must be a start all the same: a job that keeps them would not come up again."""
    await client.create_topic(TOPIC, segments=2)
    await sent(client, range(stored))
    async with client.reader(TOPIC, start=datetime.now(UTC) - timedelta(hours=1)) as reader:
        kept = Positions.from_json(reader.positions().to_json())
    await sent(client, range(stored, 9))
    async with client.reader(TOPIC, start=kept, end="latest") as other:
        assert await read(other, 100) == list(range(9))
    async with client.consumer(TOPIC, "s", start=kept) as consumer:
        assert sorted([int((await consumer.receive(timeout=10)).value) for _ in range(9)]) == list(range(9))


@virtual_time
async def test_they_name_something_where_all_that_was_there_at_the_opening_has_gone() -> None:
    """By time: segments that nothing was sent to are pruned once they were split."""
    async with connected() as (cluster, client):
        cluster.servers["broker:1"].before_times.update(dict.fromkeys(SEGMENTS, EARLIEST))
        async with client.reader(SCRIPTED, start=1) as reader:
            for number, path in enumerate(SEGMENTS):
                cluster.split(number)
                cluster.prune(number)
                await until(lambda path=path: client._session.directory.segment(path) is None)
            async with client.reader(SCRIPTED, start=reader.positions()):
                pass


class HourBehind(SystemClock):
    def wall_ms(self) -> int:
        return super().wall_ms() - 3_600_000


async def test_a_time_may_lie_behind_the_first_message_of_a_child_alone(client: txnclient.Client) -> None:
    """▲ By the clock of its producer. Positions that name the child and not its parent leave the parent out."""
    await client.create_topic(TOPIC)
    await sent(client, range(3))
    await client.split((await client.describe_topic(TOPIC)).active[0].name)
    clock, client._session.clock = client._session.clock, HourBehind()
    await sent(client, range(3, 20))
    client._session.clock = clock
    await sent(client, range(20, 40))
    async with client.reader(TOPIC, start=datetime.now(UTC) - timedelta(minutes=30)) as reader:
        kept = reader.positions()
        found = await read(reader, 23)
        assert found == [0, 1, 2, *range(20, 40)]
    async with client.reader(TOPIC, start=kept, end="latest") as other:
        assert await read(other, 100) == found


async def test_it_stands_amid_a_batch(client: txnclient.Client) -> None:
    await client.create_topic(TOPIC)
    async with client.producer(TOPIC) as producer, client.reader(TOPIC) as reader:
        await producer.send_many([("k", b"%d" % value) for value in range(10)])
        assert await read(reader, 4) == [0, 1, 2, 3]
        async with client.reader(TOPIC, start=reader.positions(), end="latest") as other:
            assert await read(other, 100) == [4, 5, 6, 7, 8, 9]


async def test_a_large_value_that_has_come_in_part_is_not_cut(client: txnclient.Client) -> None:
    """▲ From behind its first pieces it would never be complete. What was handed out between them comes again."""
    await client.create_topic(TOPIC)
    large = os.urandom(12 * 1024 * 1024)
    async with client.producer(TOPIC) as producer, client.reader(TOPIC, isolation="read_uncommitted") as reader:
        await producer.send(b"small")
        async with client.transaction() as txn:
            await producer.send(large, txn=txn, chunk=True)
        await producer.send(b"last")
        await until(lambda: reader._impl._buffered())
        assert (await reader.receive(timeout=10)).value == b"small"
        positions = reader.positions()
        assert (await reader.receive(timeout=10)).value == large
        assert not reader._impl._feeds[next(iter(reader._impl._feeds))]._inbox._large, "it is not kept"
        async with client.reader(TOPIC, start=positions) as other:
            assert (await other.receive(timeout=10)).value == large
            assert (await other.receive(timeout=10)).value == b"last"
        async with client.reader(TOPIC, start=reader.positions()) as other:
            assert (await other.receive(timeout=10)).value == b"last"


async def test_a_reader_seeks(client: txnclient.Client) -> None:
    """Back and forth, by every kind of start; what it had received is not handed out."""
    await client.create_topic(TOPIC, segments=2)
    await sent(client, range(20))
    async with client.reader(TOPIC) as reader:
        assert await read(reader, 20) == list(range(20))
        end = reader.positions()
        await reader.seek("earliest")
        first = await reader.receive(timeout=10)
        assert sorted([int(first.value), *await read(reader, 19)]) == list(range(20))
        await reader.seek(first.id)
        assert int((await reader.receive(timeout=10)).value) in range(20)
        await until(lambda: reader._impl._buffered())
        await reader.seek("latest")
        assert await reader.receive_many(10, timeout=0.05) == []
        waiting = asyncio.ensure_future(reader.receive_many(1000))
        await sent(client, range(20, 21))
        assert [int(message.value) for message in await asyncio.wait_for(waiting, 10)] == [20]
        await reader.seek(end)
        assert await read(reader, 1) == [20]
        await reader.seek(1)
        assert await read(reader, 21) == list(range(21))
        with pytest.raises(txnclient.InvalidArgument):
            await reader.seek("nowhere")
        with pytest.raises(txnclient.InvalidArgument):
            await reader.seek(await client.snapshot([TOPIC]))  # type: ignore[arg-type]
        assert await reader.receive_many(10, timeout=0.05) == []
    with pytest.raises(txnclient.InvalidArgument, match="closed"):
        await reader.seek("earliest")
    async with client.reader(TOPIC, end="latest") as reader:
        with pytest.raises(txnclient.InvalidArgument, match="with an end"):
            await reader.seek("earliest")


async def test_behind_a_seek_it_tells_where_it_was_sent_and_not_where_it_stood(client: txnclient.Client) -> None:
    """▲ A job that keeps its place and ends before the first message would come up where it was before the seek."""
    await client.create_topic(TOPIC, segments=2)
    await sent(client, range(20))
    async with client.reader(TOPIC) as reader:
        await read(reader, 15)
        for back in range(2):
            await reader.seek("earliest")
            found = await read(reader, 3 * back)
            async with client.reader(TOPIC, start=reader.positions(), end="latest") as other:
                assert await read(other, 100) == sorted({*range(20)} - {*found})


async def test_a_reader_of_a_snapshot_has_no_positions(client: txnclient.Client) -> None:
    """▲ It goes past a transaction that is open: from behind it that one would be missed."""
    await client.create_topic(TOPIC)
    async with client.producer(TOPIC) as producer, client.transaction() as txn:
        await producer.send(b"open", txn=txn)
        await producer.send(b"1")
        async with client.reader(TOPIC, end="latest") as reader:
            assert await read(reader, 10) == [1]
            with pytest.raises(txnclient.InvalidArgument, match="snapshot"):
                reader.positions()


async def test_a_closed_reader_tells_where_it_stood(client: txnclient.Client) -> None:
    """▲ Also amid a large value, whose pieces are dropped then."""
    await client.create_topic(TOPIC)
    large = os.urandom(12 * 1024 * 1024)
    async with client.producer(TOPIC) as producer:
        await producer.send(b"small")
        async with client.transaction() as txn:
            await producer.send(large, txn=txn, chunk=True)
        reader = await client.reader(TOPIC)
        assert (await reader.receive(timeout=10)).value == b"small"
        await until(lambda: reader._impl._buffered(), within_s=20)
        await reader.close()
    async with client.reader(TOPIC, start=reader.positions()) as other:
        assert (await other.receive(timeout=10)).value == large


async def test_a_seek_goes_back_to_what_was_split_meanwhile(client: txnclient.Client) -> None:
    await client.create_topic(TOPIC)
    await sent(client, range(5))
    async with client.reader(TOPIC) as reader:
        assert await read(reader, 5) == list(range(5))
        await client.split((await client.describe_topic(TOPIC)).active[0].name)
        await sent(client, range(5, 25))
        assert await read(reader, 20) == list(range(5, 25))
        await reader.seek("earliest")
        assert await read(reader, 25) == list(range(25))


async def test_waiting_without_a_timeout_has_no_limit(client: txnclient.Client) -> None:
    """`receive` and `receive_many` of readers and consumers alike, whatever the client's timeout."""
    await client.create_topic(TOPIC)
    async with client.reader(TOPIC) as reader, client.consumer(TOPIC, "s") as consumer:
        for impl in (reader._impl, consumer._impl):
            impl._session.timeout_s = 0.01
        waiting: list[asyncio.Future[object]] = [
            asyncio.ensure_future(one)
            for one in (reader.receive(), reader.receive_many(1), consumer.receive(), consumer.receive_many(1))
        ]
        done, _ = await asyncio.wait(waiting, timeout=0.1)
        assert not done
        await sent(client, range(2))
        for one in waiting:
            assert await asyncio.wait_for(one, 10)
