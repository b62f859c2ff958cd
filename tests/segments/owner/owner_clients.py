"""Clients of one owner."""

from __future__ import annotations

from tests.segments.brokering import Client, Cluster, Node


async def connected(cluster: Cluster, broker_id: str = "b1") -> tuple[Node, Client]:
    node = await cluster.start(broker_id)
    return node, await cluster.connect(node)
