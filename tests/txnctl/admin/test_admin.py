"""The admin role over many segments: how many are asked at once, and what owners that do not answer cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
import pytest

from segments.layout.directory import Directory
from segments.layout.topology import create_record
from tests.segments.memory_transport import MemoryTransport
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import until
from txnctl.admin import admin
from txnctl.admin.admin import ROWS_AT_ONCE, Administration, a_few_at_a_time
from txnctl.admin.admin_cluster import BROKER_FACTS, COUNTED, ClusterAnswers
from txnctl.admin.admin_requests import AdminRequests
from txnctl.admin.role_calls import CALL_TIMEOUT_S, RoleCalls
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import (
    COMMITTED,
    OPEN,
    AssignmentRecord,
    BrokerRegistration,
    Header,
    LayoutChange,
    LoadSample,
    Op,
    OwnerRecord,
    RegistrationRecord,
    SubscriptionRecord,
    TxnName,
    encode,
)
from txnstore.store import Commit, KeyValue, Put
from txnwire.errors import ConnectionLost, NotOwner
from txnwire.ids import TxnId
from txnwire.names import TopicName
from txnwire.ports import Connection
from txnwire.transport.calls import serve_connection

TOPIC = TopicName.parse("topic://public/default/orders")
ASKED_AT_ONCE = 50
SEGMENTS = 120


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "ASKED_AT_ONCE", ASKED_AT_ONCE)


@dataclass
class Owners:
    """Owners of all segments, one at `h:1` and one at `h:2`, which may be silent. `more`: what else they tell of
    some."""

    store: MemoryStore
    directory: Directory
    answers: Mapping[str, Any] = field(default_factory=dict)
    silent: dict[str, None] = field(default_factory=dict)
    more: dict[str, dict[str, Any]] = field(default_factory=dict)
    hanging: dict[str, None] = field(default_factory=dict)
    """Segments of which nothing is told, though their owner answers."""
    refused: dict[str, None] = field(default_factory=dict)
    asking: int = 0
    most: int = 0
    asked: int = 0

    async def stats(self, address: str, segment: str) -> dict[str, Any]:
        self.asking += 1
        self.asked += 1
        self.most = max(self.most, self.asking)
        if segment in self.refused:
            self.asking -= 1
            raise NotOwner(f"not the owner of {segment} any more")
        await asyncio.sleep(3600.0 if address in self.silent or segment in self.hanging else 0.01)
        self.asking -= 1
        consumers = [f"worker-{int(segment.rpartition('-')[2]) % 3}"]
        told: dict[str, Any] = {"last_confirmed": [1, 2], "max_read_position": [1, 2]}
        told["subscriptions"] = [{"name": "packing", "consumers": consumers, "backlog": 0}]
        return {"segments": {segment: told | self.more.get(segment, {})}}


@asynccontextmanager
async def owners() -> AsyncIterator[Owners]:
    clock, transport = LoopClock(), MemoryTransport()
    async with AsyncExitStack() as closing:
        store = MemoryStore(MemoryEtcd(clock), clock, Random(1))
        closing.push_async_callback(store.close)
        record = create_record(SEGMENTS, policies={}, created_ms=1)
        await store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), encode(record)),)))
        directory = Directory(store, clock)
        await directory.start()
        closing.push_async_callback(directory.close)
        lease = await store.grant_lease(1e6)
        closing.push_async_callback(lease.revoke)
        topology = directory.topic(TOPIC.path)
        assert topology is not None
        for number, path in enumerate(topology.paths.values()):
            at = encode(OwnerRecord(broker=f"b{number % 2}", address=f"h:{number % 2 + 1}"))
            await store.commit(Commit(puts=(Put(keys.owner(path), at, lease.id),)))
        await until(lambda: len(directory.owners()) >= SEGMENTS)
        calls = RoleCalls(directory, transport, clock, Random(2), name="admin")
        closing.push_async_callback(calls.close)
        here = Owners(store, directory, Administration(store, directory, calls, clock).answers)
        for address in ("h:1", "h:2"):
            listener = await transport.listen(address, serving(here, address, clock))
            closing.push_async_callback(listener.close)
        yield here


def serving(here: Owners, address: str, clock: LoopClock) -> Any:
    requests = AdminRequests()

    async def stats(args: Mapping[str, Any]) -> dict[str, Any]:
        return await here.stats(address, args["segment"])

    async def lag(args: Mapping[str, Any]) -> dict[str, Any]:
        number = int(args["segment"].rpartition("-")[2])
        return {
            "lags": {"billing": {"messages": number, "oldest_ms": 1}, "packing": {"messages": 0, "oldest_ms": None}}
        }

    async def position(args: Mapping[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(3600.0 if address in here.silent else 0.01)
        return {"position": [1, 2, 3]}

    requests.add({"segment.stats": stats, "subscription.lag": lag, "subscription.position": position})

    async def serve(connection: Connection) -> None:
        await serve_connection(connection, [requests], server_id=address, roles=(), incarnation="1", clock=clock)

    return serve


@virtual_time
async def test_a_few_rows_are_made_in_one_turn_of_the_loop() -> None:
    made: list[int] = []
    seen: list[int] = []

    async def watch() -> None:
        while len(made) < 2 * ROWS_AT_ONCE + 1:
            seen.append(len(made))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    made += [0]
    async for number in a_few_at_a_time(range(2 * ROWS_AT_ONCE)):
        made.append(number)
    await watching
    assert made == [0, *range(2 * ROWS_AT_ONCE)]
    assert seen == [ROWS_AT_ONCE + 1]


@virtual_time
async def test_so_many_segments_are_asked_at_once_and_all_are_told_of() -> None:
    async with owners() as here:
        subscription = encode(SubscriptionRecord(type="queue", start={"kind": "earliest"}, created_ms=1))
        billing = encode(SubscriptionRecord(type="stream", start={"kind": "earliest"}, created_ms=1))
        held = AssignmentRecord(epoch=3, consumers={"b@2": [], "a@1": []})
        puts = (
            Put(keys.subscription(TOPIC.path, "packing"), subscription),
            Put(keys.subscription(TOPIC.path, "billing"), billing),
            Put(keys.assignment(TOPIC.path, "billing"), encode(held)),
            *(Put(keys.subscription(TOPIC.path, name), b"not ours") for name in ("unreadable", "wrong")),
        )
        await here.store.commit(Commit(puts=puts))
        *rows, unreadable, wrong = (await here.answers["subscriptions.list"]({"topic": str(TOPIC)}))["subscriptions"]
        assert [(row["subscription"], "error" in row) for row in (unreadable, wrong)] == [
            ("unreadable", True),
            ("wrong", True),
        ]
        assert [(row["subscription"], row["consumers"]) for row in rows] == [
            ("billing", ["a@1", "b@2"]),
            ("packing", ["worker-0", "worker-1", "worker-2"]),
        ]
        assert (here.asked, here.most) == (SEGMENTS, ASKED_AT_ONCE)
        billing_lag, packing_lag = (row["lag_messages"] for row in rows)
        assert (billing_lag, packing_lag) == (sum(range(SEGMENTS)), 0)
        assert [row["lag_seconds"] > 0 for row in rows] == [True, False]


@virtual_time
async def test_a_subscription_is_described_in_all_segments_beside_any_other_one() -> None:
    facts: dict[str, Any] = dict.fromkeys(("consumer", "delivered", "permits", "held_back"))
    facts |= {"mark_delete": [1, 2], "pending": {"positions": 0, "cumulative": 0}, "open_transactions": []}
    async with owners() as here:
        subscription = encode(SubscriptionRecord(type="stream", start={"kind": "earliest"}, created_ms=1))
        await here.store.commit(Commit(puts=(Put(keys.subscription(TOPIC.path, "packing"), subscription),)))
        topology = here.directory.topic(TOPIC.path)
        assert topology is not None
        backlogs = {path: number for number, path in enumerate(topology.paths.values())}
        for path, backlog in backlogs.items():
            each = [{"name": name, "backlog": backlog, "consumers": []} | facts for name in ("billing", "packing")]
            here.more[path] = {"subscriptions": each}
        told = await here.answers["subscriptions.describe"]({"topic": str(TOPIC), "subscription": "packing"})
        assert {row["segment"]: row["backlog"] for row in told["segments"]} == backlogs


@virtual_time
async def test_positions_are_told_of_all_segments_or_not_at_all() -> None:
    """▲ A segment that is left out would be read from the earliest on."""
    async with owners() as here:
        subscription = encode(SubscriptionRecord(type="stream", start={"kind": "earliest"}, created_ms=1))
        await here.store.commit(Commit(puts=(Put(keys.subscription(TOPIC.path, "billing"), subscription),)))
        asked = {"topic": str(TOPIC), "subscription": "billing"}
        told = await here.answers["subscriptions.positions"](asked)
        assert list(told["segments"].values()) == [[1, 2, 3]] * SEGMENTS
        here.silent["h:2"] = None
        with pytest.raises(NotOwner, match=f"{SEGMENTS // 2} segments do not report where billing stands"):
            await here.answers["subscriptions.positions"](asked)


@virtual_time
async def test_a_topic_is_described_with_each_of_its_changes_loads_backlogs_and_transactions_in_the_way() -> None:
    async with owners() as here:
        topology = here.directory.topic(TOPIC.path)
        assert topology is not None
        paths, ids = list(topology.paths.values()), [TxnId(1, number) for number in range(1, 4)]
        changes = [LayoutChange(id="a", kind="merge", parents=[0, 1]), LayoutChange(id="b", kind="split", parents=[2])]
        puts = {keys.topic(TOPIC.path): encode(msgspec.structs.replace(topology.record, changes=changes))}
        puts |= {keys.load(paths[0]): b"not ours", keys.txn(ids[0]): b"not ours"}
        for n in (1, 2):
            sample = LoadSample(messages_in_per_s=n, bytes_in_per_s=10 * n, window_s=60, taken_ms=1)
            header = Header(state=OPEN, timeout_ms=10, created_ms=1, owner=f"owner-{n}")
            puts |= {keys.load(paths[n]): encode(sample), keys.txn(ids[n]): encode(header)}
        await here.store.commit(Commit(puts=tuple(Put(key, record) for key, record in puts.items())))
        await until(lambda: here.directory.topic(TOPIC.path) is not topology)
        here.more = {path: {"recent": {"messages_per_s": n}} for n, path in enumerate(paths[3:5], 3)}
        here.more[paths[5]] = {
            "subscriptions": [{"name": name, "backlog": n, "consumers": []} for n, name in enumerate("abc")],
            "pinning": [[tuple(one), [1, n]] for n, one in enumerate(ids)],
            "entries_behind": [6, 5, 4],
        }
        told = await here.answers["topics.describe"]({"topic": str(TOPIC)})
        assert [one["segments"] for one in told["changes"]] == [paths[:2], paths[2:3]]
        assert [one["segment"] for one in told["segments"]] == paths
        loads = [one["load"] and one["load"]["messages_per_s"] for one in told["segments"][:6]]
        assert loads == [None, 1, 2, 3, 4, None]
        assert told["segments"][5]["backlog"] == {"a": 0, "b": 1, "c": 2}
        pins = [(one["txn"], one["position"], one["owner"]) for one in told["segments"][5]["pinned_by"]]
        at = [(str(one), f"1:{n}") for n, one in enumerate(ids)]
        assert pins == [(*at[0], None), (*at[1], "owner-1"), (*at[2], "owner-2")]


class CollectedAmidReads(MemoryStore):
    """The transaction is collected as soon as its name has been read."""

    async def get(self, key: bytes) -> KeyValue | None:
        found = await super().get(key)
        collected = TxnName(v=1, txn_id="0000-0000000000000001", outcome="COMMITTED", writers=["7"], note="rows=1")
        await self.commit(Commit(puts=(Put(key, encode(collected)),)))
        return found


@virtual_time
async def test_x1_what_is_collected_while_it_is_described_is_told_with_its_note() -> None:
    """▲ Spark's sink would take it for a commit without a note, and leave other rows out unseen."""
    clock = LoopClock()
    async with AsyncExitStack() as closing:
        store = CollectedAmidReads(MemoryEtcd(clock), clock, Random(1))
        closing.push_async_callback(store.close)
        named = TxnName(v=1, txn_id="0000-0000000000000001")
        await store.commit(Commit(puts=(Put(keys.txn_name("a"), encode(named)),)))
        directory = Directory(store, clock)
        calls = RoleCalls(directory, MemoryTransport(), clock, Random(2), name="admin")
        describe = Administration(store, directory, calls, clock).answers["transactions.describe"]
        found = await describe({"name": "a"})
        assert (found["outcome"], found["note"]) == ("COMMITTED", "rows=1")
        await calls.close()


