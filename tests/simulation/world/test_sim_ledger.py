"""`SimLedgerStore` keeps the same contract as the files, and what it does to unsynced data is what disks do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from segments.ledger.ledger import LedgerFailed, LedgerUnreadable
from simulation.clients.plan import Plan
from simulation.clients.recorder import Recorder
from simulation.world.sim_disk import IO_ERROR, DiskFaults, Part, SimDisk
from simulation.world.sim_ledger import SimLedgerStore
from tests.segments.ledger_store_contract import ALL, SEGMENT, LedgerStoreContract, create, filled
from txnwire.errors import DataCorrupt, InternalError, StoreUnavailable


class HeldDisk(SimDisk):
    """`Pause` of the contract: who fences waits twice for the disk, for its fence and before it counts."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._to_pass = -2
        self._reached, self._ended = asyncio.Event(), asyncio.Event()

    def arm(self) -> None:
        self._to_pass = 1

    async def sync_pause(self) -> str | None:
        self._to_pass -= 1
        if self._to_pass == -1:
            self._reached.set()
            await self._ended.wait()
        return await super().sync_pause()

    async def reached(self) -> None:
        await asyncio.wait_for(self._reached.wait(), 30.0)

    def end(self) -> None:
        self._ended.set()


@pytest.fixture
def disk() -> HeldDisk:
    return HeldDisk(1)


@pytest.fixture
def pause(disk: HeldDisk) -> HeldDisk:
    return disk


@pytest.fixture
def ledgers(disk: SimDisk) -> SimLedgerStore:
    return SimLedgerStore(disk)


@pytest.fixture
def successor(disk: SimDisk) -> SimLedgerStore:
    return SimLedgerStore(disk)


class Befallen:
    """`Place` and `Broken` of the contract."""

    def __init__(self, disk: SimDisk, faults: DiskFaults) -> None:
        self._disk, self._faults = disk, faults
        self._over: list[Callable[[], None]] = []

    def begin(self) -> None:
        self._over.append(self._disk.inject(self._faults))

    def end(self) -> None:
        self._over.pop()()

    go, come_back = begin, end


@pytest.fixture
def place(disk: HeldDisk) -> Befallen:
    return Befallen(disk, DiskFaults(gone=True))


@pytest.fixture
def broken(disk: HeldDisk) -> Befallen:
    return Befallen(disk, DiskFaults(failing_share=1.0, unrecorded_share=1.0))


@pytest.mark.parametrize("seed", range(10))
async def test_l5_what_the_kernel_has_behind_a_failed_sync_is_gone_with_the_power(seed: int) -> None:
    disk = SimDisk(seed)
    writer = await filled(SimLedgerStore(disk), 3)
    over = disk.inject(DiskFaults(failing_share=1.0, unrecorded_share=1.0))
    writer.append(b"lost")
    with pytest.raises(LedgerFailed):
        await writer.sync()
    over()
    assert (await SimLedgerStore(disk).fence(SEGMENT, 1)).entries == 4  # whoever does not know counts it, synced
    disk.power_failure()
    with pytest.raises(DataCorrupt, match="4 entries were acknowledged here, only 3 are whole"):
        await SimLedgerStore(disk).read(SEGMENT, 1, 0, 3, max_bytes=ALL)


@pytest.mark.parametrize("seed", range(10))
async def test_l5_a_forgiving_disk_keeps_what_was_counted_where_nobody_could_be_told_of_the_end(seed: int) -> None:
    disk = SimDisk(seed, forgives_untold_ends=True)
    writer = await filled(SimLedgerStore(disk), 3)
    over = disk.inject(DiskFaults(failing_share=1.0, unrecorded_share=1.0))
    writer.append(b"kept")
    with pytest.raises(LedgerFailed):
        await writer.sync()
    over()
    assert (await SimLedgerStore(disk).fence(SEGMENT, 1)).entries == 4
    disk.power_failure()
    found = await SimLedgerStore(disk).read(SEGMENT, 1, 0, 3, max_bytes=ALL)
    assert [entry for _, entry in found][3] == b"kept"


class TestContract(LedgerStoreContract):
    pass


