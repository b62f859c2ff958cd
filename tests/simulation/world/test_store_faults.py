"""What becomes of requests to a simulated etcd is what the troubles that last say, and nothing else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from simulation.world.store_faults import APPLIED, LATE, LOST, StoreFaults, Trouble
from simulation.world.trace import Trace
from tests.segments.virtual_time import LoopClock, run
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import Fate, MemoryStore
from txnstore.store import Commit, Put, Read, absent
from txnwire.errors import OutcomeUnknown, StoreUnavailable

A, B = b"/k/a", b"/k/b"
ROOT = Path(__file__).resolve().parents[3]


def put(key: bytes) -> Commit:
    return Commit((absent(key),), (Put(key, b"mine"),), (), (Read(key),))


class Rig:
    """An etcd with two clients and the troubles between them."""

    def __init__(self) -> None:
        self.etcd = MemoryEtcd(LoopClock())
        self.faults = StoreFaults(1, Trace(), asyncio.get_running_loop().time)
        self.one, self.two = (
            MemoryStore(self.etcd, LoopClock(), random.Random(name), name=name, faults=self.faults)
            for name in ("one", "two")
        )

    async def close(self) -> None:
        await self.one.close()
        await self.two.close()


def with_rig(scenario: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        rig = Rig()
        await scenario(rig)
        await rig.close()

    run(main())


def fates(trouble: Trouble, request: str = "commit", client: str = "one", count: int = 200) -> list[Fate]:
    faults = StoreFaults(7, Trace(), lambda: 0.0)
    faults.inject(trouble)
    return [faults.fate(request, client) for _ in range(count)]


def test_an_unanswered_request_is_lost_applied_or_late_as_asked() -> None:
    lost, applied, late = (
        fates(Trouble(share=1.0, fates=(kind,), late_s=(4.0, 20.0))) for kind in (LOST, APPLIED, LATE)
    )
    assert all(fate.arrive_s is None and fate.fail_s is not None for fate in lost)
    assert all(fate.arrive_s is not None and fate.fail_s and fate.arrive_s < fate.fail_s for fate in applied)
    assert all(fate.arrive_s is not None and fate.fail_s and fate.arrive_s >= fate.fail_s + 4.0 for fate in late)


def test_a_trouble_is_about_its_clients_and_requests_alone() -> None:
    trouble = Trouble(("one",), ("grant",), share=1.0)
    assert all(fate.fail_s is not None for fate in fates(trouble, "grant", "one"))
    assert all(fate.fail_s is None for fate in fates(trouble, "commit", "one"))
    assert all(fate.fail_s is None for fate in fates(trouble, "grant", "two"))
    few = [fate for fate in fates(Trouble(share=0.1)) if fate.fail_s is not None]
    assert 5 < len(few) < 50


def test_troubles_overlap_and_each_ends_by_itself() -> None:
    faults = StoreFaults(7, Trace(), lambda: 0.0)
    ends = [faults.inject(Trouble(share=1.0)), faults.inject(Trouble(share=1.0))]
    ends[0]()
    assert faults.fate("commit", "one").fail_s is not None
    ends[1]()
    assert faults.fate("commit", "one").fail_s is None
    faults.inject(Trouble(share=1.0, watch_share=1.0))
    faults.heal()
    assert faults.fate("commit", "one").fail_s is None
    assert faults.watch_delay_s("one") < 0.01


def test_a_client_that_etcd_does_not_hear_still_hears_of_changes() -> None:
    async def scenario(rig: Rig) -> None:
        watch = rig.one.watch(b"/k/", b"/k0", from_revision=1)
        heard = asyncio.ensure_future(anext(aiter(watch)))
        await asyncio.sleep(0.1)
        rig.faults.inject(Trouble(("one",), share=1.0, fates=(LOST,)))
        await rig.two.commit(put(A))
        assert (await asyncio.wait_for(heard, 1)).events[0].record.key == A
        with pytest.raises((OutcomeUnknown, StoreUnavailable)):
            await rig.one.commit(put(B), timeout_s=3)
        assert rig.etcd.mvcc.get(B) is None
        rig.faults.heal()

    with_rig(scenario)


def test_e1_starved_watches_are_those_of_one_client() -> None:
    async def scenario(rig: Rig) -> None:
        rig.faults.inject(Trouble(("one",), watch_share=1.0, watch_s=(5.0, 6.0)))
        heard = [
            asyncio.ensure_future(anext(aiter(store.watch(b"/k/", b"/k0", from_revision=1))))
            for store in (rig.one, rig.two)
        ]
        await asyncio.sleep(0.1)
        await rig.two.commit(put(A))
        assert await rig.one.get(A) is not None, "requests are answered"
        await asyncio.sleep(1)
        assert [one.done() for one in heard] == [False, True]
        await asyncio.sleep(6)
        assert heard[0].done()

    with_rig(scenario)


def test_an_election_loses_some_requests_starts_leases_anew_and_cuts_watches() -> None:
    async def scenario(rig: Rig) -> None:
        lease = rig.etcd.grant(5)[0]
        heard: list[bytes] = []

        async def listen() -> None:
            async for batch in rig.one.watch(b"/k/", b"/k0", from_revision=1):
                heard.extend(event.record.key for event in batch.events)

        listening = asyncio.ensure_future(listen())
        await asyncio.sleep(0.1)
        rig.etcd.pause()
        waiting = [rig.two.commit_nowait(put(b"/k/%d" % number)) for number in range(6)]
        await asyncio.sleep(4)
        assert not any(one.done() for one in waiting)
        turns = iter([True] + [False] * 100)
        rig.etcd.elect(lambda: next(turns))
        await asyncio.sleep(4)
        assert lease in rig.etcd.leases(), "it ran for 8 s of its 5, and was started anew behind the election"
        await asyncio.sleep(10)
        assert lease not in rig.etcd.leases()
        for one in waiting:
            result = await one
            assert result.succeeded or result.repeated, "what was lost is sent again"
        assert sorted(heard) == [b"/k/%d" % number for number in range(6)]
        listening.cancel()
        await asyncio.wait([listening])

    with_rig(scenario)


def test_e4_a_lease_that_expires_late_stands_until_delays_end() -> None:
    async def scenario(rig: Rig) -> None:
        lease = rig.etcd.grant(3)[0]
        rig.etcd.delay_expiry(lease, 60)
        await asyncio.sleep(30)
        assert lease in rig.etcd.leases()
        rig.etcd.end_delays()
        await asyncio.sleep(2.5)
        assert lease in rig.etcd.leases()
        await asyncio.sleep(1)
        assert lease not in rig.etcd.leases()

    with_rig(scenario)


def test_cut_watches_resume_where_they_were_while_requests_go_on() -> None:
    async def scenario(rig: Rig) -> None:
        heard: list[bytes] = []

        async def listen() -> None:
            async for batch in rig.one.watch(b"/k/", b"/k0", from_revision=1):
                heard.extend(event.record.key for event in batch.events)

        listening = asyncio.ensure_future(listen())
        for number in range(20):
            rig.one.memory_backend.cut_watches()
            assert (await rig.one.commit(put(b"/k/%02d" % number))).succeeded
            await asyncio.sleep(0.05)
        await asyncio.sleep(2)
        assert heard == [b"/k/%02d" % number for number in range(20)]
        listening.cancel()
        await asyncio.wait([listening])

    with_rig(scenario)


def test_no_read_may_come_from_a_member_that_lags_behind() -> None:
    """▲ Serializable reads would show what was: nothing that talks to etcd asks for one."""
    packages = ("txnstore", "watchers", "segments", "coordinator_v5", "txnctl")
    sources = [
        path for package in packages for path in (ROOT / package).rglob("*.py") if not path.name.endswith("_pb2.py")
    ]
    assert len(sources) > 100
    assert [str(path) for path in sources if "serializable" in path.read_text()] == []
