"""The client against real servers over real etcd, ledgers and gRPC."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.lagging import HeldDecisions, create_over_both, reads_beside
from tests.waiting import until, until_answer
from txnclient import TransactionState
from txnwire.ids import TxnId

_numbers = itertools.count(1)


async def new_topic(client: txnclient.Client, segments: int = 1) -> str:
    topic = f"topic://public/default/t{next(_numbers)}"
    layout = await client.create_topic(topic, segments=segments)
    assert len(layout.segments) == segments
    return topic


async def read_all(client: txnclient.Client, *topics: str) -> list[txnclient.Message]:
    async with client.reader(list(topics), end="latest") as reader:
        return [message async for message in reader]


async def values(client: txnclient.Client, *topics: str) -> list[bytes]:
    return [message.value for message in await read_all(client, *topics)]


async def receive(consumer: txnclient.Consumer, count: int, *, within_s: float = 30.0) -> list[txnclient.Message]:
    """Exactly so many messages."""
    messages: list[txnclient.Message] = []
    async with asyncio.timeout(within_s):
        while len(messages) < count:
            messages += await consumer.receive_many(count - len(messages), timeout=within_s)
    return messages


async def test_what_is_sent_is_received_as_it_was(client: txnclient.Client) -> None:
    topic = await new_topic(client, 2)
    producer = await client.producer(topic, name="p1")
    async with client.transaction() as txn:
        sent = await producer.send(b"v", key="k", properties={"a": "ü"}, event_time_ms=12345, txn=txn)
    plain = await producer.send(b"")
    assert producer.last_sequence_id == 1
    by_id = {message.id: message for message in await read_all(client, topic)}
    first, second = by_id[sent], by_id[plain]
    assert (first.value, first.key, first.properties, first.event_time_ms) == (b"v", b"k", {"a": "ü"}, 12345)
    assert (first.txn_id, first.topic, first.producer_name, first.sequence_id) == (txn.id, topic, "p1", 0)
    assert (second.value, second.key, second.properties, second.event_time_ms) == (b"", None, {}, None)
    assert (second.txn_id, second.redelivery_count, second.sequence_id) == (None, 0, 1)
    assert abs(first.publish_time_ms - second.publish_time_ms) < 10_000


async def test_v2_committed_is_visible_and_aborted_never(lagging: tuple[InProcessCluster, HeldDecisions]) -> None:
    """All parts of a transaction in each read, or none, while an owner hears late of every other decision; and a reader
    that follows comes to what stands behind the last one, without anything aborted."""
    cluster, second = lagging
    topics = [f"topic://public/default/v2-{name}" for name in "ab"]
    keys = [f"k{number}" for number in range(16)]
    async with cluster.connect() as client, cluster.connect() as reading:
        for topic in topics:
            await create_over_both(client, topic, 2)
        producers = [await client.producer(topic) for topic in topics]

        async def send(value: bytes, txn: txnclient.Transaction | None = None) -> None:
            sends = [producer.send(value, key=key, txn=txn) for producer in producers for key in keys]
            await asyncio.gather(*sends)

        async with reading.reader(topics) as following, reads_beside(reading, *topics) as reads:
            for number in range(8):
                txn = await client.begin()
                await send(b"%d" % number, txn)
                (second.open.clear if number % 4 > 1 else second.open.set)()
                await (txn.commit() if number % 2 else txn.abort())
                await reads.another()
                assert (txn.id in reads.found[-1]) == (number % 2 == 1)
            second.open.set()
            await send(b"sentinel")
            expected = {value: len(topics) * len(keys) for value in (b"1", b"3", b"5", b"7", b"sentinel")}
            followed = Counter[bytes]()
            async with asyncio.timeout(30):
                while followed[b"sentinel"] < expected[b"sentinel"]:
                    followed[(await following.receive()).value] += 1
            assert followed == expected
        assert Counter(await values(client, *topics)) == expected


async def test_v6_a_transaction_does_not_read_its_own_uncommitted_writes(client: txnclient.Client) -> None:
    topic = await new_topic(client)
    producer = await client.producer(topic)
    txn = await client.begin()
    await producer.send(b"mine", txn=txn)
    assert await values(client, topic) == []
    await txn.commit()
    assert await values(client, topic) == [b"mine"]


async def test_a_client_reads_its_own_commits_at_once(client: txnclient.Client) -> None:
    topic = await new_topic(client, 2)
    producer = await client.producer(topic)
    for number in range(30):
        async with client.transaction() as txn:
            await producer.send(b"%d" % number, txn=txn)
        assert len(await values(client, topic)) == number + 1


async def test_a4_empty_ack_only_and_write_only_transactions_end(client: txnclient.Client) -> None:
    topic = await new_topic(client)
    producer = await client.producer(topic)
    await producer.send_many([(None, b"%d" % n) for n in range(4)])
    consumer = await client.consumer(topic, "sub", prefetch=10)
    for end in ("commit", "abort"):
        empty, acking, writing = [await client.begin() for _ in range(3)]
        message = await consumer.receive()
        await consumer.ack(message, txn=acking)
        await producer.send(b"written", txn=writing)
        for txn in (empty, acking, writing):
            await getattr(txn, end)()
            assert txn.state == ("COMMITTED" if end == "commit" else "ABORTED")
    again = await receive(consumer, 4)
    assert [message.value for message in again] == [b"1", b"2", b"3", b"written"]
    assert again[0].redelivery_count > 0


async def test_l6_a_commit_carries_everything_that_was_queued(client: txnclient.Client) -> None:
    topic = await new_topic(client, 3)
    producer = await client.producer(topic, batch_bytes=2000)
    async with client.transaction() as txn:
        for number in range(3000):
            producer.send_nowait(b"%d" % number, key=f"k{number % 50}", txn=txn)
    found = await read_all(client, topic)
    assert sorted(int(message.value) for message in found) == list(range(3000))
    per_key: dict[bytes | None, list[int]] = {}
    for message in found:
        per_key.setdefault(message.key, []).append(int(message.value))
    assert all(numbers == sorted(numbers) for numbers in per_key.values())


async def test_a_message_that_is_too_large_is_refused_and_the_transaction_goes_on(client: txnclient.Client) -> None:
    topic = await new_topic(client)
    producer = await client.producer(topic)
    async with client.transaction() as txn:
        with pytest.raises(txnclient.MessageTooLarge):
            await producer.send(bytes(5 * 1024 * 1024 + 1), txn=txn)
        await producer.send(bytes(5 * 1024 * 1024), txn=txn)
    assert [len(value) for value in await values(client, topic)] == [5 * 1024 * 1024]


async def test_d2_a_transaction_past_its_deadline_says_so(client: txnclient.Client) -> None:
    topic = await new_topic(client)
    producer = await client.producer(topic)
    txn, writing = await client.begin(timeout=0.5), await client.begin(timeout=0.5)
    await producer.send(b"early", txn=writing)
    await until_answer(
        lambda: client.outcomes([txn.id, writing.id]),
        lambda found: found == dict.fromkeys((txn.id, writing.id), "ABORTED"),
        "both to be aborted",
        within_s=10,
    )
    with pytest.raises(txnclient.InvalidTxnState, match="timeout"):
        await txn.commit()
    assert txn.state == TransactionState.ABORTED
    with pytest.raises(txnclient.TxnConflict):
        await producer.send(b"late", txn=writing)
    with pytest.raises(txnclient.InvalidTxnState, match="timeout") as refused:  # the same, whatever was sent meanwhile
        await writing.commit()
    assert isinstance(refused.value.__cause__, txnclient.TxnConflict)
    assert await values(client, topic) == []


async def test_unknown_transactions_are_told_from_ended_ones(client: txnclient.Client) -> None:
    txn = await client.begin()
    assert (await client.transaction_info(txn.id))["outcome"] == "OPEN"
    await txn.commit()
    assert (await client.transaction_info(str(txn.id)))["outcome"] == "COMMITTED"
    assert await client.outcomes([txn.id, TxnId(0, 999_999_999)]) == {
        txn.id: "COMMITTED",
        TxnId(0, 999_999_999): "UNKNOWN",
    }


async def test_p3_the_second_transaction_to_ack_conflicts_and_its_commit_fails(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    topic = await new_topic(client)
    producer = await client.producer(topic)
    await producer.send(b"x")
    consumer = await client.consumer(topic, "sub")
    message = await consumer.receive()
    first, second = await client.begin(), await client.begin()
    await consumer.ack(message, txn=first)
    with pytest.raises(txnclient.TxnConflict):
        await consumer.ack(message, txn=second)
    with pytest.raises(txnclient.TxnConflict):
        await second.commit()
    await first.commit()
    with pytest.raises(txnclient.Timeout):
        await consumer.receive(timeout=0.3)


async def test_l7_a_producer_survives_its_broker_without_loss_or_repeats(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    topic = await new_topic(client, 2)
    producer = await client.producer(topic)
    stop = asyncio.Event()
    sent: list[asyncio.Future[txnclient.MessageId]] = []

    async def produce() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            sent.append(producer.send_nowait(b"%d" % number, key=f"k{number % 7}"))
            await asyncio.sleep(0.001)

    producing = asyncio.create_task(produce())
    for _ in range(2):
        await asyncio.sleep(0.3)
        await cluster.restart_server("broker")
    stop.set()
    await producing
    await producer.flush()
    found = await read_all(client, topic)
    assert Counter(int(message.value) for message in found) == Counter(range(len(sent)))
    per_key: dict[bytes | None, list[int]] = {}
    for message in found:
        per_key.setdefault(message.key, []).append(int(message.value))
    assert all(numbers == sorted(numbers) for numbers in per_key.values())


async def test_open_transactions_survive_their_coordinator(cluster: InProcessCluster, client: txnclient.Client) -> None:
    topic = await new_topic(client)
    producer = await client.producer(topic)
    txns = [await client.begin() for _ in range(4)]
    for txn in txns:
        await producer.send(str(txn.id).encode(), txn=txn)
    await cluster.restart_server("control")
    await asyncio.sleep(3.0)  # longer than the grace for a client that is gone
    for txn in txns:
        await txn.commit()
    assert sorted(await values(client, topic)) == sorted(str(txn.id).encode() for txn in txns)


async def test_consume_transform_produce_is_exactly_once_through_aborts_and_restarts(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    source, target = await new_topic(client, 2), await new_topic(client, 2)
    count = 600
    async with client.producer(source, batch_bytes=500) as producer:
        await producer.send_many([(f"k{n % 20}", b"%d" % n) for n in range(count)])
    done: Counter[int] = Counter()
    stop = asyncio.Event()

    async def work(name: str) -> None:
        async with cluster.connect() as own:
            consumer = await own.consumer(source, "job", name=name, prefetch=100)
            producer = await own.producer(target)
            for attempt in itertools.count(1):
                if stop.is_set():
                    return
                messages = await consumer.receive_many(10, timeout=0.5)
                if not messages:
                    continue
                try:
                    async with own.transaction() as txn:
                        for message in messages:
                            producer.send_nowait(message.value, key=message.key, txn=txn)
                        messages += (more := await consumer.receive_many(5, timeout=0.05))
                        for message in more:
                            producer.send_nowait(message.value, key=message.key, txn=txn)
                        await consumer.ack(messages, txn=txn)
                        if attempt % 4 == 0:
                            raise InterruptedError
                except (txnclient.TxnError, InterruptedError):
                    if txn.state != TransactionState.ABORTED:
                        raise
                    consumer.rewind()
                    continue
                done.update(int(message.value) for message in messages)

    workers = [asyncio.create_task(work(f"w{number}")) for number in range(2)]
    await asyncio.sleep(1.0)
    await cluster.restart_server("broker")

    def worked_off() -> bool:
        for worker in workers:
            if worker.done():
                worker.result()
        return len(done) >= count

    await until(worked_off, f"{count} messages to be handled")
    stop.set()
    await asyncio.gather(*workers)
    assert Counter(int(value) for value in await values(client, target)) == Counter(range(count))
    assert done == Counter(range(count))


async def test_two_consumers_share_the_segments_and_one_takes_over_from_the_other(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    topic = await new_topic(client, 4)
    producer = await client.producer(topic)
    first = await client.consumer(topic, "sub", name="first")
    assert len(first.segments) == 4
    second = await client.consumer(topic, "sub", name="second")
    await until(lambda: sorted((len(first.segments), len(second.segments))) == [2, 2], within_s=10)
    sent = {b"%d" % n for n in range(40)}
    await producer.send_many([(value, value) for value in sent])
    got: dict[bytes, None] = {}
    async with asyncio.timeout(20):
        while len(got) < 40:
            for consumer in (first, second):
                messages = await consumer.receive_many(100, timeout=0.1)
                got.update(dict.fromkeys(message.value for message in messages))
                await consumer.ack(messages)
    await second.close()
    await until(lambda: len(first.segments) >= 4, within_s=10)
    await producer.send_many([(f"k{n}", b"more") for n in range(20)])
    assert {message.value for message in await receive(first, 20)} == {b"more"}


async def test_a_consumer_reads_several_topics(client: txnclient.Client) -> None:
    topics = [await new_topic(client), await new_topic(client, 2)]
    for topic in topics:
        async with client.producer(topic) as producer:
            await producer.send(topic.encode())
    consumer = await client.consumer(topics, "sub")
    messages = await receive(consumer, 2)
    assert sorted((m.topic, m.value) for m in messages) == sorted((topic, topic.encode()) for topic in topics)
    await consumer.ack(messages)


async def test_topics_whose_names_begin_alike_are_told_apart(client: txnclient.Client) -> None:
    """▲ The assignment of one says nothing of the segments of the other."""
    topics = ["topic://public/default/alike-too", "topic://public/default/alike"]
    for topic in topics:
        await client.create_topic(topic)
        async with client.producer(topic) as producer:
            await producer.send(topic.encode())
    async with client.consumer(topics, "sub") as consumer:
        messages = await receive(consumer, 2)
        assert len(consumer.segments) == 2
        await consumer.ack(messages)


async def test_cumulative_acks(client: txnclient.Client) -> None:
    topic = await new_topic(client)
    async with client.producer(topic, batch_bytes=30) as producer:
        await producer.send_many([(None, b"%d" % n) for n in range(10)])
    async with client.consumer(topic, "sub") as consumer:
        messages = await receive(consumer, 10)
        await consumer.ack_cumulative(messages[3])
        txn = await client.begin()
        await consumer.ack_cumulative(messages[6], txn=txn)
        await txn.commit()
    async with client.consumer(topic, "sub") as consumer:
        assert [message.value for message in await receive(consumer, 3)] == [b"7", b"8", b"9"]


async def test_p2_cumulative_acks_in_transactions_go_on_after_an_abort(client: txnclient.Client) -> None:
    """What was received behind the ack comes again with the abort, and keeps no later transaction from its ack."""
    topic = await new_topic(client, 1)
    producer = await client.producer(topic)
    for number in range(6):
        await producer.send(b"%d" % number)
    consumer = await client.consumer(topic, "cumulative")

    async def acked_up_to_the_third() -> txnclient.Transaction:
        messages: list[txnclient.Message] = []
        async with asyncio.timeout(20):
            while len(messages) < 6:
                messages += await consumer.receive_many(6 - len(messages), timeout=10)
        txn = await client.begin()
        await consumer.ack_cumulative(messages[2], txn=txn)
        return txn

    for _ in range(3):
        await (await acked_up_to_the_third()).abort()
    await (await acked_up_to_the_third()).commit()


@pytest.mark.parametrize("how", ["plain", "commit", "abort"])
async def test_p2_a_cumulative_ack_covers_what_was_received_before_in_every_segment(
    client: txnclient.Client, how: str
) -> None:
    topic = await new_topic(client, 3)
    async with client.producer(topic, batch_bytes=1) as producer:
        for number in range(30):
            await producer.send(b"%d" % number, key=b"%d" % number)
    async with client.consumer(topic, "sub") as consumer:
        messages = await receive(consumer, 30)
        assert len({message.segment for message in messages}) == 3
        txn = None if how == "plain" else await client.begin()
        await consumer.ack_cumulative(messages[24], txn=txn)
        if txn is not None:
            await (txn.commit() if how == "commit" else txn.abort())
    async with client.consumer(topic, "sub") as consumer:
        left = messages if how == "abort" else messages[25:]
        again = await receive(consumer, len(left))
        assert sorted(message.value for message in again) == sorted(message.value for message in left)
        await consumer.ack_cumulative(again[-1])
    async with client.consumer(topic, "sub") as consumer:
        assert await consumer.receive_many(1, timeout=0.3) == []


async def test_a_reader_starts_where_it_is_told(client: txnclient.Client) -> None:
    topic = await new_topic(client)
    producer = await client.producer(topic)
    ids = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(5)))
    async with client.reader(topic, start=ids[2], end="latest") as reader:
        assert [message.value async for message in reader] == [b"2", b"3", b"4"]
    async with client.reader(topic, start="latest") as reader:
        await producer.send(b"5")
        assert (await reader.receive(timeout=10)).value == b"5"


async def test_a_reader_that_follows_gets_what_comes_also_from_a_new_owner(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    topic = await new_topic(client)
    producer = await client.producer(topic)
    async with client.reader(topic) as reader:
        for number in range(20):
            await producer.send(b"%d" % number)
            if number == 10:
                await cluster.restart_server("broker")
        found = [(await reader.receive()).value for _ in range(20)]
    assert found == [b"%d" % n for n in range(20)]


async def test_two_producers_of_one_name_the_first_is_fenced(client: txnclient.Client) -> None:
    topic = await new_topic(client)
    first = await client.producer(topic, name="one")
    await first.send(b"1")
    second = await client.producer(topic, name="one")
    await second.send(b"2")
    with pytest.raises(txnclient.ProducerFenced):
        await first.send(b"3")
    await second.send(b"4")
    assert await values(client, topic) == [b"1", b"2", b"4"]


async def test_creating_a_topic_again_is_ok_with_the_same_shape_only(client: txnclient.Client) -> None:
    topic = await new_topic(client, 3)
    await client.create_topic(topic, segments=3)
    with pytest.raises(txnclient.TopicExists):
        await client.create_topic(topic, segments=4)
    assert topic in await client.list_topics("public/default/")


async def test_a_client_that_closes_leaves_no_task(cluster: InProcessCluster) -> None:
    before = len(asyncio.all_tasks())
    async with cluster.connect() as own:
        topic = await new_topic(own)
        producer = await own.producer(topic)
        consumer = await own.consumer(topic, "sub")
        async with own.transaction() as txn:
            await producer.send(b"x", txn=txn)
        await consumer.ack(await consumer.receive())
        await own.begin()
    await until(lambda: not [t for t in asyncio.all_tasks() if "txnclient" in str(t.get_coro())], within_s=5)
    assert len(asyncio.all_tasks()) <= before + 10  # the servers' own
