"""Begins of a client with a transaction key, several at once behind one that was cancelled."""

from __future__ import annotations

import asyncio

import txnclient
from tests.cluster import InProcessCluster
from tests.txnclient.lossy_transport import LossyTransport
from tests.waiting import until_turn
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
