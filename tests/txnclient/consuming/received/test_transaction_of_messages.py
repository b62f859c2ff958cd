"""`consumer.transaction(messages)`: acks them if the block succeeds, else gives them back; of streams and queues."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
import txnclient.sync
from tests.processes import read_all
from txnclient.transactions.coordinators import Coordinators

TOPIC, TARGET = "topic://public/default/messages-of-one", "topic://public/default/results-of-one"


async def prepared(client: txnclient.Client, count: int) -> None:
    for topic in (TOPIC, TARGET):
        await client.create_topic(topic, segments=1)
    async with client.producer(TOPIC) as producer:
        await producer.send_many([("k", b"%d" % number) for number in range(count)])


async def values(consumer: txnclient.Consumer, count: int) -> list[bytes]:
    return [(await consumer.receive(timeout=10)).value for _ in range(count)]


async def failing(consumer: txnclient.Consumer, message: txnclient.Message, producer: txnclient.Producer) -> None:
    async with consumer.transaction(message) as txn:
        await producer.send(b"lost", txn=txn)
        raise ZeroDivisionError


@pytest.mark.parametrize("type", ["stream", "queue"])
async def test_an_exception_between_receive_and_ack_skips_nothing(client: txnclient.Client, type: str) -> None:
    """▲ In a bare loop the message is skipped for as long as the consumer lives."""
    await prepared(client, 3)
    async with client.consumer(TOPIC, "s", type=type) as consumer, client.producer(TARGET) as producer:
        message = await consumer.receive(timeout=10)
        with pytest.raises(ZeroDivisionError):
            await failing(consumer, message, producer)
        got: dict[bytes, None] = {}
        while len(got) < 3:
            again = await consumer.receive(timeout=10)
            if again.value in got:
                continue
            async with consumer.transaction([again]) as txn:
                await producer.send(again.value, txn=txn)
            assert txn.state == "COMMITTED"
            got[again.value] = None
        if type == "stream":
            assert list(got) == [b"0", b"1", b"2"], "the order of the key"
        with pytest.raises(txnclient.Timeout):
            await consumer.receive(timeout=0.5)
    assert sorted(await read_all(client, TARGET)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("type", ["stream", "queue"])
async def test_messages_come_back_also_if_the_transaction_cannot_be_begun_or_committed(
    client: txnclient.Client, type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepared(client, 1)
    async with client.consumer(TOPIC, "s", type=type) as consumer:
        message = await consumer.receive(timeout=10)
        with monkeypatch.context() as patched:

            async def full(*args: object, **more: object) -> None:
                raise txnclient.StoreFull("etcd is full")

            patched.setattr(Coordinators, "begin", full)
            with pytest.raises(txnclient.StoreFull):
                async with consumer.transaction(message):
                    pass
        message = await consumer.receive(timeout=10)
        with pytest.raises(asyncio.CancelledError):
            async with consumer.transaction(message):
                raise asyncio.CancelledError
        message = await consumer.receive(timeout=10)
        with pytest.raises(txnclient.TxnError):
            async with consumer.transaction(message) as txn:
                await client.admin("transactions.abort", txn=str(txn.id))
        message = await consumer.receive(timeout=10)
        async with consumer.transaction(message):
            pass


async def test_a_commit_without_an_answer_is_decided_and_told(
    client: txnclient.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block succeeds if the commit has taken place, though nobody has told so at first."""
    await prepared(client, 2)
    end = Coordinators.end
    lost: list[object] = []

    async def losing(self: Coordinators, *args: object, **more: object) -> object:
        answer = await end(self, *args, **more)  # type: ignore[arg-type]
        if not lost:
            lost.append(answer)
            raise txnclient.Timeout("the answer is lost")
        return answer

    monkeypatch.setattr(Coordinators, "end", losing)
    async with client.consumer(TOPIC, "s") as consumer:
        async with consumer.transaction(await consumer.receive(timeout=10)) as txn:
            pass
        assert (txn.state, len(lost)) == ("COMMITTED", 1)
        assert await values(consumer, 1) == [b"1"]


async def test_an_abort_in_the_block_gives_the_messages_back_without_an_error(client: txnclient.Client) -> None:
    await prepared(client, 2)
    async with client.consumer(TOPIC, "s") as consumer:
        async with consumer.transaction(await consumer.receive(timeout=10)) as txn:
            await txn.abort()
        assert await values(consumer, 2) == [b"0", b"1"]


@pytest.mark.parametrize("type", ["stream", "queue"])
async def test_the_synchronous_block_does_the_same(client: txnclient.Client, type: str) -> None:
    await prepared(client, 2)
    url = "txn://" + ",".join(client._addresses)

    def work() -> list[bytes]:
        with txnclient.sync.connect(url) as there, there.consumer(TOPIC, "s", type=type) as consumer:
            with pytest.raises(KeyboardInterrupt), consumer.transaction(consumer.receive(timeout=10)):
                raise KeyboardInterrupt
            got: dict[bytes, None] = {}
            while len(got) < 2:
                message = consumer.receive(timeout=10)
                with consumer.transaction(message) as txn:
                    got[message.value] = None
                assert txn.state == "COMMITTED"
            with pytest.raises(txnclient.Timeout):
                consumer.receive(timeout=0.5)
            return list(got)

    assert sorted(await asyncio.to_thread(work)) == [b"0", b"1"]