@virtual_time
async def test_an_owner_that_answers_nothing_is_waited_for_once() -> None:
    async with owners() as here:
        here.silent["h:2"] = None
        began = asyncio.get_running_loop().time()
        rows = (await here.answers["topics.stats"]({"topic": str(TOPIC)}))["segments"]
        assert asyncio.get_running_loop().time() - began < CALL_TIMEOUT_S + 1.0
        assert len(rows) == SEGMENTS
        failed = [row for row in rows if "error" in row]
        assert len(failed) == SEGMENTS // 2
        assert all(row["owner"] == "b1" and row["error"].startswith("Timeout") for row in failed)


@virtual_time
async def test_an_owner_that_does_not_tell_of_one_segment_is_asked_for_the_others() -> None:
    """Also for those that are asked for later."""
    async with owners() as here:
        topology = here.directory.topic(TOPIC.path)
        assert topology is not None
        hangs = list(topology.paths.values())[1]
        here.hanging[hangs] = None
        rows = (await here.answers["topics.stats"]({"topic": str(TOPIC)}))["segments"]
        assert len(rows) == SEGMENTS > 2 * ASKED_AT_ONCE
        assert [row["segment"] for row in rows if "error" in row] == [hangs]


@virtual_time
async def test_owners_that_refuse_all_that_they_are_asked_first_are_asked_for_the_rest() -> None:
    async with owners() as here:
        topology = here.directory.topic(TOPIC.path)
        assert topology is not None
        here.refused |= dict.fromkeys(list(topology.paths.values())[:ASKED_AT_ONCE])
        rows = (await here.answers["topics.stats"]({"topic": str(TOPIC)}))["segments"]
        assert len(rows) == here.asked == SEGMENTS
        assert [row["segment"] for row in rows if "error" in row] == list(here.refused)


