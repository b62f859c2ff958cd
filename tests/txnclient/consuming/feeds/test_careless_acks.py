"""Acks of several segments, transactions and consumers at once, of which one is refused, late, cancelled or not ours
(scenarios A5, C1, C9, P2)."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.consuming.attached import attached
from tests.txnclient.consuming.received.test_delivered import in_turn, named
from tests.txnclient.consuming.received.test_pieces import large
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, ScriptedServer, connected
from tests.waiting import until
from txnclient.consuming.consumer import consumer_impl
from txnclient.consuming.feeds import acks as acks_of_feeds
from txnclient.consuming.received.message import Message
from txnclient.transactions.transaction import impl_of
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_PERMITS

LEFT, RIGHT = SEGMENTS


async def one_of_each(server: ScriptedServer, consumer: txnclient.Consumer) -> list[Message]:
    """A message of each segment, received in this order."""
    messages = []
    for segment in SEGMENTS:
        server.deliver(segment, 0, b"x")
        messages.append(await consumer.receive())
    return messages


# ---- of several segments --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cumulative", [False, True])
@virtual_time
async def test_p2_an_ack_over_several_segments_raises_what_the_last_of_them_was_refused_with(cumulative: bool) -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        messages = await one_of_each(server, consumer)
        server.refuse["ack"] = [txnclient.StoreUnavailable("not now"), txnclient.NotAllowed("refused")]
        with pytest.raises(txnclient.NotAllowed, match="refused"):
            await (consumer.ack_cumulative(messages[1]) if cumulative else consumer.ack(messages))
        assert server.seen["ack"] == 3


@virtual_time
async def test_p2_a_cumulative_ack_raises_what_any_of_its_commands_was_refused_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A value that has come in part lies before it, so it names what it acks: in as many commands as that takes."""
    monkeypatch.setattr(acks_of_feeds, "MAX_POSITIONS", 1)
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        piece = pb.DeliveredEntry(ledger_id=1, entry_id=0, entry=large(0, b"1", b"2", producer="large")[0].raw)
        deliver = pb.Deliver(consumer_id=server.consumer_of(LEFT), entries=[piece])
        server.push_to_consumer(LEFT, pb.Command(deliver=deliver))
        for number in range(1, 3):
            server.deliver(LEFT, number, b"x")
        *_, last = await in_turn(consumer, 2)
        server.refuse["ack"] = [txnclient.StoreUnavailable("not now"), txnclient.NotAllowed("refused")]
        with pytest.raises(txnclient.NotAllowed, match=f"segment://{LEFT}: .*refused"):
            await consumer.ack_cumulative(last)
        assert server.seen["ack"] == 3


@virtual_time
async def test_what_is_nacked_goes_back_to_each_of_its_segments() -> None:
    """▲ Or it would stay with a consumer that has given it back, for as long as it lives."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        await consumer.nack(await one_of_each(server, consumer), delay=0)
        nacks = [command.nack for command in server.commands if command.HasField("nack")]
        assert sorted(nack.consumer_id for nack in nacks) == sorted(map(server.consumer_of, SEGMENTS))


@pytest.mark.parametrize("in_transaction", [False, True])
@virtual_time
async def test_c1_where_a_cumulative_ack_is_refused_for_its_own_segment_the_others_are_acked_all_the_same(
    in_transaction: bool,
) -> None:
    """▲ Outside a transaction they would not move on; one that lacks the ack must not commit."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        _, last = await one_of_each(server, consumer)
        left = server.consumer_of(LEFT)
        txn = await client.begin() if in_transaction else None
        server.assign(LEFT)
        await until(lambda: consumer.segments == [LEFT])
        with pytest.raises(txnclient.TxnError, match=RIGHT):
            await consumer.ack_cumulative(last, txn=txn)
        assert named(server) == [(left, 0, in_transaction)]
        if txn is not None:
            with pytest.raises(txnclient.NotAllowed, match=RIGHT):
                await txn.commit()
            assert cluster.states == {txn.id: "ABORTED"}


@virtual_time
async def test_p2_a_plain_cumulative_ack_says_nothing_of_what_was_lost_behind_it() -> None:
    """It comes again, and a transaction that has processed it must not commit."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(RIGHT, 0, b"first")
        (first,) = await in_turn(consumer, 1)
        server.deliver(LEFT, 0, b"lost")
        await in_turn(consumer, 1)
        server.deliver(RIGHT, 1, b"last")
        (last,) = await in_turn(consumer, 1)
        server.assign(RIGHT)
        await until(lambda: consumer.segments == [RIGHT])
        await consumer.ack_cumulative(first)
        with pytest.raises(txnclient.TxnConflict, match=LEFT):
            await consumer.ack_cumulative(last, txn=await client.begin())


@virtual_time
async def test_p2_a_rewind_that_was_asked_for_makes_good_what_had_left_before() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        await one_of_each(server, consumer)
        server.assign(RIGHT)
        await until(lambda: consumer.segments == [RIGHT])
        consumer.rewind()
        await until(lambda: server.seen["subscribe"] == 3 and RIGHT in consumer.segments)
        await until(lambda: server.permits[server.consumer_of(RIGHT)])
        server.deliver(RIGHT, 0, b"again")
        (again,) = await in_turn(consumer, 1)
        txn = await client.begin()
        await consumer.ack_cumulative(again, txn=txn)
        await txn.commit()


@virtual_time
async def test_p2_a_message_of_another_consumer_has_no_place_among_what_this_one_was_handed_out() -> None:
    """What it was handed out, and has not processed, would be acked with it."""
    async with connected() as (cluster, client):
        server, first = await attached(cluster, client)
        for number in range(5):
            server.deliver(LEFT, number, b"x")
            await until(lambda: consumer_impl(first).has_buffered)
            foreign = await first.receive()
        second = await client.consumer(TOPIC, "sub")
        await until(lambda: len(server.consumers) == 4 and len(server.permits) == 4)
        server.deliver(RIGHT, 0, b"not processed yet")
        await second.receive()
        await second.ack_cumulative(foreign)
        assert named(server) == [(server.consumer_of(LEFT), 4, False)]


@virtual_time
async def test_p2_an_ack_that_is_answered_behind_a_rewind_says_nothing_of_what_has_come_again() -> None:
    """Its transaction may have aborted: what comes again is to be acked again."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for number in range(2):
            server.deliver(LEFT, number, b"x")
        _, message = await in_turn(consumer, 2)
        server.hold["ack"] = asyncio.Event()
        acking = asyncio.ensure_future(consumer.ack_cumulative(message, txn=await client.begin()))
        await until(lambda: server.seen["ack"])
        consumer.rewind()
        await until(lambda: len(server.permits) == 4)
        for segment in SEGMENTS:
            server.deliver(segment, 0, b"again")
            (last,) = await in_turn(consumer, 1)
        server.hold.pop("ack").set()
        await acking
        await consumer.ack_cumulative(last)
        assert sorted(named(server)[1:]) == sorted((server.consumer_of(one), 0, False) for one in SEGMENTS)


