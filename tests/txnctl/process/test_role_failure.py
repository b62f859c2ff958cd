"""A role that a defect has ended takes its process with it, so that a supervisor starts it again."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from coordinator_v5.background.collector import Collector
from segments.broker.claims import Claims
from segments.log.ledgers.retention import Retention
from segments.owner.segment import Segment
from tests.cluster import InProcessCluster
from tests.waiting import until
from txnctl.process.serve import wait_stopped_or_failed
from txnctl.process.server import Server
from txnctl.process.settings import ServerSettings
from txnstore.access.lineage import StoreUnfit
from txnstore.election import Election, Leadership
from txnstore.etcd.backend import EtcdBackend
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import InternalError, TxnError
from txnwire.transport.grpc_transport import GrpcTransport


@pytest.mark.leaves("tasks", "the call that meets the defect is answered by nobody")
async def test_a_defect_in_the_broker_ends_the_process(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = cluster.servers["broker"].server
    waiting = asyncio.ensure_future(wait_stopped_or_failed(asyncio.Event(), server))

    def defect(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Claims, "next_moves", defect)
    async with cluster.connect() as client:
        with pytest.raises(InternalError, match="a defect"):
            await asyncio.gather(waiting, client.create_topic("topic://public/default/wakes-the-broker"))


async def test_e8_a_server_whose_etcd_is_found_to_have_gone_back_ends(cluster: InProcessCluster) -> None:
    """▲ Whichever of its requests finds it out: it would go on answering from memory."""
    running = cluster.servers["control"]
    cast(EtcdBackend, running.store._backend).condemn(StoreUnfit("restored from a backup"))
    async with asyncio.timeout(20):
        assert isinstance(await running.server.wait_failed(), StoreUnfit)
        with pytest.raises(StoreUnfit, match="restored from a backup"):
            await wait_stopped_or_failed(asyncio.Event(), running.server)


async def test_a_stop_ends_the_wait(cluster: InProcessCluster) -> None:
    stop = asyncio.Event()
    waiting = asyncio.ensure_future(wait_stopped_or_failed(stop, cluster.servers["broker"].server))
    stop.set()
    async with asyncio.timeout(10):
        await waiting
    assert cluster.servers["broker"].server.serving


async def test_a_task_that_ends_is_begun_anew_and_readyz_and_the_metrics_say_so(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = cluster.servers["control"].server
    assert (server.tasks.failing(), server.not_ready()) == (None, None)
    failed = asyncio.Event()
    campaign = Election.campaign

    async def once(self: Election) -> Leadership:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a defect")
        return await campaign(self)

    controller = server.controller
    assert controller is not None
    monkeypatch.setattr(Election, "campaign", once)
    term = controller._term
    assert term is not None
    term.deposed.set()
    await until(lambda: server.tasks.failures.get("controller"))
    assert "controller has ended: RuntimeError" in (server.not_ready() or "")
    assert server.statistics().task_failures["controller"] >= 1
    monkeypatch.undo()
    await controller.wait_leading(timeout_s=30.0)


async def test_a_segment_whose_housekeeping_shows_a_defect_is_given_up_and_no_other_is(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = cluster.servers["broker"].server
    broker = server.broker
    assert broker is not None
    async with cluster.connect() as client:
        for name in ("bad", "good"):
            await client.create_topic(f"topic://public/default/{name}")
        await until(lambda: len(broker.segments) >= 2)
        good = broker.segments["public/default/good/0000-ffff-0"]
        epoch = broker.segments["public/default/bad/0000-ffff-0"].epoch
        keep = Segment.keep

        async def defect(self: Segment, retention: Retention) -> None:
            if "/bad/" in self.path:
                raise RuntimeError("a defect")
            await keep(self, retention)

        monkeypatch.setattr(Segment, "keep", defect)
        for path in broker.segments:
            broker._shared.wake_housekeeping(path)
        await until(lambda: server.tasks.failures.get("housekeeping"))
        monkeypatch.undo()
        assert "housekeeping of public/default/bad/0000-ffff-0 has ended" in (server.not_ready() or "")

        def taken_again() -> bool:
            again = broker.segments.get("public/default/bad/0000-ffff-0")
            return again is not None and again.epoch != epoch

        await until(taken_again, "the segment to be taken again")
        assert broker.segments["public/default/good/0000-ffff-0"] is good
        await (await client.producer("topic://public/default/bad")).send(b"goes on")


async def test_the_end_of_a_coordinator_ends_the_process(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = cluster.servers["control"].server

    async def defect(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Collector, "collect", defect)
    with pytest.raises(InternalError, match="a defect"):
        await wait_stopped_or_failed(asyncio.Event(), server)
    assert "a role has failed" in (server.not_ready() or "")


async def test_a_coordinator_whose_name_another_process_holds_is_not_ready_and_says_where_that_is(
    cluster: InProcessCluster,
) -> None:
    """▲ Also where no broker is beside it: it would wait for its name, and nothing would tell why."""
    server = cluster.servers["control"].server
    assert server.coordinator is not None
    assert (server.broker, server.not_ready()) == (None, None)
    server.coordinator._ownership.namesake = "elsewhere:1"
    told = "another process is called control, at elsewhere:1: it holds that name"
    assert server.not_ready() == told
    server.coordinator._ownership.namesake = None
    assert server.not_ready() is None


async def test_a_server_that_cannot_listen_leaves_nothing_at_work(cluster: InProcessCluster) -> None:
    running, clock = cluster.servers["broker"], SystemClock()
    settings = ServerSettings(id="late", roles=("admin",), listen=running.server.address, data_dir=cluster.data_dir)
    late = Server(
        settings,
        store=running.store,
        ledgers=running.ledgers,
        transport=GrpcTransport(clock),
        clock=clock,
        random=SystemRandom(),
    )
    with pytest.raises((TxnError, OSError)):
        await late.start()
    assert late.not_ready() == "it is going down"
