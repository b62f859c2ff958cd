"""The order of a send as `segments.log.sends.send_order` states it: nothing is done before its stage, whoever asks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import LedgerFailed
from segments.log.sends.appender import Appender
from segments.log.sends.send_order import AFTER_SYNC, APPEND, SEND_ORDER, Durable, SendStep, SyncedEntries
from segments.owner.segment import Segment
from tests.segments.brokering import Client, Cluster, Node
from tests.segments.brokering_clients import Producer
from tests.segments.gates import GatedStore, gate_stores, is_write_op
from tests.waiting import until
from txnwire.errors import InternalError, NotOwner
from txnwire.ids import Position

DESIGN = Path(__file__).parents[4] / "docs" / "design.md"


class _At:
    """An entry at `position`."""

    def __init__(self, position: Position) -> None:
        self.position = position


def _entries(durable: Durable) -> SyncedEntries:
    entries = SyncedEntries([_At(Position(3, number)) for number in range(4)])  # type: ignore[misc]
    if durable >= Durable.ENTRY:
        entries.synced(3, 3)
    if durable >= Durable.OWNED:
        entries.owned()
    return entries


def test_no_step_needs_less_than_the_one_before_it() -> None:
    needs = [step.needs for step in SEND_ORDER]
    assert needs == sorted(needs)
    assert APPEND.needs is Durable.OP
    assert {step.needs for step in AFTER_SYNC} == {Durable.OWNED}, "what others learn needs every stage"


def test_the_appender_has_a_method_for_every_step_and_takes_each_once() -> None:
    names = [step.name for step in SEND_ORDER]
    assert len(set(names)) == len(names)
    assert all(callable(getattr(Appender, f"_{name}")) for name in names)


def test_the_design_has_each_step_with_what_it_waits_for() -> None:
    text = DESIGN.read_text()
    for step in SEND_ORDER:
        assert f"| {step.told} |" in text, f"docs/design.md, §7, has no row for {step.name}"


@pytest.mark.parametrize("step", AFTER_SYNC, ids=lambda step: step.name)
@pytest.mark.parametrize("durable", [Durable.OP, Durable.ENTRY, Durable.OWNED], ids=lambda stage: stage.name)
def test_l5_a_step_is_refused_before_its_stage(step: SendStep, durable: Durable) -> None:
    entries = _entries(durable)
    if durable < step.needs:
        with pytest.raises(InternalError, match=step.name):
            entries.expect(step)
    else:
        entries.expect(step)


def test_l5_the_lease_counts_only_if_it_was_asked_for_after_the_sync() -> None:
    with pytest.raises(InternalError, match="before the sync"):
        _entries(Durable.OP).owned()


@pytest.mark.parametrize(("ledger_id", "reached"), [(3, -1), (3, 2), (2, 99)])
def test_l5_a_sync_that_covers_less_than_its_entries_proves_nothing(ledger_id: int, reached: int) -> None:
    entries = _entries(Durable.OP)
    with pytest.raises(InternalError):
        entries.synced(ledger_id, reached)
    assert entries.durable is Durable.OP


class ShortLedgers(FileLedgerStore):
    """Ledgers whose sync reports, once, that it has not reached the last entry, or that take no entry once."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.short = 0
        self.full = 0

    async def create(self, segment: str, ledger_id: int, *, incarnation: str) -> Any:
        return _ShortWriter(self, await super().create(segment, ledger_id, incarnation=incarnation))


class _ShortWriter:
    def __init__(self, store: ShortLedgers, writer: Any) -> None:
        self._store = store
        self._writer = writer

    async def sync(self) -> int:
        reached: int = await self._writer.sync()
        if self._store.short:
            self._store.short -= 1
            return reached - 1
        return reached

    def append(self, entry: bytes) -> int:
        if self._store.full:
            self._store.full -= 1
            raise LedgerFailed("no space left on device")
        entry_id: int = self._writer.append(entry)
        return entry_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


async def with_short_ledgers(cluster: Cluster) -> tuple[Node, Client, Producer, ShortLedgers, Segment]:
    """A segment with one entry."""
    cluster.make_ledgers = ShortLedgers
    [path] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(path)
    await producer.send("first")
    ledgers: ShortLedgers = node.ledgers  # type: ignore[assignment]
    return node, client, producer, ledgers, node.broker.segments[path]


async def test_l5_nothing_is_told_of_a_sync_that_fell_short_and_the_next_owner_counts(memory_cluster: Cluster) -> None:
    node, client, producer, ledgers, served = await with_short_ledgers(memory_cluster)
    ledgers.short = 1
    with pytest.raises(NotOwner):
        await producer.send("second")
    assert served.last_confirmed == Position(1, 0), "the entry was exposed"
    await until(lambda: node.broker.segments.get(served.path) not in (None, served))
    reader = await client.reader(served.path)
    await reader.wait("first", "second")  # it was on the disk all the same, and its producer knows that it may be


@pytest.mark.parametrize("in_txn", [False, True])
async def test_an_append_that_fails_is_told_and_ends_the_ownership(memory_cluster: Cluster, in_txn: bool) -> None:
    node, client, producer, ledgers, served = await with_short_ledgers(memory_cluster)
    ledgers.full = 1
    with pytest.raises(NotOwner):
        await producer.send("second", txn=await memory_cluster.begin() if in_txn else None)
    await until(lambda: node.broker.segments.get(served.path) not in (None, served), within_s=10)
    await (await client.producer(served.path, "another")).send("third")


async def test_l3_an_entry_is_appended_only_behind_its_op_record(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(segment)
    await producer.send("outside")
    store: GatedStore = node.store  # type: ignore[assignment]
    served = node.broker.segments[segment]
    txn = await cluster.begin()
    before = served.open_bytes
    store.hold(is_write_op)
    sent = asyncio.gather(producer.send_nowait("inside", txn=txn), producer.send_nowait("behind it"))
    await until(lambda: store.waiting)
    await asyncio.sleep(0.05)
    assert served.open_bytes == before
    assert not sent.done()
    store.open()
    await sent
    assert served.open_bytes > before
