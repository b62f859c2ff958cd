"""Connects and begins of a client with a transaction key, while others are faster and begins are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.txnclient.lossy_transport import LossyTransport
from tests.waiting import until, until_turn
from txnclient.transactions.transaction import transaction_impl
from txnwire.clock import SystemClock
from txnwire.transport.grpc_transport import GrpcTransport


async def test_c5_of_begins_that_wait_for_the_end_of_a_cancelled_one_one_begins(cluster: InProcessCluster) -> None:
    transport = LossyTransport(GrpcTransport(SystemClock()))
    async with cluster.connect(transaction_key="job", transport=transport) as client:
        transport.hold.add("new_txn")
        cancelled = asyncio.create_task(client.begin())
        await until_turn(lambda: transport.held, "the begin to be sent")
        cancelled.cancel()
        await asyncio.wait((cancelled,))
        begins = [asyncio.create_task(client.begin()) for _ in range(3)]
        await asyncio.sleep(0.1)
        transport.release()
        found = await asyncio.gather(*begins, return_exceptions=True)
        (begun,) = [one for one in found if isinstance(one, txnclient.Transaction)]
        others = [one for one in found if one is not begun]
        assert all(isinstance(one, txnclient.InvalidTxnState) for one in others), others
        await begun.commit()


async def test_k3_a_client_that_another_one_overtakes_while_it_connects_reads_the_epoch_anew(
    cluster: InProcessCluster,
) -> None:
    transport = LossyTransport(GrpcTransport(SystemClock()))
    transport.hold.add("tc_client_connect")

    async def overtaken() -> txnclient.Client:
        return await cluster.connect(transaction_key="job", transport=transport, timeout=10.0)

    connecting = asyncio.create_task(overtaken())
    await until_turn(lambda: transport.held, "it to ask for the epoch")
    transport.release()
    transport.hold.add("tc_client_connect")
    await until_turn(lambda: transport.held, "it to connect with that epoch")
    async with cluster.connect(transaction_key="job") as faster:
        assert faster.key_epoch == 0
        transport.release()
        async with await connecting as client:
            assert client.key_epoch == 1
            await (await client.begin()).commit()


@pytest.fixture
async def keyed(cluster: InProcessCluster) -> AsyncIterator[tuple[LossyTransport, txnclient.Client]]:
    """A client with a transaction key."""
    transport = LossyTransport(GrpcTransport(SystemClock()))
    async with cluster.connect(transaction_key="job", transport=transport) as client:
        yield transport, client


async def test_k1_a_client_that_cannot_learn_whether_it_was_fenced_is_told_of_what_was_refused(
    keyed: tuple[LossyTransport, txnclient.Client],
) -> None:
    transport, client = keyed
    txn = await client.begin()
    transport.hold.add("tc_client_connect")
    client._session.timeout_s = 0.3
    reason = await transaction_impl(txn).reason(txnclient.TxnConflict("what it has acked is delivered again"))
    assert isinstance(reason, txnclient.TxnConflict)
    assert transport.held
    client._session.timeout_s = 30.0
    transport.release()
    await txn.abort()


async def test_c5_a_cancelled_begin_of_which_nothing_is_heard_is_nobody_s_defect(
    keyed: tuple[LossyTransport, txnclient.Client], caplog: pytest.LogCaptureFixture
) -> None:
    transport, client = keyed
    client._session.timeout_s = 0.3
    transport.hold.add("new_txn")
    cancelled = asyncio.create_task(client.begin())
    await until_turn(lambda: transport.held, "the begin to be sent")
    cancelled.cancel()
    await asyncio.wait((cancelled,))
    key = client._coordinators.key
    assert key is not None
    await until(lambda: key._undoing is None or key._undoing.done(), within_s=10.0)
    client._session.timeout_s = 30.0
    transport.release()
    await (await client.begin()).abort()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
