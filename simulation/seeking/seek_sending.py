"""Sends to the topic under seeks, whichever topic has the name, in transactions and outside."""

from __future__ import annotations

import asyncio

import txnclient
from simulation.clients.life import LoggedLife
from simulation.clients.plan import ClientPorts, Plan
from simulation.seeking.seek_model import SeekLog
from txnclient.producing.producer import Producer
from txnwire.errors import NotAllowed, TopicNotFound, TxnError

TOPIC = "topic://public/sim/sought"
KEYS = 8
ABORTED_SHARE = 0.3


class SoughtSender:
    """Sends to whatever topic has the name, with a producer for each."""

    def __init__(self, ports: ClientPorts, plan: Plan, log: SeekLog) -> None:
        self._plan = plan
        self._log = log
        self._random = ports.random
        self._name = ports.owner.name
        self._careless = plan.caller(ports.random)

    async def go_on(self, client: txnclient.Client) -> None:
        while self._plan.active:
            await asyncio.sleep(self._random.expovariate(1 / 0.2))
            life = self._log.life
            if not self._is(life):
                continue
            try:
                async with self._careless.within(client.producer(TOPIC, linger_ms=5)) as producer:
                    while self._plan.active and self._is(life):
                        await asyncio.sleep(self._random.expovariate(1 / (6 * self._plan.pause_s)))
                        await self._send(client, producer, life)
            except TopicNotFound:
                pass  # it was deleted
            except TxnError as error:
                self._plan.met(self._name, error)
                if error.fatal and not isinstance(error, NotAllowed):
                    raise

    def _is(self, life: int) -> bool:
        """▲ Whether a send now goes to this topic: a producer belongs to it if this was true all the while it was
        opened."""
        return self._log.ready and self._log.life == life

    def _next(self) -> str:
        log = self._log
        value = log.value(len(log.sent) + 1)
        log.sent[value] = log.answered
        return value

    def _key(self) -> str:
        return f"k{self._random.randrange(KEYS)}"

    async def _send(self, client: txnclient.Client, producer: Producer, life: int) -> None:
        if not self._is(life):
            return
        if self._random.random() < 0.3:
            await self._transaction(client, producer, life)
            return
        values = [self._next() for _ in range(self._random.choice((1, 1, 4)))]
        await asyncio.gather(*[producer.send_nowait(value.encode(), key=self._key()) for value in values])
        if self._log.life == life:
            self._log.stored.update(dict.fromkeys(values))

    async def _transaction(self, client: txnclient.Client, producer: Producer, life: int) -> None:
        txn = await self._careless.call(client.begin(timeout=10.0))
        try:
            for _ in range(self._random.randrange(1, 4)):
                if not self._is(life):
                    break
                value = self._next()
                await self._careless.call(producer.send(value.encode(), key=self._key(), txn=txn))
                if self._log.life == life:
                    self._log.sent_within[value] = str(txn.id)
            await asyncio.sleep(self._random.choice((0.0, 0.0, 0.5)))
            await self._careless.call(txn.abort() if self._random.random() < ABORTED_SHARE else txn.commit())
        except TxnError:
            await self._careless.call(txn.abort())
            raise


class SenderLife(LoggedLife[SeekLog]):
    """One life of the process that only sends."""

    _may_connect_carelessly = False

    async def _work(self, client: txnclient.Client) -> None:
        await SoughtSender(self._ports, self._plan, self._log).go_on(client)
