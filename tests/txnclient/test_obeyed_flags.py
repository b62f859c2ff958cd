"""What the flags of an error ask for does no harm and gets the work done: abort, then begin again."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.txnclient.test_with_cluster import new_topic, receive, values
from txnclient import TransactionState


async def test_an_ack_that_is_not_allowed_any_more_asks_for_an_abort_and_the_work_is_done_once(
    client: txnclient.Client,
) -> None:
    topic, copies = await new_topic(client), await new_topic(client)
    producer, copier = await client.producer(topic), await client.producer(copies)
    await producer.send_many([b"1", b"2"])
    consumer = await client.consumer(topic, "copier")
    former = await receive(consumer, 2)
    await consumer.seek("earliest")  # as whoever takes the segment away, it makes what was received before void
    txn = await client.begin(timeout=20.0)
    for message in former:
        await copier.send(message.value, txn=txn)
    with pytest.raises(txnclient.NotAllowed) as refused:
        await consumer.ack(former, txn=txn)
    assert (refused.value.retriable, refused.value.fatal, refused.value.requires_abort) == (False, False, True)
    await txn.abort()
    async with client.transaction() as again:
        messages = await receive(consumer, 2)
        for message in messages:
            await copier.send(message.value, txn=again)
        await consumer.ack(messages, txn=again)
    assert await values(client, copies) == [b"1", b"2"]
    assert await consumer.receive_many(1, timeout=0.5) == []


async def test_a_commit_behind_the_deadline_asks_for_an_abort_which_is_ok(client: txnclient.Client) -> None:
    topic = await new_topic(client)
    producer = await client.producer(topic)
    txn = await client.begin(timeout=1.0)
    await producer.send(b"1", txn=txn)
    await asyncio.sleep(2.0)
    with pytest.raises(txnclient.InvalidTxnState) as late:
        await txn.commit()
    assert (late.value.retriable, late.value.fatal, late.value.requires_abort) == (False, False, True)
    await txn.abort()
    assert txn.state is TransactionState.ABORTED
    async with client.transaction() as again:
        await producer.send(b"1", txn=again)
    assert await values(client, topic) == [b"1"]


def test_a_fenced_client_is_to_be_ended_and_not_its_transaction() -> None:
    fenced = txnclient.ExpiredTransaction("another one has the key")
    assert fenced.fatal
    assert not fenced.requires_abort
