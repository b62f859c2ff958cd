"""A real etcd that is killed, stopped, filled and secured: E1, E2, E3, E7 and exactly-once over real connections."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tests.processes import is_alive
from tests.txnstore.contract_steps import IN_TIME_S
from tests.waiting import until, until_accepted
from txnstore.access.leases import KeptLease
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand, find_etcd, free_port
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.maintenance import Maintenance, MaintenanceSettings
from txnstore.store import Commit, EventKind, Lease, Put, Read, absent, unchanged_since
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import InternalError, OutcomeUnknown, StoreFull, StoreUnavailable, Timeout

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

A = b"/k/a"
SMALL_QUOTA = 24 * 1024 * 1024


@asynccontextmanager
async def connected(*etcds: EmbeddedEtcd | str, **settings: object) -> AsyncIterator[EtcdStore]:
    endpoints = tuple(etcd if isinstance(etcd, str) else etcd.url for etcd in etcds)
    chosen = msgspec.convert(
        {"endpoints": endpoints, "development": True, "request_timeout_s": 2.0} | settings, EtcdSettings
    )
    store = await EtcdStore.connect(chosen, clock=SystemClock(), random=SystemRandom())
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def running(directory: Path, **changes: object) -> AsyncIterator[EmbeddedEtcd]:
    command = EtcdCommand(data_dir=directory / "etcd", client_port=free_port())
    etcd = EmbeddedEtcd(msgspec.structs.replace(command, **changes))
    await etcd.start()
    try:
        yield etcd
    finally:
        await etcd.stop()


async def renewed(lease: Lease) -> None:
    """Until a keep-alive that is sent from now on is answered; a lease that is lost meanwhile fails the test."""
    assert isinstance(lease, KeptLease)
    asked_at = SystemClock().monotonic()
    await until(lambda: lease._sent_at >= asked_at or not lease.valid())
    assert lease.valid()


async def count(store: EtcdStore, worker: int, stop: asyncio.Event, done: Counter[int]) -> None:
    """Raise one counter under a compare, again and again; `done` holds what the store has confirmed."""
    key, turn = b"/k/%d" % worker, 0
    revision = 0
    while not stop.is_set():
        me = b"%d" % turn
        commit = Commit((unchanged_since(key, revision),), (Put(key, me),), (), (Read(key),))
        result = await store.commit_nowait(commit)
        if result.succeeded:
            revision = result.revision
        else:
            assert result.repeated, "nobody else writes this key"
            (record,) = result.reads[0]
            assert record.value == me
            revision = record.mod_revision
        turn += 1
        done[worker] = turn


async def kill_and_restart(etcd: EmbeddedEtcd) -> None:
    etcd.kill()
    await asyncio.sleep(0.3)
    await etcd.start()


async def stop_and_continue(etcd: EmbeddedEtcd) -> None:
    await etcd.pause()
    await asyncio.sleep(3.5)  # longer than a request may take
    etcd.resume()


@pytest.mark.parametrize("fault", [kill_and_restart, stop_and_continue])
async def test_e2_commits_are_exactly_once_over_faults_of_etcd(
    etcd_process: EmbeddedEtcd, fault: Callable[[EmbeddedEtcd], object]
) -> None:
    """Every write of a counter that was answered is there, and none is there twice: its version counts its writes."""
    async with connected(etcd_process) as store:
        stop, done = asyncio.Event(), Counter[int]()
        workers = [asyncio.create_task(count(store, worker, stop, done)) for worker in range(40)]
        faults = 0
        while faults < 2 or (store.statistics().repeats == 0 and faults < 20):  # each may hit between two requests
            faults += 1
            before = sum(done.values())
            await until(lambda at=before: sum(done.values()) > at + 200)  # type: ignore[misc]
            await fault(etcd_process)  # type: ignore[misc]
        before = sum(done.values())
        await until(lambda: sum(done.values()) > before + 200)
        stop.set()
        await asyncio.gather(*workers)
        for worker in range(40):
            record = await store.get(b"/k/%d" % worker)
            assert record is not None
            assert record.version == done[worker]
        assert store.statistics().repeats > 0


async def test_e1_a_watch_survives_the_death_of_etcd(etcd_process: EmbeddedEtcd) -> None:
    async with connected(etcd_process) as store:
        watch = store.watch(b"/k/", b"/k0", from_revision=1)
        seen: list[bytes] = []

        async def follow() -> None:
            async for batch in watch:
                assert not batch.resync
                seen.extend(event.record.value for event in batch.events if event.kind is EventKind.PUT)

        following = asyncio.create_task(follow())
        for n in range(30):
            await store.commit(Commit(puts=(Put(A, b"%d" % n),)), timeout_s=30)
            if n in (10, 20):
                await kill_and_restart(etcd_process)
        await until(lambda: len(seen) >= 30)
        assert seen == [b"%d" % n for n in range(30)]
        await watch.close()
        await following


async def test_e1_a_watch_that_was_away_during_compaction_lists_anew(etcd_process: EmbeddedEtcd) -> None:
    async with connected(etcd_process) as store, connected(etcd_process) as other:
        watch = store.watch(b"/k/", b"/k0", from_revision=1)
        await other.commit(Commit(puts=(Put(A, b"1"), Put(b"/k/b", b"1"))))
        assert (await anext(watch)).events[0].record.value == b"1"
        await watch.close()
        revision = 0
        for n in range(20):
            revision = (await other.commit(Commit(puts=(Put(A, b"%d" % n),)))).revision
        await other.compact(revision)
        again = store.watch(b"/k/", b"/k0", from_revision=2)
        async with asyncio.timeout(IN_TIME_S):
            batch = await anext(again)
        assert batch.resync
        assert {event.record.key: event.record.value for event in batch.events} == {A: b"19", b"/k/b": b"1"}
        await again.close()


async def test_etcd_away_for_a_while_fails_retriably_within_the_time_limit(etcd_process: EmbeddedEtcd) -> None:
    async with connected(etcd_process) as store:
        await store.commit(Commit(puts=(Put(A, b"1"),)))
        await etcd_process.pause()
        with pytest.raises(OutcomeUnknown):
            await store.commit(Commit(puts=(Put(A, b"2"),)), timeout_s=0.5)
        with pytest.raises(StoreUnavailable):
            await store.get(A, timeout_s=0.5)
        etcd_process.resume()
        record = None
        async with asyncio.timeout(IN_TIME_S):
            while record is None or record.value != b"2":
                record = await store.get(A)
        etcd_process.kill()
        await asyncio.sleep(0.3)
        with pytest.raises(StoreUnavailable, match="not sent") as refused:
            await store.commit(Commit(puts=(Put(A, b"3"),)), timeout_s=0.5)
        assert refused.value.retriable
        await etcd_process.start()
        record = await store.get(A)
        assert record is not None
        assert record.value == b"2"


async def test_a_lease_outlives_a_restart_of_etcd(etcd_process: EmbeddedEtcd) -> None:
    async with connected(etcd_process) as store:
        lease = await store.grant_lease(8)
        await store.commit(Commit(puts=(Put(A, b"", lease.id),)))
        for _ in range(2):
            await kill_and_restart(etcd_process)
            await renewed(lease)
        assert await store.get(A) is not None
        await etcd_process.pause()
        async with asyncio.timeout(IN_TIME_S):
            await lease.wait_lost()
        assert not lease.valid()
        etcd_process.resume()


async def test_another_endpoint_takes_over(tmp_path: Path, etcd_process: EmbeddedEtcd) -> None:
    """Two ways to one etcd: the first becomes unusable, everything goes on over the second."""
    port = free_port()
    relay = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RELAY, str(port), str(etcd_process.command.client_port)
    )
    first = f"http://127.0.0.1:{port}"
    await until(lambda: _listens(port))
    async with connected(first, etcd_process, connect_timeout_s=20.0) as store:
        watch = store.watch(b"/k/", b"/k0", from_revision=1)
        await store.commit(Commit(puts=(Put(A, b"1"),)))
        assert (await anext(watch)).events[0].record.value == b"1"
        relay.send_signal(signal.SIGSTOP)  # silent, not closed: the hardest case
        await store.commit(Commit(puts=(Put(A, b"2"),)), timeout_s=20)
        async with asyncio.timeout(30):
            assert (await anext(watch)).events[0].record.value == b"2"
        await watch.close()
        relay.kill()
        await relay.wait()
        assert (await store.commit(Commit(puts=(Put(A, b"3"),)))).succeeded


def test_a_port_once_told_is_nobody_elses() -> None:
    """Also while nothing listens there: a server that starts anywhere would be given it now and then."""
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    for _ in range(2):
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
            assert _listens(port)
        assert not _listens(port)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


RELAY = """
import asyncio, sys
async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
async def serve(reader, writer):
    up_reader, up_writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()
