"""Load the flights into their topic, in transactions: whole or not at all, also when the broker dies under it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import msgspec
import structlog

import txnclient
from txnctl.demo.flights import FLIGHTS, Flight

log = structlog.get_logger()

FLIGHTS_PER_TRANSACTION = 2000
LOADED_AT_ONCE = 4


def _batches(flights: Sequence[Flight]) -> Iterator[Sequence[Flight]]:
    for first in range(0, len(flights), FLIGHTS_PER_TRANSACTION):
        yield flights[first : first + FLIGHTS_PER_TRANSACTION]


async def load(client: txnclient.Client, flights: Sequence[Flight], on_loaded: Callable[[int], None]) -> None:
    """Send every flight once, keyed by tail number; `on_loaded` is told of each committed batch's size."""
    batches = _batches(flights)

    async def loader() -> None:
        async with await client.producer(FLIGHTS) as producer:
            for batch in batches:  # shared: each loader takes the next one
                await _load_batch(client, producer, batch)
                on_loaded(len(batch))

    async with asyncio.TaskGroup() as group:
        for _ in range(LOADED_AT_ONCE):
            group.create_task(loader())


async def _load_batch(client: txnclient.Client, producer: txnclient.Producer, batch: Sequence[Flight]) -> None:
    encode = msgspec.json.Encoder().encode
    while True:
        txn: txnclient.Transaction | None = None
        try:
            txn = await client.begin(timeout=60.0)
            await producer.send_many([(flight.tailnum, encode(flight)) for flight in batch], txn=txn)
            await _commit(txn)
            return
        except txnclient.TxnError as error:
            if not (error.retriable or error.requires_abort or isinstance(error, txnclient.InvalidTxnState)):
                raise
            log.warning("load_batch_again", error=str(error))
            if txn is not None and not await _surely_aborted(txn):
                raise


async def _commit(txn: txnclient.Transaction) -> None:
    """Commit, asking again for as long as the answer is lost: only a definite answer may lead to loading again."""
    while True:
        try:
            await txn.commit()
            return
        except txnclient.TxnError as error:
            if not error.retriable or txn.state == "ABORTED":
                raise
            log.warning("commit_unanswered_asking_again", txn=str(txn.id), error=str(error))


async def _surely_aborted(txn: txnclient.Transaction) -> bool:
    """Only an aborted transaction's flights may be sent again."""
    for _ in range(10):
        if txn.state == "ABORTED":
            return True
        try:
            await txn.abort()
        except txnclient.InvalidTxnState:
            return txn.state == "ABORTED"
        except txnclient.TxnError as error:
            log.warning("abort_unanswered_asking_again", txn=str(txn.id), error=str(error))
    return False
