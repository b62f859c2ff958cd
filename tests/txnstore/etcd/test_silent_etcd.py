"""A member that answers some things and not others: what still goes on over it, and what is moved to another one."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from tests.txnstore.silent_etcd import TTL_S, SilentEtcd, silent_etcds
from tests.waiting import until
from txnstore.access.backend import Unanswered
from txnstore.access.leases import KeptLease
from txnstore.access.lineage import StoreUnfit
from txnstore.access.store_client import StoreClient
from txnstore.etcd import backend as etcd_backend
from txnstore.etcd.backend import EtcdBackend
from txnstore.etcd.connection import EtcdConnection
from txnstore.etcd.settings import EtcdSettings
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import StoreUnavailable


async def test_a_lease_is_kept_at_a_member_that_answers_no_reads() -> None:
    """It may be defragmented for longer than a lease lasts, and renews all the while."""
    async with silent_etcds(1) as ((etcd,), backend):
        etcd.applies.clear()
        with pytest.raises(Unanswered):
            await backend.read_many((b"/k",), 0)
        clock = SystemClock()
        lease = KeptLease(backend, clock, 1, TTL_S, clock.monotonic(), on_end=lambda _: None)
        waiting = asyncio.create_task(backend.wait_ready())
        await until(lambda: not (lease.valid() and etcd.asked["renewal"] < 5))
        assert lease.valid()
        assert not waiting.done(), "for anything else it is not fit"
        etcd.applies.set()
        await waiting
        await lease.abandon()


async def test_a_renewal_that_is_not_answered_in_time_tells_nothing_about_its_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is sent again: a lease that its holder gave up for that would be lost while etcd has it."""
    monkeypatch.setattr(etcd_backend, "KEEP_ALIVE_TIMEOUT_S", 0.1)
    async with silent_etcds(1) as ((etcd,), backend):
        etcd.renews.clear()
        with pytest.raises(Unanswered):
            await backend.keep_alive(1)


async def test_a_lease_is_given_up_once_the_store_is_another_one() -> None:
    async with silent_etcds(1) as (_, backend):
        clock = SystemClock()
        lease = KeptLease(backend, clock, 1, TTL_S, clock.monotonic(), on_end=lambda _: None)
        backend.condemn(StoreUnfit("restored from a backup"))
        await lease.wait_lost()
        await lease.abandon()


async def test_revoking_a_lease_of_a_store_that_is_another_one_raises_nothing() -> None:
    """▲ A candidate that is cancelled revokes its lease: with an error in place of its end it would go on for ever, and
    so would the closing of its server."""
    async with silent_etcds(1) as (_, backend):
        clock = SystemClock()
        lease = KeptLease(backend, clock, 1, TTL_S, clock.monotonic(), on_end=lambda _: None)
        backend.condemn(StoreUnfit("restored from a backup"))
        await lease.revoke()
        assert not lease.valid()


async def test_a_lease_is_renewed_at_another_member_where_the_first_is_silent() -> None:
    async with silent_etcds(2) as (etcds, backend):
        used = next(etcd for etcd in etcds if etcd.asked["txn"])
        other = next(etcd for etcd in etcds if etcd is not used)
        await _move(backend, used)
        other.renews.clear()
        assert await backend.keep_alive(1) == TTL_S
        assert (other.asked["renewal"], used.asked["renewal"]) == (1, 1)


async def test_all_who_wait_ask_for_admission_together() -> None:
    async with silent_etcds(1) as ((etcd,), backend):
        etcd.applies.clear()
        with pytest.raises(Unanswered):
            await backend.read_many((b"/k",), 0)
        before = etcd.asked.copy()
        waiting = [asyncio.create_task(backend.wait_ready()) for _ in range(500)]
        await until(lambda: etcd.asked["range"] != before["range"])
        assert etcd.asked["status"] - before["status"] == 1
        waiting[0].cancel()  # the one that asks: another one goes on
        etcd.applies.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [result for result in results[1:] if result is not None] == []
        assert etcd.asked["status"] - before["status"] <= 4


async def test_a_watch_leaves_a_member_that_no_longer_applies() -> None:
    async with silent_etcds(2) as (etcds, backend):
        used = next(etcd for etcd in etcds if etcd.asked["txn"])
        other = next(etcd for etcd in etcds if etcd is not used)
        stream = await backend.open_watch(b"/a", b"/b", 1)
        receiving = asyncio.create_task(stream.receive())
        await until(lambda: used.watching)
        used.applies.clear()
        with pytest.raises(Unanswered):
            await backend.status()  # it would tell it, and is asked to read first
        await backend.wait_ready()
        with pytest.raises(Unanswered, match="left for another"):
            await receiving
        await stream.close()
        again = await backend.open_watch(b"/a", b"/b", 1)
        receiving = asyncio.create_task(again.receive())
        await until(lambda: other.watching)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        await again.close()


