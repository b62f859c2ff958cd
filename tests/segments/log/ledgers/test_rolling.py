"""Reading while the log rolls: the next ledger is opened, and not listed yet, for as long as the store takes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import LedgerFailed, LedgerWriter, Recovered
from segments.log.ledgers.retention import Retention
from tests.segments.brokering import Cluster
from tests.segments.gates import GatedStore, gate_stores
from tests.waiting import until
from txnstore import keys
from txnstore.store import Commit
from txnwire.errors import NotOwner


def _lists_ledgers(commit: Commit) -> bool:
    return any(put.key.startswith(keys.LEDGER) for put in commit.puts)


async def test_nobody_misses_the_next_ledger_however_long_the_log_rolls(memory_cluster: Cluster) -> None:
    """▲ Each pass of dispatch looks for the next place to read at: none may get it past a ledger that is to come."""
    cluster = memory_cluster
    gate_stores(cluster)
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
    await until(lambda: store.waiting)
    for _ in range(5):
        served.dispatcher.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    store.open()
    await rolling
    await producer.send("behind")
    for one in everybody:
        await one.wait("before", "behind")


async def test_who_asked_for_a_roll_that_fails_is_told(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Housekeeping waits for it, and looks after no other segment meanwhile."""
    [segment] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    await (await (await memory_cluster.connect(node)).producer(segment)).send("a")
    served = node.broker.segments[segment]
    with monkeypatch.context() as patched:
        patched.setattr(node.ledgers, "create", _has_no_room)
        with pytest.raises(NotOwner):
            await asyncio.wait_for(served.roll(), 10)


async def _has_no_room(*_: object, **__: object) -> None:
    raise LedgerFailed("no space left on device")


class SlowClosing(FileLedgerStore):
    """Ledgers whose closing waits for `go_on`."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.waiting = 0
        self.fails = False
        self.go_on = asyncio.Event()

    async def create(self, segment: str, ledger_id: int, *, incarnation: str) -> Any:
        return _SlowToClose(self, await super().create(segment, ledger_id, incarnation=incarnation))


class _SlowToClose:
    def __init__(self, store: SlowClosing, writer: LedgerWriter) -> None:
        self._store = store
        self._writer = writer

    async def close(self, footer: bytes) -> Recovered:
        self._store.waiting += 1
        await self._store.go_on.wait()
        if self._store.fails:
            raise LedgerFailed("the disk failed (planned by the test)")
        return await self._writer.close(footer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


async def test_a_segment_that_is_handed_over_as_its_log_rolls_is_served_by_the_next(memory_cluster: Cluster) -> None:
    """▲ The footer is that of the ledger that is closed: beside the next one it is corruption, and nobody could serve
    the segment any more."""
    cluster = memory_cluster
    cluster.make_ledgers = SlowClosing
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    ledgers: SlowClosing = node.ledgers  # type: ignore[assignment]
    producer = await (await cluster.connect(node)).producer(segment, "p", 1)
    await producer.send("a")
    served = node.broker.segments[segment]
    rolling = asyncio.ensure_future(served.roll())
    await until(lambda: ledgers.waiting)
    handing_over = asyncio.ensure_future(served.hand_over(timeout_s=5.0))
    for _ in range(20):
        await asyncio.sleep(0.001)
    ledgers.go_on.set()
    await asyncio.gather(rolling, handing_over, return_exceptions=True)
    await node.crash()
    node = await cluster.start()
    reader = await (await cluster.connect(node)).reader(segment)
    await reader.wait("a")
    assert node.broker.segments[segment].last_sequence_id("p", 1) == 0


async def test_all_that_was_asked_of_a_log_that_fails_is_answered(memory_cluster: Cluster) -> None:
    """▲ The housekeeping of all segments of a broker waits for one at a time: for ever, if one is forgotten."""
    cluster = memory_cluster
    cluster.make_ledgers = SlowClosing
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    ledgers: SlowClosing = node.ledgers  # type: ignore[assignment]
    await (await (await cluster.connect(node)).producer(segment)).send("a")
    served = node.broker.segments[segment]
    ledgers.fails = True
    ledgers.go_on.set()
    asked = [asyncio.ensure_future(served.roll()), asyncio.ensure_future(served.checkpoint())]
    async with asyncio.timeout(5.0):
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(answer) for answer in answers] == [NotOwner, NotOwner]


async def test_whoever_asks_a_log_that_is_over_is_refused_at_once(memory_cluster: Cluster) -> None:
    """▲ Nobody is left who would do it: the housekeeping of all segments would wait for ever."""
    [segment] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    await (await (await memory_cluster.connect(node)).producer(segment)).send("a")
    served = node.broker.segments[segment]
    await node.close()
    for ask in (served.roll, served.checkpoint):
        async with asyncio.timeout(5.0):
            with pytest.raises(NotOwner):
                await ask()


async def test_publish_times_of_closed_ledgers_are_known_to_the_next_owner_until_they_are_trimmed(
    memory_cluster: Cluster,
) -> None:
    """Without a read of any: a lookup by time would read all that is kept."""
    [segment] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    producer = await (await memory_cluster.connect(node)).producer(segment)
    for number in (1, 2):
        await producer.send("a", publish_time_ms=100 * number)
        await node.broker.segments[segment].roll()
    await node.close()
    node = await memory_cluster.start()
    await until(lambda: segment in node.broker.segments)
    served = node.broker.segments[segment]
    closed = [info.ledger_id for info in served.ledgers.record.ledgers if info.closed_length]
    assert [served.ledgers.times.newest_ms(one, 1) for one in closed] == [100, 200]
    await served.keep(Retention(ms=-1, undrained=True))
    assert served.ledgers.trimmed_below is not None
    assert [served.ledgers.times.newest_ms(one, 1) for one in closed] == [None, None]


async def test_what_every_producer_sent_as_the_log_rolled_is_stored_behind_it(memory_cluster: Cluster) -> None:
    """None of them has to send something else first."""
    cluster = memory_cluster
    cluster.make_ledgers = SlowClosing
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    ledgers: SlowClosing = node.ledgers  # type: ignore[assignment]
    client = await cluster.connect(node)
    producers = [await client.producer(segment, name) for name in ("one", "two", "three")]
    await producers[0].send("before")
    served = node.broker.segments[segment]
    rolling = asyncio.ensure_future(served.roll())
    await until(lambda: ledgers.waiting)
    sends = [producer.send_nowait("behind") for producer in producers]
    await until(lambda: served.pipeline.inflight == len(sends))
    ledgers.go_on.set()
    async with asyncio.timeout(5.0):
        await asyncio.gather(rolling, *sends)
