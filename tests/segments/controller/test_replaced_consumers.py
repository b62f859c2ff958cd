"""A stream consumer whose segment somebody else reads by now: SCENARIOS "Transaction keys"."""

from __future__ import annotations

import pytest

from segments.layout.assignment import consumer_id
from tests.segments.brokering import Cluster
from tests.waiting import until
from txnwire.errors import NotAllowed


@pytest.mark.parametrize("replaced_by", ["itself anew", "a newer one", "an assignment"])
async def test_k6_acks_of_a_replaced_consumer_are_refused(cluster: Cluster, replaced_by: str) -> None:
    """In a transaction and outside. `itself anew`: of the same name, incarnation and epoch, on another connection."""
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client, newer = await cluster.connect(node), await cluster.connect(node)
    producer, old = await client.producer(segment), await cluster.subscribe(client, segment)
    for value in "abc":
        await producer.send(value)
    await old.wait(*"abc")
    await old.ack(old.messages[0])
    txn = await cluster.begin()
    successor = {consumer_id("c1", 8): [segment]}
    if replaced_by == "itself anew":
        await newer.subscribe(segment)
    else:
        await cluster.assign(successor, epoch=2)
        if replaced_by == "a newer one":
            await newer.subscribe(segment, incarnation=8, epoch=2)
        else:
            await until(lambda: old.closed, what="it is told that somebody else has its segment")
    for within in (None, txn):
        for cumulative in (False, True):
            with pytest.raises(NotAllowed, match=r"now reads|no longer assigned"):
                await old.ack(old.messages[1], txn=within, cumulative=cumulative)
    assert await cluster.ops(txn) == []
    await cluster.commit(txn)
    await node.close()
    client = await cluster.connect(await cluster.start())
    await cluster.assign(successor, epoch=3)
    await (await client.subscribe(segment, incarnation=8, epoch=3)).wait(*"bc")
