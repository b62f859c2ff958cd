"""E4: an etcd of three members that are killed, cut off, stopped and restarted under a working cluster, and leases that
end early; the history checker judges what clients saw. Members, servers and clients talk over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from simulation.clients.plan import Plan
from simulation.clients.recorder import Recorder
from simulation.judges.checker import check
from simulation.workloads import workload
from simulation.workloads.workload import ClientLife, Drain
from tests.cluster import InProcessCluster
from tests.etcd_members import EtcdMembers
from tests.process.chaos.works import real_ports
from tests.waiting import until, until_answer
from txnstore import keys
from txnwire.clock import SystemClock

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

CLIENTS = 3
FAIL_OVER_S = 10.0
CUT_S = 0.8


class Work:
    """Clients that do the simulation's workload, and how long nobody got on."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self._cluster = cluster
        self.plan = Plan(cluster.url, Recorder(SystemClock().monotonic), pause_s=0.02)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._live(f"client-{number}")) for number in range(CLIENTS)]

    async def _live(self, name: str) -> None:
        number = 0
        while self.plan.active:
            number += 1
            await ClientLife(real_ports(f"{name}.{number}", 1), self.plan).live()

    def committed(self) -> int:
        return sum(1 for draft in self.plan.recorder.drafts if draft.name.startswith("txn") and draft.outcome == "ok")

    async def progress(self, what: str) -> float:
        """Until some transactions more have committed; seconds that took."""
        begun, wanted = SystemClock().monotonic(), self.committed() + 3
        await until(lambda: self.committed() >= wanted, within_s=FAIL_OVER_S)
        took = SystemClock().monotonic() - begun
        print(f"E4 {what}: {took:.2f} s until 3 transactions more")
        return took

    async def judge(self) -> list[str]:
        self.plan.active = False
        async with asyncio.timeout(30):
            await asyncio.gather(*self._tasks)
        async with self._cluster.connect() as client:
            await until_answer(
                lambda: client.admin("transactions.list", state="OPEN"),
                lambda answer: not answer["transactions"],
                "nothing open",
                within_s=30,
            )
        drain = Drain(real_ports("drain", 1), self.plan)
        async with asyncio.timeout(60):
            await drain.run()
        history = self.plan.recorder.history(drained=drain.finished)
        return [str(anomaly) for anomaly in check(history)] + self.plan.unexpected


@asynccontextmanager
async def three_members(folder: Path) -> AsyncIterator[tuple[EtcdMembers, InProcessCluster]]:
    etcd = EtcdMembers(folder / "etcd")
    await etcd.start()
    options = {"request_timeout_s": 2.0}
    cluster = InProcessCluster(",".join(etcd.urls), "/e4", folder / "data", etcd_options=options)
    try:
        await cluster.start()
        yield etcd, cluster
    finally:
        await asyncio.gather(*(member.start() for member in etcd.members if not member.running))
        await cluster.stop()
        await etcd.stop()


async def test_e4_members_die_are_cut_off_and_come_back_under_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "DRAIN_SILENCE_S", 2.0)
    monkeypatch.setattr(workload, "TXN_TIMEOUT_S", 4.0)
    async with three_members(tmp_path) as (etcd, cluster):
        work = Work(cluster)
        work.start()
        await work.progress("start")

        leader = await etcd.leader()
        etcd.members[leader].kill()
        await work.progress("leader killed")
        await etcd.members[leader].start()

        for number in range(etcd.size):  # one of them is whom our processes talk to
            etcd.peer_taps[number].cut()
            await asyncio.sleep(CUT_S)
            await work.progress(f"member {number} not heard by its peers")
            etcd.peer_taps[number].join()

        etcd.taps[0].cut()
        await work.progress("first endpoint cut off from its clients")
        etcd.taps[0].join()

        leader = await etcd.leader()
        silent = [etcd.members[leader], etcd.members[(leader + 1) % etcd.size]]
        await asyncio.gather(*(member.pause() for member in silent))
        await asyncio.sleep(CUT_S)
        for member in silent:
            member.resume()
        await work.progress("quorum lost for a while")

        for member in etcd.members:
            member.kill()
        await etcd.start_members()
        await work.progress("all killed and restarted")

        store = cluster.servers["control"].store
        for prefix in (keys.BROKER, keys.TC):
            for record in (await store.range(prefix, keys.prefix_end(prefix))).records:
                await store.revoke_lease(record.lease)
        await work.progress("leases ended early")
        assert await work.judge() == []
