"""Producing against a scripted broker: batches, order, what is sent again, what is refused."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.producing.segment_of import segment_of
from tests.txnclient.scripted_server import TOPIC, connected
from tests.waiting import until
from txnclient.producing.channels import channel
from txnwire.errors import Overloaded, to_wire
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_VALUE_BYTES


@virtual_time
async def test_an_awaited_send_does_not_wait_for_company() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC, linger_ms=1000)
        await producer.send(b"opens the channel", key="k")
        before = cluster.clock.monotonic()
        for _ in range(10):
            await producer.send(b"x", key="k")
        assert cluster.clock.monotonic() - before < 0.01


@virtual_time
async def test_entries_belong_to_one_transaction_or_to_none() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        txns = [await client.begin(), await client.begin(), None]
        await asyncio.gather(*(producer.send(b"x", key="k", txn=txn) for txn in txns for _ in range(2)))
        stored = cluster.stored[segment_of("k")]
        assert [(last - first, txn_id) for first, last, txn_id in stored] == [
            (1, txn.id if txn else None) for txn in txns
        ]


@virtual_time
async def test_a_key_chooses_the_segment_and_keyless_batches_go_round() -> None:
    async with connected() as (_cluster, client):
        producer = await client.producer(TOPIC)
        for key in ("a", "b", "c", "d"):
            assert (await producer.send(b"x", key=key)).segment == segment_of(key)
        keyless = [(await producer.send(b"x")).segment for _ in range(4)]
        assert keyless[0] == keyless[2] != keyless[1] == keyless[3]


@virtual_time
async def test_l7_a_send_whose_ack_was_lost_is_sent_again_and_stored_once() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        await producer.send(b"0", key="k")
        server.lose_replies["send"] = 1
        await producer.send(b"1", key="k")
        await producer.send(b"2", key="k")
        assert [first for first, *_ in cluster.stored[segment_of("k")]] == [0, 1, 2]


@virtual_time
async def test_l7_sends_in_flight_survive_a_lost_connection_in_order() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=0)
        server.stall_sends = True
        futures = []
        for number in range(5):
            futures.append(producer.send_nowait(b"%d" % number, key="k"))
            await asyncio.sleep(0.001)
        await until(lambda: server.seen["send"] == 5)
        await server.cut()
        await until(lambda: server.seen["send"] == 10)
        server.stall_sends = False
        server.finish_sends()
        ids = await asyncio.gather(*futures)
        assert [first for first, *_ in cluster.stored[segment_of("k")]] == list(range(5))
        assert [one.position.entry_id for one in ids] == list(range(5))


@virtual_time
async def test_l7_a_producer_follows_its_segment_to_another_owner() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        producer = await client.producer(TOPIC)
        await producer.send(b"0", key="k")
        segment = segment_of("k")
        cluster.servers["broker:2"].dedups = cluster.servers["broker:1"].dedups  # recovered from the ledger
        cluster.owners[segment] = "broker:2"
        sending = asyncio.create_task(producer.send(b"1", key="k"))
        await asyncio.sleep(1)
        assert not sending.done()
        cluster.announce()
        await sending
        assert cluster.servers["broker:2"].seen["send"] == 1
        assert [first for first, *_ in cluster.stored[segment]] == [0, 1]


@virtual_time
async def test_l8_behind_a_refused_entry_the_others_are_sent_again_and_stored() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=0)
        txn = await client.begin()
        cluster.states[txn.id] = "ABORTED"
        server.stall_sends = True
        refused = producer.send_nowait(b"refused", key="k", txn=txn)
        others = [
            producer.send_nowait(b"x", key="k"),
            producer.send_nowait(b"y", key="k", txn=await client.begin()),
        ]
        await until(lambda: server.seen["send"] == 3)
        server.stall_sends = False
        server.finish_sends()
        await asyncio.gather(*others)
        assert isinstance(refused.exception(), txnclient.TxnConflict)
        assert [first for first, *_ in cluster.stored[segment_of("k")]] == [1, 2]


@virtual_time
async def test_what_was_opened_before_is_closed_once_the_broker_says_so() -> None:
    """Or the broker keeps one more for each refusal, for as long as the connection lives."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        await producer.send(b"0", key="k")
        server.refuse["send"] = [txnclient.SequenceGap("the entry before it failed")]
        await producer.send(b"1", key="k")
        (peer, before), (_, now) = server.producers
        assert (server.seen["open_producer"], server.seen["close_producer"]) == (2, 0)
        error = to_wire(txnclient.NotOwner("opened anew"))
        peer.push(pb.Command(producer_closed=pb.ProducerClosed(producer_id=before, error=error)))
        await until(lambda: server.seen["close_producer"])
        assert server.closed_producers == [before] != [now]
        await producer.send(b"2", key="k")
        assert server.seen["open_producer"] == 2


