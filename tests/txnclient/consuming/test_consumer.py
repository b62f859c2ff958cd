"""Consuming against a scripted broker: assignments, holds, acks, what is sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, ScriptedServer, connected
from tests.waiting import until
from txnclient.consuming.consumer import consumer_impl
from txnclient.transactions.transaction import impl_of, transaction_impl
from txnwire.errors import to_wire
from txnwire.proto import txn_pb2 as pb

LEFT, RIGHT = SEGMENTS


async def attached(
    cluster: Cluster, client: txnclient.Client, **options: Any
) -> tuple[ScriptedServer, txnclient.Consumer]:
    server = cluster.servers["broker:1"]
    consumer = await client.consumer(TOPIC, "sub", **options)
    await until(lambda: len(server.consumers) == len(SEGMENTS) and len(server.permits) == len(SEGMENTS))
    return server, consumer


def acks(server: ScriptedServer) -> list[pb.Ack]:
    return [command.ack for command in server.commands if command.HasField("ack")]


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
        with pytest.raises(txnclient.Timeout):
            await consumer.receive()
        assert 8.0 <= cluster.clock.monotonic() - before < 8.1


@virtual_time
async def test_several_segments_take_turns() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for number in range(3):
            server.deliver(LEFT, number, b"l")
            server.deliver(RIGHT, number, b"r")
        await asyncio.sleep(0.1)
        assert [message.value for message in await consumer.receive_many(6)] == [b"l", b"r"] * 3


@virtual_time
async def test_acks_of_one_turn_leave_as_one_command() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a", b"b", b"c")
        server.deliver(LEFT, 1, b"d")
        await asyncio.sleep(0.1)
        messages = await consumer.receive_many(10) + await consumer.receive_many(10, timeout=0.1)
        await asyncio.gather(consumer.ack(messages[0]), consumer.ack(messages[2]), consumer.ack(messages[3:]))
        (ack,) = acks(server)
        assert [(p.entry_id, p.indexes, p.count) for p in ack.positions] == [(0, bytes([0b101]), 3), (1, b"", 1)]
        assert not ack.txnid_least_bits


@virtual_time
async def test_acks_of_different_transactions_leave_apart_and_name_them() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a", b"b")
        first, second = await consumer.receive(), await consumer.receive()
        txn = await client.begin()
        await asyncio.gather(consumer.ack(first), consumer.ack([second], txn=txn))
        assert sorted(ack.txnid_least_bits for ack in acks(server)) == [0, txn.id.least_bits]
        await txn.commit()


@virtual_time
async def test_very_many_acks_leave_in_several_commands() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, prefetch=20_000)
        for number in range(9500):
            server.deliver(LEFT, number, b"x")
        messages: list[txnclient.Message] = []
        while len(messages) < 9500:
            messages += await consumer.receive_many(10_000)
        await consumer.ack(messages)
        assert [len(ack.positions) for ack in acks(server)] == [4000, 4000, 1500]


@virtual_time
async def test_a_cumulative_ack_names_the_part_of_its_last_entry() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a")
        server.deliver(LEFT, 1, b"b", b"c", b"d")
        await asyncio.sleep(0.1)
        messages = await consumer.receive_many(10)
        while len(messages) < 4:
            messages += await consumer.receive_many(10)
        await consumer.ack_cumulative(messages[2])
        await consumer.ack_cumulative(messages[3])
        partial, whole = acks(server)
        assert partial.cumulative
        assert [(p.entry_id, p.indexes, p.count) for p in partial.positions] == [(1, bytes([0b011]), 3)]
        assert [(p.entry_id, p.indexes, p.count) for p in whole.positions] == [(1, b"", 3)]


@virtual_time
async def test_an_ack_whose_answer_was_lost_is_sent_again() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive()
        server.lose_replies["ack"] = 1
        await consumer.ack(message)
        assert server.seen["ack"] == 2


@virtual_time
async def test_l6_commit_waits_for_acks_and_fails_with_them() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive()
        server.hold["ack"] = asyncio.Event()
        txn = await client.begin()
        acking = asyncio.create_task(consumer.ack(message, txn=txn))
        await asyncio.sleep(0)
        committing = asyncio.create_task(txn.commit())
        await asyncio.sleep(1)
        assert not server.seen["end_txn"]
        server.refuse["ack"] = [txnclient.TxnConflict("acked by another")]
        server.hold["ack"].set()
        with pytest.raises(txnclient.TxnConflict):
            await committing
        with pytest.raises(txnclient.TxnConflict):
            await acking
        assert cluster.states[txn.id] == "ABORTED"


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
async def test_an_ack_that_was_waiting_for_its_connection_is_not_sent_after_a_seek() -> None:
    """▲ It would ack, under its new consumer's id, what is to be delivered anew."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"held")
        held = await consumer.receive()
        feed = consumer_impl(consumer)._feeds[LEFT]
        server.seeks = 1
        feed._detach()  # as when the connection is lost with the seek
        (waiting,) = consumer_impl(consumer).ack_nowait(held)
        with pytest.raises(txnclient.NotAllowed, match="sought"):
            await waiting
        await until(lambda: feed.attachment)
        with pytest.raises(txnclient.NotAllowed, match="sought"):
            await consumer.ack(held)
        assert acks(server) == []


