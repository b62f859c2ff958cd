"""Layout and controller services as a client sees them: real calls over the simulated network, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from segments.controller.controller_service import ControllerService
from segments.layout import layout_service
from segments.layout.freshness import Freshness
from segments.layout.layout_service import TOPICS_AT_ONCE, LayoutService
from segments.layout.topology import create_record
from simulation.world.loop import SimLoop
from simulation.world.sim_transport import Network, SimTransport
from tests.segments.controlling import SETTINGS, TOPIC, Process, assignment_of, joining, leaving, names_of
from tests.segments.memory_transport import MemoryTransport
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.records import OwnerRecord, RegistrationRecord, encode
from txnstore.store import Commit, Delete, Put
from txnwire.errors import DataCorrupt, InvalidArgument, NotOwner, Overloaded, TopicExists, TxnError
from txnwire.ports import Connection, Transport
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.calls import Caller, serve_connection

CREATE = pb.Command(create_topic=pb.CreateTopic(topic=str(TOPIC), segments=2))
WATCH_LAYOUT = pb.Command(watch_layout=pb.WatchLayout(topic=str(TOPIC)))
WATCH_CLUSTER = pb.Command(watch_cluster=pb.WatchCluster())


class Client:
    """A caller that keeps what is pushed."""

    def __init__(self, caller: Caller, pushed: list[pb.Command]) -> None:
        self.caller = caller
        self.pushed = pushed

    async def call(self, command: pb.Command) -> pb.Command:
        return await self.caller.call(command, timeout_s=30.0)

    async def wait_push(self, condition: Callable[[pb.Command], bool]) -> pb.Command:
        """The newest push once it meets `condition`; at most a minute of virtual time."""
        await until(lambda: not (not self.pushed or not condition(self.pushed[-1])), within_s=60.0)
        return self.pushed[-1]


class Served:
    """A process with layout and controller services on the simulated network."""

    def __init__(self, process: Process, network: Network) -> None:
        self.process = process
        freshness = Freshness(process.store, LoopClock(), lease_ttl_s=SETTINGS.lease_ttl_s)
        self.layout = LayoutService(process.directory, process.store, freshness)
        self._asking = asyncio.ensure_future(freshness.run())
        self._services = (self.layout, ControllerService(process.controller))
        self.network = network
        self._transport = SimTransport(network, network.loop.world, "server")
        self._clients = SimTransport(network, network.loop.world, "client")
        self._callers: list[Caller] = []
        self.address = ""

    async def _serve(self, connection: Connection) -> None:
        await serve_connection(
            connection, self._services, server_id="s", roles=("controller",), incarnation="i", clock=LoopClock()
        )

    async def listen(self) -> None:
        self._listener = await self._transport.listen("server:0", self._serve)
        self.address = self._listener.address

    async def client(self) -> Client:
        return await self._connect(self._clients, self.address)

    async def clients_by_memory(self, transport: MemoryTransport, clients: int) -> list[Client]:
        """Whose connections `transport` has, in this order."""
        listener = await transport.listen("memory:0", self._serve)
        return [await self._connect(transport, listener.address) for _ in range(clients)]

    async def _connect(self, transport: Transport, address: str) -> Client:
        pushed: list[pb.Command] = []
        hello = pb.Hello(client_name="test", session_id=b"0123456789abcdef")
        caller = await Caller.open(transport, address, hello, clock=LoopClock(), on_push=pushed.append)
        self._callers.append(caller)
        return Client(caller, pushed)

    async def close(self) -> None:
        for caller in self._callers:
            await caller.close()
        self._asking.cancel()
        self.layout.close()
        await self._listener.close()


@asynccontextmanager
async def serving(etcd: MemoryEtcd, name: str = "a") -> AsyncIterator[Served]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    process = await Process(etcd, name).start()
    served = Served(process, Network(loop, 1))
    await served.listen()
    try:
        yield served
    finally:
        await served.close()
        await process.close()


@virtual_time
async def test_a_layout_is_answered_then_pushed_with_its_owners() -> None:
    async with serving(MemoryEtcd(LoopClock())) as served:
        store = served.process.store
        await served.process.controller.wait_leading(timeout_s=5.0)
        client = await served.client()
        denied = (await client.call(WATCH_LAYOUT)).layout
        assert (denied.topic, denied.exists) == (str(TOPIC), False)
        assert (await client.call(CREATE)).WhichOneof("body") == "ok"
        layout = (await client.wait_push(lambda p: p.layout.exists)).layout
        assert [(s.path, s.state, s.owner) for s in layout.segments] == [
            (f"{TOPIC.path}/0000-7fff-0", "ACTIVE", ""),
            (f"{TOPIC.path}/8000-ffff-1", "ACTIVE", ""),
        ]
        assert layout.revision > denied.revision
        created = await store.get(keys.topic(TOPIC.path))
        assert created is not None
        assert layout.topic_revision == created.mod_revision > denied.topic_revision
        assert not layout.HasField("lost_segment_id")
        owner = encode(OwnerRecord(broker="b1", address="h:1"))
        key = keys.owner(f"{TOPIC.path}/8000-ffff-1")
        await store.commit(Commit(puts=(Put(key, owner),)))
        owned = (await client.wait_push(lambda p: p.layout.segments[1].owner == "b1")).layout
        assert owned.segments[1].owner_address == "h:1"
        await store.commit(Commit(deletes=(Delete(key),)))
        again = (await client.wait_push(lambda p: p.layout.segments[1].owner == "")).layout
        assert again.revision > owned.revision > layout.revision
        assert again.topic_revision == owned.topic_revision == layout.topic_revision
        await store.commit(Commit(deletes=(Delete(keys.topic(TOPIC.path)),)))
        later = create_record(1, policies={}, created_ms=0, first_segment_id=2)
        await store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), encode(later)),)))
        made_again = (await client.wait_push(lambda p: len(p.layout.segments) == 1)).layout
        assert made_again.topic_revision > layout.topic_revision
        assert made_again.lost_segment_id == 1, "a reader that goes on from before has to hear of it"


@virtual_time
async def test_a_topic_just_created_is_never_denied_by_a_process_that_lags() -> None:
    async with serving(MemoryEtcd(LoopClock())) as served:
        await served.process.controller.wait_leading(timeout_s=5.0)
        served.process.directory_fates.watch_lag_s = 30.0
        client = await served.client()
        await client.call(CREATE)
        assert (await client.call(WATCH_LAYOUT)).layout.exists
        names = (await client.call(pb.Command(list_topics=pb.ListTopics()))).names
        assert list(names.names) == [str(TOPIC)]


@virtual_time
async def test_x2_a_topic_made_again_is_listed_by_a_process_that_knows_of_the_deletion_alone() -> None:
    """▲ Who reads all topics would leave it out, and show a transaction over it and another one by half."""
    async with serving(MemoryEtcd(LoopClock())) as served:
        await served.process.controller.wait_leading(timeout_s=5.0)
        store, client, key = served.process.store, await served.client(), keys.topic(TOPIC.path)
        await client.call(CREATE)
        deleting = replace(create_record(2, policies={}, created_ms=0), deleting_ms=1)
        await store.commit(Commit(puts=(Put(key, encode(deleting)),)))
        await until(lambda: (known := served.process.directory.topic(TOPIC.path)) is not None and known.deleting)
        served.process.directory_fates.watch_lag_s = 30.0
        list_topics = pb.Command(list_topics=pb.ListTopics())
        assert not (await client.call(list_topics)).names.names
        await store.commit(Commit(deletes=(Delete(key),)))
        later = create_record(1, policies={}, created_ms=0, first_segment_id=2)
        await store.commit(Commit(puts=(Put(key, encode(later)),)))
        assert list((await client.call(list_topics)).names.names) == [str(TOPIC)]
        assert served.process.directory.topics()[TOPIC.path].deleting


@virtual_time
async def test_topics_that_are_gone_count_for_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """▲ A client that opens one topic after the other, each deleted when it is done, could open no more one day."""
    monkeypatch.setattr(layout_service, "MAX_TOPICS_PER_CONNECTION", 2)

    def watching(name: str) -> pb.Command:
        return pb.Command(watch_layout=pb.WatchLayout(topic=f"topic://public/nyc/{name}"))

    async with serving(MemoryEtcd(LoopClock())) as served:
        await served.process.controller.wait_leading(timeout_s=5.0)
        client = await served.client()
        await client.call(CREATE)
        assert (await client.call(WATCH_LAYOUT)).layout.exists
        for name in ("a", "b", "c"):
            await client.call(watching(name))
        await client.call(pb.Command(create_topic=pb.CreateTopic(topic="topic://public/nyc/c", segments=1)))
        await client.wait_push(lambda last: last.layout.topic.endswith("/c") and last.layout.exists)
        with pytest.raises(Overloaded):
            await client.call(watching("d"))
        assert (await client.call(WATCH_LAYOUT)).layout.exists, "what it watches already it may ask for again"
        assert (await client.call(watching("c"))).layout.exists


@virtual_time
async def test_a_topic_that_was_unreadable_when_it_was_asked_for_is_pushed_once_it_is_repaired() -> None:
    async with serving(MemoryEtcd(LoopClock())) as served:
        store, key = served.process.store, keys.topic(TOPIC.path)
        await store.commit(Commit(puts=(Put(key, b"not a record"),)))
        client = await served.client()
        with pytest.raises(DataCorrupt):
            await client.call(WATCH_LAYOUT)
        repaired = create_record(2, policies={}, created_ms=0)
        await store.commit(Commit(puts=(Put(key, encode(repaired)),)))
        await client.wait_push(lambda last: last.layout.exists)


@virtual_time
async def test_a_layout_that_cannot_be_read_holds_no_other_one_back() -> None:
    """▲ Its watchers would know the old owners until that other topic changes once more."""
    async with serving(MemoryEtcd(LoopClock())) as served:
        store, client = served.process.store, await served.client()
        paths = [f"public/nyc/{name}" for name in "abc"]
        narrow, wide = (encode(create_record(segments, policies={}, created_ms=0)) for segments in (1, 2))
        await store.commit(Commit(puts=tuple(Put(keys.topic(path), narrow) for path in paths)))
        for path in paths:
            await client.call(pb.Command(watch_layout=pb.WatchLayout(topic=f"topic://{path}")))
        await asyncio.sleep(1.0)
        client.pushed.clear()
        changed = zip(paths, (wide, b"not a record", wide), strict=True)
        await store.commit(Commit(puts=tuple(Put(keys.topic(path), record) for path, record in changed)))
        await asyncio.sleep(1.0)
        told = [(push.layout.topic, len(push.layout.segments)) for push in client.pushed]
        assert told == [("topic://public/nyc/a", 2), ("topic://public/nyc/c", 2)]


@virtual_time
async def test_changes_that_come_together_leave_as_one_push() -> None:
    async with serving(MemoryEtcd(LoopClock())) as served:
        await served.process.controller.wait_leading(timeout_s=5.0)
        client, bystander = await served.client(), await served.client()
        await client.call(pb.Command(create_topic=pb.CreateTopic(topic=str(TOPIC), segments=64)))
        layout = (await client.call(WATCH_LAYOUT)).layout
        await asyncio.sleep(1.0)
        client.pushed.clear()
        owner = encode(OwnerRecord(broker="b1", address="h:1"))
        await asyncio.gather(
            *(
                served.process.store.commit(Commit(puts=(Put(keys.owner(segment.path), owner),)))
                for segment in layout.segments
            )
        )
        await client.wait_push(lambda p: all(segment.owner == "b1" for segment in p.layout.segments))
        assert len(client.pushed) <= 3
        assert bystander.pushed == []


@virtual_time
async def test_the_cluster_is_answered_then_pushed() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with serving(etcd) as served:
        await served.process.controller.wait_leading(timeout_s=5.0)
        directory = served.process.directory
        await directory.wait_until(lambda: directory.leader("controller"), timeout_s=10.0, what="a leader")
        client = await served.client()
        first = (await client.call(WATCH_CLUSTER)).cluster
        assert (first.controller_address, len(first.brokers), len(first.coordinators)) == ("a:1", 0, 0)
        puts = [
            Put(keys.broker("b2"), encode(RegistrationRecord(id="b2", address="h:2"))),
            Put(keys.broker("b1"), encode(RegistrationRecord(id="b1", address="h:1"))),
            Put(keys.tc(1), encode(RegistrationRecord(id="c", address="h:3"))),
            Put(keys.tc(2), encode(RegistrationRecord(id="d", address="h:4"))),
        ]
        await served.process.store.commit(Commit(puts=tuple(puts)))
        cluster = (await client.wait_push(lambda p: len(p.cluster.brokers) == len(p.cluster.coordinators) == 2)).cluster
        assert [(b.id, b.address) for b in cluster.brokers] == [("b1", "h:1"), ("b2", "h:2")]
        assert [(c.tc_id, c.address) for c in cluster.coordinators] == [(1, "h:3"), (2, "h:4")]
        assert cluster.revision > first.revision
        await served.process.controller.close()
        await client.wait_push(lambda p: p.cluster.controller_address == "")


@virtual_time
async def test_one_change_is_pushed_to_every_watcher_of_every_topic_that_it_touches() -> None:
    """▲ Who is left out knows the old owner until that topic changes once more."""
    async with serving(MemoryEtcd(LoopClock())) as served:
        paths = ["public/nyc/a", "public/nyc/b"]
        record, owner = create_record(1, policies={}, created_ms=0), OwnerRecord(broker="b1", address="h:1")
        await served.process.store.commit(Commit(puts=tuple(Put(keys.topic(path), encode(record)) for path in paths)))
        clients = [await served.client() for _ in range(3)]
        for client in clients:
            await client.call(WATCH_CLUSTER)
            for path in paths:
                await client.call(pb.Command(watch_layout=pb.WatchLayout(topic=f"topic://{path}")))
        owners = tuple(Put(keys.owner(f"{path}/0000-ffff-0"), encode(owner)) for path in paths)
        broker = Put(keys.broker("b1"), encode(RegistrationRecord(id="b1", address="h:1")))
        await served.process.store.commit(Commit(puts=(*owners, broker)))
        topics = {f"topic://{path}" for path in paths}

        async def wait_told(client: Client) -> None:
            def told() -> bool:
                layouts = [push.layout for push in client.pushed]
                owned = {layout.topic for layout in layouts if any(segment.owner for segment in layout.segments)}
                return owned == topics and any(push.cluster.brokers for push in client.pushed)

            await until(told)

        for client in clients:
            await wait_told(client)


@virtual_time
async def test_a_foreign_key_among_the_topics_hides_none_of_them() -> None:
    async with serving(MemoryEtcd(LoopClock())) as served:
        record = encode(create_record(1, policies={}, created_ms=0))
        foreign, topic = keys.TOPIC + b"no/topic", keys.topic(TOPIC.path)
        await served.process.store.commit(Commit(puts=(Put(foreign, b"x"), Put(topic, record))))
        answer = await (await served.client()).call(pb.Command(list_topics=pb.ListTopics()))
        assert list(answer.names.names) == ["topic://no/topic", str(TOPIC)]


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("", ["topic://t1/n1/a", "topic://t1/n1/b", "topic://t1/n10/a", "topic://t2/n1/a"]),
        ("t1/", ["topic://t1/n1/a", "topic://t1/n1/b", "topic://t1/n10/a"]),
        ("t1/n1/", ["topic://t1/n1/a", "topic://t1/n1/b"]),
        ("t3/", []),
    ],
)
@virtual_time
async def test_topics_are_listed_by_whole_parts_of_their_names(prefix: str, expected: list[str]) -> None:
    async with serving(MemoryEtcd(LoopClock(), pages_divided_by=TOPICS_AT_ONCE // 2)) as served:
        await served.process.controller.wait_leading(timeout_s=5.0)
        client = await served.client()
        for name in ("t1/n1/b", "t1/n1/a", "t1/n10/a", "t2/n1/a"):
            await client.call(pb.Command(create_topic=pb.CreateTopic(topic=f"topic://{name}", segments=1)))
        answer = await client.call(pb.Command(list_topics=pb.ListTopics(prefix=prefix)))
        assert list(answer.names.names) == expected


@pytest.mark.parametrize(
    ("command", "error", "complaint"),
    [
        (pb.Command(list_topics=pb.ListTopics(prefix="t1")), InvalidArgument, "listing prefix 't1'"),
        (pb.Command(list_topics=pb.ListTopics(prefix="t/n/x/")), InvalidArgument, "listing prefix"),
        (pb.Command(list_topics=pb.ListTopics(prefix="/")), InvalidArgument, "tenant of the listing prefix"),
        (pb.Command(list_topics=pb.ListTopics(prefix="t//")), InvalidArgument, "namespace of the listing prefix"),
        (pb.Command(watch_layout=pb.WatchLayout(topic="t/n/x")), InvalidArgument, "expected topic://"),
        (pb.Command(create_topic=pb.CreateTopic(topic="topic://t/n", segments=1)), InvalidArgument, "has 2 parts"),
        (pb.Command(create_topic=pb.CreateTopic(topic=str(TOPIC), segments=3)), TopicExists, "another shape"),
    ],
)
@virtual_time
async def test_what_is_malformed_or_in_the_way_is_said(
    command: pb.Command, error: type[TxnError], complaint: str
) -> None:
    async with serving(MemoryEtcd(LoopClock())) as served:
        await served.process.controller.wait_leading(timeout_s=5.0)
        client = await served.client()
        await client.call(CREATE)
        with pytest.raises(error, match=complaint):
            await client.call(command)
        assert (await client.call(pb.Command(ping=pb.Ping()))).WhichOneof("body") == "ok"


@virtual_time
async def test_a_peer_that_does_not_read_gets_the_newest_layout_once_it_does() -> None:
    async with serving(MemoryEtcd(LoopClock())) as served:
        await served.process.controller.wait_leading(timeout_s=5.0)
        client = await served.client()
        await client.call(CREATE)
        path = (await client.call(WATCH_LAYOUT)).layout.segments[0].path
        [peer] = served.layout._topics_of
        await asyncio.sleep(1.0)
        client.pushed.clear()
        served.network.cut("server", "client")
        for _ in range(4):
            peer.push(pb.Command(names=pb.Names(names=["x" * 1024] * 2048)))  # 2 MiB each
        for index in range(50):
            owner = encode(OwnerRecord(broker=f"b{index}", address="h:1"))
            await served.process.store.commit(Commit(puts=(Put(keys.owner(path), owner),)))
            await asyncio.sleep(0.02)
        served.network.heal()
        await client.wait_push(lambda p: p.WhichOneof("body") == "layout" and p.layout.segments[0].owner == "b49")
        assert len(client.pushed) <= 4 + 3


@virtual_time
async def test_a_consumer_joins_is_told_and_is_given_up_when_its_connection_ends() -> None:
    async with serving(MemoryEtcd(LoopClock())) as served:
        await served.process.controller.wait_leading(timeout_s=5.0)
        one, two = await served.client(), await served.client()
        await one.call(CREATE)
        first = (await one.call(pb.Command(join_subscription=joining("w1")))).assignment
        assert len(first.segments) == 2
        second = (await two.call(pb.Command(join_subscription=joining("w2")))).assignment
        told = (await one.wait_push(lambda p: p.assignment.epoch == second.epoch)).assignment
        assert sorted([*told.segments, *second.segments]) == sorted(first.segments)
        await two.caller.close()
        alone = (await one.wait_push(lambda p: len(p.assignment.segments) == 2)).assignment
        assert alone.epoch == second.epoch + 1
        await one.call(pb.Command(leave_subscription=leaving("w1")))
        assert names_of(await assignment_of(served.process.store)) == []


@virtual_time
async def test_a_process_that_is_not_the_controller_says_who_is() -> None:
    etcd = MemoryEtcd(LoopClock())
    elected = await Process(etcd, "elected").start()
    await elected.controller.wait_leading(timeout_s=5.0)
    async with serving(etcd) as served:
        client = await served.client()
        for command in (
            CREATE,
            pb.Command(join_subscription=joining("w")),
            pb.Command(leave_subscription=leaving("w")),
        ):
            with pytest.raises(NotOwner, match="the controller is at elected:1"):
                await client.call(command)
    await elected.close()


@virtual_time
async def test_a_server_that_has_not_heard_the_store_for_a_lease_says_that_its_view_is_stale() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with serving(etcd) as served:
        client = await served.client()
        assert not (await client.call(WATCH_CLUSTER)).cluster.stale
        etcd.pause()
        await client.wait_push(lambda push: push.cluster.stale)
        late = await served.client()
        assert (await late.call(WATCH_CLUSTER)).cluster.stale
        etcd.resume()
        await client.wait_push(lambda push: push.HasField("cluster") and not push.cluster.stale)
        assert not (await late.call(WATCH_CLUSTER)).cluster.stale


@virtual_time
async def test_a_store_that_is_slow_for_less_than_a_lease_makes_nothing_stale() -> None:
    etcd = MemoryEtcd(LoopClock())
    async with serving(etcd) as served:
        client = await served.client()
        await client.call(WATCH_CLUSTER)
        for _ in range(5):
            etcd.pause()
            await asyncio.sleep(SETTINGS.lease_ttl_s / 2)
            etcd.resume()
            await asyncio.sleep(SETTINGS.lease_ttl_s / 2)
        assert not any(push.cluster.stale for push in client.pushed)


@virtual_time
async def test_nothing_is_kept_of_a_connection_that_has_ended_however_many_topics_it_watched() -> None:
    """▲ Each change would be sent to it as long as the server runs."""
    async with serving(MemoryEtcd(LoopClock())) as served:
        goes, stays = await served.client(), await served.client()
        for name in "abc":
            watch = pb.Command(watch_layout=pb.WatchLayout(topic=f"topic://public/nyc/{name}"))
            await goes.call(watch)
            if name == "b":
                await stays.call(watch)
        for client in (goes, stays):
            await client.call(WATCH_CLUSTER)
        await goes.caller.close()
        await until(lambda: len(served.layout._cluster_watchers) == 1)
        assert {path: len(peers) for path, peers in served.layout._watchers_of.items()} == {"public/nyc/b": 1}