asyncio.run(main())
"""


async def test_a3_etcd_with_its_default_limits_serves_groups(tmp_path: Path) -> None:
    """128 operations a transaction, nested budgets included."""
    async with running(tmp_path, max_txn_ops=128) as etcd, connected(etcd) as store:
        commits = [
            Commit((absent(b"/k/%d" % n),), tuple(Put(b"/k/%d/%d" % (n, m), b"") for m in range(n % 28 + 1)))
            for n in range(500)
        ]
        largest = Commit(puts=tuple(Put(b"/large/%d" % n, b"") for n in range(100)))
        results = await asyncio.gather(*[store.commit(commit) for commit in (*commits, largest)])
        assert all(result.succeeded for result in results)
        statistics = store.statistics()
        assert statistics.splits == 0
        assert statistics.requests < 20


async def test_e7_compaction_keeps_etcd_bounded(tmp_path: Path) -> None:
    """Four times the quota is written through a small etcd while maintenance runs; it never fills."""
    settings = MaintenanceSettings(every_s=0.3, keep_s=1.0, pressing_cooldown_s=1.0)
    async with running(tmp_path, quota_bytes=SMALL_QUOTA) as etcd, connected(etcd, quota_bytes=SMALL_QUOTA) as store:
        maintaining = asyncio.create_task(Maintenance(store, SystemClock(), by="test", settings=settings).run())
        value, written, largest = bytes(20_000), 0, 0
        async with asyncio.timeout(90):
            while written < 4 * SMALL_QUOTA:
                commits = [
                    store.commit(Commit((), (Put(b"/k/%d" % n, value),), reserve=False), timeout_s=10)
                    for n in range(10)
                ]
                for outcome in await asyncio.gather(*commits, return_exceptions=True):
                    assert not isinstance(outcome, BaseException) or isinstance(outcome, StoreFull), outcome
                    written += len(value) if not isinstance(outcome, BaseException) else 0
                await asyncio.sleep(0.02)
                largest = max(largest, (await store.status()).db_bytes)
        assert not (await store.status()).no_space
        assert largest <= SMALL_QUOTA
        maintaining.cancel()
        await asyncio.wait([maintaining])


async def test_e3_a_full_etcd_recovers_by_maintenance(tmp_path: Path) -> None:
    """▲ New work is refused before the quota, the reserve is not; at the quota all is, until there is room again."""
    async with running(tmp_path, quota_bytes=SMALL_QUOTA) as etcd, connected(etcd, quota_bytes=SMALL_QUOTA) as store:
        fill = Commit((), (Put(A, bytes(100_000)),))
        new = Commit((), (Put(b"/new", b""),), reserve=False)
        refused_new = 0
        async with asyncio.timeout(60):
            while True:
                try:
                    await store.commit(fill)
                except StoreFull:
                    break
                try:
                    await store.commit(new)
                except StoreFull:
                    refused_new += 1
                await asyncio.sleep(0.03)
        assert refused_new > 0, "the soft limit came first"
        assert (await store.status()).no_space
        settings = MaintenanceSettings(every_s=0.5, keep_s=1.0, pressing_cooldown_s=1.0)
        maintaining = asyncio.create_task(Maintenance(store, SystemClock(), by="test", settings=settings).run())
        result = await until_accepted(lambda: store.commit(new), StoreFull, "room", longest_poll_s=0.1)
        assert result.succeeded
        assert not (await store.status()).no_space
        maintaining.cancel()
        await asyncio.wait([maintaining])


async def test_no_etcd_at_all_is_told_in_time() -> None:
    settings = EtcdSettings(endpoints=(f"http://127.0.0.1:{free_port()}",), connect_timeout_s=0.5)
    with pytest.raises(StoreUnavailable, match=r"no etcd serves at 127\.0\.0\.1:\d+ within 0\.5 s"):
        await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())


# --- the launcher ---


async def test_an_etcd_that_cannot_start_says_why(tmp_path: Path) -> None:
    command = EtcdCommand(data_dir=tmp_path / "second", client_port=free_port(), extra=("--no-such-flag",))
    command.data_dir.with_suffix(".log").write_text("of an earlier run\n" * 9)
    with pytest.raises(InternalError, match="no-such-flag") as refused:
        await EmbeddedEtcd(command).start()
    assert "of an earlier run" not in str(refused.value)
    (tmp_path / "third").write_text("not a directory")
    with pytest.raises(InternalError, match="not a directory"):
        await EmbeddedEtcd(msgspec.structs.replace(command, data_dir=tmp_path / "third", extra=())).start()


async def test_an_etcd_that_is_paused_is_stopped_as_soon_as_any_other(tmp_path: Path) -> None:
    async with running(tmp_path) as etcd:
        await etcd.pause()
        try:
            async with asyncio.timeout(30):
                await etcd.stop(timeout_s=3600.0)
        finally:
            etcd.kill()
        assert not etcd.running


async def test_an_etcd_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    silent = EmbeddedEtcd(EtcdCommand(data_dir=tmp_path / "etcd", client_port=free_port(), binary=_sleeper(tmp_path)))
    with pytest.raises(Timeout, match="did not become healthy"):
        await silent.start(timeout_s=0.5)


def _sleeper(directory: Path) -> Path:
    script = directory / "sleeper"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    return script


async def test_an_etcd_of_ours_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """Whatever kills the parent."""
    find_etcd()
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path), str(free_port()), stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    async with asyncio.timeout(20):
        pid = int(await parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    await parent.wait()
    await until(lambda: not is_alive(pid))


PARENT = """
import asyncio, sys, pathlib
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand
async def main():
    etcd = EmbeddedEtcd(EtcdCommand(data_dir=pathlib.Path(sys.argv[1]) / "etcd", client_port=int(sys.argv[2])))
    await etcd.start()
    print(etcd.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_data_survives_stop_and_kill(etcd_process: EmbeddedEtcd) -> None:
    async with connected(etcd_process) as store:
        await store.commit(Commit(puts=(Put(A, b"1"),)))
    await etcd_process.stop()
    await etcd_process.start()
    async with connected(etcd_process) as store:
        assert (await store.commit(Commit((absent(A),), (), (), (Read(A),)))).reads[0][0].value == b"1"
        await store.commit(Commit(puts=(Put(A, b"2"),)))
    etcd_process.kill()
    await etcd_process.start()
    async with connected(etcd_process) as store:
        record = await store.get(A)
        assert record is not None
        assert record.value == b"2"
    assert os.path.exists(etcd_process.log_path)