@virtual_time
async def test_all_acks_that_were_waiting_for_their_connection_are_void_after_a_seek() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for number in range(3):
            server.deliver(LEFT, number, b"held")
        held = [await consumer.receive() for _ in range(3)]
        feed, txns = consumer_impl(consumer)._feeds[LEFT], [await client.begin() for _ in range(2)]
        server.seeks = 1
        feed._detach()  # as when the connection is lost with the seek
        waiting = []
        for message, txn in zip(held, [None, *txns], strict=True):
            waiting += consumer_impl(consumer).ack_nowait(message, txn=impl_of(txn))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        void = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in void] == [txnclient.NotAllowed] * 3
        await until(lambda: feed.attachment)
        await asyncio.sleep(1.0)
        assert acks(server) == []
        for txn in txns:
            await txn.abort()


@pytest.mark.parametrize("how", ["ack", "cumulative", "in a transaction"])
@pytest.mark.parametrize("attached_first", [False, True])
@virtual_time
async def test_acks_of_before_a_seek_are_void_when_the_segment_has_come_back(how: str, attached_first: bool) -> None:
    """▲ What the seek went back for would be acked, and never delivered."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"held")
        held = await consumer.receive()
        server.assign(RIGHT)
        await until(lambda: consumer.segments == [RIGHT])
        server.seeks = 1
        server.assign(LEFT, RIGHT)
        await until(lambda: LEFT in consumer.segments)
        if attached_first:
            await until(lambda: consumer_impl(consumer)._feeds[LEFT].attachment)
        txn = await client.begin() if how == "in a transaction" else None
        ack = consumer.ack_cumulative(held) if how == "cumulative" else consumer.ack(held, txn=txn)
        with pytest.raises((txnclient.NotAllowed, txnclient.TxnConflict)) as refused:
            await ack
        assert txn is not None or "sought" in str(refused.value)
        await until(lambda: consumer_impl(consumer)._feeds[LEFT].attachment)
        if txn is not None:
            await txn.abort()
            await asyncio.sleep(0.1)  # it attaches anew
        await until(lambda: consumer_impl(consumer)._feeds[LEFT].attachment)
        server.deliver(LEFT, 0, b"held")
        await consumer.ack(await consumer.receive())  # what has come under the new count is acked
        assert len(acks(server)) == 1


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
async def test_acks_under_way_are_answered_before_a_segment_is_left() -> None:
    """The last acks of a sealed segment drain it, and what tells of that comes by another way than their answers."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a", b"b", b"c")
        a, b, c = [await consumer.receive() for _ in range(3)]
        server.hold["ack"] = answered = asyncio.Event()
        txn = await client.begin()
        acking = [asyncio.ensure_future(consumer.ack(a)), asyncio.ensure_future(consumer.ack(b, txn=txn))]
        await until(lambda: server.seen["ack"] == 2)
        server.assign(RIGHT)
        await until(lambda: consumer.segments == [RIGHT])
        server.deliver(LEFT, 1, b"late")
        with pytest.raises(txnclient.NotAllowed):
            await consumer.ack(c)
        assert server.seen["close_consumer"] == 0
        answered.set()
        await asyncio.gather(*acking)
        await txn.commit()
        await until(lambda: server.seen["close_consumer"] == 1)
        with pytest.raises(txnclient.Timeout):
            await consumer.receive(timeout=0.1)


