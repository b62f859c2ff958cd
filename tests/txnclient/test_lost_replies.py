"""Real servers, and a network that loses their replies: every call is carried out once and answered."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.txnclient.lossy_transport import LossyTransport
from tests.waiting import until
from txnwire.clock import SystemClock
from txnwire.transport.grpc_transport import GrpcTransport

_numbers = itertools.count(1)


class Lossy(NamedTuple):
    client: txnclient.Client
    lose: Counter[str]
    topic: str
    transport: LossyTransport


@pytest.fixture
async def lossy(cluster: InProcessCluster) -> AsyncIterator[Lossy]:
    transport = LossyTransport(GrpcTransport(SystemClock()))
    async with cluster.connect(transport=transport) as client:
        topic = f"topic://public/default/lossy{next(_numbers)}"
        await client.create_topic(topic, segments=2)
        yield Lossy(client, transport.lose, topic, transport)


async def read_all(client: txnclient.Client, topic: str) -> list[bytes]:
    async with client.reader(topic, end="latest") as reader:
        return [message.value async for message in reader]


async def test_d7_a_lost_begin_leaves_no_second_open_transaction(lossy: Lossy) -> None:
    lossy.lose["new_txn_ok"] = 3
    txn = await lossy.client.begin()
    listed = await lossy.client.admin("transactions.list", state="OPEN")
    assert [row["txn"] for row in listed["transactions"]] == [str(txn.id)]
    assert not lossy.lose["new_txn_ok"]
    await txn.commit()


async def test_d1_a_lost_commit_is_ok_when_asked_again(lossy: Lossy) -> None:
    producer = await lossy.client.producer(lossy.topic)
    committed, aborted = await lossy.client.begin(), await lossy.client.begin()
    await producer.send(b"committed", txn=committed)
    await producer.send(b"aborted", txn=aborted)
    lossy.lose["end_txn_ok"] = 2
    result = await committed.commit()
    lossy.lose["end_txn_ok"] = 2
    await aborted.abort()
    assert result.revision > 0
    assert await read_all(lossy.client, lossy.topic) == [b"committed"]


async def test_l7_lost_acks_of_sends_leave_one_copy_in_order(lossy: Lossy) -> None:
    producer = await lossy.client.producer(lossy.topic, linger_ms=0)
    futures = []
    for number in range(200):
        if number % 40 == 0:
            lossy.lose["send_ok"] += 1
        futures.append(producer.send_nowait(b"%d" % number, key="k"))
        await asyncio.sleep(0.001)
    await asyncio.gather(*futures)
    assert await read_all(lossy.client, lossy.topic) == [b"%d" % number for number in range(200)]


async def test_l7_sends_and_acks_of_transactions_survive_lost_replies(lossy: Lossy) -> None:
    client = lossy.client
    producer = await client.producer(lossy.topic)
    for number in range(20):
        async with client.transaction() as txn:
            lossy.lose[("send_ok", "open_producer_ok", "end_txn_ok", "new_txn_ok")[number % 4]] += 1
            await producer.send(b"%d" % number, key="k", txn=txn)
            producer.send_nowait(b"%d'" % number, key="k", txn=txn)
    consumer = await client.consumer(lossy.topic, "sub")
    got: list[bytes] = []
    async with asyncio.timeout(30):
        while len(got) < 40:
            async with client.transaction() as txn:
                messages = await consumer.receive_many(3)
                lossy.lose[("ok", "subscribe_ok", "end_txn_ok", "deliver", "assignment")[len(got) % 5]] += 1
                await consumer.ack(messages, txn=txn)
            got += [message.value for message in messages]
    assert got == [value for number in range(20) for value in (b"%d" % number, b"%d'" % number)]
    lossy.lose.clear()
    with pytest.raises(txnclient.Timeout):
        await consumer.receive(timeout=0.3)


async def test_lost_answers_about_topics(lossy: Lossy) -> None:
    lossy.lose.update({"layout": 2, "cluster": 1, "ok": 1, "names": 1})
    topic = f"topic://public/default/lossy{next(_numbers)}"
    assert len((await lossy.client.create_topic(topic, segments=3)).segments) == 3
    assert topic in await lossy.client.list_topics()


async def test_a_topic_whose_deletion_was_answered_to_nobody_is_deleted_once_and_told_as_done(lossy: Lossy) -> None:
    """▲ The repeat finds nothing any more: who is told so would look for what else has deleted it."""
    lossy.lose["ok"] = 1
    await lossy.client.delete_topic(lossy.topic)
    assert not lossy.lose["ok"]
    with pytest.raises(txnclient.TopicNotFound):
        await lossy.client.delete_topic(lossy.topic)


@pytest.mark.parametrize("what", ["delete_topic", "delete_subscription"])
async def test_what_is_made_again_before_an_unanswered_deletion_is_repeated_stays(
    lossy: Lossy, cluster: InProcessCluster, what: str
) -> None:
    """▲ Its messages, or its acks, would be lost."""
    transport = lossy.transport
    async with cluster.connect() as other:
        if what == "delete_topic":
            deletion = lossy.client.delete_topic(lossy.topic)
        else:
            await (await other.consumer(lossy.topic, "sub")).close()
            deletion = lossy.client.delete_subscription(lossy.topic, "sub")
        transport.hold.add(what)
        deleting = asyncio.ensure_future(deletion)
        for asks in (True, False):
            await until(lambda: transport.held)
            ((_, command),) = transport.held
            assert getattr(command, what).ask is asks
            lossy.lose["ok"] = not asks
            transport.release()
            transport.hold.add(what)
        await until(lambda: transport.held)
        assert not lossy.lose["ok"]
        if what == "delete_topic":
            await other.create_topic(lossy.topic, segments=3)
        else:
            await (await other.consumer(lossy.topic, "sub")).close()
        transport.release()
        await deleting
        if what == "delete_topic":
            assert len((await other.describe_topic(lossy.topic)).segments) == 3
        else:
            await other.delete_subscription(lossy.topic, "sub")
