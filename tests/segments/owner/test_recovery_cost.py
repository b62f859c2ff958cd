"""R6: what a take-over reads of etcd and of the ledgers depends on what is open and on the tail, never on history."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.log.ledgers.retention import Retention
from segments.log.settings import BrokerSettings
from segments.owner import take_over
from segments.owner.segment import Segment
from tests.segments.brokering import Client, Cluster
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import OutcomeBlock, Watermark
from txnstore.store import Commit, Delete, KeyValue, MetadataStore, Put
from txnwire.clock import SystemClock
from txnwire.ids import EARLIEST, Position, TxnId

QUIET = BrokerSettings(lease_ttl_s=60.0, claim_retry_s=0.05, housekeeping_s=3600.0, cursor_flush_s=0.01)
OPEN = 3
COUNTED = (
    keys.TXN, keys.TXN_OP, keys.TXN_OUTCOME, keys.INDEXES, keys.SEGMENT_STATE, keys.LEDGER, keys.LEDGER_PAGE,
    keys.CURSOR, keys.OWNER,
)  # fmt: skip
"""What there is more of with every transaction, ledger or ack."""
A_ROUND = [f"{what} {value}" for value in range(3) for what in ("committed", "plain")]


class Cost(Counter[str]):
    """Of one take-over, while it is `on`: how many keys and ranges of etcd were asked for, of segments and of
    transactions, and how many records were found; how many entries, fences and footers were asked of the ledgers."""

    def __init__(self) -> None:
        super().__init__()
        self.on = False

    def asked(self, what: str, key: bytes, found: int) -> None:
        if self.on and key.startswith(COUNTED):
            self[what] += 1
            self["records"] += found

    def looked(self, what: str, count: int = 1) -> None:
        if self.on:
            self[what] += count


class CountedStore:
    def __init__(self, store: MetadataStore, cost: Cost) -> None:
        self._store = store
        self._cost = cost

    async def get(self, key: bytes, **options: Any) -> KeyValue | None:
        found = await self._store.get(key, **options)
        self._cost.asked("keys", key, found is not None)
        return found

    async def get_many(self, asked: Sequence[bytes], **options: Any) -> tuple[int, Sequence[KeyValue | None]]:
        revision, found = await self._store.get_many(asked, **options)
        for key, one in zip(asked, found, strict=True):
            self._cost.asked("keys", key, one is not None)
        return revision, found

    async def range(self, start: bytes, end: bytes, **options: Any) -> Any:
        found = await self._store.range(start, end, **options)
        self._cost.asked("ranges", start, len(found.records))
        return found

    async def ranges(self, ranges: Sequence[tuple[bytes, bytes]], **options: Any) -> Any:
        found = await self._store.ranges(ranges, **options)
        for (start, _), one in zip(ranges, found, strict=True):
            self._cost.asked("ranges", start, len(one))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class CountedLedgers:
    def __init__(self, data_dir: Path, cost: Cost) -> None:
        self._store = FileLedgerStore(data_dir)
        self._cost = cost

    async def read(self, *where: Any, **options: Any) -> Sequence[tuple[int, bytes]]:
        found = await self._store.read(*where, **options)
        self._cost.looked("entries", len(found))
        return found

    async def fence(self, *where: Any) -> Any:
        self._cost.looked("fences")
        return await self._store.fence(*where)

    async def read_footer(self, *where: Any) -> bytes | None:
        self._cost.looked("footers")
        return await self._store.read_footer(*where)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def live_through(cluster: Cluster, client: Client, served: Segment, rounds: int) -> None:
    """Each in a ledger of its own: a transaction that is committed, one that is aborted, plain messages, and acks of
    all of it, in a transaction and outside. Then all is cleaned up, and what was aborted has left etcd."""
    producer = await client.producer(served.path)
    for number in range(rounds):
        committed, aborted, acking = [await cluster.begin() for _ in range(3)]
        for value in range(3):
            await producer.send(f"committed {value}", txn=committed)
            await producer.send(f"aborted {value}", txn=aborted)
            await producer.send(f"plain {value}")
        await cluster.abort(aborted)
        await cluster.commit(committed)
        consumer = await cluster.subscribe(client, served.path, epoch=number + 1)
        await consumer.wait(*A_ROUND)
        await consumer.ack(consumer.messages[3], txn=acking, cumulative=True)
        await cluster.commit(acking)
        await cluster.wait_no_ops(acking)
        await consumer.ack(consumer.messages[-1], cumulative=True)
        for txn in (committed, aborted, acking):
            await cluster.collect(txn)
        outcomes = records.encode(OutcomeBlock(decided="", committed="", touched_ms=1))
        block = keys.outcome_block(TxnId(1, number * keys.OUTCOMES_PER_BLOCK))
        await cluster.store.commit(Commit(puts=(Put(block, outcomes),)))
        await served.roll()
    await served.keep(Retention())
    await wait_stored_watermark(cluster, served)
    await wait_stored_cursor(cluster, served)
    left = keys.aborted_records(served.path)
    assert (await cluster.store.range(left, keys.prefix_end(left))).records == ()


async def wait_stored_watermark(cluster: Cluster, served: Segment) -> None:
    """It follows what has ended within `watermark_flush_s`; until then a take-over reads from the old one."""

    async def stored() -> bool:
        found = await cluster.store.get(keys.watermark(served.path))
        if found is None:
            return False
        return Position(*records.decode(Watermark, found.value, key=found.key).position) >= served.last_confirmed

    await until(stored, f"a watermark at {served.last_confirmed}", within_s=10.0)


async def wait_stored_cursor(cluster: Cluster, served: Segment) -> None:
    """Once it has passed all entries, its record of entries acked in part goes with its next flush."""

    async def stored() -> bool:
        of = keys.cursors(served.path)
        return len((await cluster.store.range(of, keys.prefix_end(of))).records) == 1

    await until(stored, "a cursor of one record", within_s=10.0)


async def leave_open(cluster: Cluster, client: Client, segment: str, epoch: int) -> None:
    """Each transaction has written a message, and acked one."""
    producer = await client.producer(segment)
    for number in range(OPEN):
        await producer.send(f"{number}")
    consumer = await cluster.subscribe(client, segment, epoch=epoch)
    await consumer.wait(*(f"{number}" for number in range(OPEN)))
    for message in list(consumer.messages):
        txn = await cluster.begin()
        await producer.send("open", txn=txn)
        await consumer.ack(message, txn=txn)


async def cost_behind(rounds: int, data_dir: Path) -> Cost:
    etcd, cost = MemoryEtcd(SystemClock()), Cost()

    async def make_store() -> MetadataStore:
        return CountedStore(MemoryStore(etcd, SystemClock(), random.Random(1)), cost)  # type: ignore[return-value]

    cluster = Cluster(make_store, MemoryStore(etcd, SystemClock(), random.Random(2)), data_dir, settings=QUIET)
    cluster.make_ledgers = lambda folder: CountedLedgers(folder, cost)  # type: ignore[assignment,return-value]
    try:
        [segment] = await cluster.create_topic()
        node = await cluster.start()
        client = await cluster.connect(node)
        await live_through(cluster, client, await node.broker.segment(segment), rounds)
        await leave_open(cluster, client, segment, rounds + 1)
        await node.crash()
        cost.on = True
        node = await cluster.start()
        statistics = (await node.broker.segment(segment)).statistics()
        cost.on = False
        assert (statistics.open_transactions, statistics.entries) == (OPEN, 9 * rounds + 2 * OPEN)
    finally:
        await cluster.close()
        await cluster.store.close()
    return cost


async def test_r6_a_take_over_reads_what_is_open_and_the_tail_and_not_the_history(tmp_path: Path) -> None:
    """Twelve rounds cost what two do, key for key and entry for entry."""
    short, long = await cost_behind(2, tmp_path / "short"), await cost_behind(12, tmp_path / "long")
    assert long == short
    assert (long["entries"], long["fences"]) == (2 * OPEN, 1)


@pytest.mark.parametrize(("sent", "written"), [(5, False), (6, True)])
async def test_a_long_tail_is_read_by_one_owner_alone(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, sent: int, written: bool
) -> None:
    """Whoever reads it writes the footer that its dead predecessor could not: one crash after another reads no more."""
    monkeypatch.setattr(take_over, "FOOTER_AFTER_ENTRIES", 5)
    cluster = memory_cluster
    [path] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    producer = await (await cluster.connect(node)).producer(path)
    for number in range(sent):
        await producer.send(str(number))
    await node.crash()
    gone = Delete(keys.OWNER, keys.prefix_end(keys.OWNER)), Delete(keys.broker("b1"))
    await cluster.store.commit(Commit(deletes=gone))
    node = await cluster.start("b2", settings=QUIET)
    await until(lambda: path in node.broker.segments)
    served = node.broker.segments[path]
    covered, _ = await served.ledgers.last_footer()
    assert covered == (served.last_confirmed if written else EARLIEST)
    assert (await (await cluster.connect(node)).producer(path)).last == sent - 1