@pytest.mark.parametrize("how", ["closed by the broker", "cut", "the consumer is closed"])
@virtual_time
async def test_acks_under_way_that_cannot_be_answered_fail_with_the_segment(how: str) -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive()
        server.hold["ack"] = asyncio.Event()
        acking = asyncio.ensure_future(consumer.ack(message))
        await until(lambda: server.seen["ack"] == 1)
        server.assign(RIGHT)
        await until(lambda: consumer.segments == [RIGHT])
        if how == "cut":
            await server.cut()
        elif how == "the consumer is closed":
            await consumer.close()
        else:
            closed = pb.ConsumerClosed(consumer_id=server.consumer_of(LEFT))
            server.push_to_consumer(LEFT, pb.Command(consumer_closed=closed))
        with pytest.raises(txnclient.TxnError, match=r"drained, or another consumer's|was closed before"):
            await acking
        await asyncio.sleep(0.1)
        assert server.seen["subscribe"] == (3 if how == "cut" else 2)  # never LEFT again


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
async def test_a_holder_that_is_fenced_attaches_again_only_as_long_as_it_is_assigned() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        fenced = txnclient.NotAllowed("another holder has attached")
        server.refuse["subscribe"] = [txnclient.NotAllowed("stale") for _ in range(3)]
        closed = pb.ConsumerClosed(consumer_id=server.consumer_of(LEFT), error=to_wire(fenced))
        server.push_to_consumer(LEFT, pb.Command(consumer_closed=closed))
        await until(lambda: not server.refuse["subscribe"])
        await until(lambda: server.seen["subscribe"] == 6)  # two at first, three refused, one that was let in
        server.deliver(LEFT, 0, b"x")
        assert (await consumer.receive()).value == b"x"


@virtual_time
async def test_a_consumer_joins_again_when_another_controller_is_elected() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        server, consumer = await attached(cluster, client)
        second = cluster.servers["broker:2"]
        second.assignment = pb.Assignment(topic=TOPIC, epoch=2, segments=[LEFT])
        cluster.controller = "broker:2"
        cluster.announce()
        await until(lambda: second.seen["join_subscription"])
        await until(lambda: consumer.segments == [LEFT])
        assert server.seen["leave_subscription"] == 0


@virtual_time
async def test_a_consumer_hears_of_a_controller_that_leads_again_though_another_could_not_be_joined() -> None:
    """▲ Over the connection that it has had all along."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        server, consumer = await attached(cluster, client)
        await cluster.servers["broker:2"].stop()
        cluster.controller = "broker:2"
        cluster.announce()
        await asyncio.sleep(3)
        cluster.controller = "broker:1"
        cluster.announce()
        await asyncio.sleep(3)
        server.assign(LEFT)
        await until(lambda: consumer.segments == [LEFT])


@virtual_time
async def test_a_consumer_closed_while_it_joins_again_leaves_once_it_has_joined() -> None:
    """Its connection lives on with the client: a join that nobody takes back would keep its segments for ever."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.hold["join_subscription"] = asyncio.Event()
        await server.cut()
        await until(lambda: server.seen["join_subscription"] == 2)
        await consumer.close()
        server.hold["join_subscription"].set()
        await until(lambda: server.seen["leave_subscription"] == 1)
        kinds = [command.WhichOneof("body") for command in server.commands]
        assert kinds.index("leave_subscription") > len(kinds) - 1 - kinds[::-1].index("join_subscription")


