"""Transactions of every kind over several topics, and what has become of each: input for the pipeline."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Sequence

import txnclient
from tests.process.spark_pipeline.judge import Journal
from txnwire.protocol import MAX_VALUE_BYTES

KINDS = {"commit": 50, "abort": 12, "left": 6, "named": 12, "alone": 10, "slow": 8, "large": 2}
LEFT_S = 3.0
SLOW_S = (2.0, 12.0)
LARGE_BYTES = MAX_VALUE_BYTES + 700_000
MOST_LARGE = 6
"""Of a run: six megabytes pass through every process several times."""
KEYS = 40
ASK_EVERY_S = 0.2

_log = logging.getLogger(__name__)


class Workload:
    """`topics` may grow meanwhile."""

    def __init__(self, client: txnclient.Client, topics: list[str], seed: str, pause_s: float) -> None:
        self.journal = Journal()
        self._client = client
        self._topics = topics
        self._random = random.Random(seed)
        self._pause_s = pause_s
        self._numbers = itertools.count(1)
        self._producers: dict[str, txnclient.Producer] = {}
        self._large = 0
        self._open: list[txnclient.Transaction] = []
        """Left to their deadlines, or to be aborted, which may have failed."""
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self, workers: int) -> None:
        """Until it is stopped, then until every transaction has ended but for those that are left."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work())
        finally:
            for producer in self._producers.values():
                await producer.close()

    async def end_open(self) -> None:
        """Abort what is still open. ▲ A reader stops before it, whatever was committed behind it."""
        for txn in self._open:
            await self._outcome(txn)

    async def _work(self) -> None:
        while not self._stopping.is_set():
            kind = self._random.choices(list(KINDS), list(KINDS.values()))[0]
            if kind == "large":
                self._large += 1
                kind = "large" if self._large <= MOST_LARGE else "commit"
            self.journal.kinds[kind] += 1
            name = f"t{next(self._numbers)}"
            if kind == "alone":
                await self._send_alone(name)
            elif kind == "named":
                await self._named(name)
            else:
                await self._transaction(name, kind)
            await asyncio.sleep(self._random.expovariate(1 / self._pause_s))

    async def _producer(self, topic: str) -> txnclient.Producer:
        """A fresh one instead of one that has failed."""
        if topic not in self._producers:
            self._producers[topic] = await self._client.producer(topic, linger_ms=self._random.choice([0, 1, 5]))
        return self._producers[topic]

    async def _send(self, names: Sequence[str], txn: txnclient.Transaction | None, *, large: bool = False) -> None:
        """Each to a topic of its own choice. Raises what a send raises."""
        by_topic: dict[str, list[tuple[bytes, bytes]]] = {}
        for name in names:
            key = b"k%d" % self._random.randrange(KEYS)
            filled = name.encode() + b"|" + b"x" * self._random.choice([0, 10, 100, 3000])
            by_topic.setdefault(self._random.choice(self._topics), []).append((key, filled))
        for topic, messages in by_topic.items():
            producer = await self._producer(topic)
            try:
                if large:
                    for key, value in messages:
                        await producer.send(value + b"x" * LARGE_BYTES, key=key, txn=txn, chunk=True)
                elif self._random.random() < 0.5:
                    await producer.send_many(messages, txn=txn)
                else:
                    await asyncio.gather(*(producer.send(value, key=key, txn=txn) for key, value in messages))
            except txnclient.TxnError:
                if self._producers.pop(topic, None) is not None:
                    await producer.close()
                raise

    def _names(self, of: str, most: int) -> list[str]:
        return [f"{of}-{number}" for number in range(self._random.randint(1, most))]

    async def _send_alone(self, of: str) -> None:
        for name in self._names(of, 5):
            try:
                await self._send([name], None)
            except txnclient.TxnError:
                self.journal.unknown.append(name)
            else:
                self.journal.alone.append(name)

    async def _transaction(self, of: str, kind: str) -> None:
        try:
            txn = await self._client.begin(timeout=LEFT_S if kind == "left" else 120)
        except txnclient.TxnError:
            return
        names = self._names(of, 1 if kind == "large" else self._random.choice([3, 10, 200]))
        sent = 0
        try:
            while sent < len(names):
                count = self._random.randint(1, len(names))
                await self._send(names[sent : sent + count], txn, large=kind == "large")
                sent += count
                await asyncio.sleep(self._random.uniform(*SLOW_S) / 3 if kind == "slow" else 0)
        except txnclient.TxnError:
            kind = "abort"
        if kind == "left":
            self._open.append(txn)
            self.journal.never += names
        elif kind == "abort":
            self._open.append(txn)
            await self._abort(txn)
            self.journal.never += names
        else:
            await self._commit(txn, of, names, None)

    async def _named(self, of: str) -> None:
        """Writers of one name, of which some count."""
        counting: list[str] = []
        losing: list[str] = []
        try:
            writers = [await self._client.begin(name=f"pipeline/{of}", timeout=120) for _ in range(3)]
        except txnclient.TxnError:
            return
        chosen = self._random.sample(writers, self._random.randint(1, 3))
        try:
            for number, writer in enumerate(writers):
                names = self._names(f"{of}.{number}", 8)
                (counting if writer in chosen else losing).extend(names)
                await self._send(names, writer)
            for writer in writers:
                await writer.flush()
        except txnclient.TxnError:
            self._open.append(writers[0])
            await self._abort(writers[0])
            self.journal.never += counting + losing
            return
        self.journal.never += losing
        await self._commit(writers[0], of, counting, [writer.writer_id for writer in chosen])

    async def _commit(self, txn: txnclient.Transaction, of: str, names: list[str], writers: list[int] | None) -> None:
        try:
            await txn.commit(writers=writers)
            outcome = "COMMITTED"
        except txnclient.TxnError:
            outcome = await self._outcome(txn)
        if outcome == "COMMITTED":
            self.journal.committed[of] = names
        elif outcome == "ABORTED":
            self.journal.never += names
        else:
            self.journal.unknown += names

    async def _outcome(self, txn: txnclient.Transaction) -> str:
        """Once it is known; of one that stays open, it is aborted first."""
        await self._abort(txn)
        while True:
            try:
                (outcome,) = (await self._client.outcomes([txn.id])).values()
            except txnclient.TxnError:
                outcome = "OPEN"
            if outcome != "OPEN":
                return outcome
            await asyncio.sleep(ASK_EVERY_S)

    async def _abort(self, txn: txnclient.Transaction) -> None:
        try:
            await txn.abort()
        except txnclient.TxnError as error:
            _log.debug("%s has committed, or ends at its deadline: %s", txn.id, error)
