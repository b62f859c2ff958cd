"""When a sealed segment holds nothing more (S9): the controller prunes it then, with everything of it."""

from __future__ import annotations

import pytest

from segments.log.settings import BrokerSettings
from tests.segments.brokering import Cluster
from tests.segments.changing import controlling, ledgers_of
from tests.waiting import until

AT_ONCE = BrokerSettings(lease_ttl_s=2.0, claim_retry_s=0.05, prune_least_age_ms=0, producer_idle_s=0.0)


@pytest.mark.parametrize("sent", [[], ["a"]], ids=["nothing", "an entry"])
async def test_entries_behind_an_empty_ledger_keep_a_segment(memory_cluster: Cluster, sent: list[str]) -> None:
    """▲ The first owner got nothing and left in order: its footer, and with it its empty ledger, stays."""
    cluster = memory_cluster
    cluster.settings = AT_ONCE
    [path] = await cluster.create_topic()
    first = await cluster.start()
    await until(lambda: path in first.broker.segments)
    await first.close()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(path)
    for value in sent:
        await producer.send(value)
    await client.close()
    async with controlling(cluster) as controller:
        await controller.split(path)
        served = node.broker.segments[path]
        await until(lambda: served.ledgers.ended)
        lengths = [info.closed_length for info in (await ledgers_of(cluster, path)).ledgers]
        assert lengths == [0, len(sent)]
        assert await served.forgotten() is not bool(sent)
