"""Load the flights into their topic, in transactions: whole or not at all, also when the broker dies under it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import msgspec
import structlog

import txnclient
from txnctl.demo.asking_again import asking_again
from txnctl.demo.flights import FLIGHTS, Flight

log = structlog.get_logger()

FLIGHTS_PER_TRANSACTION = 2000
LOADED_AT_ONCE = 4
LOADED_PER_S = 12_000
"""As a source would deliver them, about half of what two cores could take: the job is shown at work, not starved."""

_encode = msgspec.json.Encoder().encode


def _batches(flights: Sequence[Flight]) -> Iterator[Sequence[Flight]]:
    for first in range(0, len(flights), FLIGHTS_PER_TRANSACTION):
        yield flights[first : first + FLIGHTS_PER_TRANSACTION]


async def load(client: txnclient.Client, flights: Sequence[Flight], on_loaded: Callable[[int], None]) -> None:
    """Send every flight once, keyed by tail number; `on_loaded` is told of each committed batch's size."""
    batches = enumerate(_batches(flights))
    loop = asyncio.get_running_loop()
    started = loop.time()

    async def loader() -> None:
        async with await client.producer(FLIGHTS) as producer:
            for number, batch in batches:  # shared: each loader takes the next one
                await asyncio.sleep(started + number * FLIGHTS_PER_TRANSACTION / LOADED_PER_S - loop.time())
                await _load_batch(client, producer, batch)
                on_loaded(len(batch))

    async with asyncio.TaskGroup() as group:
        for _ in range(LOADED_AT_ONCE):
            group.create_task(loader())


async def _load_batch(client: txnclient.Client, producer: txnclient.Producer, batch: Sequence[Flight]) -> None:
    """Until committed. A batch is sent again only once its former transaction is surely aborted."""
    messages = [(flight.tailnum, _encode(flight)) for flight in batch]
    while True:
        txn: txnclient.Transaction = await asking_again("begin")(client.begin, timeout=60.0)
        try:
            await producer.send_many(messages, txn=txn)
            await asking_again(f"commit {txn.id}")(txn.commit)
            return
        except txnclient.TxnError as error:
            if error.fatal:
                raise
            log.warning("loading_batch_again", txn=str(txn.id), error=f"{type(error).__name__}: {error}")
        if await _ended_as(txn) == "COMMITTED":
            return


async def _ended_as(txn: txnclient.Transaction) -> str:
    """Abort it, and tell how it ended, which may have been by a commit whose answer was lost."""
    try:
        await asking_again(f"abort {txn.id}")(txn.abort)
    except txnclient.InvalidTxnState as error:
        log.warning("ended_otherwise", txn=str(txn.id), state=txn.state, error=str(error))
    if txn.state not in ("COMMITTED", "ABORTED"):
        raise txnclient.OutcomeUnknown(f"cannot tell how {txn.id} ended: its flights must not be loaded again")
    return txn.state
