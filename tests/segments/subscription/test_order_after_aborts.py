"""What a stream consumer that comes back behind an abort is shown, and in which order."""

from __future__ import annotations

from itertools import count

import pytest

from tests.segments.brokering import Cluster
from txnwire.turns import turns_divided_by
from watchers.pending_acks import APPLIED_AT_ONCE, AppliedPart, PendingAcks

ACKED = [f"acked {number:02}" for number in range(40)]


async def test_nothing_newer_comes_before_all_of_an_abort_in_turns_is_released(memory_cluster: Cluster) -> None:
    """Dies if the decision counts as soon as it is heard of: what lies behind the acks would come first, and could be
    acked and committed before what comes again."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    with turns_divided_by(APPLIED_AT_ONCE):  # each ack has a turn of its own
        client = await cluster.connect(await cluster.start())
        producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
        for value in [*ACKED, "newer"]:
            await producer.send(value)
        await consumer.wait(*ACKED, "newer")
        txn = await cluster.begin()
        for message in consumer.take()[:-1]:
            await consumer.ack(message, txn=txn)
        again = await cluster.subscribe(client, segment, epoch=2, permits=0)  # as the client does that aborts
        again.flow(1000, min_revision=await cluster.abort(txn))
        await again.wait(*ACKED, "newer")
        assert [message.value for message in again.all] == [*ACKED, "newer"]


async def test_a_decision_whose_application_ends_halfway_is_applied_by_a_successor(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies if that task ends alone: all that was acked would stay pending, and its consumer would wait for ever."""
    cluster, apply_part, parts = memory_cluster, PendingAcks.apply_part, count(1)

    def ends_once(pending: PendingAcks) -> AppliedPart:
        if next(parts) == 2:
            raise KeyError("a defect")
        return apply_part(pending)

    monkeypatch.setattr(PendingAcks, "apply_part", ends_once)
    [segment] = await cluster.create_topic()
    with turns_divided_by(APPLIED_AT_ONCE):
        client = await cluster.connect(await cluster.start())
        _, consumer = await cluster.holding_abc(client, segment)
        txn = await cluster.begin()
        for message in consumer.take():
            await consumer.ack(message, txn=txn)
        await cluster.commit(txn)
        await cluster.wait_no_ops(txn)
