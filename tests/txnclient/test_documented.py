"""The snippets of docs/client.md: producing, large values, queues, serializers, the loop, the synchronous face."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.processes import read_all

TEXT = (Path(__file__).resolve().parent.parent.parent / "docs" / "client.md").read_text()
JOBS = "topic://public/default/jobs"
ORDERS = "topic://public/default/orders"
INVOICES = "topic://public/default/invoices"


def snippet(section: str) -> str:
    """The first Python of the section."""
    (found,) = re.findall(rf"^## {section}$.*?```python\n(.*?)```", TEXT, re.DOTALL | re.MULTILINE)
    return str(found)


async def run(section: str, client: txnclient.Client) -> None:
    body = "\n".join(f"    {line}" for line in snippet(section).splitlines())
    names: dict[str, Any] = {"txnclient": txnclient}
    exec(f"async def shown(client):\n{body}", names)
    await names["shown"](client)


async def test_producing(client: txnclient.Client) -> None:
    await client.create_topic(ORDERS, segments=4)
    await run("Producing", client)


async def test_producing_while_segments_change(client: txnclient.Client) -> None:
    await client.create_topic("topic://public/default/accounts", autoscale="off")
    await run("Producing while segments change", client)


async def test_large_values(client: txnclient.Client) -> None:
    await client.create_topic("topic://public/default/films", segments=2)
    await run("Large values", client)


async def test_transaction_keys(cluster: InProcessCluster, capsys: pytest.CaptureFixture[str]) -> None:
    body = "\n".join(f"    {line}" for line in snippet("Transaction keys").splitlines())
    names: dict[str, Any] = {"txnclient": txnclient}
    exec(f"async def shown(address):\n{body}", names)
    await names["shown"](cluster.servers["control"].server.address)
    out = capsys.readouterr().out
    assert "fenced" in out  # told by its transaction, or by its key, whichever it heard of first
    assert "newer holder" in out


async def test_queues(client: txnclient.Client) -> None:
    await client.create_topic(JOBS)
    await run("Consuming: queues", client)


async def test_values_that_are_not_bytes(client: txnclient.Client) -> None:
    await client.create_topic("topic://public/default/days")
    await run("Values that are not bytes", client)


async def test_consume_transform_produce(client: txnclient.Client, capsys: pytest.CaptureFixture[str]) -> None:
    for topic in (ORDERS, INVOICES):
        await client.create_topic(topic)
    async with await client.producer(ORDERS, serializer="json") as producer:
        await producer.send({"id": 7, "count": 3})
    await run("Consume, transform, produce", client)
    assert await read_all(client, INVOICES) == [b'{"order":7,"total":12}']
    assert "1 1 1 0" in capsys.readouterr().out


async def test_whole_entries_in_bulk(client: txnclient.Client, capsys: pytest.CaptureFixture[str]) -> None:
    await client.create_topic(ORDERS)
    async with client.transaction() as txn, client.producer(ORDERS) as producer:
        await producer.send_many([b"one", b"two"], txn=txn)
    await run("Whole entries, in bulk", client)
    lines = capsys.readouterr().out.splitlines()
    assert f"1:0 {txn.id} 2 [b'one', b'two']" in lines
    assert [line for line in lines if line.isdigit() and int(line) > 50]


async def test_without_await(cluster: InProcessCluster, capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster.connect() as client:
        await client.create_topic(ORDERS)
    program = snippet("Without await").replace("txn://127.0.0.1:6650", cluster.url)
    await asyncio.to_thread(exec, program, {})
    assert "[{'id': 1, 'count': 3}]" in capsys.readouterr().out
