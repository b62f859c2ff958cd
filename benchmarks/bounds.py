"""What the docs allow at most, reached: take-overs, collection and expiry at full size, in a server process over a real
etcd. Of each the time, the memory, the longest time that the process did nothing else, and what is left at the end.

What a server finds is written into etcd before it is started; files are a server's own.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import txnclient
from benchmarks.harness.machine import peak_resident_bytes
from benchmarks.harness.result import Result, at_most
from benchmarks.harness.scale import Scale
from segments.ledger.file_ledger import FileLedgerStore
from segments.log.ledgers.segment_log import SegmentLog
from txnctl.commands.shared.asking import asking
from txnctl.launch.probe import wait_cluster_ready
from txnstore import keys, records
from txnstore.access.paging import in_parts
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand, free_port
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.etcd.lifetime import tied_to_parent
from txnstore.records import ABORTED, COMMITTED, OPEN, Header, Op, OwnerRecord, TxnName, TxnSeq
from txnstore.store import Commit, Delete, Put
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import StoreUnavailable, TxnError
from txnwire.ids import EARLIEST, TxnId

TCIDS: Final = 16
PAUSE_S: Final = 0.1
WORK_S: Final = 0.05
"""CPU time in one pause: half of it, for a machine that is busy with others too."""
LOOK_S: Final = 20.0
TOPIC: Final = "topic://public/bench/bounds"
SUBSCRIPTION: Final = "jobs"
AT_ONCE: Final = 50
"""Puts of one commit."""
COMMITS: Final = 1000
"""Sent before they are waited for."""
WAIT_S: Final = 1200.0
TIMEOUT_MS: Final = 3_600_000


@dataclass
class Server:
    """`txnctl serve` as a child."""

    id: str
    admin: str
    process: asyncio.subprocess.Process
    pause_s: float = 0.0
    """The longest so far."""
    work_s: float = 0.0
    """The most CPU time within one."""

    async def look(self) -> None:
        """▲ At least once a minute: the server forgets its pauses."""
        self.pause_s = max(self.pause_s, await self.metric("txnstore_longest_pause_seconds"))
        self.work_s = max(self.work_s, await self.metric("txnstore_longest_pause_cpu_seconds"))

    async def look_on(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    @property
    def peak_mib(self) -> float:
        return peak_resident_bytes(self.process.pid) / 2**20

    async def metric(self, name: str) -> float:
        """The sum over its labels; NaN is never told. 0 before it answers."""

        def read() -> str:
            with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=30) as answer:
                return str(answer.read().decode())

        try:
            text = await asyncio.to_thread(read)
        except OSError:
            return 0.0
        return sum(float(line.rpartition(" ")[2]) for line in re.findall(rf"^{name}(?:{{.*}})? .*$", text, re.M))


@dataclass
class Ground:
    """An etcd, and a folder for the data of the servers that are started over it."""

    etcd: EmbeddedEtcd
    store: EtcdStore
    folder: Path
    listen: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")

    @asynccontextmanager
    async def server(self, id: str, roles: str, *flags: str) -> AsyncIterator[Server]:
        """Ends by SIGTERM."""
        admin = f"127.0.0.1:{free_port()}"
        listen = self.listen if "coordinator" in roles else "127.0.0.1:0"
        command = [sys.executable, "-P", "-m", "txnctl", "serve", "--roles", roles, "--id", id, "--listen", listen]
        command += ["--etcd", self.etcd.url, "--data-dir", str(self.folder / "data"), "--admin-listen", admin]
        command += ["--allow-development-etcd", "--log-level", "error", *flags]
        process = await asyncio.create_subprocess_exec(*tied_to_parent(command))
        server = Server(id, admin, process)
        looking = asyncio.create_task(server.look_on())
        try:
            yield server
        finally:
            looking.cancel()
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 60)

    @asynccontextmanager
    async def cluster(self, *flags: str) -> AsyncIterator[tuple[Server, Server]]:
        """The control process, and a broker."""
        control = self.server("control", "coordinator,controller,admin", *flags)
        async with control as one, self.server("broker", "broker", *flags) as other:
            await wait_cluster_ready(self.listen, brokers=1, coordinators=TCIDS, timeout_s=WAIT_S)
            yield one, other

    async def put(self, puts: Iterable[Put]) -> None:
        commits: list[asyncio.Future[Any]] = []
        for part in in_parts(list(puts), AT_ONCE):
            commits.append(self.store.commit_nowait(Commit(puts=tuple(part))))
            if len(commits) == COMMITS:
                await asyncio.gather(*commits)
                commits.clear()
        await asyncio.gather(*commits)

    async def count(self, prefix: bytes) -> int:
        return await self.store.count(prefix, keys.prefix_end(prefix))


@asynccontextmanager
async def _ground() -> AsyncIterator[Ground]:
    with TemporaryDirectory(prefix="txnstore-bounds-") as scratch:
        command = EtcdCommand(data_dir=Path(scratch) / "etcd", client_port=free_port(), quota_bytes=8 * 2**30)
        etcd = EmbeddedEtcd(command)
        await etcd.start()
        settings = EtcdSettings(endpoints=(etcd.url,), development=True)
        store = await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())
        try:
            yield Ground(etcd, store, Path(scratch))
        finally:
            await store.close()
            await etcd.stop()


async def _until(what: str, reached: Callable[[], Awaitable[bool]]) -> float:
    """Seconds until it was."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(WAIT_S):
            while not await _is(reached):
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise TimeoutError(f"not reached within {WAIT_S:g} s: {what}") from None
    return time.monotonic() - began


