"""A role that a defect has ended takes its process with it, so that a supervisor starts it again."""

from __future__ import annotations

import asyncio

import pytest

from segments.claims import Claims
from tests.cluster import InProcessCluster
from txnctl.serve import wait_stopped_or_failed
from txnwire.errors import InternalError


async def test_a_defect_in_the_broker_ends_the_process(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = cluster.servers["broker"].server
    waiting = asyncio.ensure_future(wait_stopped_or_failed(asyncio.Event(), server))

    def defect(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Claims, "next_moves", defect)
    async with cluster.connect() as client:
        with pytest.raises(InternalError, match="a defect"):
            await asyncio.gather(waiting, client.create_topic("topic://public/default/wakes-the-broker"))


async def test_a_stop_ends_the_wait(cluster: InProcessCluster) -> None:
    stop = asyncio.Event()
    waiting = asyncio.ensure_future(wait_stopped_or_failed(stop, cluster.servers["broker"].server))
    stop.set()
    async with asyncio.timeout(10):
        await waiting
    assert cluster.servers["broker"].server.serving
