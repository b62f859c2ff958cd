"""Whatever goes wrong with one segment, somebody serves it again, and under an epoch it was never served under."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from segments.broker.claims import MAX_TAKING
from segments.broker.placement import place
from segments.layout.topology import Topology
from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.file_ledger_writer import FileLedgerWriter
from segments.ledger.ledger import LedgerFailed, Recovered
from tests.segments.brokering import TOPIC, Cluster
from tests.segments.gates import GatedLedgers, GatedStore, gate_stores, is_write_op
from tests.waiting import until, until_answer
from txnstore import keys, records
from txnstore.records import TopicRecord
from txnstore.store import Commit, CommitVerdict, Delete, MetadataStore, Put
from txnwire.clock import SystemClock
from txnwire.errors import DataCorrupt, InternalError, NotOwner, OutcomeUnknown, StoreUnavailable, TxnError
from txnwire.tasks import Tasks


def goes_to_b2(segments: list[str]) -> str:
    """One of them, all owned by b1, that moves once b2 has come."""
    placed = place([segments], dict.fromkeys(segments, "b1"), ["b1", "b2"])
    return next(path for path in segments if placed[path] == "b2")


async def test_a_segment_lost_while_another_broker_would_rather_own_it_is_served_again(cluster: Cluster) -> None:
    settings = replace(cluster.settings, settle_s=3600.0)
    segments = await cluster.create_topic(segments=8)
    one = await cluster.start("b1", settings=settings)
    await until(lambda: len(one.broker.segments) == 8)
    two = await cluster.start("b2", settings=settings)
    await until(lambda: len(one.directory.brokers()) == 2)
    misplaced = goes_to_b2(segments)
    lost = one.broker.segments[misplaced]
    lost.lost(InternalError("a disk fails"))
    await until(lambda: misplaced in (one.broker.segments | two.broker.segments), what="it is served again")
    assert (one.broker.segments | two.broker.segments)[misplaced].epoch > lost.epoch


async def test_more_segments_than_are_taken_over_at_once_are_taken_over_one_after_the_other(cluster: Cluster) -> None:
    """And not so many at each regular look: all others would be without an owner for that long."""
    segments = await cluster.create_topic(segments=3 * MAX_TAKING)
    one = await cluster.start("b1", settings=replace(cluster.settings, claim_retry_s=3600.0))
    await until(lambda: len(one.broker.segments) == len(segments), within_s=30)


async def test_a_segment_that_was_lost_is_taken_over_anew_at_once(cluster: Cluster) -> None:
    """Not at the next regular look: its producers and consumers wait."""
    [path] = await cluster.create_topic()
    node = await cluster.start("b1", settings=replace(cluster.settings, claim_retry_s=3600.0))
    lost = await node.broker.segment(path)
    await until(lambda: not node.broker.statistics().taking)
    stops_really, go_on = lost.wait_stopped, asyncio.Event()

    async def stops_late() -> None:
        await go_on.wait()
        await stops_really()

    lost.wait_stopped = stops_late  # type: ignore[method-assign]
    lost.lost(InternalError("a disk fails"))
    await until(lambda: not node.broker._owned.changed.is_set(), what="the broker has looked")
    go_on.set()
    await until(lambda: path in node.broker.segments and node.broker.segments[path] is not lost, within_s=30)


async def test_a_segment_lost_amid_the_closing_of_its_broker_is_given_back_once(cluster: Cluster) -> None:
    """Its hand-over, which ends with it, gives it back; the closing ends, and the next one has it at once."""
    [path] = await cluster.create_topic()
    settings = replace(cluster.settings, lease_ttl_s=60.0)
    node = await cluster.start("b1", settings=settings)
    segment = await node.broker.segment(path)
    closing = asyncio.ensure_future(node.broker.close())
    await until(lambda: path not in node.broker.segments, what="it is being handed over")
    segment.lost(LedgerFailed("the disk fails"))
    await closing
    assert await cluster.store.get(keys.owner(path)) is None


async def test_a_segment_lost_as_its_topic_is_deleted_is_given_up_once(cluster: Cluster) -> None:
    """Before the task that gives it up has begun."""
    [path] = await cluster.create_topic()
    tasks = Tasks()
    with tasks.in_charge():
        node = await cluster.start("b1")
    segment = await node.broker.segment(path)
    node.directory.add_listener(lambda _: segment.lost(LedgerFailed("the disk fails")))
    key = keys.topic(TOPIC.path)
    found = await cluster.store.get(key)
    assert found is not None
    marked = msgspec.structs.replace(records.decode(TopicRecord, found.value, key=key), deleting_ms=1)
    await cluster.store.commit(Commit(puts=(Put(key, records.encode(marked)),)))
    await until_answer(
        lambda: cluster.store.get(keys.ledger(path)),
        lambda found: found is None,
        "the ledger list to go",
        within_s=10.0,
    )
    assert tasks.failures == {}


async def test_a_segment_being_handed_over_is_not_taken_again_under_the_same_epoch(cluster: Cluster) -> None:
    """The one it is handed to dies meanwhile, and what was in flight is acked under the old epoch."""
    gate_stores(cluster)
    settings = replace(cluster.settings, settle_s=0.1, lease_ttl_s=60.0)
    segments = await cluster.create_topic(segments=8)
    one = await cluster.start("b1", settings=settings)
    await until(lambda: len(one.broker.segments) == 8)
    misplaced = goes_to_b2(segments)
    epoch = one.broker.segments[misplaced].epoch
    client = await cluster.connect(one)
    producer = await client.producer(misplaced)
    store: GatedStore = one.store  # type: ignore[assignment]
    store.hold(is_write_op)
    sending = asyncio.ensure_future(producer.send("m", txn=await cluster.begin()))
    await until(lambda: store.waiting == 1)
    two = await cluster.start("b2", settings=settings)
    await until(lambda: misplaced not in one.broker.segments, what="it is being handed over")
    await two.crash()
    registration = await cluster.store.get(keys.broker("b2"))
    assert registration is not None
    await cluster.store.revoke_lease(registration.lease)
    await until(lambda: len(one.directory.brokers()) == 1)
    await asyncio.sleep(0.2)  # some rounds of claims
    store.open()
    await sending
    await until(lambda: misplaced in one.broker.segments)
    assert one.broker.segments[misplaced].epoch > epoch


async def test_a_segment_whose_disk_fails_while_it_is_handed_over_is_given_back_once(memory_cluster: Cluster) -> None:
    """A broker that closes leaves nothing owned by that, and ends."""
    cluster = memory_cluster
    disks: list[GatedLedgers] = []

    def make_ledgers(data_dir: Path) -> GatedLedgers:
        disks.append(GatedLedgers(data_dir))
        return disks[-1]

    cluster.make_ledgers = make_ledgers  # type: ignore[assignment]
    [segment] = await cluster.create_topic()
    node = await cluster.start("b1", settings=replace(cluster.settings, lease_ttl_s=60.0))
    producer = await (await cluster.connect(node)).producer(segment)
    await producer.send("a")
    [disk] = disks
    disk.hold()
    sending = asyncio.ensure_future(producer.send("b"))
    await until(lambda: disk.waiting == 1)
    with capture_logs() as logs:
        closing = asyncio.ensure_future(node.close())
        await until(lambda: not node.broker.segments, what="it is being handed over")
        disk.fail_syncs = True
        disk.open()
        await closing
    with pytest.raises(TxnError):
        await sending
    assert await cluster.store.get(keys.owner(segment)) is None
    assert not [one for one in logs if one["log_level"] == "error"]


async def test_who_waits_for_a_segment_hears_at_once_that_another_broker_has_taken_it(cluster: Cluster) -> None:
    settings = replace(cluster.settings, settle_s=0.1, recover_wait_s=60.0)
    segments = await cluster.create_topic(segments=8)
    node = await cluster.start("b1", settings=settings)
    await until(lambda: len(node.broker.segments) == 8)
    moved = goes_to_b2(segments)
    b2 = records.encode(records.RegistrationRecord(id="b2", address="b2:1"))
    await cluster.store.commit(Commit(puts=(Put(keys.broker("b2"), b2),)))
    await until(lambda: moved not in node.broker.segments and node.directory.owner(moved) is None)
    client = await cluster.connect(node)
    opening = asyncio.ensure_future(client.producer(moved))
    await asyncio.sleep(0.2)
    assert not opening.done()
    owner = records.encode(records.OwnerRecord(broker="b2", address="b2:1"))
    await cluster.store.commit(Commit(puts=(Put(keys.owner(moved), owner),)))
    async with asyncio.timeout(5):
        with pytest.raises(NotOwner, match="b2"):
            await opening


class SlowAnswers(GatedStore):
    """Writes that are held back tell their caller that the time ran out; they land all the same."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.landing: dict[asyncio.Task[CommitVerdict], None] = {}

    async def commit(self, commit: Commit, *, timeout_s: float = 10.0) -> CommitVerdict:
        landing = asyncio.ensure_future(super().commit(commit, timeout_s=timeout_s))
        self.landing[landing] = None
        await asyncio.sleep(0)
        if self.waiting and not landing.done():
            raise OutcomeUnknown("the time ran out")
        return await landing


