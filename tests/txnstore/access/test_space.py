"""E3, E7: the soft limit, the quota, pins and maintenance, in virtual time over the in-memory etcd."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.segments.virtual_time import LoopClock, virtual_time
from tests.txnstore.faulty_store import (
    LOST_AFTER,
    LOST_BEFORE,
    A,
    B,
    Script,
    client,
    create,
)
from tests.waiting import until_accepted
from txnstore import keys
from txnstore.access import pins
from txnstore.access.backend import StoreStatus
from txnstore.access.soft_limit import is_exceeded
from txnstore.maintenance import CompactionPlan, Maintenance, is_sparse, worth_defragmenting
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryBackend, MemoryStore
from txnstore.memory.mvcc import Mvcc
from txnstore.records import Pin, decode
from txnstore.store import (
    Commit,
    Compacted,
    Delete,
    Put,
    unchanged_since,
)
from txnwire.errors import StoreFull


@asynccontextmanager
async def maintained(store: MemoryStore) -> AsyncIterator[None]:
    """Maintenance runs as long as this lasts; the store is closed behind it."""
    running = asyncio.ensure_future(Maintenance(store, LoopClock(), by="one").run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])
        await store.close()


def filled(etcd: MemoryEtcd, share: float) -> None:
    """Fill the key space up to a share of the quota, in old versions of one key."""
    while etcd.mvcc.bytes_in_use < share * etcd.quota_bytes:
        etcd.mvcc.commit([Commit(puts=(Put(b"/filler", bytes(1000)),))])


@virtual_time
async def test_e3_above_the_soft_limit_only_the_reserve_is_served() -> None:
    """▲ New work is refused at 75 % in use, so that what is open can be ended; compaction opens the door again."""
    etcd = MemoryEtcd(LoopClock(), quota_bytes=200_000)
    store = client(etcd)
    new = Commit((), (Put(A, b""),), reserve=False)
    assert (await store.commit(new)).succeeded
    filled(etcd, 0.8)
    await asyncio.sleep(2)
    with pytest.raises(StoreFull, match="75% of its quota"):
        await store.commit(new)
    refused = store.commit_nowait(new)  # raises nothing itself: it is answered like any other
    with pytest.raises(StoreFull):
        await refused
    assert (await store.commit(Commit((), (Put(A, b""),), reserve=True))).succeeded
    await store.compact(etcd.mvcc.revision)
    await asyncio.sleep(2)
    assert (await store.commit(new)).succeeded
    await store.close()


@virtual_time
async def test_e3_a_full_store_refuses_definitely_and_recovers_by_maintenance() -> None:
    etcd = MemoryEtcd(LoopClock(), quota_bytes=200_000)
    store = client(etcd)
    async with maintained(store):
        await asyncio.sleep(1)
        assert (await store.commit(create(B, b""))).succeeded  # it may send by now
        filled(etcd, 1.0)
        with pytest.raises(StoreFull):
            await store.commit(create(A, b""))
        assert etcd.mvcc.get(A) is None
        assert (await store.commit(Commit(deletes=(Delete(B),)))).succeeded, "deletions go through"
        with pytest.raises(StoreFull):
            await store.grant_lease(5)
        assert etcd.no_space
        result = await until_accepted(
            lambda: store.commit(create(A, b"")), StoreFull, "room", within_s=200, longest_poll_s=1.0
        )
        assert result.succeeded
        assert not etcd.no_space


@virtual_time
async def test_e2_a_refusal_for_space_does_not_settle_an_open_fate() -> None:
    """The first sending may have landed, or may still: only an evaluated repeat tells."""
    etcd = MemoryEtcd(LoopClock(), quota_bytes=200_000)
    store = client(etcd, Script(fates=[LOST_AFTER]))
    landed = store.commit_nowait(create(A, b"mine"))
    await asyncio.sleep(0.1)
    filled(etcd, 1.0)
    await asyncio.sleep(5)
    assert not landed.done()
    etcd.compact(etcd.mvcc.revision)
    etcd.defragment()
    etcd.disarm()
    result = await landed
    assert result.repeated
    assert result.reads[0][0].value == b"mine"
    await store.close()


def test_compaction_keeps_a_minute_and_the_oldest_pin() -> None:
    plan = CompactionPlan(keep_s=60)
    for second in range(0, 200, 10):
        plan.sample(float(second), 1000 + second)
    assert plan.due(59.0, None) is None
    assert plan.due(60.0, None) == 1000
    assert plan.due(60.0, None) is None, "once is enough"
    assert plan.due(130.0, 1035) == 1030, "the newest that spares the pin"
    assert plan.due(500.0, 1035) is None
    assert plan.due(500.0, None) == 1190


@pytest.mark.parametrize(
    ("file_bytes", "in_use", "worth"),
    [
        (600, 200, True),
        (600, 400, False),
        (400, 10, False),
        (1000, 499, True),
        (840, 700, False),
        (860, 700, True),
        (990, 760, False),
    ],
)
def test_defragmentation_is_for_large_files_of_free_pages(file_bytes: int, in_use: int, worth: bool) -> None:
    status = StoreStatus(
        version="", revision=1, db_bytes=file_bytes, db_bytes_in_use=in_use, quota_bytes=0, no_space=False
    )
    assert worth_defragmenting(status, 1000) is worth


@pytest.mark.parametrize(
    ("in_use", "before", "sparse"), [(499, 0, False), (500, 400, True), (500, 401, False), (900, 850, False)]
)
def test_pages_half_full_are_looked_for_once_much_has_come_since(in_use: int, before: int, sparse: bool) -> None:
    status = StoreStatus(version="", revision=1, db_bytes=950, db_bytes_in_use=in_use, quota_bytes=0, no_space=False)
    assert is_sparse(status, 1000, before) is sparse


class GrowingStore(MemoryStore):
    """Its members tell of so many bytes in use; a defragmentation leaves half of them."""

    in_use = 300
    defragmented = 0

    async def status(self, *, timeout_s: float = 10.0) -> StoreStatus:
        return StoreStatus(
            version="", revision=1, db_bytes=self.in_use, db_bytes_in_use=self.in_use, quota_bytes=1000, no_space=False
        )

    async def defragment(self) -> None:
        self.in_use //= 2
        self.defragmented += 1


@virtual_time
async def test_half_empty_pages_are_filled_by_one_defragmentation_and_not_again_before_they_grow() -> None:
    store = GrowingStore(MemoryEtcd(LoopClock()), LoopClock(), random.Random(1))
    maintenance = Maintenance(store, LoopClock(), by="one")
    steps = ((300, 0), (560, 1), (280, 1), (370, 1), (490, 1), (700, 2), (900, 3), (540, 3), (560, 4))
    for in_use, defragmented in steps:
        store.in_use = in_use
        await asyncio.sleep(700)
        await maintenance.mind_size()
        assert (in_use, store.defragmented) == (in_use, defragmented)
        await maintenance.mind_size()
        assert store.defragmented == defragmented
    await store.close()


@virtual_time
async def test_e7_compaction_keeps_the_store_bounded() -> None:
    """An hour of steady rewriting through a quota that holds a few minutes of it."""
    etcd = MemoryEtcd(LoopClock(), quota_bytes=1_000_000)
    store = client(etcd)
    async with maintained(store):
        peak = 0
        for turn in range(3600):
            await store.commit(Commit((), (Put(b"/k/%d" % (turn % 20), bytes(2000)),), reserve=False))
            await asyncio.sleep(1)
            peak = max(peak, etcd.mvcc.bytes_in_use)
        assert peak < 100 * 2200
        assert etcd.mvcc.compacted > etcd.mvcc.revision - 100


@asynccontextmanager
async def beside_a_sweeper(etcd: MemoryEtcd) -> AsyncIterator[tuple[MemoryStore, MemoryStore]]:
    reader, sweeper = client(etcd, name="reader"), client(etcd, name="sweeper")
    running = asyncio.ensure_future(Maintenance(sweeper, LoopClock(), by="sweeper").run())
    yield reader, sweeper
    running.cancel()
    await asyncio.wait([running])
    await reader.close()
    await sweeper.close()


@virtual_time
async def test_a_pin_held_long_is_reported_and_spared_by_another_process() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with beside_a_sweeper(etcd) as (reader, _):
        await reader.commit(create(A, b"old"))
        pinned = etcd.mvcc.revision
        with reader.pin(pinned):
            for n in range(300):
                await reader.commit(Commit(puts=(Put(A, b"%d" % n),)))
                await asyncio.sleep(1)
            (found,) = (await reader.range(b"/k/", b"/k0", revision=pinned)).records
            assert found.value == b"old"
            assert etcd.mvcc.compacted <= pinned
        await asyncio.sleep(pins.LEASE_TTL_S + 70)
        assert etcd.mvcc.compacted > pinned
        with pytest.raises(Compacted):
            await reader.range(b"/k/", b"/k0", revision=pinned)
        assert not etcd.mvcc.range(keys.PIN, keys.prefix_end(keys.PIN))[0]


@virtual_time
async def test_an_older_pin_of_another_process_is_spared_by_one_that_pins_a_newer_revision_itself() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with beside_a_sweeper(etcd) as (reader, sweeper):
        await reader.commit(create(A, b"old"))
        pinned = etcd.mvcc.revision
        with reader.pin(pinned):
            await reader.commit(Commit(puts=(Put(A, b"new"),)))
            await asyncio.sleep(100)  # revisions between the two pins are sampled
            with sweeper.pin(etcd.mvcc.revision):
                await asyncio.sleep(300)
                (found,) = (await reader.range(b"/k/", b"/k0", revision=pinned)).records
        assert found.value == b"old"


@virtual_time
async def test_a_pin_that_could_not_be_reported_at_once_is_reported_once_it_can() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with beside_a_sweeper(etcd) as (reader, sweeper):
        await reader.commit(create(A, b"old"))
        pinned = etcd.mvcc.revision
        with reader.pin(pinned):
            reader.memory_backend.disconnect()
            for n in range(300):
                await sweeper.commit(Commit(puts=(Put(A, b"%d" % n),)))
                await asyncio.sleep(1)
                if n == pins.REPORT_AFTER_S + 15:
                    reader.memory_backend.reconnect()
            (found,) = (await reader.range(b"/k/", b"/k0", revision=pinned)).records
        assert found.value == b"old"


@pytest.mark.parametrize("older", [0, 1])
@virtual_time
async def test_of_the_pins_of_several_processes_the_oldest_is_spared_whoever_holds_it(older: int) -> None:
    etcd = MemoryEtcd(LoopClock())
    async with beside_a_sweeper(etcd) as (reader, _):
        other = client(etcd, name="other")
        first, second = (reader, other) if older == 0 else (other, reader)
        await reader.commit(create(A, b"old"))
        pinned = etcd.mvcc.revision
        with first.pin(pinned):
            await reader.commit(Commit(puts=(Put(A, b"new"),)))
            await asyncio.sleep(100)  # revisions between the two pins are sampled
            with second.pin(etcd.mvcc.revision):
                await asyncio.sleep(300)
                (found,) = (await reader.range(b"/k/", b"/k0", revision=pinned)).records
        assert found.value == b"old"
        await other.close()


@virtual_time
async def test_a_short_pin_costs_nothing() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    with store.pin(1):
        await asyncio.sleep(5)
        assert store.oldest_pin() == 1
    assert store.oldest_pin() is None
    await asyncio.sleep(60)
    assert etcd.mvcc.revision == 1
    await store.close()


@virtual_time
async def test_a_long_pin_is_reported_however_many_were_over_before_it() -> None:
    """Or from then on every read of this process that takes longer than a minute is compacted away."""
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    for _ in range(2):
        with store.pin(1):
            await asyncio.sleep(pins.REPORT_AFTER_S + 2)
            (record,) = etcd.mvcc.range(keys.PIN, keys.prefix_end(keys.PIN))[0]
            assert decode(Pin, record.value, key=record.key) == Pin(revision=1)
        await asyncio.sleep(pins.REPORT_AFTER_S + 2)
        assert not etcd.mvcc.range(keys.PIN, keys.prefix_end(keys.PIN))[0]
    await store.close()


@virtual_time
async def test_maintenance_ends_when_somebody_else_holds_the_role() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    held = await store.commit(create(keys.leader("sweeper"), b"one"))
    guard = unchanged_since(keys.leader("sweeper"), held.revision)
    running = asyncio.ensure_future(Maintenance(store, LoopClock(), by="one", guard=guard).run())
    await asyncio.sleep(25)
    assert not running.done()
    await store.commit(Commit(puts=(Put(keys.leader("sweeper"), b"two"),)))
    async with asyncio.timeout(15):
        await running
    await store.close()


@virtual_time
async def test_maintenance_goes_on_after_faults() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd, Script("compact", [LOST_BEFORE, LOST_AFTER]))
    async with maintained(store):
        await asyncio.sleep(30)
        etcd.crash()
        await asyncio.sleep(30)
        etcd.restart()
        await asyncio.sleep(100)
        assert etcd.mvcc.compacted > 1


@virtual_time
async def test_a_compaction_mark_never_shares_its_revision_with_a_deletion() -> None:
    """Some etcd releases forget a deletion made at the very revision they are compacted at (etcd-io/etcd#18089)."""
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    for n in range(20):
        await store.commit(create(b"/k/%d" % n, b""))
    deleting = [store.commit_nowait(Commit(deletes=(Delete(b"/k/%d" % n),))) for n in range(20)]
    mark = await store.mark_revision(keys.COMPACTION, b"{}", None)
    await asyncio.gather(*deleting)
    (change,) = etcd.mvcc.changes_since(mark, at_most=1)
    assert [event.record.key for event in change.events] == [keys.COMPACTION]
    await store.close()


def test_compacting_an_mvcc_twice_or_ahead_is_refused() -> None:
    mvcc = Mvcc()
    mvcc.commit([create(A, b"")])
    mvcc.compact(2)
    with pytest.raises(Compacted):
        mvcc.compact(2)


@virtual_time
async def test_a_client_forgets_its_watches_that_were_closed_or_cut() -> None:
    etcd = MemoryEtcd(LoopClock())
    backend = MemoryBackend(etcd, "one", None)
    for _ in range(20):
        closed = await backend.open_watch(A, B, 1)
        await closed.close()
        await backend.open_watch(A, B, 1)
        etcd.elect(lambda: False)
    await backend.open_watch(A, B, 1)
    assert len(backend._streams) == 1


def test_e3_an_etcd_that_has_raised_its_alarm_takes_no_new_work_however_little_is_in_use() -> None:
    """▲ The alarm stays until it is disarmed, also where compaction and defragmentation have made room since: etcd
    would refuse the ends of what was begun."""
    made_room = StoreStatus(
        version="3.5.21", revision=1, db_bytes=10, db_bytes_in_use=10, quota_bytes=1000, no_space=True
    )
    assert is_exceeded(made_room, 1000)


@virtual_time
async def test_e3_close_to_the_soft_limit_it_is_noticed_at_once_that_it_is_passed() -> None:
    """▲ A second is enough to write from there past the quota."""
    etcd = MemoryEtcd(LoopClock(), quota_bytes=200_000)
    store = client(etcd)
    filled(etcd, 0.6)
    assert not store.refuses_new
    await asyncio.sleep(2.15)  # a second's pause would go on
    filled(etcd, 0.8)
    await asyncio.sleep(0.25)
    assert store.refuses_new
    await store.close()


@virtual_time
async def test_e7_a_pin_that_cannot_be_read_holds_no_compaction_back() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    await store.commit(Commit(puts=(Put(keys.PIN + b"x", b"by hand"),)))
    async with maintained(store):
        await asyncio.sleep(100)
        assert etcd.mvcc.compacted > 1


@virtual_time
async def test_e7_a_pin_of_another_version_holds_compaction_back_as_long_as_its_process_lives() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)
    lease = await store.grant_lease(10.0)
    await store.commit(Commit(puts=(Put(keys.PIN + b"x", b'{"v":2,"revision":3}', lease=lease.id),)))
    async with maintained(store):
        await asyncio.sleep(100)
        assert etcd.mvcc.compacted == 0
        await lease.revoke()
        await asyncio.sleep(100)
        assert etcd.mvcc.compacted > 1


