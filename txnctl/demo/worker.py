"""One worker of the demo: consume flights, transform, produce outcomes and tallies, ack, all in one transaction.

Run as `python -m txnctl.demo.worker URL NAME JOURNAL`; stops cleanly on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

import msgspec
import structlog
import uvloop

import txnclient
from txnctl.demo.asking_again import asking_again
from txnctl.demo.flights import FLIGHTS, OUTCOMES, TALLIES, Flight, outcome_of, tallies_of
from txnctl.demo.journal import ABORTED, BEGUN, COMMITTED, INTENT, Journal, JournalLine

log = structlog.get_logger()

SUBSCRIPTION = "outcome-job"
BATCH = 500
ABORT_EVERY = 10
TRANSACTION_TIMEOUT_S = 60.0

_flight = msgspec.json.Decoder(Flight)
_encode = msgspec.json.Encoder().encode


class AbortedOnPurpose(Exception):
    """Raised inside every tenth transaction, after all its writes and acks."""


class DemoWorker:
    def __init__(self, client: txnclient.Client, name: str, journal: Journal) -> None:
        self._client = client
        self._name = name
        self._journal = journal
        self._transactions = 0

    async def run(self) -> None:
        async with (
            await self._client.consumer(FLIGHTS, SUBSCRIPTION, type="stream", name=self._name) as consumer,
            await self._client.producer(OUTCOMES) as outcomes,
            await self._client.producer(TALLIES) as tallies,
        ):
            while True:
                messages = await consumer.receive_many(BATCH, timeout=1.0)
                if messages:
                    await self._one_transaction(messages, consumer, outcomes, tallies)

    async def _one_transaction(
        self,
        messages: list[txnclient.Message],
        consumer: txnclient.Consumer,
        outcomes: txnclient.Producer,
        tallies: txnclient.Producer,
    ) -> None:
        flights = [_flight.decode(message.value) for message in messages]
        self._transactions += 1
        on_purpose = self._transactions % ABORT_EVERY == 0
        txn: txnclient.Transaction = await asking_again("begin")(self._client.begin, timeout=TRANSACTION_TIMEOUT_S)
        self._journal.write(JournalLine(str(txn.id), BEGUN, len(flights), at_s=time.monotonic()))
        try:
            await outcomes.send_many(
                [(message.key, _encode(outcome_of(flight))) for message, flight in zip(messages, flights, strict=True)],
                txn=txn,
            )
            await tallies.send_many([(tally.carrier, _encode(tally)) for tally in tallies_of(flights)], txn=txn)
            await consumer.ack(messages, txn=txn)
            if on_purpose:
                raise AbortedOnPurpose
            await self._commit(txn, len(flights))
        except (AbortedOnPurpose, txnclient.TxnError) as error:
            if not on_purpose:
                log.warning("transaction_failed", txn=str(txn.id), error=f"{type(error).__name__}: {error}")
            await self._abort(txn, len(flights), on_purpose)
            if isinstance(error, txnclient.TxnError) and error.fatal:
                raise
            consumer.rewind()  # otherwise these flights would not come again if the failure was before the ack

    async def _commit(self, txn: txnclient.Transaction, flights: int) -> None:
        asked = time.monotonic()
        self._journal.write(JournalLine(str(txn.id), INTENT, flights, at_s=asked))
        await asking_again(f"commit {txn.id}")(txn.commit)
        answered = time.monotonic()
        self._journal.write(JournalLine(str(txn.id), COMMITTED, flights, False, (answered - asked) * 1000, answered))

    async def _abort(self, txn: txnclient.Transaction, flights: int, on_purpose: bool) -> None:
        try:
            await txn.abort()
        except txnclient.TxnError as error:
            log.warning("abort_unanswered", txn=str(txn.id), error=str(error))
        if txn.state == "ABORTED":
            self._journal.write(JournalLine(str(txn.id), ABORTED, flights, on_purpose, at_s=time.monotonic()))


async def main(url: str, name: str, journal_path: Path) -> None:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    journal = Journal(journal_path)
    try:
        async with txnclient.connect(url) as client:
            await DemoWorker(client, name, journal).run()
    finally:
        journal.close()


if __name__ == "__main__":
    try:
        uvloop.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
    except (asyncio.CancelledError, KeyboardInterrupt):
        sys.exit(0)
