"""The loop of `txnclient.process` in processes of its own, under kill -9 of everything: each message exactly once,
in order per key."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import txnclient
from tests.processes import kill, process_cluster

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "consume_transform_produce.py"
ORDERS = "topic://public/billing/orders"
INVOICES = "topic://public/billing/invoices"
WAVES = 5
ORDERS_PER_WAVE = 300

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


async def start(url: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), "--url", url, *arguments, stdout=asyncio.subprocess.PIPE
    )


@asynccontextmanager
async def crowd(url: str, size: int) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    workers = [await start(url, "--bill", "--idle", "120") for _ in range(size)]
    try:
        yield workers
    finally:
        for worker in workers:
            if worker.returncode is None:
                worker.kill()
            await worker.communicate()


async def place(client: txnclient.Client, wave: int) -> None:
    first = wave * ORDERS_PER_WAVE
    async with await client.producer(ORDERS, serializer="json", batch_bytes=2_000) as producer:
        await producer.send_many(
            [
                (f"customer-{number % 20}", {"id": number, "item": "tea", "count": 1})
                for number in range(first, first + ORDERS_PER_WAVE)
            ]
        )


async def test_orders_are_billed_exactly_once_while_everything_is_killed(tmp_path: Path) -> None:
    victims: tuple[tuple[str, ...], ...] = (("broker-1",), ("server",), ("etcd",), ("broker-1", "server"))
    async with process_cluster(tmp_path) as cluster, txnclient.connect(cluster.url, timeout=60) as client:
        for topic in (ORDERS, INVOICES, "topic://public/billing/ledger"):
            await client.create_topic(topic, segments=4)
        async with crowd(cluster.url, 2) as workers, await client.reader(INVOICES, serializer="json") as reader:
            billed: list[int] = []
            of_customer: dict[bytes | None, list[int]] = {}

            async def wait_billed(count: int) -> None:
                async with asyncio.timeout(60):
                    while len(billed) < count:
                        for message in await reader.receive_many(1000, timeout=60):
                            billed.append(message.value["order"])
                            of_customer.setdefault(message.key, []).append(message.value["order"])

            for wave in range(WAVES):
                await place(client, wave)
                await wait_billed(wave * ORDERS_PER_WAVE + 20)  # they are at it
                if wave < len(victims):
                    await kill(cluster, *victims[wave])
                workers[0].send_signal(signal.SIGKILL)
                await workers[0].communicate()
                workers[0] = await start(cluster.url, "--bill", "--idle", "120")
            await wait_billed(WAVES * ORDERS_PER_WAVE)
        assert sorted(billed) == list(range(WAVES * ORDERS_PER_WAVE))
        assert all(orders == sorted(orders) for orders in of_customer.values())
        checking = await start(cluster.url, "--check")
        output, _ = await asyncio.wait_for(checking.communicate(), 60)
        assert f"{WAVES * ORDERS_PER_WAVE} orders billed exactly once".encode() in output