@virtual_time
async def test_a_consumer_closed_while_no_controller_answers_leaves_the_next_one() -> None:
    """Which has found it assigned, and would keep its segments for it."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        server, consumer = await attached(cluster, client)
        second = cluster.servers["broker:2"]
        await server.stop()
        await server.cut()
        await consumer.close()
        assert second.seen["leave_subscription"] == 0
        second.refuse["leave_subscription"] = [txnclient.NotOwner("not elected yet")]
        cluster.controller = "broker:2"
        cluster.announce()
        await until(lambda: second.seen["leave_subscription"] == 2)
        await asyncio.sleep(30)
        assert second.seen["leave_subscription"] == 2
        (left, _) = [c.leave_subscription for c in second.commands if c.HasField("leave_subscription")]
        assert (left.consumer, left.incarnation) == (consumer.name, consumer_impl(consumer).incarnation)


@virtual_time
async def test_a_leave_that_a_controller_refuses_which_leads_no_more_reaches_the_next_one() -> None:
    """Or that one would keep the segments for it until its grace is over."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.refuse["leave_subscription"] = [txnclient.NotOwner("deposed"), txnclient.NotOwner("not elected yet")]
        await consumer.close()
        await until(lambda: server.seen["leave_subscription"] == 3, within_s=5.0)


@virtual_time
async def test_a_consumer_that_was_replaced_is_told() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.refuse["join_subscription"] = [txnclient.NotAllowed("replaced by another of that name")]
        await server.cut()
        with pytest.raises(txnclient.NotAllowed, match="replaced"):
            await consumer.receive()


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


@virtual_time
async def test_closing_fails_acks_under_way_and_terminates() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a")
        message = await consumer.receive()
        server.ignore["ack"] = 1
        server.ignore["leave_subscription"] = 1
        acking = asyncio.create_task(consumer.ack(message))
        await until(lambda: server.seen["ack"])
        before = cluster.clock.monotonic()
        await consumer.close()
        assert cluster.clock.monotonic() - before <= 2.1
        with pytest.raises(txnclient.InvalidArgument, match="closed"):
            await acking


@virtual_time
async def test_closing_fails_acks_that_have_not_left_yet() -> None:
    """Those of the same turn of the loop are gathered still."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a", b"b")
        first, second = await consumer.receive(), await consumer.receive()
        txn = await client.begin()
        acking = asyncio.gather(consumer.ack(first), consumer.ack(second, txn=txn), return_exceptions=True)
        async with asyncio.timeout(10.0):
            _, outcomes = await asyncio.gather(consumer.close(), acking)
            for outcome in outcomes:
                assert isinstance(outcome, txnclient.InvalidArgument)
                assert "was closed before" in str(outcome)
            with pytest.raises(txnclient.InvalidArgument, match="was closed before"):
                await txn.commit()
        assert not acks(server)


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


@virtual_time
async def test_unknown_topics_are_refused_and_leave_nothing_open() -> None:
    async with connected() as (cluster, client):
        with pytest.raises(txnclient.TopicNotFound):
            await client.consumer([TOPIC, "topic://a/b/unknown"], "sub")
        assert not cluster.servers["broker:1"].members


@pytest.mark.parametrize("epoch", [8, 1], ids=["the same", "made again"])
@virtual_time
async def test_a_consumer_takes_the_first_assignment_of_another_controller_whatever_it_counts(epoch: int) -> None:
    """A subscription that was deleted and made again counts from the beginning."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        server, consumer = await attached(cluster, client)
        for _ in range(6):
            server.assign()
        await until(lambda: consumer.segments == [])
        second = cluster.servers["broker:2"]
        second.assignment = pb.Assignment(topic=TOPIC, epoch=epoch, segments=SEGMENTS)
        cluster.controller = "broker:2"
        cluster.announce()
        await until(lambda: second.seen["join_subscription"])
        await until(lambda: consumer.segments == list(SEGMENTS))


