"""Openings of producers that their client has given up."""

from __future__ import annotations

import pytest

from tests.segments.brokering import Cluster
from tests.segments.owner.owner_clients import connected
from txnwire.errors import ConnectionLost, TopicNotFound
from txnwire.proto import txn_pb2 as pb


async def test_a_producer_that_is_closed_before_it_is_open_is_not_kept(cluster: Cluster) -> None:
    """▲ Its client does not close it again: its topic would count as in use for as long as the connection."""
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    request = pb.OpenProducer(producer_id=77, segment=segment, name="p", incarnation=1)
    answer = client.caller.call_nowait(pb.Command(open_producer=request), timeout_s=10.0)
    client.caller.push(pb.Command(close_producer=pb.CloseProducer(producer_id=77)))
    with pytest.raises(ConnectionLost, match="closed"):
        await answer
    assert len(node.broker.segments[segment].producers) == 0
    request.producer_id = 78
    await client.call(open_producer=request)
    assert len(node.broker.segments[segment].producers) == 1


async def test_an_id_whose_opening_has_failed_may_be_used_again(memory_cluster: Cluster) -> None:
    """The client looks the owner up again, and asks under the same id."""
    [segment] = await memory_cluster.create_topic()
    _, client = await connected(memory_cluster)
    unknown = segment.replace("-0", "-7")
    for path, fails in ((unknown, True), (unknown, True), (segment, False)):
        requests = (
            {"subscribe": pb.Subscribe(consumer_id=77, segment=path)},
            {"open_producer": pb.OpenProducer(producer_id=77, segment=path, name="p", incarnation=1)},
        )
        for request in requests:
            if fails:
                with pytest.raises(TopicNotFound):
                    await client.call(**request)
            else:
                await client.call(**request)


async def test_nothing_is_kept_of_an_opening_that_is_over(memory_cluster: Cluster) -> None:
    """A client opens one after the other over the same connection, each under a new id."""
    [segment] = await memory_cluster.create_topic()
    node, client = await connected(memory_cluster)
    for name in ("a", "b", "c"):
        producer, reader = await client.producer(segment, name), await client.reader(segment)
        await client.call(close_producer=pb.CloseProducer(producer_id=producer.id))
        await reader.close()
    [connection] = node.service._connections.values()
    assert (connection.producers, connection.opening) == ({}, {})
    assert list(node.service._consuming._attaching.values()) == [{}]
