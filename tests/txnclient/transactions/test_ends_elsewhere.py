"""Ends of transactions whose own coordinator does not answer: any other one may end them."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import connected


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
