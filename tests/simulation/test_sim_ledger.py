"""`SimLedgerStore` keeps the same contract as the files, and what it does to unsynced data is what disks do."""

from __future__ import annotations

import pytest

from segments.ledger import LedgerFailed
from simulation.sim_ledger import DiskFaults, SimDisk, SimLedgerStore
from tests.segments.ledger_store_contract import ALL, SEGMENT, LedgerStoreContract, create, filled
from txnwire.errors import DataCorrupt


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(1)


@pytest.fixture
def ledgers(disk: SimDisk) -> SimLedgerStore:
    return SimLedgerStore(disk)


@pytest.fixture
def successor(disk: SimDisk) -> SimLedgerStore:
    return SimLedgerStore(disk)


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
    disk.flip_bit((SEGMENT, 1))
    with pytest.raises(DataCorrupt, match=r"1\.ledger: "):
        await SimLedgerStore(disk).fence(SEGMENT, 1)