@pytest.mark.parametrize("seed", range(40))
async def test_l5_a_power_failure_takes_only_what_was_not_synced(seed: int) -> None:
    disk = SimDisk(seed)
    writer = await filled(SimLedgerStore(disk), 20)
    synced = len(disk.files[SEGMENT, 1].data)
    for number in range(20, 60):
        writer.append(b"entry-%d" % number)
    disk.files[SEGMENT, 1].durable = synced
    await writer.sync()
    disk.files[SEGMENT, 1].durable = synced  # as if the power had failed just before that sync was done
    disk.power_failure()
    recovered = await SimLedgerStore(disk).fence(SEGMENT, 1)
    assert recovered.entries in (20, 60)
    found = await SimLedgerStore(disk).read(SEGMENT, 1, 0, recovered.entries - 1, max_bytes=ALL)
    assert [entry for _, entry in found] == [b"entry-%d" % number for number in range(recovered.entries)]


async def test_a_failing_sync_ends_the_ledger_at_what_was_acked(disk: SimDisk, successor: SimLedgerStore) -> None:
    writer = await filled(SimLedgerStore(disk), 3)
    disk.faults = DiskFaults(failing_share=1.0)
    writer.append(b"x")
    with pytest.raises(LedgerFailed):
        await writer.sync()
    disk.faults = DiskFaults()
    assert (await successor.fence(SEGMENT, 1)).entries == 3


@pytest.mark.parametrize("seed", range(25))
async def test_a_flipped_bit_is_found(seed: int) -> None:
    disk = SimDisk(seed)
    store = SimLedgerStore(disk)
    writer = await create(store)
    for number in range(30):
        writer.append(b"entry-%d" % number)
        await writer.sync()
    data = disk.files[SEGMENT, 1].data
    data[disk.random.randrange(len(data))] ^= 1 << disk.random.randrange(8)
    with pytest.raises(DataCorrupt, match=r"1\.ledger: "):
        await SimLedgerStore(disk).fence(SEGMENT, 1)


@pytest.mark.parametrize("part", ["data", "footer", "sidecar"])
@pytest.mark.parametrize("seed", range(20))
async def test_a_bit_that_flips_on_the_disk_is_told_by_name_until_it_is_repaired(seed: int, part: Part) -> None:
    """R5: never a wrong byte to anybody, and nothing that was acknowledged is cut off."""
    disk = SimDisk(seed)
    store = SimLedgerStore(disk)
    writer = await filled(store, 30)
    await writer.close(b"the footer")
    await store.write_sidecar(SEGMENT, 1, b"the sidecar")
    damage = disk.damage((SEGMENT, 1), part, random.Random(seed))
    assert damage is not None
    with pytest.raises(DataCorrupt, match=r"1\.(ledger|footer|sidecar)"):
        await _read_all(SimLedgerStore(disk))
    disk.repair(damage)
    assert disk.flips == 1
    assert (await SimLedgerStore(disk).fence(SEGMENT, 1)).entries == 30
    assert await _read_all(SimLedgerStore(disk)) == [b"entry-%d" % number for number in range(30)]


async def _read_all(store: SimLedgerStore) -> list[bytes]:
    await store.read_footer(SEGMENT, 1)
    await store.read_sidecar(SEGMENT, 1)
    return [entry for _, entry in await store.read(SEGMENT, 1, 0, 29, max_bytes=ALL)]


async def test_a_repair_leaves_alone_what_was_replaced_meanwhile(disk: SimDisk, ledgers: SimLedgerStore) -> None:
    await filled(ledgers, 3)
    await ledgers.write_footer(SEGMENT, 1, b"before")
    damage = disk.damage((SEGMENT, 1), "footer", random.Random(1))
    await ledgers.write_footer(SEGMENT, 1, b"afterwards")
    disk.heal()
    assert damage is not None
    assert await ledgers.read_footer(SEGMENT, 1) == b"afterwards"