@virtual_time
async def test_e7_a_pin_is_reported_anew_once_the_oldest_one_is_over() -> None:
    """Or it holds compaction back as long as anything is read here."""
    etcd = MemoryEtcd(LoopClock())
    store = client(etcd)

    def reported() -> int:
        (record,) = etcd.mvcc.range(keys.PIN, keys.prefix_end(keys.PIN))[0]
        return decode(Pin, record.value, key=record.key).revision

    with store.pin(7):
        with store.pin(3):
            await asyncio.sleep(pins.REPORT_AFTER_S + 2)
            assert reported() == 3
        await asyncio.sleep(2)
        assert reported() == 7
    await asyncio.sleep(pins.LEASE_TTL_S)
    await store.close()


class FullStore(MemoryStore):
    """Has raised its alarm, with a file of so many bytes of its quota of 1000."""

    file_bytes = 1000
    disarmed = 0

    async def status(self, *, timeout_s: float = 10.0) -> StoreStatus:
        return StoreStatus(
            version="", revision=1, db_bytes=self.file_bytes, db_bytes_in_use=800, quota_bytes=1000, no_space=True
        )

    async def defragment(self) -> None:
        """Gains nothing."""

    async def disarm(self) -> None:
        self.disarmed += 1


@virtual_time
async def test_e3_the_alarm_is_disarmed_only_once_there_is_room_again() -> None:
    """An etcd at its quota would take a few puts, and raise it again."""
    store = FullStore(MemoryEtcd(LoopClock()), LoopClock(), random.Random(1))
    maintenance = Maintenance(store, LoopClock(), by="one")
    for file_bytes, disarmed in ((1000, 0), (900, 0), (899, 1)):
        store.file_bytes = file_bytes
        await maintenance.mind_size()
        assert (file_bytes, store.disarmed) == (file_bytes, disarmed)
    await store.close()


@virtual_time
async def test_e3_the_soft_limit_goes_by_the_quota_that_etcd_reports() -> None:
    """And not by the one that this process was told of."""
    etcd = MemoryEtcd(LoopClock(), quota_bytes=2**31)
    store = client(etcd)
    etcd.quota_bytes = 200_000
    filled(etcd, 0.8)
    assert not store.refuses_new
    await asyncio.sleep(2)
    assert (store.refuses_new, store.quota_bytes) == (True, 200_000)
    await store.close()
