"""Holders of transaction keys."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from coordinator_v5.naming.names import Begun
from coordinator_v5.settings import CoordinatorSettings
from simulation.judges.key_judge import judge
from tests.coordinator_v5.processes import (
    Connection,
    Process,
)
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.writes.transitions import RecordedDecision
from txnwire.errors import (
    TxnError,
)
from txnwire.ids import TxnId

KEY = "nightly/job 7"


ONE = CoordinatorSettings(tcids=1, header_retention_s=5.0, client_grace_s=3.0)


TWO = CoordinatorSettings(tcids=2, header_retention_s=5.0, client_grace_s=3.0)


class Holder:
    """A client as a coordinator sees it: its connection, its epoch, its begins counted."""

    def __init__(self, name: str) -> None:
        self.connection = Connection(name)
        self.attempt = name.encode()
        self.epoch = -1
        self.begins = 0

    async def connect(self, process: Process, *, named: int | None = None) -> int:
        tcid = process.coordinator.owned_tcids[0]
        if named is None:
            named = await process.coordinator.connect_key(
                tcid, key=KEY, epoch=-1, attempt=b"", connection=self.connection
            )
        self.epoch = await process.coordinator.connect_key(
            tcid, key=KEY, epoch=named, attempt=self.attempt, connection=self.connection
        )
        return self.epoch

    async def begin(self, process: Process, *, number: int | None = None, timeout_ms: int = 60_000) -> Begun:
        number = self.begins + 1 if number is None else number
        begun = await process.coordinator.begin_keyed(
            process.coordinator.owned_tcids[0],
            key=KEY,
            epoch=self.epoch,
            number=number,
            attempt=b"%s/%d" % (self.attempt, number),
            timeout_ms=timeout_ms,
            connection=self.connection,
        )
        self.begins = max(self.begins, number)
        return begun


async def two(etcd: MemoryEtcd) -> tuple[Process, Process]:
    """Two coordinators, with a TCID each."""
    one = await Process(etcd, "one", ONE).start()
    other = await Process(etcd, "two", TWO).start()
    assert (one.coordinator.owned_tcids, other.coordinator.owned_tcids) == ((0,), (1,))
    return one, other


async def close(etcd: MemoryEtcd, *processes: Process) -> None:
    """Also: nothing in the store's history breaks a rule of keys."""
    for process in processes:
        await process.close()
    found = judge(change.events for change in etcd.mvcc.changes_since(0, at_most=1_000_000))
    assert not found.findings


async def commit(process: Process, txn_id: TxnId) -> RecordedDecision:
    return await process.coordinator.end(txn_id, commit=True)


async def refusal(answer: Awaitable[object]) -> TxnError:
    with pytest.raises(TxnError) as raised:
        await answer
    return raised.value