@virtual_time
async def test_l10_a_fenced_producer_is_told_and_stays_fenced() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, name="one")
        await producer.send(b"0", key="k")
        server.refuse["send"] = [txnclient.ProducerFenced("a newer one has connected")]
        with pytest.raises(txnclient.ProducerFenced):
            await producer.send(b"1", key="k")
        with pytest.raises(txnclient.ProducerFenced):
            producer.send_nowait(b"2", key="other")


@virtual_time
async def test_a_producer_closed_by_the_broker_opens_again() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        await producer.send(b"0", key="k")
        server.stall_sends = True
        future = producer.send_nowait(b"1", key="k")
        await until(lambda: server.seen["send"] == 2)
        (peer, producer_id), *_ = server.producers
        closed = pb.ProducerClosed(producer_id=producer_id, error=to_wire(txnclient.NotOwner("handed over")))
        server.stall_sends = False
        peer.push(pb.Command(producer_closed=closed))
        await until(lambda: server.seen["open_producer"] == 2)
        server.finish_sends()
        await future
        assert [first for first, *_ in cluster.stored[segment_of("k")]] == [0, 1]


@virtual_time
async def test_l7_what_was_under_way_when_the_broker_closed_a_producer_takes_no_room_from_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would send nothing any more to a segment that has changed hands often enough."""
    monkeypatch.setattr(channel, "MAX_UNANSWERED_BYTES", 1000)
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        closed = pb.ProducerClosed(error=to_wire(txnclient.NotOwner("handed over")))
        for number in range(6):
            server.stall_sends = True
            sent = producer.send_nowait(bytes(range(256)) * 2, key="k")
            await until(lambda: server.stalled)
            peer, closed.producer_id = list(server.producers)[-1]
            peer.push(pb.Command(producer_closed=closed))
            await until(lambda: server.seen["open_producer"] == number + 2)  # noqa: B023
            server.stall_sends = False
            server.finish_sends()
            await sent


@virtual_time
async def test_a_send_times_out_with_a_retriable_error_and_the_next_goes_on() -> None:
    async with connected(timeout=3.0) as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        await producer.send(b"0", key="k")
        server.ignore["send"] = 1
        before = cluster.clock.monotonic()
        with pytest.raises(txnclient.Timeout) as failure:
            await producer.send(b"lost", key="k")
        assert failure.value.retriable
        assert 3.0 <= cluster.clock.monotonic() - before < 3.5
        await producer.send(b"2", key="k")


@virtual_time
async def test_a_send_times_out_while_nobody_owns_the_segment() -> None:
    async with connected(timeout=3.0) as (cluster, client):
        producer = await client.producer(TOPIC)
        cluster.move(segment_of("k"), "")
        before = cluster.clock.monotonic()
        with pytest.raises(txnclient.Timeout, match="no owner"):
            await producer.send(b"0", key="k")
        assert 3.0 <= cluster.clock.monotonic() - before < 3.5
        cluster.move(segment_of("k"), "broker:1")
        await producer.send(b"1", key="k")


@virtual_time
async def test_the_buffer_is_bounded() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, buffer_bytes=1000, compression=None)
        server.stall_sends = True
        futures = [producer.send_nowait(bytes(400), key="k") for _ in range(2)]
        with pytest.raises(txnclient.WouldBlock):
            producer.send_nowait(bytes(400), key="k")
        waiting = asyncio.create_task(producer.send(bytes(400), key="k"))
        await asyncio.sleep(1)
        assert not waiting.done()
        server.stall_sends = False
        server.finish_sends()
        await asyncio.gather(*futures, waiting)


@virtual_time
async def test_waiting_for_room_is_bounded() -> None:
    async with connected(timeout=2.0) as (cluster, client):
        cluster.servers["broker:1"].stall_sends = True
        producer = await client.producer(TOPIC, buffer_bytes=1000)
        future = producer.send_nowait(bytes(900), key="k")
        before = cluster.clock.monotonic()
        with pytest.raises(txnclient.Timeout, match="room"):
            await producer.send(bytes(900), key="k")
        assert cluster.clock.monotonic() - before <= 2.1
        await asyncio.sleep(0.1)
        assert isinstance(future.exception(), txnclient.Timeout)


@virtual_time
async def test_flush_waits_for_everything_and_raises_the_first_failure() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=0)
        await producer.flush()
        futures = [producer.send_nowait(b"x", key=key) for key in ("a", "b", "c")]
        await producer.flush()
        assert all(future.done() for future in futures)
        server.refuse["send"] = [txnclient.InvalidArgument("this one")]
        producer.send_nowait(b"y", key="k")
        with pytest.raises(txnclient.InvalidArgument, match="this one"):
            await producer.flush()
        await producer.flush()


@virtual_time
async def test_send_many_sends_all_and_returns_their_ids_in_order() -> None:
    async with connected() as (_cluster, client):
        producer = await client.producer(TOPIC, buffer_bytes=10_000, batch_bytes=1000)
        pairs = [(f"k{n}", bytes(100)) for n in range(1000)]
        ids = await producer.send_many(pairs)
        assert [one.segment for one in ids] == [segment_of(key) for key, _ in pairs]
        assert len(set(ids)) == 1000
        assert await producer.send_many([]) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"value": "text"}, txnclient.InvalidArgument),
        ({"value": b"", "key": 7}, txnclient.InvalidArgument),
        ({"value": b"", "properties": {"a": 1}}, txnclient.InvalidArgument),
        ({"value": bytes(MAX_VALUE_BYTES + 1)}, txnclient.MessageTooLarge),
    ],
)
@virtual_time
async def test_malformed_messages_are_refused_before_they_are_queued(
    arguments: dict[str, object], error: type[Exception]
) -> None:
    async with connected() as (_cluster, client):
        producer = await client.producer(TOPIC)
        with pytest.raises(error):
            producer.send_nowait(**arguments)  # type: ignore[arg-type]
        await producer.send(b"fine")


@virtual_time
async def test_a_value_of_the_largest_size_is_sent() -> None:
    async with connected() as (_, client):
        producer = await client.producer(TOPIC, compression=None, buffer_bytes=1000)
        await producer.send(bytes(MAX_VALUE_BYTES))


@virtual_time
async def test_an_event_time_that_is_no_number_fails_its_batch_and_no_other() -> None:
    async with connected() as (_, client):
        producer = await client.producer(TOPIC)
        with pytest.raises(txnclient.InvalidArgument):
            await producer.send(b"x", event_time_ms="noon")  # type: ignore[arg-type]
        await producer.send(b"y", event_time_ms=1_700_000_000_000)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "gzip"},
        {"compression_level": 10},
        {"name": "a/b"},
        {"linger_ms": -1},
        {"batch_bytes": 0},
        {"buffer_bytes": 0},
    ],
)
@virtual_time
async def test_malformed_options_are_refused(options: dict[str, object]) -> None:
    async with connected() as (_, client):
        with pytest.raises(txnclient.InvalidArgument):
            await client.producer(TOPIC, **options)  # type: ignore[arg-type]


@virtual_time
async def test_a_producer_of_an_unknown_topic_is_refused() -> None:
    async with connected() as (_, client):
        with pytest.raises(txnclient.TopicNotFound):
            await client.producer("topic://public/default/unknown")
        with pytest.raises(txnclient.InvalidArgument, match="topic://"):
            await client.producer("orders")


@virtual_time
async def test_a_cancelled_send_leaves_the_producer_well() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        server.stall_sends = True
        sending = asyncio.create_task(producer.send(b"x", key="k"))
        await until(lambda: server.seen["send"])
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        server.stall_sends = False
        server.finish_sends()
        await producer.send(b"y", key="k")
        await producer.flush()


@virtual_time
async def test_close_sends_what_is_queued_and_terminates_although_nothing_answers() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        future = producer.send_nowait(b"x", key="k")
        await producer.close()
        assert future.result().segment == segment_of("k")
        with pytest.raises(txnclient.InvalidArgument, match="closed"):
            await producer.send(b"y")
        stuck = await client.producer(TOPIC)
        cluster.servers["broker:1"].stall_sends = True
        future = stuck.send_nowait(b"x", key="k")
        before = cluster.clock.monotonic()
        with pytest.raises(txnclient.ConnectionLost):
            await stuck.close()
        assert cluster.clock.monotonic() - before <= 5.1
        assert isinstance(future.exception(), txnclient.ConnectionLost)


@virtual_time
async def test_an_overloaded_segment_is_left_alone_for_longer_and_longer_and_asked_with_one_entry() -> None:
    """Dies without the back-off: refusals would come back as fast as the wire carries them."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=0, batch_bytes=10)
        await producer.send(b"opens the channel", key="k")
        server.refuse["send"] = [Overloaded("full")] * 16
        began, seen = cluster.clock.monotonic(), server.seen["send"]
        sent = [producer.send_nowait(b"x" * 10, key="k") for _ in range(10)]
        ids = await asyncio.gather(*sent)
        took = cluster.clock.monotonic() - began
        assert [one.position for one in ids] == sorted(one.position for one in ids)
        assert 1.0 < took < 6.0, "ten refused at first, then six more at 20, 40, 80, 160, 320 and 640 ms at the most"
        assert server.seen["send"] - seen == 16 + 10, "all ten once, one at a time until one is taken, then the rest"


