"""The controller over a real etcd: the same writes, compares, leases and watches, with two processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from segments.controller.controller import Controller, ControllerSettings
from segments.layout.directory import Directory
from tests.segments.controlling import TOPIC, Inbox, Positions, assignment_of, joining, names_of
from tests.waiting import until_answer
from txnstore.etcd.embedded_etcd import EmbeddedEtcd
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import NotOwner

SETTINGS = ControllerSettings(consumer_grace_s=0.2, failover_grace_s=3.0)


@asynccontextmanager
async def controllers(url: str, prefix: str, *names: str) -> AsyncIterator[list[Controller]]:
    """Each with its own connection; the first is elected."""
    async with AsyncExitStack() as stack:
        started: list[Controller] = []
        for name in names:
            settings = EtcdSettings(endpoints=(url,), prefix=prefix, development=True)
            store = await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())
            stack.push_async_callback(store.close)
            directory = Directory(store, SystemClock())
            stack.push_async_callback(directory.close)
            await directory.start()
            controller = Controller(
                store,
                directory,
                SystemClock(),
                SystemRandom(),
                SETTINGS,
                id=name,
                address=f"{name}:1",
                segment_positions=Positions(),
                segment_questions=Positions(),
                owner_calls=Positions(),
            )
            stack.push_async_callback(controller.close)
            await controller.start()
            await (started or [controller])[0].wait_leading(timeout_s=10.0)
            started.append(controller)
        yield started


async def eventually_assigned(store: EtcdStore, names: list[str]) -> None:
    await until_answer(
        lambda: assignment_of(store),
        lambda found: list(names_of(found)) == names,
        f"{names} to be assigned",
        within_s=10.0,
    )


async def test_consumers_join_drop_and_move_to_the_successor(etcd: str, store: EtcdStore, key_prefix: str) -> None:
    async with controllers(etcd, key_prefix, "a", "b") as [a, b]:
        await a.create_topic(TOPIC, 5, "")
        inboxes = [Inbox() for _ in range(10)]
        await asyncio.gather(*(a.join(joining(f"w{i}"), inbox) for i, inbox in enumerate(inboxes)))
        record = await assignment_of(store)
        assert sorted(len(held) for held in record.consumers.values()) == [0] * 5 + [1] * 5
        for inbox in inboxes[2:]:
            a.disconnected(inbox)
        await eventually_assigned(store, ["w0", "w1"])
        with pytest.raises(NotOwner, match="a:1"):
            await b.join(joining("w0"), Inbox())
        await a.close()
        await b.wait_leading(timeout_s=10.0)
        epoch = (await assignment_of(store)).epoch
        assert (await b.join(joining("w1"), Inbox())).epoch == epoch
        await eventually_assigned(store, ["w1"])


async def test_a_controller_survives_an_etcd_that_is_killed_and_restarted(etcd_process: EmbeddedEtcd) -> None:
    async with controllers(etcd_process.url, "", "a") as [a]:
        await a.create_topic(TOPIC, 2, "")
        inbox = Inbox()
        before = await a.join(joining("w"), inbox)
        etcd_process.kill()
        joining_meanwhile = asyncio.create_task(a.join(joining("w2"), Inbox()))
        await asyncio.sleep(0)
        await etcd_process.start()
        try:
            reply = await joining_meanwhile
        except NotOwner:
            await a.wait_leading(timeout_s=20.0)
            reply = await a.join(joining("w2"), Inbox())
        assert reply.epoch > before.epoch
        assert len(reply.segments) == 1
