"""Whatever goes wrong with one segment, somebody serves it again, and under an epoch it was never served under."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from segments.file_ledger import FileLedgerStore
from segments.file_ledger_writer import FileLedgerWriter
from segments.ownership import preferred_owner
from tests.segments.brokering import Cluster, eventually
from tests.segments.gates import GatedStore, is_write_op
from txnstore import keys, records
from txnstore.store import Commit, Put
from txnwire.clock import SystemClock
from txnwire.errors import InternalError, NotOwner


async def test_a_segment_lost_while_another_broker_would_rather_own_it_is_served_again(cluster: Cluster) -> None:
    settings = replace(cluster.settings, settle_s=3600.0)
    segments = await cluster.create_topic(segments=8)
    one = await cluster.start("b1", settings=settings)
    await eventually(lambda: len(one.broker.segments) == 8)
    await cluster.start("b2", settings=settings)
    await eventually(lambda: len(one.directory.brokers()) == 2)
    misplaced = next(path for path in segments if preferred_owner(path, ["b1", "b2"]) == "b2")
    lost = one.broker.segments[misplaced]
    lost.lost(InternalError("a disk fails"))
    await eventually(lambda: misplaced in one.broker.segments, what="it is served again")
    assert one.broker.segments[misplaced].epoch > lost.epoch


async def test_a_segment_being_handed_over_is_not_taken_again_under_the_same_epoch(cluster: Cluster) -> None:
    """The one it is handed to dies meanwhile, and what was in flight is acked under the old epoch."""
    make_store = cluster.make_store

    async def make_gated() -> GatedStore:
        return GatedStore(await make_store())

    cluster.make_store = make_gated
    settings = replace(cluster.settings, settle_s=0.1, lease_ttl_s=60.0)
    segments = await cluster.create_topic(segments=8)
    one = await cluster.start("b1", settings=settings)
    await eventually(lambda: len(one.broker.segments) == 8)
    misplaced = next(path for path in segments if preferred_owner(path, ["b1", "b2"]) == "b2")
    epoch = one.broker.segments[misplaced].epoch
    client = await cluster.connect(one)
    producer = await client.producer(misplaced)
    store: GatedStore = one.store  # type: ignore[assignment]
    store.hold(is_write_op)
    sending = asyncio.ensure_future(producer.send("m", txn=await cluster.begin()))
    await eventually(lambda: store.waiting == 1)
    two = await cluster.start("b2", settings=settings)
    await eventually(lambda: misplaced not in one.broker.segments, what="it is being handed over")
    await two.crash()
    registration = await cluster.store.get(keys.broker("b2"))
    assert registration is not None
    await cluster.store.revoke_lease(registration.lease)
    await eventually(lambda: len(one.directory.brokers()) == 1)
    await asyncio.sleep(0.2)  # some rounds of claims
    store.open()
    await sending
    await eventually(lambda: misplaced in one.broker.segments)
    assert one.broker.segments[misplaced].epoch > epoch


async def test_who_waits_for_a_segment_hears_at_once_that_another_broker_has_taken_it(cluster: Cluster) -> None:
    settings = replace(cluster.settings, settle_s=0.1, recover_wait_s=60.0)
    segments = await cluster.create_topic(segments=8)
    node = await cluster.start("b1", settings=settings)
    await eventually(lambda: len(node.broker.segments) == 8)
    moved = next(path for path in segments if preferred_owner(path, ["b1", "b2"]) == "b2")
    b2 = records.encode(records.Registration(id="b2", address="b2:1"))
    await cluster.store.commit(Commit(puts=(Put(keys.broker("b2"), b2),)))
    await eventually(lambda: moved not in node.broker.segments and node.directory.owner(moved) is None)
    client = await cluster.connect(node)
    opening = asyncio.ensure_future(client.producer(moved))
    await asyncio.sleep(0.2)
    assert not opening.done()
    owner = records.encode(records.Owner(broker="b2", address="b2:1"))
    await cluster.store.commit(Commit(puts=(Put(keys.owner(moved), owner),)))
    async with asyncio.timeout(5):
        with pytest.raises(NotOwner, match="b2"):
            await opening


class BrokenLedgers(FileLedgerStore):
    """Fails for a while as only a defect can."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.broken = True
        self.tries = 0

    async def create(self, segment: str, ledger_id: int, *, incarnation: str) -> FileLedgerWriter:
        self.tries += 1
        if self.broken:
            raise ZeroDivisionError("a defect")
        return await super().create(segment, ledger_id, incarnation=incarnation)


async def test_a_defect_in_a_take_over_is_told_and_tried_again_with_growing_pauses(cluster: Cluster) -> None:
    cluster.make_ledgers = BrokenLedgers
    [segment] = await cluster.create_topic()
    with capture_logs() as logs:
        node = await cluster.start()
        ledgers: BrokenLedgers = node.ledgers  # type: ignore[assignment]
        await eventually(lambda: ledgers.tries >= 3)
        await asyncio.sleep(0.3)
        assert ledgers.tries < 10
        ledgers.broken = False
        await eventually(lambda: segment in node.broker.segments)
    assert "take_over_broken" in [line["event"] for line in logs]


class BreakingClock(SystemClock):
    broken = False

    def monotonic(self) -> float:
        if self.broken:
            raise ZeroDivisionError("a defect")
        return super().monotonic()


async def test_a_broker_that_cannot_claim_any_more_leaves_its_segments_to_others(memory_cluster: Cluster) -> None:
    cluster, clock = memory_cluster, BreakingClock()
    [segment] = await cluster.create_topic()
    cluster.clock = clock
    one = await cluster.start("b1")
    await eventually(lambda: segment in one.broker.segments)
    cluster.clock = SystemClock()
    two = await cluster.start("b2")
    clock.broken = True
    await eventually(lambda: segment in two.broker.segments)
    clock.broken = False
