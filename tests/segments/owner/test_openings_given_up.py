"""Openings of producers that their client has given up."""

from __future__ import annotations

import pytest

from tests.segments.brokering import Cluster
from tests.segments.owner.owner_clients import connected
from txnwire.errors import ConnectionLost
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
