"""`topics describe` tells what comes in while it comes, also right after a split."""

from __future__ import annotations

import asyncio
from typing import Any

import txnclient
from tests.cluster import InProcessCluster
from tests.txnctl.command_line import done

TOPIC = "topic://public/default/rates"


async def loads(cluster: InProcessCluster) -> list[dict[str, Any] | None]:
    """Of active segments."""
    told = await done("topics", "describe", TOPIC, "-o", "json", url=cluster.url)
    return [one["load"] for one in told.json["segments"] if one["state"] == "ACTIVE"]


async def test_a_load_shows_at_once_and_right_after_a_split(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    """Owners publish the rates of a minute every ten seconds: nothing of that is there yet."""
    layout = await client.create_topic(TOPIC)
    async with await client.producer(TOPIC) as producer:

        async def send() -> None:
            number = 0
            while True:
                number += 1
                await producer.send(b"x", key=str(number))

        sending = asyncio.ensure_future(send())
        try:
            (load,) = await loads(cluster)
            assert load is not None
            assert load["messages_per_s"] > 0
            assert load["bytes_per_s"] > load["messages_per_s"]
            await client.split(layout.active[0].name)
            both = await loads(cluster)
            assert len(both) == 2
            assert all(one is not None and one["messages_per_s"] > 0 for one in both)
            drawn = await done("topics", "describe", TOPIC, url=cluster.url)
            assert drawn.out.count("kB/s") == 2
        finally:
            sending.cancel()
            await asyncio.wait([sending])
