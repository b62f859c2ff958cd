"""Grouped conditional op records straight on the store, against the very same requests sent raw, already serialized.

First the store: callers that each await one commit after the other. Every request it sends is kept. Then the kept bytes
are sent again to the same etcd, for transactions of other ids, with as many in flight, by code that does nothing else.
The difference is what grouping and Python cost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.harness.result import Result, at_least, percentile
from benchmarks.harness.scale import Scale
from txnstore import keys
from txnstore.access.group_commit import MAX_IN_FLIGHT
from txnstore.etcd.backend import EtcdBackend
from txnstore.etcd.connection import EtcdConnection
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand, free_port
from txnstore.etcd.etcd_store import EtcdStore
from txnstore.etcd.settings import EtcdSettings
from txnstore.records import Op, encode
from txnstore.store import Commit, Put, absent, created_at, version_is
from txnwire.clock import SystemClock, SystemRandom
from txnwire.ids import TxnId

SEGMENT: Final = "public/default/orders/0000-7fff-3"
SLICES: Final = 9
OPERATIONS: Final = {1: 2_700, 16: 18_000, 64: 54_000, 1024: 180_000, 256: 180_000}
"""How many are written, by number of callers; the last one is compared with raw requests."""
_TXN: Final = "/etcdserverpb.KV/Txn"
_OURS: Final = b"/0003-"  # all keys of transactions of coordinator 3, and as many bytes of coordinator 4's
_THEIRS: Final = b"/0004-"


class RecordingConnection(EtcdConnection):
    """Keeps the bytes of every commit request it sends."""

    def __init__(self, settings: EtcdSettings) -> None:
        super().__init__(settings, SystemClock())
        self.sent: list[bytes] | None = None

    async def unary(
        self, path: str, request: bytes, *, timeout_s: float | None = None, endpoint: object | None = None
    ) -> bytes:
        if self.sent is not None and path == _TXN:
            self.sent.append(request)
        return await super().unary(path, request, timeout_s=timeout_s)


@asynccontextmanager
async def _running() -> AsyncIterator[tuple[EtcdStore, RecordingConnection]]:
    with TemporaryDirectory(prefix="bench-etcd-") as scratch:
        etcd = EmbeddedEtcd(EtcdCommand(data_dir=Path(scratch) / "etcd", client_port=free_port()))
        await etcd.start()
        connection = RecordingConnection(EtcdSettings(endpoints=(etcd.url,), development=True))
        backend = EtcdBackend(connection, b"")
        await backend.open()
        store = EtcdStore(backend, SystemClock(), SystemRandom(), quota_bytes=etcd.command.quota_bytes)
        try:
            yield store, connection
        finally:
            await store.close()
            await etcd.stop()


class OpRecords:
    """One-write transactions, as the publish path writes them: header and owner compared, op and index put."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._counter = 0
        self._value = encode(
            Op(v=1, kind="write", segment=SEGMENT, producer="producer-1", sequence_id=123456, messages=1, bytes=100)
        )
        self._owner = keys.owner(SEGMENT)

    def next(self) -> Commit:
        self._counter += 1
        txn_id = TxnId(3, self._counter)
        op_key = keys.op(keys.write_ops(txn_id, SEGMENT), self._epoch, self._counter)
        return Commit(
            (version_is(keys.txn(txn_id), 0), created_at(self._owner, self._epoch), absent(op_key)),
            (Put(op_key, self._value), Put(keys.write_index(SEGMENT, txn_id), b"")),
            partition_key=keys.txn(txn_id),
        )


class Measured:
    """Over the slices of one number of callers."""

    def __init__(self) -> None:
        self.members = self.requests = 0
        self.cpu_s = 0.0
        self.through_store: list[float] = []
        self.raw: list[float] = []
        self.latencies: list[float] = []

    @property
    def rate(self) -> float:
        return median(self.through_store)

    @property
    def raw_rate(self) -> float:
        return median(self.raw)

    def detail(self) -> str:
        return (
            f"{self.members / self.requests:.0f} a request, raw {self.raw_rate:,.0f}/s, Python "
            f"{self.cpu_s / self.members * 1e6:.1f} us each, p50 {percentile(self.latencies, 0.5) * 1e3:.1f} ms, "
            f"p99 {percentile(self.latencies, 0.99) * 1e3:.1f} ms"
        )


async def _through_store(store: EtcdStore, commits: list[Commit], callers: int, measured: Measured) -> None:
    waiting = iter(commits)

    async def call() -> None:
        for commit in waiting:
            began = time.perf_counter()
            result = await store.commit(commit)
            if not result.succeeded:
                raise RuntimeError("an op record that nothing speaks against was refused")
            measured.latencies.append(time.perf_counter() - began)

    before, started, cpu = store.statistics(), time.perf_counter(), time.process_time()
    await asyncio.gather(*[call() for _ in range(callers)])
    measured.cpu_s += time.process_time() - cpu
    measured.through_store.append(len(commits) / (time.perf_counter() - started))
    measured.members += len(commits)
    measured.requests += store.statistics().requests - before.requests


async def _raw(connection: EtcdConnection, requests: list[bytes], members: int, measured: Measured) -> None:
    """As many in flight as the store may have."""
    waiting = iter(requests)

    async def send() -> None:
        for request in waiting:
            await connection.unary(_TXN, request)

    started = time.perf_counter()
    await asyncio.gather(*[send() for _ in range(MAX_IN_FLIGHT)])
    measured.raw.append(members / (time.perf_counter() - started))


async def _measure(
    store: EtcdStore, connection: RecordingConnection, records: OpRecords, callers: int, scale: Scale
) -> Measured:
    """Store and raw in turn, so that whatever else goes on on the machine falls on both; medians, because now and then
    etcd pauses for a tenth of a second."""
    measured = Measured()
    for _ in range(SLICES):
        commits = [records.next() for _ in range(scale.of(OPERATIONS[callers], 900) // SLICES)]
        sent: list[bytes] = []
        connection.sent = sent
        await _through_store(store, commits, callers, measured)
        connection.sent = None
        again = [request.replace(_OURS, _THEIRS) for request in sent]
        await _raw(connection, again, len(commits), measured)
    return measured


async def group_commit(scale: Scale) -> list[Result]:
    results: list[Result] = []
    async with _running() as (store, connection):
        owner = await store.commit(Commit(puts=(Put(keys.owner(SEGMENT), b"{}"),)))
        records = OpRecords(owner.revision)
        await _measure(store, connection, records, 64, scale)  # warm-up
        for callers in OPERATIONS:
            measured = await _measure(store, connection, records, callers, scale)
            name = f"grouped op records, {callers} callers"
            results.append(Result(name=name, value=measured.rate, unit="/s", detail=measured.detail()))
        share = 100 * measured.rate / measured.raw_rate
        results.append(at_least("grouped op records, of identical raw requests", share, "%", 70, measured.detail()))
    return results
