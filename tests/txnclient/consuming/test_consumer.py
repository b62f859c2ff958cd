"""Consuming against a scripted broker: assignments, holds, acks, what is sent again."""

from __future__ import annotations

import asyncio
import warnings
from datetime import datetime
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.consuming.attached import LEFT, RIGHT, attached
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.waiting import until
from txnclient.consuming.consumer import consumer_impl
from txnwire.proto import txn_pb2 as pb


@virtual_time
async def test_a_consumer_attaches_to_what_it_is_assigned_and_delivers_it() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, prefetch=100)
        assert consumer.segments == list(SEGMENTS)
        assert sorted(server.permits.values()) == [50, 50]
        for _, request in server.consumers.values():
            assert (request.subscription, request.assignment_epoch, request.consumer) == ("sub", 1, consumer.name)
        server.deliver(LEFT, 0, b"a", b"b", b"c", skip=bytes([0b010]))
        messages = [await consumer.receive(), await consumer.receive()]
        assert [message.value for message in messages] == [b"a", b"c"]
        assert messages[1].segment == f"segment://{LEFT}"
        assert (messages[1].position, messages[1].id.index) == ((1, 0), 2)
        assert messages[1].topic == TOPIC


@virtual_time
async def test_permits_are_granted_again_at_half() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, prefetch=20)
        granted = server.permits[server.consumer_of(LEFT)]
        for number in range(10):
            server.deliver(LEFT, number, b"x")
        assert len(await consumer.receive_many(4)) == 4
        await asyncio.sleep(0.1)
        assert server.permits[server.consumer_of(LEFT)] == granted
        await consumer.receive()
        await asyncio.sleep(0.1)
        assert server.permits[server.consumer_of(LEFT)] == granted + 5


@virtual_time
async def test_receive_times_out_and_receive_many_returns_nothing() -> None:
    async with connected(timeout=7.0) as (cluster, client):
        _, consumer = await attached(cluster, client)
        before = cluster.clock.monotonic()
        with pytest.raises(txnclient.Timeout):
            await consumer.receive(timeout=0.5)
        assert await consumer.receive_many(10, timeout=0.5) == []
        assert 1.0 <= cluster.clock.monotonic() - before < 1.1


@virtual_time
async def test_receive_without_a_timeout_waits_for_longer_than_the_client_does() -> None:
    async with connected(timeout=7.0) as (cluster, client):
        server, consumer = await attached(cluster, client)
        waiting = [asyncio.ensure_future(one) for one in (consumer.receive(), consumer.receive_many(1))]
        await asyncio.sleep(70.0)
        assert not any(one.done() for one in waiting)
        server.deliver(LEFT, 0, b"a")
        server.deliver(RIGHT, 0, b"b")
        assert len(await asyncio.gather(*waiting)) == 2


@virtual_time
async def test_several_segments_take_turns() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for number in range(3):
            server.deliver(LEFT, number, b"l")
            server.deliver(RIGHT, number, b"r")
        await asyncio.sleep(0.1)
        assert [(await consumer.receive()).value for _ in range(6)] == [b"l", b"r"] * 3


async def received(consumer: txnclient.Consumer, count: int) -> str:
    return "".join(message.value.decode() for message in await consumer.receive_many(count, timeout=1.0))


