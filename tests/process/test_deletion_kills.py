"""S8 with kill -9: whoever dies while topics are deleted, nothing of them is left in the end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import txnclient
from tests.processes import kill, process_cluster
from tests.waiting import until
from txnctl.checking.everything import check_everything
from txnctl.process.settings import ServerSettings
from txnwire.errors import TopicNotFound

VICTIMS = (("broker-1",), ("server",), ("etcd", "server", "broker-1"))

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


def is_partly_deleted(deleting: asyncio.Future[None], folder: Path, *, most: int) -> bool:
    return deleting.done() or len(list(folder.glob("*"))) <= most


async def test_s8_a_deletion_survives_every_process(tmp_path: Path) -> None:
    async with process_cluster(tmp_path) as cluster, txnclient.connect(cluster.url, timeout=60.0) as client:
        for number, victims in enumerate(VICTIMS):
            topic = f"topic://public/nyc/flights-{number}"
            await client.create_topic(topic, segments=16)
            async with client.producer(topic) as producer:
                await producer.send_many([(f"key-{n}", b"v" * 100) for n in range(500)])
                txn = await client.begin()
                for n in range(20):
                    await producer.send(b"open", key=f"key-{n}", txn=txn)
            deleting = asyncio.ensure_future(client.delete_topic(topic, force=True))
            folder = tmp_path / "data" / "ledgers" / "public" / "nyc" / f"flights-{number}"
            partly = partial(is_partly_deleted, deleting, folder, most=16 - 4 * number)
            await until(partly, "a part of the deletion", longest_poll_s=0.001)
            await kill(cluster, *victims)
            await deleting
            with suppress(TopicNotFound):
                await client.delete_topic(topic)
            await txn.abort()
            assert not folder.exists()
        settings = ServerSettings(etcd=cluster.etcd_url, data_dir=tmp_path / "data")  # type: ignore[arg-type]
        assert (await check_everything(settings, lambda _: None)).findings == []
