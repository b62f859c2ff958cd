"""An operator deletes the transaction key that two holders take turns with, whichever has it just then (DESIGN §9), and
names of transactions that end just then (§10).

`simulation.judges.key_judge` judges the key's record revision by revision, `record_judge` the names', the history
checker judges the holders."""

from __future__ import annotations

import asyncio

from coordinator_v5.naming import kept_names, transaction_keys
from simulation.clients.plan import Plan
from simulation.workloads.shared_work import BRIEF
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
                await kept_names.delete_names(self._ports.store, f"{BRIEF}/")
            except OutcomeUnknown:
                pass  # it is repeated as long as this process lives
            except TxnError as error:
                self._plan.met(self._ports.owner.name, error)

    async def _delete_keys(self) -> None:
        """Like `txnctl keys delete`: at the epoch that was read. Raises `NotAllowed` if another holder connects
        meanwhile."""
        store = self._ports.store
        for record in (await store.range(keys.TXN_KEY, keys.prefix_end(keys.TXN_KEY))).records:
            owner, key = keys.txn_key_parts(record.key)
            state = read_key(record)
            if not state.deleted:
                epoch = state.record.epoch
                await transaction_keys.delete(store, self._ports.clock, owner=owner, key=key, epoch=epoch)