@virtual_time
async def test_a_load_that_cannot_be_read_hides_none_of_the_others() -> None:
    async with owners() as here:
        topology = here.directory.topic(TOPIC.path)
        assert topology is not None
        paths = list(topology.paths.values())
        sample = encode(LoadSample(messages_in_per_s=5.0, bytes_in_per_s=100.0, window_s=60.0, taken_ms=1))
        for path in paths:
            await here.store.commit(Commit(puts=(Put(keys.load(path), b"{" if path == paths[1] else sample),)))
        rows = (await here.answers["topics.describe"]({"topic": str(TOPIC)}))["segments"]
        assert len(rows) == SEGMENTS
        assert [row["segment"] for row in rows if row["load"] is None] == [paths[1]]


# ---- roles that are asked -------------------------------------------------------------------------------------------


@asynccontextmanager
async def asked_roles() -> AsyncIterator[tuple[MemoryStore, Directory, MemoryTransport, RoleCalls]]:
    """A process at `h:1` answers as coordinator and broker; at `h:2` nobody listens."""
    clock, transport, requests = LoopClock(), MemoryTransport(), AdminRequests()

    async def counted(_: Mapping[str, Any]) -> dict[str, Any]:
        return dict.fromkeys(COUNTED, 3) | {"oldest_open_s": 0.5}

    async def described(_: Mapping[str, Any]) -> dict[str, Any]:
        return dict.fromkeys(BROKER_FACTS)

    requests.add({"coordinator.stats": counted, "process.describe": described})

    async def serve(connection: Connection) -> None:
        await serve_connection(connection, [requests], server_id="h:1", roles=(), incarnation="1", clock=clock)

    async with AsyncExitStack() as closing:
        store = MemoryStore(MemoryEtcd(clock), clock, Random(1))
        closing.push_async_callback(store.close)
        for number, name in enumerate(("one", "two")):
            at = RegistrationRecord(id=name, address=f"h:{number + 1}")
            there = BrokerRegistration(id=name, address=at.address)
            puts = (Put(keys.tc(number), encode(at)), Put(keys.broker(name), encode(there)))
            await store.commit(Commit(puts=puts))
        directory = Directory(store, clock)
        await directory.start()
        closing.push_async_callback(directory.close)
        calls = RoleCalls(directory, transport, clock, Random(2), name="admin")
        closing.push_async_callback(calls.close)
        closing.push_async_callback((await transport.listen("h:1", serve)).close)
        yield store, directory, transport, calls


