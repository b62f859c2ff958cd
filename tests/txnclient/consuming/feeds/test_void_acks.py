"""Acks that are void: of what was received before a seek, or by others than the subscription's consumers."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.txnclient.queueing import TOPIC, prepared, received
from tests.waiting import until
from txnclient.sync import connect


@pytest.mark.parametrize("consumers", [1, 2])
async def test_acks_of_before_a_seek_are_void_behind_a_split_and_a_drain(
    client: txnclient.Client, consumers: int
) -> None:
    """▲ The parent has left its consumer, and comes back with the seek: to a feed that knows of no seek."""
    values = await prepared(client, 10, segments=1)
    async with await client.consumer(TOPIC, "sub") as first:
        old = await received(first, 10)
        (root,) = first.segments
        await client.split("segment://" + root)
        await first.ack(old)
        await until(lambda: not (root in first.segments or len(first.segments) < 2), within_s=30)
        await client.seek_subscription(TOPIC, "sub", "earliest")
        holder = first
        if consumers == 2:
            holder = await client.consumer(TOPIC, "sub")
            await first.close()
        await until(lambda: root in holder.segments, within_s=30)
        late = await asyncio.gather(*(holder.ack(message) for message in old), return_exceptions=True)
        again = await received(holder, 10)
        assert all(isinstance(error, txnclient.NotAllowed) for error in late), late
        assert [message.value for message in again] == values
        with pytest.raises(txnclient.NotAllowed, match="before a seek"):
            await holder.ack_cumulative(old[-1])
        await holder.ack(again)
        await holder.close()


@pytest.mark.parametrize("type", ["stream", "queue"])
@pytest.mark.parametrize("in_transaction", [False, True])
async def test_what_a_deleted_subscription_s_consumer_received_is_not_acked_in_the_next_one_of_its_name(
    client: txnclient.Client, type: str, in_transaction: bool
) -> None:
    """▲ It would be consumed there, and never delivered."""
    await prepared(client, 2, segments=1)
    async with await client.consumer(TOPIC, "sub", type=type) as deleted:
        old = await received(deleted, 2)
    await client.delete_subscription(TOPIC, "sub")
    async with await client.consumer(TOPIC, "sub", type=type, prefetch=1) as consumer:
        again = await received(consumer, 1)  # it is attached
        txn = await client.begin() if in_transaction else None
        with pytest.raises(txnclient.NotAllowed, match="before a seek"):
            await consumer.ack(old, txn=txn)
        if txn is not None:
            await txn.abort()
    async with await client.consumer(TOPIC, "sub", type=type) as other:
        assert sorted(message.value for message in await received(other, 2)) == [b"0", b"1"]
    assert len(again) == 1


@pytest.mark.parametrize("type", ["stream", "queue"])
@pytest.mark.parametrize("in_transaction", [False, True])
async def test_what_another_subscription_s_consumer_received_is_not_acked(
    client: txnclient.Client, type: str, in_transaction: bool
) -> None:
    await prepared(client, 2, segments=1)
    async with (
        await client.consumer(TOPIC, "ours", type=type) as ours,
        await client.consumer(TOPIC, "theirs", type=type) as theirs,
        await client.reader(TOPIC) as reader,
    ):
        foreign = [(await received(theirs, 2))[0], await reader.receive()]
        for message, by in zip(foreign, ("subscription theirs", "a reader"), strict=True):
            txn = await client.begin() if in_transaction else None
            with pytest.raises(txnclient.NotAllowed, match=by):
                await ours.ack(message, txn=txn)
            if txn is not None:
                await txn.abort()
        assert len(await received(ours, 2)) == 2
    async with await client.consumer(TOPIC, "ours", type=type) as again:
        assert sorted(message.value for message in await received(again, 2)) == [b"0", b"1"]


async def test_the_synchronous_face_refuses_what_was_received_before_a_seek(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await prepared(client, 2, segments=1)

    def work() -> None:
        with connect(cluster.url) as sync, sync.consumer(TOPIC, "sub") as one:
            old = one.receive(timeout=15)
            with sync.consumer(TOPIC, "sub", name="a") as two:
                one.close()
                sync.seek_subscription(TOPIC, "sub", "earliest")
                two.receive(timeout=15)
                with pytest.raises(txnclient.NotAllowed, match="before a seek"):
                    two.ack(old)

    await asyncio.to_thread(work)


async def test_behind_a_seek_a_transaction_acks_up_to_what_it_has_received_anew(client: txnclient.Client) -> None:
    """What was lost to the application before, it has received again: nothing is missing in its transaction."""
    values = await prepared(client, 4, segments=1)
    async with await client.consumer(TOPIC, "sub") as consumer:
        first, *_ = await received(consumer, 3)
        named = await client.begin(name="of-several")
        await consumer.ack(first, txn=named)
        await (await client.attach(named.id, name="of-several")).abort()  # the broker rewinds: two messages are lost
        while (await received(consumer, 1))[0].value != values[0]:
            pass  # the fourth, which may come before the rewind
        await consumer.seek("earliest")
        again = await received(consumer, 4)
        async with client.transaction() as txn:
            await consumer.ack_cumulative(again[-1], txn=txn)
    async with await client.consumer(TOPIC, "sub") as consumer:
        assert await consumer.receive_many(1, timeout=0.3) == []
