"""A client whose home server is cut off from etcd: real servers, etcd, ledgers and gRPC."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import txnclient
from tests.cluster import running_cluster
from tests.etcd_members import Tap
from tests.txnclient.test_with_cluster import new_topic
from tests.waiting import until

CUT_OFF = "broker-cut-off"


async def test_sends_go_on_though_the_home_server_is_cut_off_from_etcd(etcd: str, tmp_path: Path) -> None:
    port = urlsplit(etcd).port
    assert port is not None
    tap = Tap(port)
    await tap.start()
    try:
        async with running_cluster(etcd, tmp_path, lease_ttl_s=3.0) as cluster:
            cluster.etcd = f"http://127.0.0.1:{tap.port}"
            home = (await cluster.start_server(CUT_OFF, "broker")).server
            cluster.etcd = etcd
            async with txnclient.connect(f"txn://{home.address}", timeout=60.0) as client:
                topic = await new_topic(client, segments=4)
                await until(lambda: home.broker is not None and home.broker.segments)
                producer = await client.producer(topic)
                await asyncio.gather(*(producer.send_nowait(b"before", key=str(number)) for number in range(16)))
                tap.cut()
                try:
                    await until(home.remark, within_s=30.0, what="a view that is stale")
                    async with asyncio.timeout(60.0):
                        await asyncio.gather(*(producer.send_nowait(b"after", key=str(n)) for n in range(16)))
                finally:
                    tap.join()
                await until(lambda: home.not_ready() is None and home.remark() is None, within_s=30.0)
    finally:
        await tap.close()
