"""What a queue's consumer does when its broker tells that it shares the queue, step by step in virtual time."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.consuming.attached import LEFT, attached
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, ScriptedServer, connected
from tests.waiting import until
from txnclient.consuming.feeds.pace import PERIOD_S
from txnclient.serializers import serializer_of
from txnwire.proto import txn_pb2 as pb


def tell(server: ScriptedServer, sharing: int, segment: str = LEFT) -> None:
    deliver = pb.Deliver(consumer_id=server.consumer_of(segment), sharing=sharing)
    server.push_to_consumer(segment, pb.Command(deliver=deliver))


def given_back(server: ScriptedServer) -> list[int]:
    """Entry ids, in the order in which they were given back without having been looked at."""
    nacks = [command.nack for command in server.commands if command.HasField("nack")]
    return [position.entry_id for nack in nacks if nack.unbegun for position in nack.positions]


def flows(server: ScriptedServer, segment: str = LEFT) -> list[pb.Flow]:
    consumer_id = server.consumer_of(segment)
    all_flows = [command.flow for command in server.commands if command.HasField("flow")]
    return [flow for flow in all_flows if flow.consumer_id == consumer_id]


@virtual_time
async def test_who_was_alone_gives_back_at_once_what_it_has_not_begun() -> None:
    """▲ It would keep a batch of long jobs that the other one could do."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        for number in range(10):
            server.deliver(LEFT, number, b"%d" % number)
        await consumer.receive(timeout=5)
        tell(server, 1)
        await until(lambda: len(given_back(server)) == 8, within_s=PERIOD_S / 2)
        assert sorted(given_back(server)) == list(range(2, 10))  # one is begun, one ahead
        assert [(await consumer.receive(timeout=5)).value] == [b"1"]
        await until(lambda: flows(server)[-1].sharing == 1)
        assert sum(flow.permits for flow in flows(server) if flow.sharing == 1) == 1
        tell(server, 2)
        await until(lambda: flows(server)[-1].sharing == 2)
        assert sum(flow.permits for flow in flows(server) if flow.sharing == 2) > 100


@virtual_time
async def test_who_hangs_revokes_its_permits_before_it_gives_back_and_grants_again_when_it_asks() -> None:
    """▲ The other way round all of it would come again."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        tell(server, 1)
        await until(lambda: flows(server)[-1].sharing == 1)
        server.deliver(LEFT, 0, b"0")
        await consumer.receive(timeout=5)
        server.deliver(LEFT, 1, b"1")
        await until(lambda: given_back(server) == [1], within_s=3 * PERIOD_S)
        of_it = [command for command in server.commands if command.HasField("nack") or command.flow.revoke]
        assert [command.WhichOneof("body") for command in of_it] == ["flow", "nack"]
        tell(server, 3)
        server.deliver(LEFT, 2, b"2")  # was under way
        await until(lambda: given_back(server) == [1, 2], within_s=PERIOD_S / 2)
        assert all(flow.sharing < 3 for flow in flows(server)), "it was granted something"
        assert await consumer.receive_many(1, timeout=0.1) == []
        await until(lambda: flows(server)[-1].sharing == 3)


@virtual_time
async def test_all_that_is_not_begun_is_given_back_however_many_commands_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txnclient.consuming.feeds.queue_feed.MAX_POSITIONS", 3)
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        for number in range(10):
            server.deliver(LEFT, number, b"%d" % number)
        begun = [await consumer.receive(timeout=5) for _ in range(5)]
        tell(server, 1)
        await until(lambda: sorted(given_back(server)) == list(range(6, 10)), within_s=PERIOD_S / 2)
        await consumer.nack(begun, delay=0)
        nacks = [command.nack for command in server.commands if command.HasField("nack")]
        assert [position.entry_id for nack in nacks[-2:] for position in nack.positions] == list(range(5))


@virtual_time
async def test_who_hung_is_granted_messages_of_every_segment_again_when_it_asks() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        for segment in SEGMENTS:
            tell(server, 1, segment)
            await until(lambda: flows(server, segment)[-1].sharing == 1)  # noqa: B023
            server.deliver(segment, 7, b"not begun")
        await until(lambda: given_back(server) == [7, 7], within_s=3 * PERIOD_S)
        before = Counter(server.permits)
        assert await consumer.receive_many(1, timeout=0.1) == []
        await until(lambda: all(server.permits[cid] > before[cid] for cid in server.consumers))


@virtual_time
async def test_who_hangs_after_a_lost_connection_gives_back_too() -> None:
    """The look at what waits was due as the connection ended: the next one is another connection's."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        for _ in range(2):
            tell(server, 1)
            server.deliver(LEFT, 0, b"0")
            await asyncio.sleep(PERIOD_S / 2)
            await server.cut()
            server.permits.clear()
            await until(lambda: len(server.permits) == len(SEGMENTS))
        tell(server, 1)
        server.deliver(LEFT, 0, b"0")
        await consumer.receive(timeout=5)
        server.deliver(LEFT, 1, b"1")
        await until(lambda: given_back(server) == [1], within_s=3 * PERIOD_S)