@virtual_time
async def test_a_process_that_does_not_answer_is_named_in_its_row_and_the_others_are_counted() -> None:
    async with asked_roles() as (store, directory, _, calls):
        answers = ClusterAnswers(store, directory, calls).answers
        stats, brokers = await answers["transactions.stats"]({}), await answers["brokers.list"]({})
        for rows, name in ((stats["coordinators"], "coordinator"), (brokers["brokers"], "broker")):
            assert [(row[name], "nobody listens at h:2" in row.get("error", "")) for row in rows] == [
                ("one", False),
                ("two", True),
            ]
        assert (stats["total"]["active"], stats["total"]["oldest_open_s"]) == (3, 0.5)


@virtual_time
async def test_a_connection_that_was_lost_is_opened_again_by_the_next_question() -> None:
    async with asked_roles() as (_, _, transport, calls):
        for _ in range(3):
            assert (await calls.ask("h:1", "coordinator.stats"))["active"] == 3
            await transport.connections[-1].close()
            await asyncio.sleep(1.0)  # until it is heard of
        assert len(transport.connections) == 3


@virtual_time
async def test_a_process_that_cannot_be_reached_keeps_no_question_to_another_one_waiting() -> None:
    """▲ Nor each question to it the next: a broker that hangs may own a thousand segments."""
    async with asked_roles() as (_, _, transport, calls):

        async def says_nothing(connection: Connection) -> None:
            await asyncio.sleep(1000.0)

        silent = await transport.listen("h:2", says_nothing)
        loop = asyncio.get_running_loop()
        lost = [asyncio.ensure_future(calls.ask("h:2", "coordinator.stats")) for _ in range(20)]
        await asyncio.sleep(0.1)
        began = loop.time()
        assert (await calls.ask("h:1", "coordinator.stats"))["active"] == 3
        assert loop.time() - began < 1.0
        lost.pop().cancel()
        for one in await asyncio.gather(*lost, return_exceptions=True):
            assert isinstance(one, ConnectionLost)
        assert loop.time() - began < CALL_TIMEOUT_S + 1.0
        await silent.close()


