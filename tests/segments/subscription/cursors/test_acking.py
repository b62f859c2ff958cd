"""Acks on stream subscriptions, in transactions and outside: SCENARIOS "Acks"."""

from __future__ import annotations

import asyncio

import pytest

from segments.broker.consuming import CLOSED_KEPT
from simulation.judges.footprint import footprint_of
from tests.segments.brokering import Cluster
from tests.segments.gates import GatedStore, gate_stores, is_ack_op, is_clean_up
from tests.waiting import until
from txnstore import keys, records
from txnstore.records import Header, SubscriptionRecord
from txnstore.store import Commit, CommitVerdict, MetadataStore, Put
from txnwire.errors import InvalidArgument, NotAllowed, OutcomeUnknown, StoreFull, Timeout, TxnConflict
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb
from watchers.outcomes import Decision


async def test_what_was_not_delivered_since_it_last_went_back_is_not_counted(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    for value in "ab":
        await producer.send(value)
    await consumer.wait(*"ab")
    await cluster.subscribe(client, segment, epoch=2, permits=0)
    again = await cluster.subscribe(client, segment, epoch=3)
    await again.wait(*"ab")
    assert [message.redelivery_count for message in again.messages] == [1, 1]


async def test_p1_an_ack_in_a_transaction_hides_abort_redelivers_commit_sticks(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    _, consumer = await cluster.holding_abc(client, segment)
    aborted = await cluster.begin()
    await consumer.ack(consumer.messages[0], consumer.messages[1], txn=aborted)
    hidden = await cluster.subscribe(client, segment, epoch=2)  # the same consumer attaches anew
    await hidden.wait("c")
    await cluster.abort(aborted)
    await until(lambda: hidden.rewinds == 1)
    await hidden.wait(*"abc")
    assert [message.redelivery_count for message in hidden.messages] == [1, 1, 2]

    committed = await cluster.begin()
    await hidden.ack(hidden.messages[0], txn=committed)
    revision = await cluster.commit(committed)
    await client.call(segment_positions=pb.SegmentPositions(segment=segment, min_revision=revision))
    final = await cluster.subscribe(client, segment, epoch=3)
    await final.wait(*"bc")


@pytest.mark.parametrize("committed", [True, False])
async def test_d4_participants_finish_what_was_decided_with_no_coordinator_alive(
    cluster: Cluster, committed: bool
) -> None:
    """There is none in this cluster: the decision in etcd is all that was left of it, and nobody tells the brokers."""
    source, target = await cluster.create_topic(segments=2)
    client = await cluster.connect(await cluster.start())
    inputs, outputs = await client.producer(source), await client.producer(target)
    consumer, reader = await cluster.subscribe(client, source), await client.reader(target)
    for value in "ab":
        await inputs.send(value)
    await consumer.wait(*"ab")
    txn = await cluster.begin()
    await outputs.send("made of a", txn=txn)
    await outputs.send("behind it")
    await consumer.ack(consumer.messages[0], txn=txn)
    assert reader.values == []
    await (cluster.commit(txn) if committed else cluster.abort(txn))
    await reader.wait(*(["made of a", "behind it"] if committed else ["behind it"]))
    await cluster.wait_no_ops(txn)
    await (await cluster.subscribe(client, source, epoch=2)).wait(*("b" if committed else "ab"))


@pytest.mark.parametrize(("first", "second", "conflict"), [(2, 2, True), (2, 1, True), (2, 3, True), (None, 3, False)])
async def test_p2_cumulative_acks_at_equal_lower_and_higher_positions(
    cluster: Cluster, first: int | None, second: int, conflict: bool
) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    for value in "abcde":
        await producer.send(value)
    await consumer.wait(*"abcde")
    one, two = await cluster.begin(), await cluster.begin()
    if first is not None:
        await consumer.ack(consumer.messages[first], txn=one, cumulative=True)
    if conflict:
        with pytest.raises(TxnConflict):
            await consumer.ack(consumer.messages[second], txn=two, cumulative=True)
        await cluster.abort(one)
        await until(lambda: consumer.rewinds)
        await consumer.wait(*"abcde")
    await consumer.ack(consumer.messages[second], txn=two, cumulative=True)
    revision = await cluster.commit(two)
    await client.call(segment_positions=pb.SegmentPositions(segment=segment, min_revision=revision))
    rest = await cluster.subscribe(client, segment, epoch=2)
    await rest.wait(*"abcde"[second + 1 :])


async def test_p3_a_second_ack_conflicts_is_free_after_abort_and_refused_after_commit(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    await producer.send("m")
    await consumer.wait("m")
    message = consumer.messages[0]
    first, second, third = [await cluster.begin() for _ in range(3)]
    await consumer.ack(message, txn=first)
    with pytest.raises(TxnConflict):
        await consumer.ack(message, txn=second)
    await cluster.abort(first)
    await until(lambda: consumer.rewinds == 1)
    await consumer.ack(message, txn=second)
    await cluster.commit(second)
    await cluster.wait_no_ops(second)
    with pytest.raises(TxnConflict):
        await consumer.ack(message, txn=third)
    assert await cluster.ops(third) == []


async def test_p4_subscriptions_are_independent_and_one_transaction_acks_on_several(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    one = await cluster.subscribe(client, segment, name="one")
    two = await cluster.subscribe(client, segment, name="two")
    await producer.send("m")
    await one.wait("m")
    await two.wait("m")
    both, only = await cluster.begin(), await cluster.begin()
    await one.ack(one.messages[0], txn=both)
    await two.ack(two.messages[0], txn=both)
    await cluster.abort(both)
    await until(lambda: one.rewinds and two.rewinds)
    await one.wait("m")
    await one.ack(one.messages[0], txn=only)
    await cluster.commit(only)
    await cluster.wait_no_ops(only)
    await cluster.wait_no_ops(both)
    await (await cluster.subscribe(client, segment, name="two", epoch=2)).wait("m")
    await producer.send("n")
    await (await cluster.subscribe(client, segment, name="one", epoch=2)).wait("n")


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("decided_while_down", [True, False])
async def test_p5_a_restart_restores_pending_acks_and_finishes_decided_ones_once(
    cluster: Cluster, committed: bool, decided_while_down: bool
) -> None:
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    _, consumer = await cluster.holding_abc(client, segment)
    txn, other = await cluster.begin(), await cluster.begin()
    await consumer.ack(consumer.messages[0], consumer.messages[2], txn=txn)
    await node.crash()
    if decided_while_down:
        await cluster.end(txn, "COMMITTED" if committed else "ABORTED")
    client = await cluster.connect(await cluster.start())
    consumer = await cluster.subscribe(client, segment, epoch=2)
    if not decided_while_down:
        with pytest.raises(TxnConflict):
            await consumer.ack(Position(1, 0), txn=other)
        await cluster.end(txn, "COMMITTED" if committed else "ABORTED")
    await cluster.wait_no_ops(txn)
    await consumer.wait(*("b" if committed else "abc"))


@pytest.mark.parametrize("holds", ["an ack", "a write"])
async def test_p4_an_ack_that_is_refused_leaves_what_else_the_transaction_has_here_its_decision(
    cluster: Cluster, holds: str
) -> None:
    """The segment hears of decisions of transactions that it holds something of, on whichever subscription."""
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, reader = await client.producer(segment), await client.reader(segment)
    one = await cluster.subscribe(client, segment, name="one")
    two = await cluster.subscribe(client, segment, name="two")
    await producer.send("m")
    await one.wait("m")
    await two.wait("m")
    txn = await cluster.begin()
    if holds == "an ack":
        await one.ack(one.messages[0], txn=txn)
    else:
        await producer.send("t", txn=txn)
    refuse_one_ack_op(node.store).set_exception(StoreFull("no more ops"))
    with pytest.raises(StoreFull):
        await two.ack(two.messages[0], txn=txn)
    if holds == "an ack":
        await cluster.abort(txn)
        await until(lambda: one.rewinds)
        await one.wait("m")
    else:
        await cluster.commit(txn)
        await reader.wait("m", "t")
    await cluster.wait_no_ops(txn)


def refuse_one_ack_op(store: MetadataStore) -> asyncio.Future[CommitVerdict]:
    """What the next one is answered with, nothing of it being sent."""
    commit_really = store.commit_nowait
    answer: asyncio.Future[CommitVerdict] = asyncio.get_running_loop().create_future()

    def refused(commit: Commit) -> asyncio.Future[CommitVerdict]:
        if not is_ack_op(commit):
            return commit_really(commit)
        store.commit_nowait = commit_really  # type: ignore[method-assign]
        return answer

    store.commit_nowait = refused  # type: ignore[method-assign]
    return answer


async def test_p5_acks_behind_a_refused_first_one_are_found_by_the_next_owner(cluster: Cluster) -> None:
    """▲ They wait for the one that carries the index key: once that is refused the next one carries it."""
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    _, consumer = await cluster.holding_abc(client, segment)
    txn, other = await cluster.begin(), await cluster.begin()
    answer = refuse_one_ack_op(node.store)
    acking = [asyncio.ensure_future(consumer.ack(message, txn=txn)) for message in consumer.messages]
    await client.call(segment_positions=pb.SegmentPositions(segment=segment))  # the acks have arrived
    answer.set_exception(StoreFull("no more ops"))
    with pytest.raises(StoreFull):
        await acking[0]
    await asyncio.gather(*acking[1:])
    await node.crash()
    client = await cluster.connect(await cluster.start())
    consumer = await cluster.subscribe(client, segment, epoch=2)
    for position in (Position(1, 1), Position(1, 2)):
        with pytest.raises(TxnConflict):
            await consumer.ack(position, txn=other)
    await cluster.commit(txn)
    await cluster.wait_no_ops(txn)
    await (await cluster.subscribe(client, segment, epoch=3)).wait("a")


async def test_p6_a_crash_between_decision_and_cursor_applies_it_once_and_never_goes_back(cluster: Cluster) -> None:
    make_store = cluster.make_store
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    for value in "abcd":
        await producer.send(value)
    await consumer.wait(*"abcd")
    txn = await cluster.begin()
    await consumer.ack(consumer.messages[1], txn=txn)
    store: GatedStore = node.store  # type: ignore[assignment]
    store.hold(is_clean_up)
    await cluster.commit(txn)
    await until(lambda: store.waiting)
    await node.crash()
    assert await cluster.ops(txn)

    cluster.make_store = make_store
    client = await cluster.connect(await cluster.start())
    consumer = await cluster.subscribe(client, segment, epoch=2)
    await consumer.wait(*"acd")
    await cluster.wait_no_ops(txn)
    await consumer.ack(consumer.messages[0], consumer.messages[1])
    again = await cluster.subscribe(client, segment, epoch=3)
    await again.wait("d")


@pytest.mark.parametrize("cleaned", [False, True], ids=["amid the clean-up", "behind the clean-up"])
async def test_p7_a_late_commit_of_an_aborted_transaction_changes_nothing(cluster: Cluster, cleaned: bool) -> None:
    """▲ It comes to the segment that has applied the abort: by a header that is written over, and right at it."""
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    store: GatedStore = node.store  # type: ignore[assignment]
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    await producer.send("in")
    await consumer.wait("in")
    txn = await cluster.begin()
    await consumer.ack(consumer.messages[0], txn=txn)
    await producer.send("out", txn=txn)
    await producer.send("plain")
    store.hold(is_clean_up)
    await cluster.abort(txn)
    await until(lambda: consumer.rewinds)
    await consumer.wait("in", "plain")
    await until(lambda: store.waiting)
    if cleaned:
        store.open()
        await cluster.wait_no_ops(txn)

    late = Header(state=records.COMMITTED, timeout_ms=1, created_ms=1)
    written = await cluster.store.commit(Commit(puts=(Put(keys.txn(txn), records.encode(late)),)))
    served = node.broker.segments[segment]
    await served.wait_followed(written.revision)
    served.decide(Decision(txn, True, written.revision))
    store.open()
    await cluster.wait_no_ops(txn)
    await (await client.reader(segment)).wait("in", "plain")
    assert consumer.values == ["in", "plain"]
    await (await cluster.subscribe(client, segment, epoch=2)).wait("in", "plain")
    await node.close()
    client = await cluster.connect(await cluster.start())
    await (await client.reader(segment)).wait("in", "plain")
    await (await cluster.subscribe(client, segment, epoch=3)).wait("in", "plain")


async def test_p8_part_of_an_entry_is_acked_in_a_transaction_across_a_restart(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    await producer.send(*"abcd")
    await consumer.wait(*"abcd")
    txn, aborted = await cluster.begin(), await cluster.begin()
    await consumer.ack(consumer.messages[1], txn=txn)
    await consumer.ack(consumer.messages[3], txn=aborted)
    await node.crash()
    node = await cluster.start()
    client = await cluster.connect(node)
    await cluster.commit(txn)
    await cluster.wait_no_ops(txn)
    await cluster.abort(aborted)
    consumer = await cluster.subscribe(client, segment, epoch=2)
    await consumer.wait(*"acd")
    await consumer.ack(consumer.messages[0])
    await cluster.wait_no_ops(aborted)
    await node.close()
    client = await cluster.connect(await cluster.start())
    await (await cluster.subscribe(client, segment, epoch=3)).wait(*"cd")


async def test_a_connection_remembers_why_its_last_consumers_were_closed_and_no_more_of_them(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    await cluster.create_subscription("sub")
    consumers = []
    for epoch in range(1, CLOSED_KEPT + 20):
        consumers.append(await cluster.subscribe(client, segment, epoch=epoch))
    await until(lambda: all(consumer.closed for consumer in consumers[:-1]))
    await cluster.subscribe(client, segment, epoch=CLOSED_KEPT + 20)
    assert footprint_of(node.service).lengths["ConsumingService._connections"] <= CLOSED_KEPT + 2
    with pytest.raises(NotAllowed):
        await consumers[-2].ack(Position(1, 0))
    with pytest.raises(InvalidArgument, match="not open"):
        await consumers[0].ack(Position(1, 0))


async def test_the_first_ack_op_carries_the_index_key_and_the_others_wait(cluster: Cluster) -> None:
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    _, consumer = await cluster.holding_abc(client, segment)
    store: GatedStore = node.store  # type: ignore[assignment]
    store.hold(is_ack_op)
    txn = await cluster.begin()
    acking = [asyncio.ensure_future(consumer.ack(message, txn=txn)) for message in consumer.messages]
    await until(lambda: store.waiting)
    assert store.waiting == 1
    store.open()
    await asyncio.gather(*acking)
    assert [len(commit.puts) for commit in store.sent if is_ack_op(commit)] == [2, 1, 1]
    await cluster.commit(txn)
    await cluster.wait_no_ops(txn)


async def test_an_ack_whose_fate_the_store_cannot_tell_is_to_be_sent_again(cluster: Cluster) -> None:
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    await producer.send("m")
    await consumer.wait("m")
    store: GatedStore = node.store  # type: ignore[assignment]
    commit_really = store.commit_nowait

    def unanswered(commit: Commit) -> asyncio.Future[CommitVerdict]:
        if not is_ack_op(commit):
            return commit_really(commit)
        answer: asyncio.Future[CommitVerdict] = asyncio.get_running_loop().create_future()
        answer.set_exception(OutcomeUnknown("the store was closed"))
        return answer

    store.commit_nowait = unanswered  # type: ignore[method-assign]
    with pytest.raises(Timeout, match="send it again"):
        await consumer.ack(consumer.messages[0], txn=await cluster.begin())
    await until(lambda: consumer.closed)


async def test_acks_of_what_was_never_delivered_are_refused(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    open_txn = await cluster.begin()
    await producer.send("m")
    hidden = await producer.send("hidden", txn=open_txn)
    await consumer.wait("m")
    for position in (hidden, Position(1, 7), Position(9, 0)):
        with pytest.raises(InvalidArgument):
            await consumer.ack(position)
        with pytest.raises(InvalidArgument):
            await consumer.ack(consumer.messages[0], position)
        with pytest.raises(InvalidArgument):
            await consumer.ack(position, txn=await cluster.begin(), cumulative=True)
    with pytest.raises(InvalidArgument):
        await consumer.ack()
    with pytest.raises(InvalidArgument):
        await consumer.ack(consumer.messages[0], indexes=[0, 1])
    reader = await client.reader(segment)
    with pytest.raises(NotAllowed):
        await reader.ack(consumer.messages[0])
    consumer.id = 999
    with pytest.raises(InvalidArgument, match="subscribe first"):
        await consumer.ack(consumer.messages[0])


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ({"kind": "earliest"}, "abcd"),
        ({"kind": "message_id", "ledger_id": 1, "entry_id": 1, "index": 0, "after": True}, "cd"),
        ({"kind": "message_id", "ledger_id": 1, "entry_id": 1, "index": 1, "after": False}, "cd"),
        ({"kind": "timestamp", "timestamp_ms": 300}, "d"),
        ({"kind": "latest"}, "d"),
    ],
)
async def test_a_new_subscription_begins_where_its_record_says(
    cluster: Cluster, start: dict[str, object], expected: str
) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    await producer.send("a", publish_time_ms=100)
    await producer.send("b", "c", publish_time_ms=200)
    await producer.send("d", publish_time_ms=300)
    if start["kind"] == "message_id":
        start = {**start, "segment": segment}
    record = SubscriptionRecord(type="stream", start=start, positions={segment: (1, 1)})
    await cluster.create_subscription(record=record)
    await (await cluster.subscribe(client, segment)).wait(*expected)
    assert records.encode(record)
