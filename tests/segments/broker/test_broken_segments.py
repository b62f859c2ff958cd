"""One segment with a defect, or with corrupt data, costs a broker that segment and nothing else."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from segments.owner.lag_samples import LagSampler
from tests.segments.brokering import Cluster
from tests.waiting import until
from txnstore import keys
from txnstore.store import Lease
from txnwire.clock import SystemClock
from txnwire.errors import DataCorrupt, StoreUnavailable
from txnwire.tasks import Tasks


async def test_a_defect_in_one_hand_over_leaves_the_others_in_order(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, tasks = memory_cluster, Tasks()
    one, two = await cluster.create_topic(segments=2)
    with tasks.in_charge():
        node = await cluster.start()
    await until(lambda: len(node.broker.segments) == 2)

    async def broken(*_: object) -> NoReturn:
        raise ZeroDivisionError("planned by the test")

    monkeypatch.setattr(node.broker.segments[one].ledgers, "close", broken)
    served = node.broker.segments[two]
    with tasks.in_charge():
        await node.close()
    assert tasks.failures == {"hand-over": 1}
    assert served.ledgers.writer is None, "closed, with its footer"
    for key in (keys.broker("b1"), keys.owner(one), keys.owner(two)):
        assert await cluster.store.get(key) is None


async def test_the_error_of_a_corrupt_segment_does_not_grow_with_each_question(memory_cluster: Cluster) -> None:
    """▲ Clients ask for as long as it is there, and each question's frames would stay in memory."""
    cluster = memory_cluster
    [path] = await cluster.create_topic()
    node = await cluster.start()
    error = DataCorrupt("planned by the test")
    node.broker._owned.holdings.failed[path] = error
    node.broker._owned.serving.pop(path, None)

    def frames() -> int:
        found, at = 0, error.__traceback__
        while at is not None:
            found, at = found + 1, at.tb_next
        return found

    depths = []
    for _ in range(3):
        with pytest.raises(DataCorrupt):
            await node.broker.segment(path)
        depths.append(frames())
        with pytest.raises(DataCorrupt):
            node.broker.serving(path)
    assert len(set(depths)) == 1


async def test_every_segment_that_was_given_up_is_told_with_its_error(memory_cluster: Cluster) -> None:
    paths = await memory_cluster.create_topic(segments=2)
    node = await memory_cluster.start()
    await until(lambda: len(node.broker.segments) == 2)
    for path in paths:
        node.broker._owned.holdings.failed[path] = DataCorrupt(f"{path}: planned by the test")
    assert node.broker.statistics().failed == {path: f"{path}: planned by the test" for path in paths}


async def test_a_defect_in_one_segment_s_lag_leaves_the_others_told(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, tasks = memory_cluster, Tasks()
    one, two = await cluster.create_topic(segments=2)
    await cluster.create_subscription()
    node = await cluster.start()
    await until(lambda: len(node.broker.segments) == 2)
    first, second = (node.broker.segments[path] for path in (one, two))
    sampler = LagSampler(SystemClock(), lambda: [first, second], every_s=0.0)
    await sampler.sample()

    async def broken(*_: object) -> NoReturn:
        raise ZeroDivisionError("planned by the test")

    monkeypatch.setattr(first.subscriptions.lags, "_start_of", broken)
    await (await (await cluster.connect(node)).producer(two)).send("a")
    with tasks.in_charge():
        await sampler.sample()
    assert tasks.failures == {"lag samples": 1}
    assert first.statistics().lags == {"sub": (None, None)}
    assert second.statistics().lags["sub"].messages == 1


async def test_a_broker_that_cannot_register_again_at_once_does_so_later(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ The same outage of the store that has cost it its lease may last a little longer."""
    [path] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    before = await node.broker.segment(path)
    registration = await memory_cluster.store.get(keys.broker("b1"))
    assert registration is not None
    grants, tries = node.store.grant_lease, list[float]()

    async def away(ttl_s: float, **options: float) -> Lease:
        tries.append(ttl_s)
        if len(tries) < 3:
            raise StoreUnavailable("etcd is away")
        return await grants(ttl_s, **options)

    monkeypatch.setattr(node.store, "grant_lease", away)
    await memory_cluster.store.revoke_lease(registration.lease)
    await until(lambda: path in node.broker.segments and node.broker.segments[path] is not before, within_s=20)
    assert len(tries) == 3


async def test_a_broker_that_ends_leaves_no_task_behind(memory_cluster: Cluster) -> None:
    """Not even one that waits for its lease to end."""
    [path] = await memory_cluster.create_topic()
    before = asyncio.all_tasks()
    node = await memory_cluster.start()
    await node.broker.segment(path)
    await node.broker.close(graceful=False)
    left = [task.get_name() for task in asyncio.all_tasks() - before if task.get_name().startswith("broker")]
    assert left == []