def is_claim(commit: Commit) -> bool:
    return any(put.key.startswith(keys.OWNER) for put in commit.puts)


async def test_a_claim_that_lands_after_its_time_ran_out_leaves_nothing_unserved(cluster: Cluster) -> None:
    """Though another broker has come meanwhile, whose the segment should be by now."""
    make_store = cluster.make_store

    async def make_slow() -> MetadataStore:
        return SlowAnswers(await make_store())

    cluster.make_store = make_slow
    settings = replace(cluster.settings, settle_s=3600.0, lease_ttl_s=60.0)
    one = await cluster.start("b1", settings=settings)
    slow: SlowAnswers = one.store  # type: ignore[assignment]
    slow.hold(is_claim)
    segments = await cluster.create_topic(segments=4)
    await until(lambda: slow.waiting >= 4, what="claims are on their way, and their time has run out")
    cluster.make_store = make_store
    b2 = records.encode(records.BrokerRegistration(id="b2", address="b2:1"))
    await cluster.store.commit(Commit(puts=(Put(keys.broker("b2"), b2),)))
    await until(lambda: len(one.directory.brokers()) == 2)
    slow.open()
    await asyncio.gather(*slow.landing, return_exceptions=True)
    await until(lambda: sorted(one.broker.segments) == sorted(segments), what="what has landed is served")
    for path, segment in one.broker.segments.items():
        owner = await cluster.store.get(keys.owner(path))
        assert owner is not None
        assert owner.create_revision == segment.epoch


