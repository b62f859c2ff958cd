"""Two brokers, one of which learns decisions late, and reads of whole topics during other work."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.waiting import until, until_answer
from txnctl.launch.probe import wait_cluster_ready
from txnstore import keys
from txnstore.store import WatchBatch
from txnwire.ids import TxnId


class HeldDecisions:
    """A store whose watch of decisions delivers nothing while `open` is clear. Reads answer as usual."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.open = asyncio.Event()
        self.open.set()

    def watch(self, start: bytes, end: bytes, **options: Any) -> Any:
        watch = self._store.watch(start, end, **options)
        return _HeldWatch(watch, self.open) if start == keys.TXN else watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _HeldWatch:
    def __init__(self, watch: Any, gate: asyncio.Event) -> None:
        self._watch = watch
        self._gate = gate

    async def __aiter__(self) -> AsyncIterator[WatchBatch]:
        async for batch in self._watch:
            await self._gate.wait()
            yield batch

    async def close(self) -> None:
        await self._watch.close()


@pytest.fixture
async def lagging(etcd: str, tmp_path: Path) -> AsyncIterator[tuple[InProcessCluster, HeldDecisions]]:
    """Brokers `broker` and `second`, and the store of the latter."""
    stores: dict[str, HeldDecisions] = {}

    def wrap(name: str, store: Any) -> Any:
        if name != "control":
            store = stores[name] = HeldDecisions(store)
        return store

    cluster = InProcessCluster(etcd, f"/lagging-{os.getpid()}-{tmp_path.name}", tmp_path, wrap_store=wrap)
    try:
        await cluster.start()
        await cluster.start_server("second", "broker")
        await wait_cluster_ready(cluster.listen, brokers=2, coordinators=2, timeout_s=30.0)
        yield cluster, stores["second"]
    finally:
        for store in stores.values():
            store.open.set()
        await cluster.stop()


async def create_over_both(client: txnclient.Client, topic: str, segments: int) -> None:
    """A topic of which each broker has some segments."""
    await client.create_topic(topic, segments=segments, autoscale="off")
    await until_answer(
        lambda: client.describe_topic(topic),
        lambda layout: {segment.owner for segment in layout.active} == {"broker", "second"},
        f"segments of {topic} at both brokers",
        within_s=20,
    )


class Reads:
    """Repeats reads to "latest", one after another, as long as `reading` is set."""

    def __init__(self, client: txnclient.Client, topics: Sequence[str]) -> None:
        self.found: list[Counter[TxnId]] = []
        """For each read: the number of messages of each transaction."""
        self._client = client
        self._topics = topics
        self.reading = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            async with asyncio.timeout(30), self._client.reader(self._topics, end="latest") as reader:
                found = Counter([message.txn_id async for message in reader if message.txn_id is not None])
            self.found.append(found)

    async def another(self) -> None:
        """Waits until a read that begins from now on has ended."""
        wanted = len(self.found) + 2

        def done() -> bool:
            if self.reading.done():
                self.reading.result()
            return len(self.found) >= wanted

        await until(done, "a read that has begun since")

    def judge(self) -> None:
        """Each transaction is in each read whole, as in the last one, or not at all; later reads have it again."""
        last = self.found[-1]
        for earlier, later in itertools.pairwise(self.found):
            assert {txn: count for txn, count in earlier.items() if count != last[txn]} == {}, "torn, or gone"
            assert earlier.keys() <= later.keys(), "what was read before is gone"


@asynccontextmanager
async def reads_beside(client: txnclient.Client, *topics: str) -> AsyncIterator[Reads]:
    """Runs reads of `client` beside the block, and judges them at its end."""
    reads = Reads(client, topics)
    try:
        yield reads
        await reads.another()
    finally:
        reads.reading.cancel()
        await asyncio.wait([reads.reading])
    reads.judge()
