"""What is told of transaction keys whose coordinators are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest

from segments.layout.directory import Directory
from tests.cluster import InProcessCluster
from tests.segments.memory_transport import MemoryTransport
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import until
from txnctl.admin import admin_keys
from txnctl.admin.admin_keys import KeyAnswers
from txnctl.admin.admin_requests import AdminRequests
from txnctl.admin.role_calls import RoleCalls
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import RegistrationRecord, TransactionKey, encode
from txnstore.store import Commit, Put
from txnwire.ports import Connection
from txnwire.transport.calls import serve_connection

HOUR_MS = 3_600_000


@virtual_time
async def test_a_key_is_told_with_the_time_since_its_holder_connected_or_it_was_deleted() -> None:
    """▲ A deletion of just now that seems an hour old would be looked for in the wrong logs."""
    clock = LoopClock()
    async with AsyncExitStack() as closing:
        store = MemoryStore(MemoryEtcd(clock), clock, Random(1))
        closing.push_async_callback(store.close)
        directory = Directory(store, clock)
        await directory.start()
        closing.push_async_callback(directory.close)
        calls = RoleCalls(directory, MemoryTransport(), clock, Random(2), name="admin")
        closing.push_async_callback(calls.close)
        now_ms = clock.wall_ms()
        held = TransactionKey(epoch=3, since_ms=now_ms - HOUR_MS, begins=2)
        deleted = TransactionKey(epoch=4, since_ms=now_ms - 3 * HOUR_MS, deleted_ms=now_ms - 5_000)
        for name, record in (("held", held), ("deleted", deleted)):
            await store.commit(Commit(puts=(Put(keys.txn_key("alice", name), encode(record)),)))
        answers = KeyAnswers(store, clock, directory, calls).answers
        told = (await answers["keys.list"]({"deleted": True}))["keys"]
        facts = {row["key"]: (row["state"], row["epoch"], row["begins"], round(row["held_s"])) for row in told}
        assert facts == {"held": ("unknown", 3, 2, 3600), "deleted": ("deleted", 4, 0, 5)}
        assert [row["key"] for row in (await answers["keys.list"]({}))["keys"]] == ["held"]


@virtual_time
async def test_a_holder_is_found_at_whichever_coordinator_and_none_is_idle_while_one_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of more keys than are asked about at once: two are held at the second coordinator, and three by nobody."""
    monkeypatch.setattr(admin_keys, "KEYS_AT_ONCE", 2)
    clock, transport = LoopClock(), MemoryTransport()
    names = ["a", "b", "c", "d", "e"]
    async with AsyncExitStack() as closing:
        store = MemoryStore(MemoryEtcd(clock), clock, Random(1))
        closing.push_async_callback(store.close)
        for number, held in enumerate(((), ("b", "e"))):
            address = f"h:{number + 1}"
            at = encode(RegistrationRecord(id=f"c{number}", address=address))
            await store.commit(Commit(puts=(Put(keys.tc(number), at),)))
            listener = await transport.listen(address, coordinator(held, address, clock))
            closing.push_async_callback(listener.close)
        for name in names:
            await store.commit(Commit(puts=(Put(keys.txn_key("alice", name), encode(TransactionKey(epoch=3))),)))
        directory = Directory(store, clock)
        await directory.start()
        closing.push_async_callback(directory.close)
        calls = RoleCalls(directory, transport, clock, Random(2), name="admin")
        closing.push_async_callback(calls.close)
        answers = KeyAnswers(store, clock, directory, calls).answers
        rows = (await answers["keys.list"]({}))["keys"]
        assert [row["state"] for row in rows] == ["idle", "in use", "idle", "idle", "in use"]
        gone = encode(RegistrationRecord(id="gone", address="h:3"))
        await store.commit(Commit(puts=(Put(keys.tc(2), gone),)))
        await until(lambda: len(directory.coordinators()) == 3)
        rows = (await answers["keys.list"]({}))["keys"]
        assert [row["state"] for row in rows] == ["unknown", "in use", "unknown", "unknown", "in use"]
        opened: list[Connection] = []
        silent = await transport.listen("h:3", says_nothing(opened))
        again = (await answers["keys.list"]({}))["keys"]
        assert [row["state"] for row in again] == [row["state"] for row in rows]
        assert len(opened) == 1, "a coordinator that does not answer is not waited for at each part of the keys"
        await silent.close()


def says_nothing(opened: list[Connection]) -> Callable[[Connection], Awaitable[None]]:
    async def serve(connection: Connection) -> None:
        opened.append(connection)
        await asyncio.sleep(3600.0)

    return serve


def coordinator(held: Collection[str], address: str, clock: LoopClock) -> Callable[[Connection], Awaitable[None]]:
    """Answers for one that these keys' holders are connected to."""
    requests = AdminRequests()

    async def epochs(args: Mapping[str, Any]) -> dict[str, Any]:
        return {"epochs": [3 if name in held else None for _, name in args["keys"]]}

    requests.add({"coordinator.keys": epochs})

    async def serve(connection: Connection) -> None:
        await serve_connection(connection, [requests], server_id=address, roles=(), incarnation="1", clock=clock)

    return serve


async def test_each_key_is_in_use_whose_holder_is_connected(cluster: InProcessCluster) -> None:
    """▲ Of one that seems idle an operator would delete the key beneath its holder."""
    async with AsyncExitStack() as holders:
        clients = [await holders.enter_async_context(cluster.connect(transaction_key=name)) for name in ("a", "b", "c")]
        for client in clients:
            await client.begin()
        rows = (await clients[0].admin("keys.list"))["keys"]
        assert [(row["key"], row["state"]) for row in rows] == [(name, "in use") for name in ("a", "b", "c")]
