"""E3: a real etcd that transactions fill to its quota's alarm, under a whole cluster: none begins, those that are open
commit and abort and are cleaned up, and that makes room by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.etcd_members import EtcdMembers
from tests.processes import read_all
from tests.waiting import until, until_accepted, until_answer
from txnstore import keys
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.maintenance import Maintenance, MaintenanceSettings
from txnwire.clock import SystemClock, SystemRandom

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

QUOTA = 4 * 1024 * 1024
OPEN, LAST, AT_ONCE = 3000, 20, 50
"""Transactions that are open as etcd fills up, and how many of them are ended when it is full."""
TOPIC = "topic://public/default/full"


async def in_crowds(work: Callable[[int], Awaitable[object]], count: int) -> None:
    for first in range(0, count, AT_ONCE):
        await asyncio.gather(*map(work, range(first, min(first + AT_ONCE, count))))


async def fill(client: txnclient.Client, producer: txnclient.Producer[bytes]) -> int:
    """With committed transactions, until none begins any more; returns how many there were."""

    async def one() -> None:
        async with client.transaction() as txn:
            await producer.send(b"filler", txn=txn)

    done = 0
    for _ in range(20_000 // AT_ONCE):
        ends = await asyncio.gather(*(one() for _ in range(AT_ONCE)), return_exceptions=True)
        done += ends.count(None)
        if refused := [error for error in ends if error is not None]:
            assert {type(error) for error in refused} == {txnclient.StoreFull}
            return done
    raise AssertionError("etcd takes everything")


async def until_one_begins(client: txnclient.Client) -> None:
    async def one() -> None:
        await (await client.begin()).commit()

    await until_accepted(one, txnclient.StoreFull, "room for a transaction", longest_poll_s=0.2)


async def end(txns: Sequence[txnclient.Transaction], number: int) -> None:
    await (txns[number].abort() if number % 2 else txns[number].commit())


class Alarm:
    """etcd's, as it is looked at again and again."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self.raised = False

    async def look(self) -> None:
        while True:
            self.raised = (await self._store.status()).no_space
            await asyncio.sleep(0.05)


async def test_e3_a_store_that_transactions_have_filled_is_emptied_by_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the alarm: nothing begins, what is open is ended all the same, and nobody else makes room."""
    seldom = MaintenanceSettings(every_s=5.0, keep_s=1.0, cooldown_s=1.0, pressing_cooldown_s=1.0)
    monkeypatch.setattr("txnctl.process.sweeper.Maintenance", partial(Maintenance, settings=seldom))
    etcd = EtcdMembers(tmp_path / "etcd", size=1, quota_bytes=QUOTA)
    await etcd.start()
    cluster = InProcessCluster(etcd.urls[0], "/e3", tmp_path / "data", etcd_options={"quota_bytes": QUOTA})
    elsewhere = EtcdSettings(endpoints=etcd.urls, prefix="/elsewhere", quota_bytes=QUOTA)
    store = await EtcdStore.connect(elsewhere, clock=SystemClock(), random=SystemRandom())
    alarm = Alarm(store)
    looking = asyncio.ensure_future(alarm.look())
    try:
        await cluster.start()
        async with cluster.connect(timeout=60.0) as client:
            await client.create_topic(TOPIC, segments=2)
            async with client.producer(TOPIC) as producer:
                txns: list[txnclient.Transaction] = []

                async def begin(_: int) -> None:
                    txns.append(await client.begin(timeout=110))

                await in_crowds(begin, OPEN)
                await in_crowds(lambda number: producer.send(b"%d" % number, txn=txns[number]), OPEN)
                filled = await fill(client, producer)
                await producer.send(b"plain")
                await in_crowds(lambda number: end(txns, number), OPEN - LAST)
                await until(lambda: alarm.raised, within_s=10)
                with pytest.raises(txnclient.StoreFull):
                    await client.begin()
                await in_crowds(lambda number: end(txns, OPEN - LAST + number), LAST)
                inside = cluster.servers["broker"].store
                await until_answer(
                    lambda: inside.count(keys.TXN_OP, keys.prefix_end(keys.TXN_OP)),
                    lambda left: not left,
                    "no op records",
                )
                await until_one_begins(client)
            found = await read_all(client, TOPIC)
            assert sorted(int(value) for value in found if value.isdigit()) == list(range(0, OPEN, 2))
            assert (found.count(b"filler"), found.count(b"plain")) == (filled, 1)
    finally:
        looking.cancel()
        await cluster.stop()
        await store.close()
        await etcd.stop()
