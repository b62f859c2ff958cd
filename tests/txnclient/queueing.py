"""What the tests of queue consumers, dead letters and seeks share: a topic of jobs."""

from __future__ import annotations

import asyncio
from typing import Any

import txnclient
from txnclient.transactions.transaction import transaction_impl
from txnwire.proto import txn_pb2 as pb

TOPIC = "topic://public/default/jobs"


async def prepared(client: txnclient.Client, count: int, *, segments: int = 2) -> list[bytes]:
    await client.create_topic(TOPIC, segments=segments)
    values = [str(number).encode() for number in range(count)]
    async with await client.producer(TOPIC, batch_bytes=1) as producer:  # entries of one message
        await producer.send_many([(f"k{number % 5}", value) for number, value in enumerate(values)])
    return values


async def received(consumer: txnclient.Consumer[Any], count: int) -> list[txnclient.Message[Any]]:
    found: list[txnclient.Message[Any]] = []
    async with asyncio.timeout(15):
        while len(found) < count:
            found += await consumer.receive_many(count - len(found), timeout=15)
    return found


async def force_abort(txn: txnclient.Transaction) -> None:
    end = pb.EndTxn(
        txnid_most_bits=txn.id.most_bits,
        txnid_least_bits=txn.id.least_bits,
        action=pb.TXN_ACTION_ABORT,
        forced=True,
    )
    await transaction_impl(txn).link.call(pb.Command(end_txn=end), timeout_s=10)
