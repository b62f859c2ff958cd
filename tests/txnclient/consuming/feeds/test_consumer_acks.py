"""Acks of a consumer: how they leave, and what becomes of those under way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.consuming.attached import LEFT, RIGHT, acks, attached
from tests.txnclient.consuming.received.test_pieces import large
from tests.txnclient.scripted_server import connected
from tests.waiting import until, until_turn
from txnclient.consuming.consumer import consumer_impl
from txnclient.transactions.transaction import impl_of, transaction_impl
from txnwire.errors import Overloaded
from txnwire.proto import txn_pb2 as pb


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
        cluster.coordinators = {3: "broker:1"}
        cluster.announce()
        await until(lambda: client._directory.coordinator_address(3))
        txn = await client.begin()
        assert txn.id.most_bits
        await asyncio.gather(consumer.ack(first), consumer.ack([second], txn=txn))
        named = sorted((ack.txnid_most_bits, ack.txnid_least_bits) for ack in acks(server))
        assert named == [(0, 0), (txn.id.most_bits, txn.id.least_bits)]
        await txn.commit()


@pytest.mark.parametrize("commits", [True, False])
@virtual_time
async def test_a_stream_starts_over_behind_an_abort_of_its_acks_and_not_behind_a_commit(commits: bool) -> None:
    """▲ Else what the application has received and works on would come a second time after each commit."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a", b"b")
        first = await consumer.receive()
        before = server.seen["subscribe"]
        txn = await client.begin()
        await consumer.ack(first, txn=txn)
        await (txn.commit() if commits else txn.abort())
        await asyncio.sleep(1.0)
        assert server.seen["subscribe"] == before + (not commits)
        await server.cut()
        await until(lambda: server.seen["subscribe"] == before + (not commits) + 2)
        asked = [command.subscribe for command in server.commands if command.HasField("subscribe")]
        told = [False] * before + [True] * (not commits) + [False] * 2
        assert [one.after_abort for one in asked] == told, "a lost connection gives nothing back"


@virtual_time
async def test_an_abort_that_withdraws_the_last_acks_lets_a_segment_be_left_at_once() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, *[b"a"] * 5)
        messages = [await consumer.receive() for _ in range(5)]
        server.refuse["ack"] = [Overloaded("later") for _ in messages]
        txn = await client.begin()
        acking: list[asyncio.Future[None]] = []
        for message in messages:
            acking += consumer_impl(consumer).ack_nowait(message, txn=transaction_impl(txn))
            await asyncio.sleep(0.01)  # they leave one by one
        await until(lambda: not server.refuse["ack"])
        left: list[bool] = []
        consumer_impl(consumer)._feeds[LEFT].acks.when_answered(lambda: left.append(True))
        assert not left
        aborting = asyncio.ensure_future(txn.abort())
        await until_turn(lambda: left, "no ack holds the segment", most_turns=100)
        await aborting
        for one in acking:
            with pytest.raises(txnclient.InvalidTxnState):
                await one


@virtual_time
async def test_a_segment_that_is_left_while_an_ack_is_under_way_hands_out_nothing_more() -> None:
    """▲ Its next holder gets all that was not acked: here it would be worked on a second time, out of order."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a", b"b")
        message = await consumer.receive()
        server.hold["ack"] = asyncio.Event()
        acking = asyncio.create_task(consumer.ack(message))
        await until(lambda: server.seen["ack"])
        server.assign(RIGHT)
        await until(lambda: consumer.segments == [RIGHT])
        server.deliver(LEFT, 1, b"c")
        with pytest.raises(txnclient.Timeout):
            await consumer.receive(timeout=1.0)
        server.hold["ack"].set()
        await acking
        with pytest.raises(txnclient.Timeout):
            await consumer.receive(timeout=1.0)


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
        with pytest.raises(txnclient.NotAllowed, match="before a seek"):
            await waiting
        await until(lambda: feed.attachment)
        with pytest.raises(txnclient.NotAllowed, match="before a seek"):
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


@virtual_time
async def test_all_acks_that_were_gathered_as_the_broker_tells_of_a_seek_are_void() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a", b"b")
        held = [await consumer.receive() for _ in range(2)]
        txns = [await client.begin() for _ in held]
        waiting = []
        for message, txn in zip(held, txns, strict=True):
            waiting += consumer_impl(consumer).ack_nowait(message, txn=impl_of(txn))
        consumer_impl(consumer)._feeds[LEFT]._on_subscribed(pb.SubscribeOk(seeks=1))
        void = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in void] == [txnclient.NotAllowed] * 2
        assert acks(server) == []


@virtual_time
async def test_a7_all_pieces_that_no_consumer_will_ever_put_together_are_acked() -> None:
    """▲ One that is not holds the subscription back, and with it what is kept of the topic."""
    async with connected() as (cluster, client):
        server, _ = await attached(cluster, client)
        _, *ends = large(0, b"1", b"2", b"3")
        entries = [pb.DeliveredEntry(ledger_id=1, entry_id=one.position.entry_id, entry=one.raw) for one in ends]
        deliver = pb.Deliver(consumer_id=server.consumer_of(LEFT), entries=entries)
        server.push_to_consumer(LEFT, pb.Command(deliver=deliver))
        await until(lambda: acks(server))
        assert [position.entry_id for ack in acks(server) for position in ack.positions] == [1, 2]


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
        assert txn is not None or "before a seek" in str(refused.value)
        await until(lambda: consumer_impl(consumer)._feeds[LEFT].attachment)
        if txn is not None:
            await txn.abort()
            await asyncio.sleep(0.1)  # it attaches anew
        await until(lambda: consumer_impl(consumer)._feeds[LEFT].attachment)
        server.deliver(LEFT, 0, b"held")
        await consumer.ack(await consumer.receive())  # what has come under the new count is acked
        assert len(acks(server)) == 1


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


@virtual_time
async def test_very_many_acks_are_sent_again_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txnclient.consuming.feeds.acks.AGAIN_AT_ONCE", 2)
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
