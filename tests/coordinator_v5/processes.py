"""Coordinator processes for tests: each with its own store client and clock, over one shared etcd in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TypeVar, cast

from coordinator_v5.coordinator import Coordinator
from coordinator_v5.settings import CoordinatorSettings
from simulation.world.loop import SimLoop
from tests.segments.virtual_time import run
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import NO_FAULT, Fate, MemoryStore
from txnstore.records import Header, Op
from txnstore.store import Commit, KeyValue, Put
from txnstore.writes.op_transitions import plan_write_op
from txnwire.errors import TxnError
from txnwire.ids import TxnId

T = TypeVar("T")

SEGMENT = "public/default/orders/0000-ffff-0"
ONE_TCID = CoordinatorSettings(tcids=1, header_retention_s=60.0)

LOST_BEFORE = Fate(arrive_s=None, fail_s=0.5)
LOST_AFTER = Fate(arrive_s=0.001, fail_s=0.5)
LANDS_LATE = Fate(arrive_s=3.0, fail_s=0.5)


class StepClock:
    """The running loop's time; the wall clock can be stepped."""

    def __init__(self) -> None:
        self.step_ms = 0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return int(self.monotonic() * 1000) + 1_700_000_000_000 + self.step_ms


class Fates:
    """Scripted faults: after `skip` more commits, the next ones meet `script`; with `no_reads` no read is answered;
    everything else goes well."""

    def __init__(self) -> None:
        self.script: list[Fate] = []
        self.skip = 0
        self.commits = 0
        self.no_reads = False

    def fate(self, request: str, client: str) -> Fate:
        if request == "read" and self.no_reads:
            return LOST_BEFORE
        if request != "commit":
            return NO_FAULT
        self.commits += 1
        if self.skip:
            self.skip -= 1
            return NO_FAULT
        return self.script.pop(0) if self.script else NO_FAULT

    def watch_delay_s(self, client: str) -> float:
        return 0.0


class Connection:
    """A client's connection: what the coordinator looks at is its session."""

    def __init__(self, session: str, owner: str = "anonymous") -> None:
        self.session_id = session.encode()
        self.owner = owner
        self.ended_with: TxnError | None = None

    def disconnect(self, reason: TxnError) -> None:
        self.ended_with = self.ended_with or reason


class Process:
    """One coordinator process, in an owner of the simulation's loop: it can be stopped dead, and paused."""

    def __init__(self, etcd: MemoryEtcd, name: str, settings: CoordinatorSettings = ONE_TCID) -> None:
        self.etcd = etcd
        self.clock = StepClock()
        self.fates = Fates()
        self.loop = cast(SimLoop, asyncio.get_running_loop())
        self.owner = self.loop.new_owner(name)
        self.store = MemoryStore(etcd, self.clock, random.Random(name), name=name, faults=self.fates)
        self.coordinator = Coordinator(
            self.store, self.clock, random.Random(name), settings, id=name, address=f"{name}:1"
        )

    async def start(self) -> Process:
        context = self.loop.context_of(self.owner)
        await self.loop.create_task(self.coordinator.start(), context=context)
        return self

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more."""
        self.loop.kill(self.owner)

    def pause(self) -> None:
        """SIGSTOP: its timers and answers wait."""
        self.loop.pause(self.owner)

    def resume(self) -> None:
        """SIGCONT: it wakes with everything it believed."""
        self.loop.resume(self.owner)

    async def close(self) -> None:
        await self.coordinator.close()
        await self.store.close()

    async def header(self, txn_id: TxnId) -> Header | None:
        record = self.record(keys.txn(txn_id))
        return None if record is None else records.decode(Header, record.value, key=record.key)

    def record(self, key: bytes) -> KeyValue | None:
        """What etcd holds, whatever this process can reach."""
        return self.etcd.mvcc.get(key)

    async def write(self, txn_id: TxnId, segment: str = SEGMENT, counter: int = 1, *, epoch: int | None = None) -> bool:
        """Record a write op as the owner of `segment` would; whether it was."""
        owner = self.record(keys.owner(segment))
        owner_epoch = epoch if epoch is not None else (owner.create_revision if owner else 0)
        op = Op(v=1, kind="write", segment=segment, messages=1, bytes=100)
        commit = plan_write_op(txn_id, segment, owner_epoch, counter, op, first_in_segment=True)
        return (await self.store.commit(commit)).succeeded

    async def own(self, segment: str = SEGMENT) -> int:
        """Put an owner record; its create revision."""
        result = await self.store.commit(
            Commit(puts=(Put(keys.owner(segment), b'{"v":1,"broker":"b","address":"b:1"}'),))
        )
        return result.revision


def fresh_etcd() -> MemoryEtcd:
    """An etcd in memory, on the running loop's time."""
    return MemoryEtcd(StepClock())


def in_virtual_time(scenario: Callable[[MemoryEtcd], Coroutine[object, object, T]]) -> T:
    """Run a scenario over a fresh etcd in memory, on a virtual loop."""

    async def body() -> T:
        return await scenario(fresh_etcd())

    return run(body())


def open_headers(etcd: MemoryEtcd) -> list[TxnId]:
    """Transactions that etcd holds OPEN."""
    return [keys.txn_of(record.key) for record in headers(etcd) if record.version == 1]


def headers(etcd: MemoryEtcd) -> list[KeyValue]:
    return within(etcd, keys.TXN)


def within(etcd: MemoryEtcd, prefix: bytes) -> list[KeyValue]:
    return etcd.mvcc.range(prefix, keys.prefix_end(prefix))[0]
