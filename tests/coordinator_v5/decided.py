"""Transactions that were decided, and their outcomes."""

from __future__ import annotations

import asyncio

from tests.coordinator_v5.processes import (
    Process,
)
from txnstore import keys
from txnstore.writes.collection_transitions import block_of, read_outcomes
from txnwire.ids import TxnId


async def run_transactions(process: Process, count: int, *, tcid: int = 0) -> dict[TxnId, str]:
    """Begin and end `count`, every third aborted; what was decided."""
    decided: dict[TxnId, str] = {}
    for at in range(0, count, 50):
        begun = await asyncio.gather(*(process.coordinator.begin(tcid) for _ in range(min(50, count - at))))
        for number, one in enumerate(begun):
            decision = await process.coordinator.end(one.txn_id, commit=number % 3 != 0)
            decided[one.txn_id] = decision.state
    return decided


async def check_outcomes(process: Process, decided: dict[TxnId, str]) -> None:
    for txn_id, state in decided.items():
        block = process.record(keys.outcome_block(txn_id))
        outcomes = read_outcomes(txn_id.tcid, block_of(txn_id.counter), block)
        assert outcomes.state_of(txn_id.counter) == state