class SlowCreation(FileLedgerStore):
    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.gate = asyncio.Event()
        self.waiting = False

    async def create(self, segment: str, ledger_id: int, *, incarnation: str) -> FileLedgerWriter:
        self.waiting = True
        await self.gate.wait()
        return await super().create(segment, ledger_id, incarnation=incarnation)


async def test_r4_ownership_lost_behind_the_last_compare_of_a_recovery_ends_the_segment(cluster: Cluster) -> None:
    """Nothing compares the epoch between the ledger's opening and the first write: nobody else would tell."""
    cluster.make_ledgers = SlowCreation
    [segment] = await cluster.create_topic()
    node = await cluster.start("b1")
    ledgers: SlowCreation = node.ledgers  # type: ignore[assignment]
    await until(lambda: ledgers.waiting)
    asking = asyncio.ensure_future(node.broker.segment(segment))
    other = records.encode(records.OwnerRecord(broker="b2", address="b2:1"))
    await cluster.store.commit(Commit(deletes=(Delete(keys.owner(segment)),)))
    await cluster.store.commit(Commit(puts=(Put(keys.owner(segment), other),)))
    await until(lambda: (owner := node.directory.owner(segment)) is not None and owner.broker == "b2")
    with pytest.raises(NotOwner):
        await asking
    ledgers.gate.set()
    await until(lambda: not node.broker.statistics().taking)
    await until(lambda: segment not in node.broker.segments, what="it is not served under an epoch that is over")


