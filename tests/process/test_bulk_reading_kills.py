"""kill -9 amid a read in bulk: nothing is missing, nothing comes twice, and a scan goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import txnclient
from tests.processes import kill, process_cluster
from txnclient.reading.snapshot import Span
from txnwire.ids import EARLIEST

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

TOPIC = "topic://public/default/orders"


async def test_x2_reading_and_scanning_over_kills_of_broker_and_etcd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnclient.reading.entries.SCAN_ENTRIES", 50)
    async with process_cluster(tmp_path) as cluster, txnclient.connect(cluster.url, timeout=60.0) as client:
        await client.create_topic(TOPIC, segments=1, autoscale="off")
        async with client.producer(TOPIC, compression=None, batch_bytes=20_000) as producer:
            for first in range(0, 1000, 50):
                txn = await client.begin()
                await producer.send_many([b"%08d" % number * 1000 for number in range(first, first + 50)], txn=txn)
                await (txn.commit() if first % 200 else txn.abort())
        cut = await client.snapshot(TOPIC)
        [(path, bounds)] = cut.segments.items()
        expected = [number for number in range(1000) if number // 50 * 50 % 200]
        reads = client.read_entries(path, after=EARLIEST, end=bounds.end, span=Span(None, cut), prefetch_bytes=100_000)
        pages = client.scan_entries(path, after=EARLIEST, end=bounds.end, min_revision=cut.revision)
        found, heads = [*await anext(reads)], [*await anext(pages)]
        for victims in (("broker-1",), ("etcd", "broker-1")):
            await kill(cluster, *victims)
            async with asyncio.timeout(60):
                found += await anext(reads)
                heads += await anext(pages)
        async with asyncio.timeout(60):
            found += [entry async for entries in reads for entry in entries]
            heads += [head async for page in pages for head in page]
        assert [int(value[:8]) for entry in found for value in entry.block.values()] == expected
        assert sum(head.messages for head in heads) == 1000
        assert [head.position for head in heads if not head.aborted] == [entry.position for entry in found]