async def _is(reached: Callable[[], Awaitable[bool]]) -> bool:
    """Not where etcd is too busy to say."""
    try:
        return await reached()
    except StoreUnavailable:
        return False


async def _told(name: str, took: float, server: Server, left: int, detail: str = "") -> list[Result]:
    """`took`: seconds. `left`: records that should be gone."""
    await server.look()
    more = f"{detail}; " if detail else ""
    return [
        Result(name=name, value=took, unit="s", detail=f"{more}{server.peak_mib:.0f} MiB at most; {left} records left"),
        at_most(f"{name}: longest pause", server.pause_s * 1000, "ms", PAUSE_S * 1000),
        at_most(f"{name}: CPU within one pause", server.work_s * 1000, "ms", WORK_S * 1000),
    ]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _ids(count: int) -> Iterator[TxnId]:
    """Spread over all coordinator ids."""
    return (TxnId(number % TCIDS, number // TCIDS + 1) for number in range(count))


def _open_headers(count: int, timeout_ms: int) -> Iterator[Put]:
    """As a coordinator has left them that is gone: each in the deadline index, and no id free below."""
    header = records.encode(Header(state=OPEN, timeout_ms=timeout_ms, created_ms=_now_ms(), attempt="00"))
    for txn_id in _ids(count):
        yield Put(keys.txn(txn_id), header)
        yield Put(keys.deadline(timeout_ms, txn_id), b"")
    below = count // TCIDS + 2
    for tcid in range(TCIDS):
        yield Put(keys.txn_seq(tcid), records.encode(TxnSeq(next=below, indexed_below=below)))


# ---- the bounds -----------------------------------------------------------------------------------------------------


async def _take_over(count: int) -> list[Result]:
    async with _ground() as ground:
        await ground.put(_open_headers(count, _now_ms() + TIMEOUT_MS))
        began = time.monotonic()
        async with ground.server("control", "coordinator,controller", "--header-retention-s", "1") as server:

            async def loaded() -> bool:
                # The ids loaded first may be through with the grace before the last one is.
                active = await server.metric("txnstore_transactions_active")
                return active + await server.metric("txnstore_transactions_aborted_total") >= count

            async def gone() -> bool:
                return await ground.count(keys.TXN) == 0

            await _until(f"{count} transactions taken over", loaded)
            took = time.monotonic() - began
            taken = await _told(f"take-over of {count:,} open transactions", took, server, 0)
            ended = await _until(f"{count} transactions aborted and collected", gone)
            left = await ground.count(keys.TXN_BY_DEADLINE)
            name = f"{count:,} aborted once their client is gone, and collected"
            return taken + await _told(name, ended, server, left, "a grace of 10 s included")


async def _pending_acks(count: int) -> list[Result]:
    async with _ground() as ground:
        async with ground.cluster(), txnclient.connect(f"txn://{ground.listen}", timeout=60) as client:
            await client.create_topic(TOPIC, segments=1)
            async with await client.consumer(TOPIC, SUBSCRIPTION, type="queue"):
                pass
            async with await client.producer(TOPIC, batch_bytes=1) as producer:  # an entry for each message
                await producer.send_many(b"x" for _ in range(count))
            (segment,) = await _segments(f"txn://{ground.listen}")
        path, epoch = segment["segment"], int(segment["epoch"])
        await ground.put(_open_headers(count, _now_ms() + TIMEOUT_MS))
        await ground.put(_acks(path, epoch, count))
        async with ground.cluster("--header-retention-s", "1") as (_, broker):

            async def recovered() -> bool:
                return await broker.metric("txnstore_recovery_seconds_max") > 0

            async def gone() -> bool:
                return await ground.count(keys.TXN_OP) + await ground.count(keys.TXN) == 0

            await _until("the segment recovered", recovered)
            took = float((await _segments(f"txn://{ground.listen}"))[0]["recovery_s"])
            taken = await _told(f"take-over of a segment with {count:,} pending acks", took, broker, 0)
            ended = await _until("all acks given back, and cleaned up", gone)
            left = await ground.count(keys.acks_by_segment(path))
            name = f"{count:,} pending acks given back once their client is gone, and cleaned up"
            return taken + await _told(name, ended, broker, left, "a grace of 10 s included")


def _acks(path: str, epoch: int, count: int) -> Iterator[Put]:
    """Of one entry each."""
    for number, txn_id in enumerate(_ids(count)):
        op = Op(
            v=1,
            kind="ack",
            segment=path,
            subscription=SUBSCRIPTION,
            consumer="consumer@1",
            positions=[(1, number, 1, "")],
            messages=1,
        )
        yield Put(keys.op(keys.ack_ops(txn_id, path, SUBSCRIPTION), epoch, number), records.encode(op))
        yield Put(keys.ack_index(path, SUBSCRIPTION, txn_id), b"")


async def _segments(url: str) -> list[dict[str, Any]]:
    """Of the topic, once each has an owner."""
    async with asyncio.timeout(120), asking(url) as cluster:
        while True:
            try:
                found = list((await cluster.ask("topics.stats", topic=TOPIC))["segments"])
            except TxnError:
                found = [{"error": "not asked"}]
            if not any("error" in one for one in found):
                return found
            await asyncio.sleep(0.2)


async def _ledgers(count: int) -> list[Result]:
    async with _ground() as ground:
        async with ground.cluster():
            async with txnclient.connect(f"txn://{ground.listen}", timeout=60) as client:
                await client.create_topic(TOPIC, segments=1)
                async with await client.producer(TOPIC) as producer:
                    await producer.send(b"first")
            (segment,) = await _segments(f"txn://{ground.listen}")
        rolled = await _roll(ground, segment["segment"], count)
        async with ground.cluster() as (_, broker):
            (segment,) = await _segments(f"txn://{ground.listen}")
            taken = await _told(
                f"take-over of a segment with {count:,} ledgers", float(segment["recovery_s"]), broker, 0,
                f"written in {rolled:.0f} s",
            )  # fmt: skip
            async with txnclient.connect(f"txn://{ground.listen}", timeout=WAIT_S) as client:
                began = time.monotonic()
                await client.delete_topic(TOPIC)

                async def gone() -> bool:
                    return await ground.count(keys.LEDGER) + await ground.count(keys.LEDGER_PAGE) == 0

                await _until("the topic deleted", gone)
                took = time.monotonic() - began
            left = sum(1 for path in (ground.folder / "data").rglob("*") if path.is_file() and path.suffix == ".ledger")
            return taken + await _told(f"deletion of a topic with {count:,} ledgers", took, broker, left)


async def _roll(ground: Ground, path: str, count: int) -> float:
    """Ledgers of one entry each, behind those there are; seconds."""
    began, ledgers = time.monotonic(), FileLedgerStore(ground.folder / "data")
    owner = Put(keys.owner(path), records.encode(OwnerRecord(broker="bench", address="bench:1")))
    epoch = (await ground.store.commit(Commit(puts=(owner,)))).revision
    segment = SegmentLog(ground.store, ledgers, path, epoch=epoch, incarnation="bench")
    await segment.take_over()
    _, footer = await segment.last_footer()
    if footer is None:
        raise RuntimeError(f"{path} was not closed in order")
    ((_, entry),) = await segment.read(segment.next_after(EARLIEST), segment.last_confirmed, max_bytes=1)
    for _ in range(count):
        if segment.writer is None:
            raise RuntimeError(f"{path} has no ledger to write to")
        segment.writer.append(entry)
        await segment.writer.sync()
        await segment.roll(segment.footer(segment.writer.ledger_id, 1, footer))
    segment.abandon()
    last = segment.last_confirmed
    settled = records.Watermark(position=(last.ledger_id, last.entry_id))
    await ground.put([Put(keys.watermark(path), records.encode(settled))])
    await ledgers.close()
    await ground.store.commit(Commit(deletes=(Delete(keys.owner(path)),)))
    return time.monotonic() - began


async def _collection(count: int) -> list[Result]:
    """Aborted, of many writers in segments that nobody owns any more."""
    async with _ground() as ground:
        txn_id, segments = TxnId(0, 1), [f"public/bench/gone/{number:04x}-{number:04x}-0" for number in range(64)]
        header = Header(state=OPEN, timeout_ms=_now_ms(), created_ms=_now_ms(), attempt="00", name="job/1")
        ended = Header(state=ABORTED, timeout_ms=0, created_ms=_now_ms(), attempt="00", name="job/1", reason="admin")
        await ground.put([Put(keys.txn(txn_id), records.encode(header))])
        await ground.put([Put(keys.txn(txn_id), records.encode(ended))])
        await ground.put([Put(keys.txn_seq(0), records.encode(TxnSeq(next=2, indexed_below=2)))])
        await ground.put([Put(keys.txn_name("job/1"), records.encode(TxnName(v=1, txn_id=str(txn_id))))])
        await ground.put(Put(keys.write_index(segment, txn_id), b"") for segment in segments)
        await ground.put(_writes(txn_id, segments, count))
        began = time.monotonic()
        async with ground.server("control", "coordinator,controller", "--header-retention-s", "1") as server:

            async def gone() -> bool:
                return await ground.count(keys.TXN) == 0

            await _until("the transaction collected", gone)
            left = await ground.count(keys.TXN_OP) + await ground.count(keys.WRITES_BY_SEGMENT)
            name = f"collection of a transaction with {count:,} ops of segments without owners"
            return await _told(name, time.monotonic() - began, server, left)


def _writes(txn_id: TxnId, segments: list[str], count: int) -> Iterator[Put]:
    for number in range(count):
        segment = segments[number % len(segments)]
        op = Op(v=1, kind="write", segment=segment, writer=f"{number % 1000 + 1:016x}", messages=1, bytes=100)
        yield Put(keys.op(keys.write_ops(txn_id, segment), 5, number), records.encode(op))


async def _names(count: int) -> list[Result]:
    async with _ground() as ground:
        named = TxnName(v=1, txn_id=str(TxnId(0, 1)), outcome=COMMITTED, collected_ms=1, keep_newest=False)
        value = records.encode(named)
        await ground.put(Put(keys.txn_name(f"orders/{number:07d}/charge"), value) for number in range(count))
        async with ground.server("control", "coordinator,controller") as server:

            async def begun() -> bool:
                return await ground.count(keys.TXN_NAME) < count

            async def gone() -> bool:
                return await ground.count(keys.TXN_NAME) == 0

            waited = await _until("the first name forgotten", begun)
            took = await _until("all names forgotten", gone)
            return await _told(f"expiry of {count:,} names", took, server, 0, f"begun after {waited:.0f} s")


async def bounds_take_over(scale: Scale) -> list[Result]:
    return await _take_over(scale.part_of(262_144, 4_096))


async def bounds_pending_acks(scale: Scale) -> list[Result]:
    return await _pending_acks(scale.part_of(100_000, 2_000))


async def bounds_ledgers(scale: Scale) -> list[Result]:
    return await _ledgers(scale.part_of(10_000, 400))


async def bounds_collection(scale: Scale) -> list[Result]:
    return await _collection(scale.part_of(100_000, 5_000))


async def bounds_names(scale: Scale) -> list[Result]:
    return await _names(scale.part_of(1_000_000, 20_000))