@virtual_time
async def test_one_call_takes_from_as_few_segments_as_it_can() -> None:
    """What a transaction acks in a segment is a record of its own."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for number in range(5):
            server.deliver(LEFT, number, b"l")
            server.deliver(RIGHT, number, b"r")
        await asyncio.sleep(0.1)
        assert [await received(consumer, 3) for _ in range(4)] == ["lll", "rrr", "llr", "r"]


@virtual_time
async def test_a_segment_that_is_always_full_holds_up_no_other() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"l")
        for number in range(7):
            server.deliver(RIGHT, number, b"r")
        await asyncio.sleep(0.1)
        assert [await received(consumer, 2) for _ in range(4)] == ["rr", "lr", "rr", "rr"]


@virtual_time
async def test_one_batch_takes_from_as_few_segments_as_it_can() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)

        async def batch(max_bytes: int = 1000) -> str:
            messages = await consumer_impl(consumer).receive_batch(3, max_bytes, 1.0)
            return "".join(message.value.decode() for message in messages)

        for number in range(10):
            server.deliver(LEFT, number, b"l")
            server.deliver(RIGHT, number, b"r")
        await asyncio.sleep(0.1)
        assert [await batch() for _ in range(4)] == ["lll", "rrr", "lll", "rrr"]
        assert [await batch(max_bytes=1) for _ in range(4)] == ["l", "r", "l", "r"]
        assert [await batch() for _ in range(2)] == ["llr", "r"]


@virtual_time
async def test_a_batch_stays_about_its_bytes_however_many_messages_it_takes_at_once() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for number in range(30):
            server.deliver(LEFT, number, b"l")
        await asyncio.sleep(0.1)
        size = len(server.encoded(0, b"l"))
        found = [await consumer_impl(consumer).receive_batch(100, 10 * size, 1.0) for _ in range(3)]
        assert [len(batch) for batch in found] == [10, 10, 10]


@pytest.mark.parametrize("segment", SEGMENTS)
@virtual_time
async def test_there_is_something_to_receive_wherever_it_came(segment: str) -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        assert not consumer_impl(consumer).has_buffered
        server.deliver(segment, 0, b"x")
        await until(lambda: consumer_impl(consumer).has_buffered, within_s=1.0)
        consumer.pause()
        assert not consumer_impl(consumer).has_buffered


@virtual_time
async def test_a_segment_that_is_always_full_holds_up_no_other_s_batches() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"l")
        for number in range(9):
            server.deliver(RIGHT, number, b"r")
        await asyncio.sleep(0.1)
        found = [await consumer_impl(consumer).receive_batch(2, 1000, 1.0) for _ in range(3)]
        assert [[message.value for message in each] for each in found] == [[b"r", b"r"], [b"l", b"r"], [b"r", b"r"]]


@pytest.mark.parametrize("kind", ["stream", "queue"])
@virtual_time
async def test_a_number_of_few_bits_counts_as_any_other(kind: Any) -> None:
    """▲ As numpy has them: 200 + 200 is 144 there, and an application would be handed nothing, again and again."""
    numpy = pytest.importorskip("numpy")
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type=kind)
        server.deliver(LEFT, 0, *[b"l"] * 500)
        await asyncio.sleep(0.1)
        with warnings.catch_warnings(action="ignore"):
            assert [len(await consumer.receive_many(numpy.uint8(200))) for _ in range(3)] == [200, 200, 100]


@virtual_time
async def test_after_a_lost_connection_what_the_application_holds_does_not_come_twice() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"held")
        held = await consumer.receive()
        server.deliver(LEFT, 1, b"buffered")
        await asyncio.sleep(0.1)
        await server.cut()
        await until(lambda: server.seen["subscribe"] == 4)
        server.deliver(LEFT, 0, b"held")
        server.deliver(LEFT, 1, b"buffered")
        assert (await consumer.receive()).value == b"buffered"
        await consumer.ack(held)
        server.deliver(LEFT, 2, b"next")
        assert (await consumer.receive()).value == b"next"


@virtual_time
async def test_p1_after_an_abort_everything_unacked_is_delivered_again_from_behind_the_decision() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a")
        server.deliver(LEFT, 1, b"b")
        message = await consumer.receive()
        txn = await client.begin()
        await consumer.ack(message, txn=txn)
        before = server.consumer_of(LEFT)
        await txn.abort()
        await until(lambda: server.consumer_of(LEFT) != before)
        assert server.consumers[server.consumer_of(LEFT)][1].min_revision >= cluster.decided_at[txn.id]
        with pytest.raises(txnclient.Timeout):
            await consumer.receive(timeout=0.1)  # what was buffered behind it is gone
        server.deliver(LEFT, 0, b"a")
        assert (await consumer.receive()).value == b"a"


@virtual_time
async def test_who_comes_back_for_an_abort_says_so_until_it_is_attached() -> None:
    """Or what the broker has counted by itself as delivered again would be counted twice."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive()
        txn = await client.begin()
        await consumer.ack(message, txn=txn)
        server.refuse["subscribe"] = [txnclient.NotOwner("moving")]
        seen = server.seen["subscribe"]
        await txn.abort()
        await until(lambda: server.seen["subscribe"] == seen + 2)
        subscribed = [command.subscribe for command in server.commands if command.HasField("subscribe")]
        assert [one.after_abort for one in subscribed[-2:]] == [True, True]
        await server.cut()
        await until(lambda: server.seen["subscribe"] == seen + 4)
        subscribed = [command.subscribe for command in server.commands if command.HasField("subscribe")]
        assert [one.after_abort for one in subscribed[-2:]] == [False, False]