@virtual_time
async def test_outcomes_of_more_transactions_than_are_read_at_once_are_all_told() -> None:
    """▲ Spark takes what is not told of for undecided."""
    async with owners() as here:
        ids = [str(TxnId(0, number)) for number in range(1, 2 * ASKED_AT_ONCE + 2)]
        found = await here.answers["transactions.outcomes"]({"txns": ids})
        assert found["outcomes"] == dict.fromkeys(ids, "UNKNOWN")


@virtual_time
async def test_e6_what_hangs_without_an_owner_or_behind_its_decision_says_so() -> None:
    async with owners() as here:
        opened = Header(state=OPEN, timeout_ms=10, created_ms=1)
        committed = Header(state=COMMITTED, timeout_ms=10, created_ms=1, finalized_ms=2)
        segment = "public/default/gone/0000-ffff-0"
        for counter, header in ((1, opened), (2, committed)):
            txn_id = TxnId(0, counter)
            op = Op(v=1, kind="write", segment=segment, messages=1)
            puts = (
                Put(keys.txn(txn_id), encode(header)),
                Put(keys.op(keys.write_ops(txn_id, segment), 3, counter), encode(op)),
                Put(keys.write_index(segment, txn_id), b""),
            )
            await here.store.commit(Commit(puts=puts))
        rows = (await here.answers["transactions.hanging"]({}))["hanging"]
        told = {row["txn"]: row["why"].partition("; ")[2] for row in rows}
        assert [why.rpartition("; ")[2] for why in told.values()] == ["the segment has no owner"] * 2
        assert ["COMMITTED, but not cleaned up" in why for why in told.values()] == [False, True]


@virtual_time
async def test_what_hangs_is_told_at_each_of_its_places_and_described_with_each_operation() -> None:
    first, second = TxnId(0, 1), TxnId(0, 2)
    async with owners() as here:
        topology = here.directory.topic(TOPIC.path)
        assert topology is not None
        *both, another = list(topology.paths.values())[:3]
        places = [(first, path, name) for path in both for name in ("", "a", "b")] + [(second, another, "")]
        puts = {keys.txn(one): encode(Header(state=OPEN, timeout_ms=10, created_ms=1)) for one in (first, second)}
        for txn_id, path, name in places:
            prefix = keys.ack_ops(txn_id, path, name) if name else keys.write_ops(txn_id, path)
            op = Op(v=1, kind="ack" if name else "write", segment=path, subscription=name or None, messages=1)
            puts[keys.op(prefix, 3, 1)] = encode(op)
        await here.store.commit(Commit(puts=tuple(Put(key, record) for key, record in puts.items())))
        rows = (await here.answers["transactions.hanging"]({}))["hanging"]
        hanging = [(TxnId.parse(row["txn"]), row["segment"], *(row["waiting"] or [""])) for row in rows]
        assert sorted(hanging) == sorted(places)
        told = (await here.answers["transactions.describe"]({"txn": str(first)}))["operations"]
        described = [(first, one["segment"], one["subscription"] or "") for one in told]
        assert sorted(described) == sorted(one for one in places if one[0] == first)
