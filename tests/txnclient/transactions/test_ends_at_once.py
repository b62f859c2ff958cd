"""Calls that end a named transaction while others of the same program are under way."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.producing.small_buffers import SMALL
from tests.txnclient.scripted_server import TOPIC, connected
from tests.waiting import until


@pytest.mark.parametrize("end", ["leave", "abort"])
@virtual_time
async def test_a_flush_does_not_say_that_all_is_stored_where_the_transaction_was_ended_meanwhile(end: str) -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.refuse["open_producer"] = [txnclient.NotOwner("nobody has it")] * 1000
        producer = await client.producer(TOPIC)
        txn = await client.begin(name="job")
        sending = producer.send_nowait(b"part", key="k", txn=txn)
        flushing = asyncio.ensure_future(txn.flush())
        await until(lambda: server.seen["open_producer"])
        await getattr(txn, end)()
        with pytest.raises(txnclient.InvalidTxnState):
            await flushing
        with pytest.raises(txnclient.InvalidTxnState):
            await sending


@virtual_time
async def test_c5_a_cancelled_abort_beside_a_commit_goes_on_in_the_background() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, **SMALL)
        server.stall_sends = True
        blocking = [producer.send_nowait(bytes(400), key="k") for _ in range(2)]
        txn = await client.begin(name="job")
        sending = asyncio.ensure_future(producer.send(bytes(400), key="k", txn=txn))
        await asyncio.sleep(0.1)
        committing = asyncio.ensure_future(txn.commit())
        await asyncio.sleep(0.1)
        server.ignore["end_txn"] = 1
        aborting = asyncio.ensure_future(txn.abort())
        with pytest.raises(txnclient.InvalidTxnState):
            await committing
        assert txn.state == "ABORTING"
        aborting.cancel()
        await asyncio.wait((aborting, sending))
        await until(lambda: cluster.states[txn.id] == "ABORTED")
        server.finish_sends()
        await asyncio.gather(*blocking)