async def test_watches_that_were_closed_are_forgotten_and_one_that_stays_still_leaves() -> None:
    """Every watch is opened anew now and then, for as long as its process runs."""
    async with silent_etcds(2) as (etcds, backend):
        used = next(etcd for etcd in etcds if etcd.asked["txn"])
        stays = await backend.open_watch(b"/a", b"/b", 1)
        for _ in range(3):
            await (await backend.open_watch(b"/a", b"/b", 1)).close()
        (endpoint,) = [one for one in backend._connection._endpoints if one.left]
        assert len(endpoint.left) == 1
        await _move(backend, used)
        with pytest.raises(Unanswered, match="left for another"):
            await stays.receive()
        await stays.close()
        assert not endpoint.left


async def test_e1_watches_that_could_not_be_opened_are_forgotten() -> None:
    """They are tried again and again for as long as etcd is away."""
    async with silent_etcds(1) as ((etcd,), backend):
        (endpoint,) = backend._connection._endpoints
        await etcd.close()
        await until(lambda: not endpoint.ready())
        for _ in range(3):
            with pytest.raises(Unanswered):
                await backend.open_watch(b"/a", b"/b", 1)
        assert not endpoint.left


async def test_e4_a_member_without_a_leader_is_not_used_before_it_has_one() -> None:
    """▲ It takes requests, and can answer none: each would wait out its time there."""
    async with silent_etcds(1) as ((etcd,), backend):
        etcd.leader = 0
        etcd.applies.clear()
        with pytest.raises(Unanswered):
            await backend.read_many((b"/k",), 0)
        etcd.applies.set()
        waiting = asyncio.create_task(backend.wait_ready())
        looked = etcd.asked["status"]
        await until(lambda: not (etcd.asked["status"] < looked + 3 and not waiting.done()))
        assert not waiting.done()
        etcd.leader = 1
        await waiting


async def test_a_member_that_does_not_tell_its_status_is_asked_again() -> None:
    """▲ An error in place of that would end whatever waits for etcd: all senders of commits."""
    async with silent_etcds(1) as ((etcd,), backend):
        etcd.applies.clear()
        etcd.tells.clear()
        with pytest.raises(Unanswered):
            await backend.read_many((b"/k",), 0)
        waiting = asyncio.create_task(backend.wait_ready())
        looked = etcd.asked["status"]
        await until(lambda: not (etcd.asked["status"] < looked + 2 and not waiting.done()))
        assert not waiting.done()
        etcd.applies.set()
        etcd.tells.set()
        await waiting


async def test_e4_whoever_finds_no_member_with_a_leader_is_told_so() -> None:
    async with silent_etcds(1) as ((etcd,), _):
        etcd.leader = 0
        url = f"http://127.0.0.1:{etcd.port}"
        settings = EtcdSettings(endpoints=(url,), connect_timeout_s=1.0, request_timeout_s=0.2)
        connection = EtcdConnection(settings, SystemClock())
        with pytest.raises(StoreUnavailable, match=f"within 1.0 s: 127.0.0.1:{etcd.port}: it has no leader"):
            await connection.open()
        await connection.close()


async def test_an_etcd_without_room_says_so_whatever_else_it_complains_of() -> None:
    async with silent_etcds(1) as ((etcd,), backend):
        etcd.errors = ["memberID:1 alarm:CORRUPT ", "memberID:1 alarm:NOSPACE "]
        assert (await backend.status()).no_space


async def test_a_snapshot_that_breaks_off_is_told_from_one_that_has_come_to_its_end() -> None:
    async with silent_etcds(1) as (_, backend):
        snapshot = backend.snapshot()
        assert await anext(snapshot) == b"some"
        with pytest.raises(Unanswered, match="server stopped"):
            await anext(snapshot)


async def test_e4_a_watch_ends_at_a_member_that_has_lost_its_leader() -> None:
    """Which etcd does for those alone that ask for it: cut off from its cluster it would tell nothing, for ever."""
    async with silent_etcds(1) as ((etcd,), backend):
        stream = await backend.open_watch(b"/a", b"/b", 1)
        await until(lambda: etcd.watching)
        assert etcd.with_leader == 1
        await stream.close()