@virtual_time
async def test_c8_a_consumer_takes_no_assignment_of_another_one_of_its_name() -> None:
    """Of one that it has followed in this client: over one connection, and perhaps of a deleted subscription."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for peer, request in list(server.members.items()):
            former = pb.Assignment(
                topic=TOPIC,
                subscription=request.subscription,
                consumer=request.consumer,
                incarnation=request.incarnation ^ 1,
                epoch=9,
            )
            peer.push(pb.Command(assignment=former))
        server.assign(LEFT)
        await until(lambda: consumer.segments == [LEFT])


@virtual_time
async def test_c8_of_two_consumers_of_one_name_each_is_told_of_its_own() -> None:
    """Also where the earlier one, which is still leaving, was the last to join over their connection."""
    async with connected() as (cluster, client):
        server, earlier = await attached(cluster, client, name="one")
        later = await client.consumer(TOPIC, "sub", name="one")
        [peer] = server.members

        def assigned(consumer: txnclient.Consumer, epoch: int, *segments: str) -> pb.Command:
            assignment = pb.Assignment(topic=TOPIC, subscription="sub", consumer="one", epoch=epoch)
            assignment.incarnation = consumer_impl(consumer).incarnation
            assignment.segments.extend(segments)
            return pb.Command(assignment=assignment)

        joins = server.seen["join_subscription"]
        peer.push(assigned(earlier, 0))
        await until(lambda: server.seen["join_subscription"] == joins + 1)
        peer.push(assigned(earlier, 5, LEFT))
        peer.push(assigned(later, 6, RIGHT))
        await until(lambda: later.segments == [RIGHT])
        assert earlier.segments == [LEFT]
        await earlier.close()
        peer.push(assigned(later, 7, LEFT))
        await until(lambda: later.segments == [LEFT])


@virtual_time
async def test_a_consumer_that_the_controller_does_not_know_joins_again() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        joins = server.seen["join_subscription"]
        for peer, request in list(server.members.items()):
            unknown = pb.Assignment(topic=TOPIC, subscription=request.subscription, consumer=request.consumer)
            peer.push(pb.Command(assignment=unknown))
        await until(lambda: server.seen["join_subscription"] == joins + 1)
        assert consumer.segments == list(SEGMENTS)
        server.assign(LEFT)
        await until(lambda: consumer.segments == [LEFT])


@virtual_time
async def test_very_many_acks_are_sent_again_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txnclient.consuming.acks.AGAIN_AT_ONCE", 2)
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for number in range(5):
            server.deliver(LEFT, number, b"l")
        messages = [await consumer.receive() for _ in range(5)]
        server.ignore["ack"] = 5
        acking = []
        for message in messages:
            acking.append(asyncio.ensure_future(consumer.ack(message)))
            await asyncio.sleep(0.01)
        assert server.seen["ack"] == 5
        await server.cut()
        await until(lambda: server.seen["ack"] > 5)
        assert server.seen["ack"] == 7
        await asyncio.gather(*acking)
        assert server.seen["ack"] == 10


@virtual_time
async def test_an_abort_looks_at_none_but_its_own_acks() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for number in range(3):
            server.deliver(LEFT, number, b"l")
        messages = [await consumer.receive() for _ in range(3)]
        txns = [await client.begin() for _ in range(2)]
        gate = consumer_impl(consumer)._feeds[LEFT].acks
        link, gate._link = gate._link, None
        acking = [
            asyncio.ensure_future(consumer.ack(message, txn=txn))
            for message, txn in zip(messages, [*txns, None], strict=True)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(gate._unanswered) == 3
        before, gate._unanswered = gate._unanswered, NotWalked(gate._unanswered)
        gate.withdraw(transaction_impl(txns[0]))
        gate._unanswered = {batch: None for batch in before if batch.txn is not transaction_impl(txns[0])}
        await asyncio.sleep(0.05)
        assert [one.done() for one in acking] == [True, False, False]
        assert isinstance(acking[0].exception(), txnclient.InvalidTxnState)
        assert link is not None
        gate.attached(link, gate._consumer_id)
        await asyncio.gather(*acking[1:])
        assert gate._unanswered_of == {}


class NotWalked(dict[Any, None]):
    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("all that is unanswered is walked through")
