"""Two holders of one transaction key take turns, also while the other one works: each new one fences the one before,
whose open transaction is aborted at once and whose sends must never be read (K1, K3, K6).

The checker judges what they do, from the history; `simulation.judges.key_judge` judges the key's record, revision by
revision.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

import txnclient
from simulation.clients.plan import TOPICS, ClientPorts, Plan
from simulation.workloads.workload import ClientLife
from txnclient.connection.opening import Opening
from txnclient.consuming.consumer import Consumer
from txnwire.errors import ExpiredTransaction, NotAllowed, TxnError

KEY = "billing/nightly"
SUBSCRIPTION = "billing"
TOPIC = TOPICS[1]


RACE_S = 0.05


@dataclass(slots=True)
class KeyedLog:
    """Events of the holders: how often one was fenced, was refused as another one connected, or connected right after
    another one (`RACE_S`)."""

    fenced: int = 0
    refused: int = 0
    raced: int = 0
    connected_at: float = float("-inf")

    def connected(self, now: float) -> None:
        self.raced += now - self.connected_at < RACE_S
        self.connected_at = now


class KeyedLife(ClientLife):
    """One life of one holder."""

    def __init__(self, ports: ClientPorts, plan: Plan, log: KeyedLog) -> None:
        super().__init__(ports, plan, subscription=SUBSCRIPTION)
        self._log = log

    async def live(self) -> None:
        """Returns when it is fenced, or cannot go on; it is then restarted."""
        together = self._random.random() < 0.5  # with the other one, if that waits as well
        await asyncio.sleep(4.0 - self._now() % 4.0 if together else self._random.expovariate(1 / 3.0))
        await super().live()

    def _connect(self) -> Opening[txnclient.Client]:
        return self._plan.connect(self._ports, transaction_key=KEY, timeout=self._random.uniform(3.0, 12.0))

    def _ended_by(self, error: TxnError) -> None:
        if isinstance(error, ExpiredTransaction):
            self._log.fenced += 1
            return
        self._log.refused += isinstance(error, NotAllowed)
        self._met(error)

    async def _work(self, client: txnclient.Client) -> None:
        self._log.connected(self._now())
        for topic in TOPICS:
            await self._careless.call(client.create_topic(topic, segments=self._plan.segments))
        producers = [await client.producer(topic, linger_ms=self._random.choice((0, 5))) for topic in TOPICS]
        consumer = await client.consumer(TOPIC, SUBSCRIPTION, name=self._name.partition(".")[0], start="earliest")

        async def turn() -> None:
            await self._transaction(client, producers, consumer)
            self._failures = 0

        await self._repeat(turn, pause_s=2 * self._plan.pause_s, failed=partial(self._failed, consumer))

    def _failed(self, consumer: Consumer, error: TxnError) -> None:
        if isinstance(error, ExpiredTransaction):
            raise error
        super()._failed(consumer, error)
