"""`gated`: an owner whose store and disk wait at gates."""

from __future__ import annotations

import pytest

from tests.segments.brokering import Cluster
from tests.segments.gates import GatedLedgers, gate_stores
from tests.segments.owner.gated_owner import Gated


@pytest.fixture
async def gated(cluster: Cluster) -> Gated:
    gate_stores(cluster)
    cluster.make_ledgers = GatedLedgers  # type: ignore[assignment]
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    await client.producer(segment, "first")
    return Gated(cluster, segment, client)