async def test_what_a_leaving_broker_releases_is_claimed_before_it_is_gone(cluster: Cluster) -> None:
    """It still lives while it hands over the last of its segments: nothing waits for that."""
    gate_stores(cluster)
    segments = await cluster.create_topic(segments=4)
    one = await cluster.start("b1", settings=replace(cluster.settings, settle_s=3600.0, lease_ttl_s=60.0))
    await until(lambda: len(one.broker.segments) == 4)
    two = await cluster.start("b2")
    held = keys.owner(segments[0])
    store: GatedStore = one.store  # type: ignore[assignment]
    store.hold(lambda commit: any(delete.key == held for delete in commit.deletes))
    leaving = asyncio.ensure_future(one.close())
    await until(lambda: len(two.broker.segments) == 3, what="what was released is served")
    assert "b1" in two.directory.brokers()
    assert two.directory.brokers()["b1"].leaving
    store.open()
    await leaving
    await until(lambda: len(two.broker.segments) == 4)


async def test_two_brokers_share_four_segments_two_and_two_whatever_their_names(cluster: Cluster) -> None:
    await cluster.create_topic(segments=4)
    settings = replace(cluster.settings, settle_s=0.1)
    nodes = [await cluster.start(name, settings=settings) for name in ("x", "y")]
    await until(lambda: [len(node.broker.segments) for node in nodes] == [2, 2])


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
        await until(lambda: ledgers.tries >= 3)
        await asyncio.sleep(0.3)
        assert ledgers.tries < 10
        ledgers.broken = False
        await until(lambda: segment in node.broker.segments)
    assert "take_over_broken" in [line["event"] for line in logs]


class BreakingClock(SystemClock):
    broken = False

    def monotonic(self) -> float:
        if self.broken:
            raise ZeroDivisionError("a defect")
        return super().monotonic()