# ---- in transactions ------------------------------------------------------------------------------------------------


@virtual_time
async def test_c1_an_ack_that_has_not_left_as_its_transaction_aborts_is_told_and_holds_nobody_up() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        messages = await one_of_each(server, consumer)
        txn = await client.begin()
        answers = consumer_impl(consumer).ack_nowait(messages, txn=impl_of(txn))
        async with asyncio.timeout(1.0):
            await txn.abort()
        assert len(answers) == 2
        assert all(isinstance(one.exception(), txnclient.InvalidTxnState) for one in answers)
        assert server.seen["ack"] == 0


@virtual_time
async def test_c1_all_segments_that_a_transaction_has_acked_in_are_delivered_again_by_its_abort() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        messages = await one_of_each(server, consumer)
        txn = await client.begin()
        await consumer.ack(messages, txn=txn)
        await txn.abort()
        await until(lambda: server.seen["subscribe"] == 4, within_s=5.0)


@pytest.mark.parametrize("named_first", [True, False])
@virtual_time
async def test_a5_behind_a_lost_connection_all_comes_again_though_acks_of_other_transactions_are_pending_too(
    named_first: bool,
) -> None:
    """▲ As somebody may have committed the named one without this writer: nobody tells the client."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for number in range(3):
            server.deliver(LEFT, number, b"%d" % number)
        shared, own = await client.begin(name="job/1"), await client.begin()
        first, second, held = await in_turn(consumer, 3)
        for message, txn in zip((first, second), (shared, own) if named_first else (own, shared), strict=True):
            await consumer.ack(message, txn=txn)
        await server.cut()
        await until(lambda: server.seen["subscribe"] == 4)
        server.deliver(LEFT, 0, b"0")
        assert (await consumer.receive(timeout=1.0)).value == b"0"
        with pytest.raises(txnclient.TxnConflict, match="delivered again"):
            await consumer.ack(held, txn=await client.begin())


# ---- what is not ours, and bounds -----------------------------------------------------------------------------------


@virtual_time
async def test_what_was_received_elsewhere_is_not_acked_wherever_it_stands_among_others() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"mine")
        (mine,) = await in_turn(consumer, 1)
        reader = await client.reader(TOPIC)
        await until(lambda: len(server.consumers) == 4 and len(server.permits) == 4)
        server.deliver(LEFT, 1, b"read")
        read = await reader.receive()
        with pytest.raises(txnclient.NotAllowed, match="was received by a reader"):
            await consumer.ack([mine, read])
        assert server.seen["ack"] == 0


@virtual_time
async def test_c9_a_prefetch_of_more_messages_than_one_grant_takes_is_granted_whole() -> None:
    async with connected() as (cluster, client):
        server, _ = await attached(cluster, client, prefetch=5 * MAX_PERMITS, prefetch_bytes=1 << 62)
        await until(lambda: sorted(server.permits.values()) == [5 * MAX_PERMITS // 2] * 2, within_s=5.0)
        grants = [command.flow.permits for command in server.commands if command.HasField("flow")]
        assert max(grants) == MAX_PERMITS


@virtual_time
async def test_transactions_that_are_never_ended_are_forgotten_once_the_service_has_ended_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acks_of_feeds, "FORGET_FROM", 4)
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for number in range(40):
            server.deliver(LEFT, number, b"l")
            message = await consumer.receive()
            await consumer.ack(message, txn=await client.begin(timeout=1.0))
            await asyncio.sleep(10.0)
        assert len(consumer_impl(consumer)._feeds[LEFT].acks._took_part) <= 9


@virtual_time
async def test_an_answer_behind_the_close_of_its_consumer_ends_nothing_twice() -> None:
    """The close has answered the ack already, and its transaction waits for it no more."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"x")
        message, txn = await consumer.receive(), await client.begin()
        server.hold["ack"] = asyncio.Event()
        acking = asyncio.ensure_future(consumer.ack(message, txn=txn))
        await until(lambda: server.seen["ack"] == 1)
        await consumer.close()
        with pytest.raises(txnclient.TxnError):
            await acking
        server.hold.pop("ack").set()
        await asyncio.sleep(1.0)
        impl = impl_of(txn)
        assert impl is not None
        assert impl._under_way == 0
        await txn.abort()