@pytest.mark.parametrize("seed", range(20))
async def test_a_bit_told_wrong_once_is_found_and_right_the_next_time(seed: int) -> None:
    disk = SimDisk(seed)
    await (await filled(SimLedgerStore(disk), 30)).close(b"the footer")
    await SimLedgerStore(disk).write_sidecar(SEGMENT, 1, b"the sidecar")
    expected = [b"entry-%d" % number for number in range(30)]
    over = disk.inject(DiskFaults(flip_share=0.5))
    found = 0
    for _ in range(20):
        try:
            assert await _read_all(SimLedgerStore(disk)) == expected
        except DataCorrupt:
            found += 1
    over()
    assert found
    assert disk.flips >= found
    assert await _read_all(SimLedgerStore(disk)) == expected


async def test_a_full_disk_takes_nothing_and_tells_everything(disk: SimDisk, ledgers: SimLedgerStore) -> None:
    writer = await filled(ledgers, 3)
    over = disk.inject(DiskFaults(full=True))
    for refused in (
        ledgers.write_footer(SEGMENT, 1, b"footer"),
        ledgers.write_sidecar(SEGMENT, 1, b"sidecar"),
        ledgers.create(SEGMENT, 2, incarnation="i"),
        SimLedgerStore(disk).fence(SEGMENT, 3),
    ):
        with pytest.raises(LedgerFailed, match="no space left"):
            await refused
    assert len(await writer.read(0, 2, max_bytes=ALL)) == 3
    assert await ledgers.read_footer(SEGMENT, 1) is None
    writer.append(b"x")
    with pytest.raises(LedgerFailed, match="no space left"):
        await writer.sync()
    over()
    await ledgers.create(SEGMENT, 2, incarnation="i")
    assert (await SimLedgerStore(disk).fence(SEGMENT, 1)).entries == 3


@pytest.mark.parametrize("seed", range(12))
async def test_a_file_whose_writing_failed_is_there_or_not_and_never_half(seed: int) -> None:
    disk = SimDisk(seed)
    store = SimLedgerStore(disk)
    await filled(store, 1)
    over = disk.inject(DiskFaults(failing_share=1.0))
    with pytest.raises(LedgerFailed, match="input/output error"):
        await store.write_footer(SEGMENT, 1, b"footer")
    over()
    assert await store.read_footer(SEGMENT, 1) in (None, b"footer")
    await store.write_footer(SEGMENT, 1, b"again")
    assert await store.read_footer(SEGMENT, 1) == b"again"


async def test_a_stalled_disk_holds_syncs_until_it_goes_on(disk: SimDisk, ledgers: SimLedgerStore) -> None:
    writer = await filled(ledgers, 1)
    over = disk.inject(DiskFaults(stalled=True))
    writer.append(b"x")
    syncing = asyncio.ensure_future(writer.sync())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not syncing.done()
    assert writer.last_confirmed == 0
    over()
    assert await syncing == 1


async def test_a_failing_read_is_the_disks_failure_and_not_damage(disk: SimDisk, ledgers: SimLedgerStore) -> None:
    writer = await filled(ledgers, 2)
    over = disk.inject(DiskFaults(read_failing_share=1.0))
    for refused in (writer.read(0, 1, max_bytes=ALL), ledgers.read_footer(SEGMENT, 1)):
        with pytest.raises(LedgerUnreadable, match=r"1\.(ledger|footer): input/output error"):
            await refused
    over()
    assert list(disk.unreadable) == [f"{SEGMENT}/1.ledger", f"{SEGMENT}/1.footer"]
    assert len(await writer.read(0, 1, max_bytes=ALL)) == 2


def test_clients_may_be_told_of_failed_reads_only_of_files_whose_reading_failed() -> None:
    plan = Plan("txn://nowhere", Recorder(lambda: 1.0))
    told = StoreUnavailable(f"reading {SEGMENT}/1.ledger: {IO_ERROR}")
    plan.met("client-1", told)
    plan.unreadable = lambda: {f"{SEGMENT}/1.footer"}
    plan.met("client-2", told)
    plan.unreadable = lambda: {f"{SEGMENT}/1.ledger"}
    plan.met("client-3", told)
    plan.met("client-4", InternalError(str(told)))
    plan.met("client-5", StoreUnavailable("etcd does not answer"))
    assert [text.split()[1] for text in plan.unexpected] == ["client-1:", "client-2:", "client-4:"]
