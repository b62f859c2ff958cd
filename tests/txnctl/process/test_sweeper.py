"""The elected sweeper, and what its candidates do for a store in which nobody can be elected."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from coordinator_v5.settings import NameSettings
from segments.ledger.file_ledger import FileLedgerStore
from tests.segments.memory_transport import MemoryTransport
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import until
from txnctl.metrics.statistics import NamesOfNamespace
from txnctl.process.founding import PATIENCE_S
from txnctl.process.server import Server
from txnctl.process.settings import ServerSettings
from txnctl.process.sweeper import SWEEPER, Maintainer, _told
from txnstore import keys
from txnstore.access.backend import StoreStatus
from txnstore.memory.memory_etcd import DEFAULT_QUOTA_BYTES, MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import NameCounts
from txnstore.store import Commit, Put
from txnwire.errors import StoreFull, StoreUnavailable
from txnwire.tasks import Tasks


@virtual_time
async def test_e3_a_full_store_that_can_elect_nobody_is_relieved_all_the_same() -> None:
    """▲ At its quota etcd grants no lease: the role that takes the alarm back must not depend on one."""
    clock = LoopClock()
    etcd = MemoryEtcd(clock)
    store = MemoryStore(etcd, clock, random.Random(1))
    await store.commit(Commit(puts=(Put(b"/some", b"thing"),)))
    etcd.quota_bytes = 1
    try:
        await store.commit(Commit(puts=(Put(b"/more", b""),)))
    except StoreFull:
        etcd.quota_bytes = DEFAULT_QUOTA_BYTES  # what filled it has gone, but the alarm stays
    assert etcd.no_space
    sweeper = Maintainer(store, clock, random.Random(2), id="one", address="one:1", lease_ttl_s=4.0)
    sweeper.start()
    await until(lambda: not (etcd.no_space or not etcd.leases()), within_s=60)
    await sweeper.close()
    await store.close()


@virtual_time
async def test_one_that_is_not_elected_any_more_tells_no_census() -> None:
    """Metrics would show it beside the next one's, and it would never change."""
    clock = LoopClock()
    etcd = MemoryEtcd(clock)
    store = MemoryStore(etcd, clock, random.Random(1))
    sweeper = Maintainer(store, clock, random.Random(2), id="one", address="one:1", lease_ttl_s=4.0)
    sweeper.start()
    await until(lambda: sweeper.statistics().census is not None, within_s=60)
    await sweeper.close()
    assert (sweeper.statistics().elected, sweeper.statistics().census) == (False, None)
    assert await store.get(keys.leader(SWEEPER)) is None, "the next one need not wait until its lease has run out"
    await store.close()


@virtual_time
async def test_etcd_that_does_not_answer_is_asked_again_and_no_failure_of_a_task() -> None:
    """▲ With a task that fails the process is not ready. One of the two is elected, the other one is a candidate."""
    clock = LoopClock()
    store = MemoryStore(MemoryEtcd(clock), clock, random.Random(1))
    status, away, tasks = store.status, [True], Tasks()

    async def told(**options: float) -> StoreStatus:
        if away:
            raise StoreUnavailable("just now")
        return await status(**options)

    store.status = told  # type: ignore[method-assign]
    with tasks.in_charge(), capture_logs() as logged:
        sweepers = [
            Maintainer(store, clock, random.Random(2), id=name, address=f"{name}:1", lease_ttl_s=4.0) for name in "ab"
        ]
        for one in sweepers:
            one.start()
        for event in ("census_failed", "relief_failed"):
            await until(lambda event=event: sum(one["event"] == event for one in logged) > 1, within_s=60)  # type: ignore[misc]
        away.clear()
        await until(lambda: any(one.statistics().census is not None for one in sweepers), within_s=60)
    assert tasks.failures == {}
    for one in sweepers:
        await one.close()
    await store.close()


def test_the_names_of_each_namespace_are_told_with_what_it_may_have() -> None:
    counts = NameCounts(counted_ms=1, namespaces={"orders": 3, "sink": 4})
    assert _told(counts, NameSettings(most=10, most_of={"sink": 5})) == (
        NamesOfNamespace("orders", 3, 10),
        NamesOfNamespace("sink", 4, 5),
    )


async def at_its_quota(clock: LoopClock) -> MemoryEtcd:
    """An etcd that others have filled, before a cluster was made in it."""
    etcd = MemoryEtcd(clock)
    store = MemoryStore(etcd, clock, random.Random(1))
    await store.commit(Commit(puts=(Put(b"/some", b"thing"),)))
    etcd.quota_bytes = 1
    with pytest.raises(StoreFull):
        await store.commit(Commit(puts=(Put(b"/more", b""),)))
    await store.close()
    return etcd


def new_server(etcd: MemoryEtcd, clock: LoopClock, folder: Path, roles: tuple[str, ...]) -> tuple[Server, MemoryStore]:
    store = MemoryStore(etcd, clock, random.Random(2))
    settings = ServerSettings(id="-".join(roles), roles=roles, listen=f"{roles[0]}:1", data_dir=folder)
    ledgers, transport = FileLedgerStore(folder), MemoryTransport()
    return Server(
        settings, store=store, ledgers=ledgers, transport=transport, clock=clock, random=random.Random(3)
    ), store


@virtual_time
async def test_e3_servers_that_start_for_the_first_time_make_room_in_a_full_store(tmp_path: Path) -> None:
    """▲ Nobody is elected before a cluster was made, and it cannot be made in an etcd whose alarm stands."""
    clock = LoopClock()
    etcd = await at_its_quota(clock)
    etcd.quota_bytes = DEFAULT_QUOTA_BYTES  # what filled it has gone, but the alarm stays
    admin, admin_store = new_server(etcd, clock, tmp_path, ("admin",))
    starting = asyncio.ensure_future(admin.start())
    await asyncio.sleep(5.0)
    assert etcd.no_space
    assert not starting.done(), "who is no coordinator waits for one"
    coordinator, store = new_server(etcd, clock, tmp_path, ("coordinator",))
    status, unanswered = store.status, [True]

    async def once_unanswered(**options: float) -> StoreStatus:
        if unanswered:
            unanswered.clear()
            raise StoreUnavailable("just now")
        return await status(**options)

    store.status = once_unanswered  # type: ignore[method-assign]
    await coordinator.start()
    await starting
    assert not unanswered, "it has tried again"
    assert not etcd.no_space
    for server, of_server in ((admin, admin_store), (coordinator, store)):
        await server.close()
        await of_server.close()


@virtual_time
async def test_e3_servers_give_up_where_a_full_store_gets_no_room(tmp_path: Path) -> None:
    clock = LoopClock()
    etcd = await at_its_quota(clock)
    server, store = new_server(etcd, clock, tmp_path, ("coordinator",))
    began_s = clock.monotonic()
    with pytest.raises(StoreFull):
        await server.start()
    assert clock.monotonic() - began_s >= PATIENCE_S
    assert etcd.no_space
    await store.close()
