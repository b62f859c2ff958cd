"""A queue's messages that the application does not ack in time come again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.consuming.attached import LEFT, attached
from tests.txnclient.consuming.feeds.test_queue_inbox import entry
from tests.txnclient.queueing import TOPIC, prepared, received
from tests.txnclient.scripted_server import SEGMENTS, connected
from tests.waiting import until
from txnclient.consuming.feeds.ack_timeouts import TICKS, AckTimeouts
from txnclient.consuming.received.message import ReceivedEntry
from txnwire.ids import Position

AT = Position(1, 0)


def test_what_is_held_over_all_looks_is_late_once_it_is() -> None:
    timeouts, one, two = AckTimeouts(), entry(0, 3), entry(1, 2)
    assert timeouts.look({AT: {one: 0b101}}) == []
    for _ in range(TICKS - 1):
        assert timeouts.look({AT: {one: 0b111}, Position(1, 1): {two: 0b11}}) == []
    late = timeouts.look({AT: {one: 0b110}, Position(1, 1): {two: 0b11}})
    assert [(message.entry, message.index) for message in late] == [(one, 2)]


def test_each_message_is_late_by_its_own_time_in_whichever_copy_it_came() -> None:
    timeouts, one, other, behind = AckTimeouts(), entry(0, 3), entry(0, 3), entry(1)

    def late(*copies: tuple[ReceivedEntry, int]) -> list[tuple[ReceivedEntry, int]]:
        held: dict[Position, dict[ReceivedEntry, int]] = {}
        for copy, bits in copies:
            held.setdefault(copy.position, {})[copy] = bits
        return [(message.entry, message.index) for message in timeouts.look(held)]

    assert late((one, 0b001)) == []
    for _ in range(TICKS - 1):
        assert late((one, 0b011), (other, 0b100), (behind, 0b1)) == []
    assert late((one, 0b011), (other, 0b100), (behind, 0b1)) == [(one, 0)]
    assert late((one, 0b010), (other, 0b100), (behind, 0b1)) == [(one, 1), (other, 2), (behind, 0)]


def test_what_goes_to_the_dead_letters_is_not_late() -> None:
    """▲ Given back while it is being moved, the move would fail, again and again. A move may take long."""
    timeouts, one = AckTimeouts(), entry(0, 2)
    timeouts.exempt(one, 0b01)
    late: list[txnclient.Message[Any]] = []
    for _ in range(3 * TICKS):
        late += timeouts.look({AT: {one: 0b11}})
    assert {message.index for message in late} == {1}


@given(st.lists(st.lists(st.integers(0, 0b111), min_size=2, max_size=2), max_size=40))
def test_late_is_what_was_held_at_all_of_the_last_looks(looks: list[list[int]]) -> None:
    timeouts, entries = AckTimeouts(), [entry(0, 3), entry(1, 3)]
    held = [0b111, 0b111]  # bits only leave: what is handed out again is another copy
    history: list[list[int]] = []
    for masks in looks:
        held = [bits & mask if mask else bits for bits, mask in zip(held, masks, strict=True)]
        history.append(held)
        copies: dict[Position, dict[ReceivedEntry, int]] = {
            Position(1, number): {entries[number]: bits} for number, bits in enumerate(held) if bits
        }
        late = {(entries.index(message.entry), message.index) for message in timeouts.look(copies)}
        expected = {
            (number, index)
            for number in range(2)
            for index in range(3)
            if held[number] >> index & 1 and len(history) > TICKS
        }
        assert late == expected


async def test_what_is_not_acked_in_time_comes_again_counted(client: txnclient.Client) -> None:
    await prepared(client, 3, segments=1)
    async with client.consumer(TOPIC, "workers", type="queue", ack_timeout=0.4) as consumer:
        txn, refused = await client.begin(), await client.begin()
        first, second, third = await received(consumer, 3)
        await asyncio.gather(consumer.ack(first), consumer.ack(third, txn=txn))
        (again,) = await received(consumer, 1)
        assert (again.value, again.redelivery_count) == (second.value, 1)
        late, _ = await asyncio.gather(
            consumer.ack(second, txn=refused), consumer.ack(again), return_exceptions=True
        )  # another copy is out
        assert isinstance(late, txnclient.TxnConflict)
        assert "not acked within the consumer's ack_timeout" in str(late)
        await txn.commit()
        await refused.abort()
        assert await consumer.receive_many(3, timeout=1.0) == []


async def test_a_consumer_that_has_acked_all_looks_no_more(client: txnclient.Client) -> None:
    await prepared(client, 1, segments=1)
    async with client.consumer(TOPIC, "workers", type="queue", ack_timeout=0.2) as consumer:
        await consumer.ack(await received(consumer, 1))
        (feed,) = consumer._impl._feeds.values()
        await until(lambda: feed._ticking is None)  # type: ignore[attr-defined]


@virtual_time
async def test_what_comes_after_a_lost_connection_has_its_time_too() -> None:
    """▲ Else a job that hangs would keep its message for as long as its worker lives."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue", ack_timeout=8.0)
        for _ in range(2):
            server.deliver(LEFT, 0, b"job")
            await consumer.receive(timeout=5)
            await server.cut()
            server.permits.clear()
            await until(lambda: len(server.permits) == len(SEGMENTS))
        server.deliver(LEFT, 0, b"job")
        await consumer.receive(timeout=5)
        await asyncio.sleep(7.5)
        assert server.seen["nack"] == 0, "and no less"
        await until(lambda: server.seen["nack"] == 1, within_s=3.5)


@pytest.mark.parametrize("wrong", [0, 0.05, -1.0, "5", 1e12, float("nan")])
async def test_a_wrong_timeout_is_refused(client: txnclient.Client, wrong: Any) -> None:
    await client.create_topic(TOPIC)
    with pytest.raises(txnclient.InvalidArgument, match="ack_timeout is None or a number of seconds"):
        await client.consumer(TOPIC, "workers", type="queue", ack_timeout=wrong)


async def test_a_stream_has_none(client: txnclient.Client) -> None:
    await client.create_topic(TOPIC)
    with pytest.raises(txnclient.InvalidArgument, match="for queue subscriptions"):
        await client.consumer(TOPIC, "sub", ack_timeout=5.0)
