"""The readings at the end of a run, when everything has healed and no workload's process runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import txnclient
from simulation.clients.lag_judge import LagJudge
from simulation.clients.plan import ClientPorts, Plan
from txnclient.consuming.consumer import Consumer
from txnclient.consuming.received.message import Message

L = TypeVar("L")

CALL_TIMEOUT_S = 30.0
DRAIN_SILENCE_S = 8.0
"""A subscription is drained once nothing has come for so long."""
OUTCOMES_AT_ONCE = 200


class WorkloadDrain(Generic[L]):
    """Reads what a workload has left, into its log. A workload says what that is in `_read`."""

    def __init__(self, ports: ClientPorts, plan: Plan, log: L) -> None:
        self._ports = ports
        self._plan = plan
        self._log = log

    async def run(self) -> None:
        if self._anything_done():
            async with self._plan.connect(self._ports, timeout=CALL_TIMEOUT_S) as client:
                await self._read(client)

    def _anything_done(self) -> bool:
        return True

    async def _read(self, client: txnclient.Client) -> None:
        raise NotImplementedError


async def read_all(client: txnclient.Client, topic: str) -> list[Message]:
    """Every visible message of `topic`."""
    async with client.reader(topic, start="earliest", end="latest") as reader:
        return [message async for message in reader]


async def take_all(consumer: Consumer, lags: LagJudge | None = None) -> list[Message]:
    """Everything that its subscription still delivers. Acks it, because children come once their parents are
    drained. Tells `lags` how far behind it is before and after."""
    before = None if lags is None else await consumer.lag()
    taken: list[Message] = []
    while messages := await consumer.receive_many(500, timeout=DRAIN_SILENCE_S):
        taken += messages
        await consumer.ack(messages)
    if lags is not None and before is not None:
        lags.drained(repr(consumer), before, len({message.id: None for message in taken}), await consumer.lag())
    return taken


async def outcomes_of(client: txnclient.Client, txn_ids: Sequence[str]) -> dict[str, str]:
    ids = [txnclient.TxnId.parse(text) for text in txn_ids]
    found: dict[str, str] = {}
    for start in range(0, len(ids), OUTCOMES_AT_ONCE):
        told: Mapping[txnclient.TxnId, str] = await client.outcomes(ids[start : start + OUTCOMES_AT_ONCE])
        found |= {str(txn_id): outcome for txn_id, outcome in told.items()}
    return found