@virtual_time
async def test_parts_of_an_entry_come_without_its_bytes() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        server.deliver(LEFT, 7, b"a", b"b", b"c", skip=bytes([0b110]))
        rest = pb.DeliveredEntry(ledger_id=1, entry_id=7, skip=bytes([0b001]), redelivery_count=2)
        deliver = pb.Deliver(consumer_id=server.consumer_of(LEFT), entries=[rest])
        server.push_to_consumer(LEFT, pb.Command(deliver=deliver))
        found = [await consumer.receive(timeout=5) for _ in range(3)]
        assert [message.value for message in found] == [b"a", b"b", b"c"]
        assert [message.redelivery_count for message in found] == [0, 2, 2]


@virtual_time
async def test_consumers_of_one_client_decode_an_entry_that_they_divide_once() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        server.deliver(LEFT, 7, b"a", b"b", skip=bytes([0b10]))
        first = await consumer.receive(timeout=5)
        other = await client.consumer(TOPIC, "sub", type="queue")
        await until(lambda: len(server.permits) == 2 * len(SEGMENTS))
        server.deliver(LEFT, 7, b"a", b"b", skip=bytes([0b01]))
        second = await other.receive(timeout=5)
        assert (first.value, second.value) == (b"a", b"b")
        assert first.entry.block is second.entry.block
        # ▲ As of another topic of the name, or where the first copy was damaged.
        server.deliver(LEFT, 7, b"x", b"y", skip=bytes([0b01]))
        assert (await other.receive(timeout=5)).value == b"y"


def reached_from(one: object) -> list[object]:
    """All objects that it refers to, over any number of others, without types."""
    found: dict[int, object] = {}
    frontier = [one]
    while frontier:
        for other in gc.get_referents(frontier.pop()):
            if id(other) not in found and not isinstance(other, type):
                found[id(other)] = other
                frontier.append(other)
    return list(found.values())


@virtual_time
async def test_a_message_of_bytes_does_not_refer_to_the_serializer_of_another_consumer() -> None:
    """▲ The garbage collector does not visit it: if the serializer kept it, both would stay for ever."""
    async with connected() as (cluster, client):
        serializer = serializer_of("str")
        server, consumer = await attached(cluster, client, type="queue", serializer=serializer)
        server.deliver(LEFT, 7, b"a", b"b", skip=bytes([0b10]))
        first = await consumer.receive(timeout=5)
        other = await client.consumer(TOPIC, "sub", type="queue")
        await until(lambda: len(server.permits) == 2 * len(SEGMENTS))
        server.deliver(LEFT, 7, b"a", b"b", skip=bytes([0b01]))
        second = await other.receive(timeout=5)
        assert (first.value, second.value) == ("a", b"b")
        assert second.entry.raw is first.entry.raw
        assert any(one is serializer for one in reached_from(first.entry))
        assert not any(one is serializer for one in reached_from(second.entry))


@virtual_time
async def test_bytes_that_are_missing_are_no_message() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        server.deliver(LEFT, 7, b"a", b"b", skip=bytes([0b10]))
        other = pb.DeliveredEntry(ledger_id=1, entry_id=8, skip=bytes([0b1]))
        deliver = pb.Deliver(consumer_id=server.consumer_of(LEFT), entries=[other])
        server.push_to_consumer(LEFT, pb.Command(deliver=deliver))
        assert (await consumer.receive(timeout=5)).value == b"a"
        with pytest.raises(txnclient.DataCorrupt, match="no bytes"):
            await consumer.receive(timeout=5)


@virtual_time
async def test_of_a_paused_segment_nothing_is_kept_while_it_is_shared() -> None:
    """▲ Also where the application waits, for others of its segments: the buffer would even grow."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        tell(server, 1)
        await until(lambda: flows(server)[-1].sharing == 1)
        server.deliver(LEFT, 0, b"0")
        await until(lambda: consumer._impl.has_buffered)
        consumer.pause()
        await until(lambda: given_back(server) == [0], within_s=PERIOD_S / 2)
        of_it = [command for command in server.commands if command.HasField("nack") or command.flow.revoke]
        assert [command.WhichOneof("body") for command in of_it] == ["flow", "nack"]
        waits = asyncio.create_task(consumer.receive_many(1, timeout=5))
        server.deliver(LEFT, 1, b"1")  # was under way
        tell(server, 3)
        await until(lambda: given_back(server) == [0, 1], within_s=PERIOD_S / 2)
        assert await waits == []
        assert all(flow.sharing < 3 for flow in flows(server)), "it was granted something"
        consumer.resume()
        await until(lambda: flows(server)[-1].sharing == 3)
        assert flows(server)[-1].permits == 1