@virtual_time
async def test_who_starts_over_twice_still_waits_for_the_abort_that_it_has_heard_of() -> None:
    """▲ A broker that has not followed that abort goes on behind the messages that come back by it."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive()
        txn = await client.begin()
        await consumer.ack(message, txn=txn)
        cluster.revision += 50
        cluster.states[txn.id], cluster.decided_at[txn.id] = "ABORTED", cluster.revision
        server.refuse["subscribe"] = [txnclient.NotOwner("moving")] * 3
        seen = server.seen["subscribe"]
        with pytest.raises(txnclient.TxnAborted):
            await txn.commit()
        await until(lambda: server.seen["subscribe"] > seen)
        consumer.rewind()
        await until(lambda: not server.refuse["subscribe"] and len(server.consumers) == len(SEGMENTS))
        subscribed = [command.subscribe for command in server.commands if command.HasField("subscribe")]
        assert [one.min_revision for one in subscribed if one.segment == LEFT][-1] == cluster.decided_at[txn.id]


@virtual_time
async def test_p1_behind_a_lost_connection_what_others_may_abort_comes_before_anything_newer() -> None:
    """▲ Of a named transaction that somebody else aborts the broker's rewind tells, which was lost, perhaps, with the
    connection: so all that is not acked comes again, also what the application holds."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for number in range(2):
            server.deliver(LEFT, number, b"%d" % number)
        acked, held = await consumer.receive(), await consumer.receive()
        await consumer.ack(acked, txn=await client.begin(name="job/1"))
        await server.cut()
        await until(lambda: server.seen["subscribe"] == 4)
        for number in range(3):
            server.deliver(LEFT, number, b"%d" % number)
        assert [(await consumer.receive()).value for _ in range(3)] == [b"0", b"1", b"2"]
        with pytest.raises(txnclient.TxnConflict, match="delivered again"):
            await consumer.ack(held, txn=await client.begin())


@virtual_time
async def test_a_rewind_drops_the_buffer_and_makes_what_is_held_stale_for_transactions() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for number in range(3):
            server.deliver(LEFT, number, b"%d" % number)
        stale = await consumer.receive()
        rewind = pb.Command(rewind=pb.Rewind(consumer_id=server.consumer_of(LEFT)))
        server.push_to_consumer(LEFT, rewind)
        await asyncio.sleep(0.1)
        server.deliver(LEFT, 0, b"0")
        fresh = await consumer.receive()
        assert fresh.value == stale.value
        txn = await client.begin()
        with pytest.raises(txnclient.TxnConflict, match="delivered again"):
            await consumer.ack(stale, txn=txn)
        with pytest.raises(txnclient.TxnConflict):
            await txn.commit()
        await consumer.ack(stale)  # without a transaction nothing is promised but at least once