async def test_a_segment_that_was_corrupt_and_is_put_right_is_served_under_the_broker_s_next_lease(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    [path] = await cluster.create_topic()
    node = await cluster.start("b1")
    producer = await (await cluster.connect(node)).producer(path)
    for _ in range(3):
        await producer.send("x" * 100)
    await node.crash()
    [ledger] = (cluster.data_dir / "ledgers" / path).glob("*.ledger")
    whole = ledger.read_bytes()
    ledger.write_bytes(whole.replace(b"x" * 100, b"y" * 100, 1))
    node = await cluster.start("b1")
    with pytest.raises(DataCorrupt):
        await node.broker.segment(path)
    ledger.write_bytes(whole)
    registration = await cluster.store.get(keys.broker("b1"))
    assert registration is not None
    await cluster.store.revoke_lease(registration.lease)
    await until(lambda: path in node.broker.segments, what="it is tried again")


async def test_files_missing_from_a_segment_that_another_broker_owns_by_now_are_no_damage(
    memory_cluster: Cluster,
) -> None:
    """▲ A broker that slept past its lease, amid a take-over, reads while the next owner erases or trims."""
    cluster = memory_cluster
    [path] = await cluster.create_topic()
    lost: list[str] = []

    class Slept(FileLedgerStore):
        async def fence(self, segment: str, ledger_id: int) -> Recovered:
            if not lost:
                lost.append(segment)
                await cluster.store.commit(Commit(deletes=(Delete(keys.owner(segment)),)))
                raise DataCorrupt("a file that the next owner has erased")
            return await super().fence(segment, ledger_id)

    node = await cluster.start("b1")
    await (await (await cluster.connect(node)).producer(path)).send("x")
    await node.crash()
    cluster.make_ledgers = Slept
    with capture_logs() as logs:
        node = await cluster.start("b1")
        await until(lambda: path in node.broker.segments, what="it is tried again")
    assert lost == [path]
    assert "segment_corrupt" not in [line["event"] for line in logs]


async def test_a_broker_that_cannot_claim_any_more_leaves_its_segments_to_others(memory_cluster: Cluster) -> None:
    cluster, clock = memory_cluster, BreakingClock()
    [segment] = await cluster.create_topic()
    cluster.clock = clock
    one = await cluster.start("b1")
    await until(lambda: segment in one.broker.segments)
    cluster.clock = SystemClock()
    two = await cluster.start("b2")
    clock.broken = True
    await until(lambda: segment in two.broker.segments)
    clock.broken = False


async def test_a_broker_that_leaves_in_the_midst_of_a_take_over_gives_that_segment_back_first(cluster: Cluster) -> None:
    """Not with its lease, which ends once the last of its other segments is handed over."""
    gate_stores(cluster)
    cluster.make_ledgers = SlowCreation
    served, taken = await cluster.create_topic(segments=2)
    one = await cluster.start("b1", settings=replace(cluster.settings, lease_ttl_s=60.0))
    ledgers: SlowCreation = one.ledgers  # type: ignore[assignment]
    ledgers.gate.set()
    await until(lambda: len(one.broker.segments) == 2)
    ledgers.gate.clear()
    ledgers.waiting = False
    one.broker.segments[taken].lost(InternalError("a disk fails"))
    await until(lambda: ledgers.waiting, what="it is being taken over again")
    cluster.make_ledgers = FileLedgerStore
    store: GatedStore = one.store  # type: ignore[assignment]
    held = keys.owner(served)
    store.hold(lambda commit: any(delete.key == held for delete in commit.deletes))
    two = await cluster.start("b2")
    leaving = asyncio.ensure_future(one.close())
    await until(lambda: list(two.broker.segments) == [taken])
    assert "b1" in two.directory.brokers()
    store.open()
    ledgers.gate.set()
    await leaving


async def test_r4_a_broker_that_cannot_start_leaves_nothing_behind(cluster: Cluster) -> None:
    """Its decision watch went on after its process had given up, and ended in an alarm as the store was closed."""
    make_store, stores = cluster.make_store, []

    async def make_gated() -> GatedStore:
        store = GatedStore(await make_store())
        store.hold(lambda commit: any(put.key.startswith(keys.BROKER) for put in commit.puts))
        stores.append(store)
        return store

    cluster.make_store = make_gated
    starting = asyncio.ensure_future(cluster.start("b1"))
    await until(lambda: stores and stores[0].waiting == 1, what="it registers")
    assert following()
    starting.cancel()
    await asyncio.wait([starting])
    assert following() == []


async def test_an_ownership_that_could_not_be_given_back_is_given_back_later(cluster: Cluster) -> None:
    """▲ Of a segment in no layout that is known here: no other broker could ever claim it."""
    node = await cluster.start("b1")
    owned = node.broker._owned
    registration, path, tries = owned.registration, "public/nyc/forgotten/0000-ffff-7", list[int]()
    assert registration is not None
    release = registration.release

    async def fails_at_first(segment: str, of: int) -> None:
        tries.append(of)
        if len(tries) == 1:
            raise StoreUnavailable("not now")
        await release(segment, of)

    registration.release = fails_at_first  # type: ignore[method-assign]
    epoch = await registration.claim(path)
    assert epoch is not None
    owned.holdings.to_release[path] = epoch
    owned.changed.set()
    await until(lambda: path not in owned.holdings.to_release, within_s=15.0)
    assert tries == [epoch, epoch]
    assert await cluster.store.get(keys.owner(path)) is None


async def test_who_asks_for_a_segment_that_is_taken_over_at_that_moment_does_not_wait_for_it(cluster: Cluster) -> None:
    """▲ Whoever is served already wakes no waiter."""
    (path,) = await cluster.create_topic()
    node = await cluster.start("b1")
    broker = node.broker
    serving, fetch = broker._owned.serving, broker._directory.fetch_topic
    served = await broker.segment(path)

    async def meanwhile(topic_path: str) -> Topology | None:
        found = await fetch(topic_path)
        serving[path] = served
        return found

    broker._directory.fetch_topic = meanwhile  # type: ignore[method-assign]
    del serving[path]
    async with asyncio.timeout(broker.settings.recover_wait_s / 2):
        assert await broker.segment(path) is served


def following() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if "decision" in task.get_name()]
