"""Real processes that are killed while segments are split and merged: producers lose, double and reorder nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

import txnclient
from tests.processes import kill, process_cluster
from tests.txnclient.producing.channels.test_moving_with_cluster import Writing, active, by_key, change_at_random
from tests.txnclient.test_with_cluster import read_all
from tests.waiting import until_answer
from txnctl.launch.dev import DevCluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

TOPIC = "topic://public/default/killed"


async def owner_of_some_segment(client: txnclient.Client) -> str:
    async def owners() -> list[str]:
        return [one.owner for one in await active(client, TOPIC) if one.owner]

    return (await until_answer(owners, bool, "an owner of some segment", within_s=30))[0]


async def test_l7_s5_s10_whoever_is_killed_while_segments_change(tmp_path: Path) -> None:
    async with (
        process_cluster(tmp_path, brokers=2) as cluster,
        txnclient.connect(cluster.url, timeout=60.0) as client,
    ):
        await client.create_topic(TOPIC, segments=2, autoscale="off")
        writer = Writing(client, await client.producer(TOPIC, linger_ms=1), 1)
        random = Random(2)
        for number, victim in enumerate(("broker", "control", "broker", "broker", "control", "broker")):
            changing = asyncio.ensure_future(change_at_random(client, TOPIC, random, 1))
            await asyncio.sleep(random.uniform(0, 0.03) if number else 0.015)
            await kill(cluster, await owner_of_some_segment(client) if victim == "broker" else control(cluster))
            await changing
        await writer.stop()
        assert by_key(await read_all(client, TOPIC)) == writer.sent


def control(cluster: DevCluster) -> str:
    """The process of coordinator and controller."""
    return next(name for name in cluster.children if name != "etcd" and not name.startswith("broker"))