@virtual_time
async def test_a_segment_that_moves_away_takes_its_messages_along() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, prefetch=100)
        server.deliver(LEFT, 0, b"held")
        held = await consumer.receive()
        server.deliver(LEFT, 1, b"buffered")
        await asyncio.sleep(0.1)
        server.assign(RIGHT)
        await until(lambda: consumer.segments == [RIGHT])
        with pytest.raises(txnclient.NotAllowed, match="assigned"):
            await consumer.ack(held)
        txn = await client.begin()
        with pytest.raises(txnclient.NotAllowed):
            await consumer.ack(held, txn=txn)
        with pytest.raises(txnclient.NotAllowed):
            await txn.commit()
        with pytest.raises(txnclient.Timeout):
            await consumer.receive(timeout=0.1)
        await asyncio.sleep(0.1)
        assert server.permits[server.consumer_of(RIGHT)] == 100
        assert server.seen["close_consumer"] == 1


@virtual_time
async def test_all_segments_that_stay_share_the_prefetch_of_those_that_leave() -> None:
    async with connected() as (cluster, client):
        server, _ = await attached(cluster, client, prefetch=100)
        for segment_id in (0, 1):
            cluster.split(segment_id)
        children = cluster.topology.active_paths
        server.assign(*children)
        await until(lambda: [server.permits[cid] for cid in sorted(server.consumers)] == [25] * 4)
        server.assign(*children[:2])
        await until(lambda: [server.permits[cid] for cid in sorted(server.consumers)] == [50] * 2)


@virtual_time
async def test_a_segment_that_comes_back_is_attached_under_the_new_epoch_and_old_copies_are_stale() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"held")
        held = await consumer.receive()
        server.assign(RIGHT)
        await until(lambda: consumer.segments == [RIGHT])
        server.assign(LEFT, RIGHT)
        await until(lambda: len(server.consumers) == 2)
        assert server.consumers[server.consumer_of(LEFT)][1].assignment_epoch == 3
        with pytest.raises(txnclient.TxnConflict):
            await consumer.ack(held, txn=await client.begin())


@virtual_time
async def test_corrupt_bytes_are_an_error_that_names_the_place() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        cid = server.consumer_of(LEFT)
        deliver = pb.Deliver(consumer_id=cid, entries=[pb.DeliveredEntry(ledger_id=1, entry_id=5, entry=b"garbage")])
        server.push_to_consumer(LEFT, pb.Command(deliver=deliver))
        with pytest.raises(txnclient.DataCorrupt, match=r"0000-7fff-0 at 1:5"):
            await consumer.receive()


@virtual_time
async def test_iterating_ends_when_the_consumer_is_closed() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a", b"b")
        seen = []

        async def iterate() -> None:
            async for message in consumer:
                seen.append(message.value)

        iterating = asyncio.create_task(iterate())
        await until(lambda: len(seen) == 2)
        await consumer.close()
        await iterating
        with pytest.raises(txnclient.InvalidArgument, match="closed"):
            await consumer.receive()
        assert server.seen["leave_subscription"] == 1
        assert server.seen["close_consumer"] == 2


@pytest.mark.parametrize(
    "options",
    [
        {"type": "topic"},
        {"prefetch": 0},
        {"prefetch_bytes": 0},
        {"name": "a b"},
        {"isolation": "serializable"},
        {"start": "x"},
        {"start": datetime(2026, 1, 1)},
        {"type": "queue", "redelivery_delay": -1.0},
        {"type": "queue", "max_redeliveries": -1},
        {"type": "queue", "dead_letter_topic": TOPIC},
        {"type": "queue", "max_redeliveries": 1, "dead_letter_topic": "no topic"},
        {"serializer": "yaml"},
        {"serializer": (str.encode,)},
        {"serializer": object()},
        {"max_redeliveries": 3},
    ],
)
@virtual_time
async def test_what_is_malformed_or_not_offered_is_refused(options: dict[str, Any]) -> None:
    async with connected() as (_, client):
        with pytest.raises(txnclient.InvalidArgument):
            await client.consumer(TOPIC, "sub", **options)