@virtual_time
async def test_the_back_off_starts_over_once_an_entry_is_stored() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        await producer.send(b"opens the channel", key="k")
        for _ in range(20):
            server.refuse["send"] = [Overloaded("full")]
            before = cluster.clock.monotonic()
            await producer.send(b"x", key="k")
            assert 0.01 <= cluster.clock.monotonic() - before < 0.05


@virtual_time
async def test_a_send_that_was_refused_until_its_time_was_up_says_by_what() -> None:
    async with connected(timeout=2.0) as (cluster, client):
        cluster.servers["broker:1"].refuse["send"] = [Overloaded("its disk is slow")] * 1000
        producer = await client.producer(TOPIC)
        with pytest.raises(txnclient.Timeout, match=r"Overloaded: its disk is slow"):
            await producer.send(b"x", key="k")


@virtual_time
async def test_what_waits_to_be_sent_again_and_is_aborted_is_let_go_of_wherever_it_stands() -> None:
    """The abort would wait for it until its time was up."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        server.stall_sends = True
        txn = await client.begin()
        plain = producer.send_nowait(b"0", key="k")
        aborted = producer.send_nowait(b"1", key="k", txn=txn)
        await until(lambda: server.stalled == 2)
        aborting = asyncio.create_task(txn.abort())
        await until(lambda: server.seen["end_txn"])
        await asyncio.sleep(0.1)
        assert not aborting.done(), "what is under way may be stored yet"
        cluster.move(segment_of("k"), "")
        server.drop_stalled()
        server.stall_sends = False
        await server.cut()
        before = cluster.clock.monotonic()
        await aborting
        assert cluster.clock.monotonic() - before < 1.0
        with pytest.raises(txnclient.InvalidTxnState):
            await aborted
        cluster.move(segment_of("k"), "broker:1")
        await plain
        assert [first for first, *_ in cluster.stored[segment_of("k")]] == [0]
