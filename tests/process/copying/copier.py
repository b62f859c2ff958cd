"""A process that copies a topic to another one, as a user would write it: a batch a transaction, every third of them
aborted on purpose, until SIGTERM (X3)."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import txnclient
from tests.process.copying.journal import Journal

MORE_WITHIN_S = 0.5
"""A batch that is not full by then is copied as it is: at the end of the input, and where a child waits for acks."""
ABORT_EVERY = 3


class Copier:
    def __init__(
        self, client: txnclient.Client, source: txnclient.Consumer, target: txnclient.Producer, journal: Journal
    ) -> None:
        self._client = client
        self._source = source
        self._target = target
        self._journal = journal
        self.stopping = False

    async def run(self, batch: int) -> None:
        while not self.stopping:
            messages = await self._gather(batch)
            if not messages:
                continue
            try:
                await self._copy(messages)
            except txnclient.TxnError as error:
                if error.fatal:
                    raise
                print(f"copied again: {type(error).__name__}: {error}", flush=True)
                self._source.rewind()

    async def _gather(self, batch: int) -> list[txnclient.Message[bytes]]:
        messages: list[txnclient.Message[bytes]] = []
        while len(messages) < batch and not self.stopping:
            more = await self._source.receive_many(batch - len(messages), timeout=MORE_WITHIN_S)
            if not more:
                break
            messages += more
        return messages

    async def _copy(self, messages: list[txnclient.Message[bytes]]) -> None:
        txn = await self._client.begin()
        try:
            await self._target.send_many([(message.key, message.value) for message in messages], txn=txn)
            await self._source.ack(messages, txn=txn)
            if self._journal.ended % ABORT_EVERY == ABORT_EVERY - 1:
                await _until_definite(txn, txn.abort)
                self._journal.write(txn.id, "aborted", len(messages))
                self._source.rewind()
                return
            await _until_definite(txn, txn.commit)
            self._journal.write(txn.id, "committed", len(messages))
        except txnclient.TxnError:
            await _until_definite(txn, txn.abort)
            self._journal.write(txn.id, "failed", len(messages))
            raise


async def _until_definite(txn: txnclient.Transaction, end: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await end()
            return
        except txnclient.TxnError as error:
            if not error.retriable or txn.state not in ("COMMITTING", "ABORTING"):
                raise
            print(f"asked again how {txn.id} ends: {type(error).__name__}: {error}", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    given = parser.parse_args()
    with Journal(given.journal) as journal:
        async with (
            txnclient.connect(given.url) as client,
            client.consumer(given.source, "copiers") as source,
            client.producer(given.target) as target,
        ):
            copier = Copier(client, source, target, journal)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, setattr, copier, "stopping", True)
            await copier.run(given.batch)


if __name__ == "__main__":
    asyncio.run(main())
