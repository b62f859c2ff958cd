"""An operator who deletes the transaction key that two holders take turns with, whoever has it just then (DESIGN §9).

What becomes of the key's record is judged revision by revision (`simulation.judges.key_judge`), what the holders do by
the history."""

from __future__ import annotations

import asyncio

from coordinator_v5 import transaction_keys
from simulation.workloads.workload import Plan
from simulation.world.world import Ports
from txnstore import keys
from txnstore.writes.key_transitions import read_key
from txnwire.errors import OutcomeUnknown, TxnError

PACE_S = 8.0


class OperatorLife:
    def __init__(self, ports: Ports, plan: Plan) -> None:
        self._ports = ports
        self._plan = plan

    async def live(self) -> None:
        while self._plan.active:
            await asyncio.sleep(self._ports.random.expovariate(1 / PACE_S))
            try:
                await self._delete_keys()
            except OutcomeUnknown:
                pass  # it goes on being repeated, as long as this process lives
            except TxnError as error:
                self._plan.met(self._ports.owner.name, error)

    async def _delete_keys(self) -> None:
        """As `txnctl keys delete` does: of the epoch that was looked at. Raises `NotAllowed` where somebody connects
        meanwhile."""
        store = self._ports.store
        for record in (await store.range(keys.TXN_KEY, keys.prefix_end(keys.TXN_KEY))).records:
            owner, key = keys.txn_key_parts(record.key)
            state = read_key(record)
            if not state.deleted:
                epoch = state.record.epoch
                await transaction_keys.delete(store, self._ports.clock, owner=owner, key=key, epoch=epoch)
