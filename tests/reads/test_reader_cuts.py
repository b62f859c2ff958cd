"""What readers of several segments see of one transaction where an owner hears late of decisions: real client, servers,
etcd, ledgers and gRPC, two brokers, and the watch of one of them held back."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
import txnclient.sync
from tests.cluster import InProcessCluster
from tests.lagging import HeldDecisions, create_over_both
from txnstore.store import Commit, Put

ORDERS, INVOICES = "topic://acme/orders/placed", "topic://globex/billing/invoices"
KEYS = [f"{number}" for number in range(16)]
"""Some for each of four segments."""


async def create(client: txnclient.Client, topic: str = ORDERS) -> None:
    await create_over_both(client, topic, segments=4)


async def commit(client: txnclient.Client, value: bytes, topic: str = ORDERS) -> txnclient.Transaction:
    """A message of each key in one transaction."""
    txn = await client.begin()
    async with await client.producer(topic) as producer:
        for key in KEYS:
            await producer.send(value, key=key, txn=txn)
    await txn.commit()
    return txn


async def values(reader: txnclient.Reader[bytes]) -> list[bytes]:
    async with asyncio.timeout(20), reader:
        return [message.value async for message in reader]


async def test_a_read_to_latest_holds_each_transaction_whole_however_late_an_owner_hears(
    lagging: tuple[InProcessCluster, HeldDecisions],
) -> None:
    """▲ Each owner asked for itself, the one that lags would end before its part of what the other one shows."""
    cluster, second = lagging
    async with cluster.connect() as writer, cluster.connect() as client:
        await create(writer)
        await commit(writer, b"before")
        second.open.clear()
        txn = await commit(writer, b"late")
        for options in ({}, {"at_least": txn.result.revision if txn.result else 0}):
            reader = await client.reader(ORDERS, end="latest", **options)
            assert sorted(await values(reader)) == [b"before"] * 16 + [b"late"] * 16
            assert reader.snapshot is not None
            assert txn.result is not None
            assert reader.snapshot.revision >= txn.result.revision


async def test_reads_to_latest_beside_commits_hold_each_transaction_whole(
    lagging: tuple[InProcessCluster, HeldDecisions],
) -> None:
    """Two topics, several readers that open together, and a watch that stops and goes on."""
    cluster, second = lagging
    async with cluster.connect() as writer, cluster.connect() as client:
        for topic in (ORDERS, INVOICES):
            await create(writer, topic)
        returned: list[bytes] = []
        stop = asyncio.Event()

        async def write() -> None:
            number = 0
            async with await writer.producer(ORDERS) as orders, await writer.producer(INVOICES) as invoices:
                while not stop.is_set():
                    number += 1
                    value = b"%d" % number
                    async with writer.transaction() as txn:
                        for key in KEYS[:4]:
                            orders.send_nowait(value, key=key, txn=txn)
                            invoices.send_nowait(value, key=key, txn=txn)
                    returned.append(value)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            try:
                for round_ in range(8):
                    (second.open.clear if round_ % 2 else second.open.set)()
                    known = list(returned)
                    opened = await asyncio.gather(*(client.reader([ORDERS, INVOICES], end="latest") for _ in range(3)))
                    for reader in opened:
                        found = await values(reader)
                        torn = {value for value in found if found.count(value) != 8}
                        assert not torn
                        assert set(known) <= set(found), "what had returned by then"
            finally:
                second.open.set()
                stop.set()
        assert len(returned) > 3, "hardly anything was committed: this proves nothing"


async def test_what_a_client_was_delivered_is_in_whatever_it_opens_next(
    lagging: tuple[InProcessCluster, HeldDecisions],
) -> None:
    """▲ Shown a part of a transaction by one owner, it must not find the other one before that transaction."""
    cluster, second = lagging
    async with cluster.connect() as writer, cluster.connect() as client:
        await create(writer)
        second.open.clear()
        async with client.reader(ORDERS) as reader:
            txn = await commit(writer, b"seen")
            assert (await reader.receive(timeout=10)).value == b"seen"
        assert txn.result is not None
        async with client.reader(ORDERS, start="latest") as reader:
            await commit(client, b"later")
            second.open.set()
            assert {(await reader.receive(timeout=10)).value for _ in KEYS} == {b"later"}


async def test_at_least_waits_until_the_store_has_come_to_it(
    lagging: tuple[InProcessCluster, HeldDecisions],
) -> None:
    cluster, _ = lagging
    async with cluster.connect() as client, cluster.connect(timeout=3.0) as hasty:
        await create(client)
        txn = await commit(client, b"known")
        at_least = (await client.snapshot(ORDERS)).revision + 1000
        opening = asyncio.ensure_future(_open(client, at_least))
        for ask in (hasty.snapshot(ORDERS, at_least=at_least), _open(hasty, at_least)):
            with pytest.raises(txnclient.Timeout, match=f"at revision {at_least} or later"):
                await ask
        reader = await hasty.reader(ORDERS, end="latest")
        assert len(await values(reader)) == len(KEYS), "what the store never came to is forgotten"
        assert not opening.done()
        store = cluster.servers["control"].store
        while (await store.commit(Commit(puts=(Put(b"/elsewhere", b"1"),)))).revision < at_least:
            pass
        reader = await opening
        assert reader.snapshot is not None
        assert reader.snapshot.revision >= at_least
        assert len(await values(reader)) == len(KEYS)
        snapshot = await client.snapshot(ORDERS)
        assert txn.result is not None
        for options, complaint in (
            ({"end": snapshot, "at_least": snapshot.revision + 1}, "at_least asks for"),
            ({"at_least": txn.result.revision}, "with an end"),
            ({"end": "latest", "at_least": -1}, "expected a revision"),
            ({"end": "latest", "at_least": True}, "expected a revision"),
            ({"end": "latest", "at_least": "7"}, "expected a revision"),
        ):
            with pytest.raises(txnclient.InvalidArgument, match=complaint):
                await client.reader(ORDERS, **options)  # type: ignore[arg-type]


async def _open(client: txnclient.Client, at_least: int) -> txnclient.Reader[bytes]:
    return await client.reader(ORDERS, end="latest", at_least=at_least)


async def test_a_revision_handed_to_another_client_without_await(
    lagging: tuple[InProcessCluster, HeldDecisions],
) -> None:
    cluster, second = lagging

    def work() -> list[bytes]:
        with txnclient.sync.connect(cluster.url) as one, txnclient.sync.connect(cluster.url) as other:
            with one.producer(ORDERS) as producer, one.transaction() as txn:
                for key in KEYS:
                    producer.send(b"handed", key=key, txn=txn)
            assert txn.result is not None
            at_least = txn.result.revision
            assert other.snapshot(ORDERS, at_least=at_least).revision >= at_least
            with other.reader(ORDERS, end="latest", at_least=at_least) as reader:
                assert reader.snapshot is not None
                return [message.value for message in reader]

    async with cluster.connect() as client:
        await create(client)
    second.open.clear()
    assert await asyncio.to_thread(work) == [b"handed"] * len(KEYS)
