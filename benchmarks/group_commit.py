"""Grouped conditional op records straight on the store, against the very same requests sent raw, already serialized.

First the store: callers that each await one commit after the other. Every request it sends is kept. Then the records
are deleted and the kept bytes are sent again to the same etcd with as many in flight, by code that does nothing else.
The difference is what grouping and Python cost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.result import Result, at_least, percentile
from txnstore import keys
from txnstore.embedded_etcd import EmbeddedEtcd, EtcdCommand, free_port
from txnstore.etcd.backend import EtcdBackend
from txnstore.etcd.connection import Connection
from txnstore.etcd.settings import EtcdSettings
from txnstore.etcd_store import EtcdStore
from txnstore.group_commit import MAX_IN_FLIGHT
from txnstore.records import Op, encode
from txnstore.store import Commit, Delete, Put, absent, created_at, version_is
from txnwire.clock import SystemClock, SystemRandom
from txnwire.ids import TxnId

SEGMENT: Final = "public/default/orders/0000-7fff-3"
SECONDS: Final = 4.0
CALLERS: Final = (1, 16, 64, 256)
_TXN: Final = "/etcdserverpb.KV/Txn"


class RecordingConnection(Connection):
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


async def _through_store(store: EtcdStore, records: OpRecords, callers: int) -> tuple[float, list[float]]:
    """Operations per second, and every latency in seconds."""
    latencies: list[float] = []
    end = time.perf_counter() + SECONDS

    async def call() -> None:
        while (started := time.perf_counter()) < end:
            result = await store.commit(records.next())
            if not result.succeeded:
                raise RuntimeError("an op record that nothing speaks against was refused")
            latencies.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*[call() for _ in range(callers)])
    return len(latencies) / (time.perf_counter() - started), latencies


async def _raw(connection: Connection, requests: list[bytes]) -> float:
    """Requests per second, as many in flight as the store has."""
    waiting = iter(requests)

    async def send() -> None:
        for request in waiting:
            await connection.unary(_TXN, request)

    started = time.perf_counter()
    await asyncio.gather(*[send() for _ in range(MAX_IN_FLIGHT)])
    return len(requests) / (time.perf_counter() - started)


async def _forget(store: EtcdStore) -> None:
    for prefix in (keys.TXN_OP, keys.WRITES_BY_SEGMENT):
        await store.commit(Commit(deletes=(Delete(prefix, keys.prefix_end(prefix)),)), timeout_s=60.0)


async def group_commit() -> list[Result]:
    results: list[Result] = []
    async with _running() as (store, connection):
        owner = await store.commit(Commit(puts=(Put(keys.owner(SEGMENT), b"{}"),)))
        records = OpRecords(owner.revision)
        await _through_store(store, records, 64)  # warm-up
        for callers in CALLERS:
            connection.sent = sent = []
            before = store.statistics()
            through, latencies = await _through_store(store, records, callers)
            after = store.statistics()
            connection.sent = None
            await _forget(store)
            members, requests = after.members - before.members, after.requests - before.requests
            raw = await _raw(connection, sent) * members / requests
            detail = (
                f"{members / requests:.0f} a request, raw {raw:,.0f}/s, p50 {percentile(latencies, 0.5) * 1e3:.1f} ms"
            )
            results.append(
                Result(name=f"grouped op records, {callers} callers", value=through, unit="/s", detail=detail)
            )
            if callers == max(CALLERS):
                share = 100 * through / raw
                results.append(at_least("grouped op records of identical raw requests", share, "%", 70, detail))
            await _forget(store)
    return results
