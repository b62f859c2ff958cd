"""Reading while the log rolls: the next ledger is opened, and not listed yet, for as long as the store takes."""

from __future__ import annotations

import asyncio

from tests.segments.brokering import Cluster, eventually
from tests.segments.gates import GatedStore
from txnstore import keys
from txnstore.store import Commit


def _lists_ledgers(commit: Commit) -> bool:
    return any(put.key.startswith(keys.LEDGER) for put in commit.puts)


async def test_nobody_misses_the_next_ledger_however_long_the_log_rolls(memory_cluster: Cluster) -> None:
    """▲ Each pass of dispatch looks for the next place to read at: none may get it past a ledger that is to come."""
    cluster = memory_cluster
    make_store = cluster.make_store

    async def make_gated() -> GatedStore:
        return GatedStore(await make_store())

    cluster.make_store = make_gated
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(segment)
    everybody = [
        await client.reader(segment),
        await cluster.subscribe(client, segment),
        await cluster.queue(client, segment),
    ]
    await producer.send("before")
    for one in everybody:
        await one.wait("before")
    store: GatedStore = node.store  # type: ignore[assignment]
    store.hold(_lists_ledgers)
    served = node.broker.segments[segment]
    rolling = asyncio.ensure_future(served.roll())
    await eventually(lambda: store.waiting)
    for _ in range(5):
        served.dispatcher.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    store.open()
    await rolling
    await producer.send("behind")
    for one in everybody:
        await one.wait("before", "behind")
