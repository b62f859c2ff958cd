"""An etcd that takes connections and requests and answers nothing: each call is given up within its time (C6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.mute_endpoint import mute_endpoint
from tests.txnstore.silent_etcd import SilentEtcd, silent_etcds
from tests.waiting import until
from txnstore.access.backend import Unanswered
from txnstore.access.store_client import StoreClient
from txnstore.etcd import connection as connection_of_etcd
from txnstore.etcd import rpc_pb2
from txnstore.etcd.connection import EtcdConnection
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.etcd.watch import EtcdWatchStream
from txnstore.store import Commit, MetadataStore, Put
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import OutcomeUnknown, StoreUnavailable

TIMEOUT_S = 0.3
LONG_S = 20.0
"""Far more than any of it may take."""

CALLS: dict[str, Callable[[MetadataStore], Awaitable[object]]] = {
    "get": lambda store: store.get(b"/a", timeout_s=TIMEOUT_S),
    "get_many": lambda store: store.get_many([b"/a", b"/b"], timeout_s=TIMEOUT_S),
    "range": lambda store: store.range(b"/a", b"/b", timeout_s=TIMEOUT_S),
    "commit": lambda store: store.commit(Commit(puts=(Put(b"/a", b"x"),)), timeout_s=TIMEOUT_S),
    "incarnation": lambda store: store.incarnation(timeout_s=TIMEOUT_S),
    "grant_lease": lambda store: store.grant_lease(5.0, timeout_s=TIMEOUT_S),
    "revoke_lease": lambda store: store.revoke_lease(7, timeout_s=TIMEOUT_S),
}


async def test_c6_an_etcd_that_takes_the_connection_and_says_nothing_is_given_up() -> None:
    async with mute_endpoint() as address, asyncio.timeout(LONG_S):
        settings = EtcdSettings(endpoints=(f"http://{address}",), prefix="/mute", connect_timeout_s=TIMEOUT_S)
        with pytest.raises(StoreUnavailable, match=address):
            await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())


async def test_c6_a_watch_whose_member_is_left_while_it_is_being_opened_is_over() -> None:
    """▲ Its connection has gone, and its request waits for the next one, which is mute."""
    async with mute_endpoint() as address, asyncio.timeout(LONG_S):
        connection = EtcdConnection(EtcdSettings(endpoints=(f"http://{address}",)), SystemClock())
        opening = asyncio.ensure_future(EtcdWatchStream.open(connection, rpc_pb2.WatchCreateRequest(key=b"/a"), 0))
        await until(lambda: connection.current.left)
        await asyncio.sleep(0.1)
        connection.current.leave()
        with pytest.raises(Unanswered, match=f"{address} was left for another member"):
            await asyncio.wait_for(opening, 5.0)  # far less than a connection takes to be given up
        await connection.close()


async def test_an_etcd_that_answers_all_but_the_last_question_of_who_connects_is_given_up() -> None:
    etcd = SilentEtcd()
    etcd.commits.clear()
    await etcd.start()
    settings = EtcdSettings(endpoints=(f"http://127.0.0.1:{etcd.port}",), request_timeout_s=TIMEOUT_S)
    try:
        async with asyncio.timeout(LONG_S):
            with pytest.raises(StoreUnavailable, match="etcd does not answer: DEADLINE_EXCEEDED"):
                await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())
        assert etcd.asked["txn"] == 1
    finally:
        etcd.go_on()
        await etcd.close()


@pytest.mark.parametrize("name", CALLS)
async def test_c6_a_call_to_an_etcd_that_has_gone_mute_is_given_up_in_time(name: str) -> None:
    async with silent_etcds(1) as ((etcd,), backend):
        store = StoreClient(backend, SystemClock(), SystemRandom(), quota_bytes=1 << 30)
        etcd.applies.clear()
        etcd.tells.clear()
        etcd.renews.clear()
        async with asyncio.timeout(LONG_S):
            with pytest.raises((StoreUnavailable, OutcomeUnknown)):
                await CALLS[name](store)
            await store.close()


async def test_c6_a_snapshot_that_stands_still_at_a_member_that_answers_pings_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """▲ A backup would hold the lock of its folder for ever, and so would each later one wait for it."""
    monkeypatch.setattr(connection_of_etcd, "PIECE_TIMEOUT_S", TIMEOUT_S)
    async with silent_etcds(1) as ((etcd,), backend), asyncio.timeout(LONG_S):
        etcd.sends.clear()
        snapshot = backend.snapshot()
        assert await anext(snapshot) == b"some"
        with pytest.raises(Unanswered, match="no further part within"):
            await anext(snapshot)
        assert not backend._connection.current.admitted
