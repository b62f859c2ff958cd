"""A defect in what a queue waits for ends its consumers, which then know: none waits for ever, and nothing spins."""

from __future__ import annotations

from typing import NoReturn

import pytest

from tests.segments.brokering import Cluster
from tests.waiting import until
from txnwire.errors import InternalError


async def test_a_read_that_ends_by_a_defect_closes_the_consumers(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ It would be repeated at once, for ever, and starve all others of the process."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    await (await (await cluster.connect(node)).producer(segment)).send("a")
    await node.close()
    node = await cluster.start()
    client, reads = await cluster.connect(node), 0
    served = await node.broker.segment(segment)

    async def broken(*_: object, **__: object) -> NoReturn:
        nonlocal reads
        reads += 1
        raise RuntimeError("planned by the test")

    with monkeypatch.context() as patched:
        patched.setattr(served.ledgers, "read", broken)
        consumer = await cluster.queue(client, segment)
        await until(lambda: isinstance(consumer.closed, InternalError), within_s=5.0)
        assert reads == 1
    consumer = await cluster.queue(client, segment)
    await consumer.wait("a")


async def test_a_wait_that_ends_by_a_defect_closes_its_consumer(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ It would get nothing more, and what it has would go to nobody else."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(segment)

    async def broken(*_: object) -> NoReturn:
        raise RuntimeError("planned by the test")

    served = node.broker.segments[segment]
    consumer = await cluster.queue(client, segment, permits=0)
    monkeypatch.setattr(served.dispatcher, "wait_followed", broken)
    consumer.flow(1, min_revision=10**9)
    await producer.send("a")
    await until(lambda: isinstance(consumer.closed, InternalError), within_s=5.0)
