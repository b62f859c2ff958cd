"""Ends of transactions whose own coordinator does not answer, or cannot be reached: any other one may end them."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import Cluster, connected
from tests.waiting import until


@pytest.mark.parametrize("action", ["COMMITTED", "ABORTED"])
@virtual_time
async def test_a_transaction_is_ended_elsewhere_while_the_owner_of_its_tcid_does_not_answer(action: str) -> None:
    """▲ A coordinator that hangs keeps its lease for as long as it is renewed, and its TCIDs with it."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        home = client._directory.home()
        assert home is not None
        (away,) = cluster.servers.keys() - {home.address}
        cluster.coordinators = {0: away}
        cluster.announce()
        await asyncio.sleep(0.1)
        txn = await client.begin(timeout=300.0)
        cluster.coordinators = {0: away, 1: home.address}
        cluster.announce()
        await asyncio.sleep(0.1)
        cluster.servers[away].ignore["end_txn"] = 1000
        await (txn.commit(timeout=60.0) if action == "COMMITTED" else txn.abort(timeout=60.0))
        assert cluster.states[txn.id] == action
        assert txn.state is txnclient.TransactionState[action]


async def begun_away(cluster: Cluster, client: txnclient.Client) -> tuple[txnclient.Transaction, str]:
    """A transaction of the coordinator that is not the client's home, and the address of that one."""
    home = client._directory.home()
    assert home is not None
    (away,) = cluster.servers.keys() - {home.address}
    cluster.coordinators = {0: away}
    cluster.announce()
    await until(lambda: client._directory.coordinators == ((0, away),))
    txn = await client.begin(name="job/1", timeout=300.0)
    cluster.coordinators = {0: away, 1: home.address}
    cluster.announce()
    await until(lambda: len(client._directory.coordinators) == 2)
    return txn, away


@pytest.mark.parametrize("action", ["COMMITTED", "ABORTED"])
@virtual_time
async def test_a_transaction_is_ended_elsewhere_while_the_owner_of_its_tcid_cannot_be_reached(action: str) -> None:
    """▲ Who has just died has its TCIDs until its lease ends; who is cut off from this client alone keeps them."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        txn, away = await begun_away(cluster, client)
        await cluster.servers[away].stop()
        late = await client.attach(txn.id, name="job/1")
        await (late.commit(timeout=5.0) if action == "COMMITTED" else late.abort(timeout=5.0))
        assert cluster.states[txn.id] == action
        await (txn.commit(timeout=5.0) if action == "COMMITTED" else txn.abort(timeout=5.0))
        assert txn.state is txnclient.TransactionState[action]