async def test_e4_a_lease_is_not_renewed_by_another_cluster_that_has_come_to_an_address() -> None:
    async with silent_etcds(1) as ((etcd,), backend):
        assert await backend.keep_alive(1) == TTL_S
        etcd.cluster += 1
        with pytest.raises(Unanswered, match="another cluster"):
            await backend.keep_alive(1)


async def test_e4_an_endpoint_of_another_cluster_is_not_gone_on_with() -> None:
    """▲ What was written to the one would not be there."""
    async with silent_etcds(2) as (etcds, backend):
        used = next(etcd for etcd in etcds if etcd.asked["txn"])
        other = next(etcd for etcd in etcds if etcd is not used)
        other.cluster += 1
        used.applies.clear()
        with pytest.raises(Unanswered):
            await backend.status()
        looked = other.asked["status"]
        with capture_logs() as logs:
            waiting = asyncio.create_task(backend.wait_ready())
            await until(lambda: not (other.asked["status"] < looked + 4 and not waiting.done()))
        assert (waiting.done(), other.asked["range"]) == (False, 0)
        refused = [log["endpoint"] for log in logs if log["event"] == "etcd endpoint must not be used"]
        assert refused == [f"127.0.0.1:{other.port}"], "once, however often it is looked at"
        used.applies.set()
        await waiting


async def test_an_endpoint_that_was_put_right_does_not_count_as_refused_once_another_one_is() -> None:
    """Otherwise a process ends although it is connected to a member that it may use."""
    async with silent_etcds(2) as (etcds, backend), asyncio.timeout(20):
        used = next(etcd for etcd in etcds if etcd.asked["txn"])
        other = next(etcd for etcd in etcds if etcd is not used)

        def refused() -> list[str]:
            return [one.address for one in backend._connection.endpoints if one.inadmissible is not None]

        async def leave(etcd: SilentEtcd) -> None:
            etcd.applies.clear()
            with pytest.raises(Unanswered):
                await backend.status()

        other.cluster += 1
        used.tells.clear()
        await leave(used)
        waiting = asyncio.create_task(backend.wait_ready())
        await until(lambda: refused() == [f"127.0.0.1:{other.port}"])
        other.cluster -= 1
        await waiting
        used.cluster += 1
        used.go_on()
        await leave(other)
        other.go_on()
        await backend.wait_ready()
        assert refused() == [f"127.0.0.1:{used.port}"]


async def test_e4_whoever_has_another_cluster_at_all_its_addresses_is_told_that_it_is_over() -> None:
    """▲ Only a restart connects to it: whoever waited on would do so for ever, and its supervisor would not know."""
    async with silent_etcds(2) as (etcds, backend), asyncio.timeout(20):
        for etcd in etcds:
            etcd.cluster += 1
            etcd.applies.clear()
        with pytest.raises(Unanswered):
            await backend.status()
        with (
            capture_logs() as logs,
            pytest.raises(StoreUnfit, match="belongs to cluster 6, this store was connected to 5"),
        ):
            await backend.wait_ready()
        assert isinstance(await backend.wait_unfit(), StoreUnfit)
        refused = [log["endpoint"] for log in logs if log["event"] == "etcd endpoint must not be used"]
        assert sorted(refused) == sorted(f"127.0.0.1:{etcd.port}" for etcd in etcds)


async def test_a_read_that_no_endpoint_took_says_why_of_each_of_them() -> None:
    async with silent_etcds(2) as (etcds, backend):
        store = StoreClient(backend, SystemClock(), SystemRandom(), quota_bytes=1 << 30)
        for etcd in etcds:
            etcd.leader = 0
            etcd.applies.clear()
        with pytest.raises(Unanswered):
            await backend.read_many((b"/k",), 0)
        looked = [etcd.asked["status"] for etcd in etcds]
        with pytest.raises(StoreUnavailable) as told:
            await store.get(b"/k", timeout_s=2.0)
        assert all(etcd.asked["status"] > before for etcd, before in zip(etcds, looked, strict=True))
        assert [f"127.0.0.1:{etcd.port}: it has no leader" in str(told.value) for etcd in etcds] == [True, True]


async def _move(backend: EtcdBackend, away_from: SilentEtcd) -> None:
    """Have the other member used, and known."""
    away_from.applies.clear()
    with pytest.raises(Unanswered):
        await backend.status()
    await backend.wait_ready()
    away_from.applies.set()
