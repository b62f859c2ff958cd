"""Loads the flights into their topic, in transactions: each whole or not at all, even if a broker dies meanwhile."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence

import msgspec
import structlog

import txnclient
from txnctl.demo.asking_again import asking_again
from txnctl.demo.flights import FLIGHTS, Flight
from txnctl.demo.waits import Waits

log = structlog.get_logger()

LARGEST_BATCH, SMALLEST_BATCH = 500, 25
BATCHES = 200
LOADED_AT_ONCE = 4
LOADED_PER_S = 12_000
"""Rate of a usual source, about half of what two cores could take: the job is shown at work, not starved."""
SHORTEST_S = 8.0
"""Shortest load: faults must find producers at work."""

_encode = msgspec.json.Encoder().encode


def shares_of(flights: Sequence[Flight]) -> list[list[Flight]]:
    """A share for each loader, in the order of the file. An aircraft's flights are all in one share, so they keep their
    order in the topic."""
    shares: list[list[Flight]] = [[] for _ in range(LOADED_AT_ONCE)]
    for flight in flights:
        number = flight.row_id if flight.tailnum is None else zlib.crc32(flight.tailnum.encode())
        shares[number % LOADED_AT_ONCE].append(flight)
    return shares


def batch_size(flights: int) -> int:
    return min(LARGEST_BATCH, max(SMALLEST_BATCH, flights // BATCHES))


async def load(
    client: txnclient.Client,
    flights: Sequence[Flight],
    waits: Waits,
    on_loaded: Callable[[int], None],
    *,
    shortest_s: float = SHORTEST_S,
) -> None:
    """Sends every flight once, keyed by tail number; calls `on_loaded` with each committed batch's size. Slows few
    flights down so that they take `shortest_s`."""
    size, takes_s = batch_size(len(flights)), max(len(flights) / LOADED_PER_S, shortest_s)
    loop = asyncio.get_running_loop()
    started = loop.time()

    async def loader(share: Sequence[Flight]) -> None:
        async with await client.producer(FLIGHTS) as producer:
            for first in range(0, len(share), size):
                await asyncio.sleep(started + takes_s * first / len(share) - loop.time())
                batch = share[first : first + size]
                with waits.batch():
                    await _load_batch(client, producer, batch)
                on_loaded(len(batch))

    async with asyncio.TaskGroup() as group:
        for share in shares_of(flights):
            group.create_task(loader(share))
    waits.close()


async def _load_batch(client: txnclient.Client, producer: txnclient.Producer, batch: Sequence[Flight]) -> None:
    """Returns once committed. Sends a batch again only after its former transaction has surely aborted."""
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
    """Aborts it and returns how it ended; a commit whose answer was lost may have won."""
    try:
        await asking_again(f"abort {txn.id}")(txn.abort)
    except txnclient.InvalidTxnState as error:
        log.warning("ended_otherwise", txn=str(txn.id), state=txn.state, error=str(error))
    if txn.state not in ("COMMITTED", "ABORTED"):
        raise txnclient.OutcomeUnknown(f"cannot tell how {txn.id} ended: its flights must not be loaded again")
    return txn.state
