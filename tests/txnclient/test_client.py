"""Connecting, following the cluster, closing: what holds whatever servers do."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, connected
from tests.waiting import until
from txnwire.proto import txn_pb2 as pb


def connect(cluster: Cluster, url: str, **options: Any) -> txnclient.connection.opening.Opening[txnclient.Client]:
    return txnclient.connect(url, transport=cluster.transport, clock=cluster.clock, random=Random(1), **options)


@pytest.mark.parametrize("seed", range(4))
@virtual_time
async def test_any_one_address_that_answers_is_enough(seed: int) -> None:
    cluster = Cluster()
    await cluster.start("broker:1")
    url = "txn://gone:1,broker:1,gone:2"
    async with txnclient.connect(url, transport=cluster.transport, clock=cluster.clock, random=Random(seed)) as client:
        await client.begin()
    await cluster.stop()


@virtual_time
async def test_connecting_where_nobody_answers_times_out() -> None:
    cluster = Cluster()
    before = cluster.clock.monotonic()
    with pytest.raises(txnclient.Timeout, match="gone:1"):
        await connect(cluster, "txn://gone:1,gone:2", timeout=3.0)
    assert cluster.clock.monotonic() - before < 4.0
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("options", [{"tls": object()}, {"transaction_key": "a&b"}, {"timeout": 0}, {"timeout": -1.0}])
def test_what_is_malformed_or_not_offered_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(txnclient.InvalidArgument):
        txnclient.connect("txn://a:1", **options)


@virtual_time
async def test_each_client_has_one_session_over_all_its_connections() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        cluster.owners[SEGMENTS[0]] = "broker:2"
        cluster.announce()
        producer = await client.producer(TOPIC)
        for key in ("a", "b", "c", "d"):
            await producer.send(b"x", key=key)
        sessions = {peer.session_id for server in cluster.servers.values() for peer, _ in server.producers}
        assert [len(session) for session in sessions] == [16]
        assert len(cluster.transport.connections) == 2


@virtual_time
async def test_the_cluster_is_followed_over_another_server_when_one_is_lost() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        assert (await client.describe_topic(TOPIC)).segments[0].owner == "broker:1"
        followed = next(server for server in cluster.servers.values() if server.followers)
        other = next(server for server in cluster.servers.values() if server is not followed)
        await followed.stop()
        await until(lambda: other.followers)
        cluster.owners = dict.fromkeys(SEGMENTS, other.address)
        cluster.announce()
        await until(lambda: other.seen["watch_layout"])
        await asyncio.sleep(0.1)
        layout = await client.describe_topic(TOPIC)
        assert {segment.owner for segment in layout.segments.values()} == {other.address}


@virtual_time
async def test_older_knowledge_never_replaces_newer() -> None:
    async with connected() as (cluster, client):
        await client.describe_topic(TOPIC)
        cluster.move(SEGMENTS[0], "broker:9")
        await asyncio.sleep(0.1)
        late = cluster.layout(TOPIC)
        late.revision -= 1
        late.segments[0].owner = "broker:old"
        for peer in cluster.servers["broker:1"].followers:
            peer.push(pb.Command(layout=late))
        await asyncio.sleep(0.1)
        assert (await client.describe_topic(TOPIC)).segments[0].owner == "broker:9"


@virtual_time
async def test_unknown_topics_say_so() -> None:
    async with connected() as (_, client):
        with pytest.raises(txnclient.TopicNotFound, match="create it first"):
            await client.describe_topic("topic://a/b/unknown")
        with pytest.raises(txnclient.InvalidArgument, match="tenant"):
            await client.describe_topic("topic://a b/c/d")


@virtual_time
async def test_creating_a_topic_asks_the_controller_until_it_is_done() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.lose_replies["create_topic"] = 1
        server.refuse["create_topic"] = [txnclient.NotOwner("not elected")]
        layout = await client.create_topic(TOPIC, segments=2, retention_ms=1000, autoscale={"max_segments": 3})
        assert layout.epoch == 1
        asked = [command.create_topic for command in server.commands if command.HasField("create_topic")]
        assert len(asked) == 3
        assert (asked[0].segments, asked[0].policies_json) == (
            2,
            '{"retention_ms": 1000, "autoscale": {"max_segments": 3}}',
        )
        server.refuse["create_topic"] = [txnclient.TopicExists("with 3 segments")]
        with pytest.raises(txnclient.TopicExists):
            await client.create_topic(TOPIC, segments=2)
        with pytest.raises(txnclient.InvalidArgument):
            await client.create_topic(TOPIC, segments=0)


@virtual_time
async def test_every_call_is_bounded_while_no_server_answers() -> None:
    async def awaited(opening: Any) -> Any:
        return await opening

    async with connected(timeout=2.0) as (cluster, client):
        producer = await client.producer(TOPIC)
        txn = await client.begin()
        await cluster.servers["broker:1"].stop()
        before = cluster.clock.monotonic()
        for call in (
            lambda: client.begin(),
            lambda: txn.commit(),
            lambda: client.create_topic(TOPIC),
            lambda: client.describe_topic("topic://a/b/other"),
            lambda: client.list_topics(),
            lambda: client.admin("transactions.list"),
            lambda: producer.send(b"x"),
            lambda: awaited(client.consumer(TOPIC, "sub")),
            lambda: awaited(client.reader(TOPIC, end="latest")),
        ):
            started = cluster.clock.monotonic()
            with pytest.raises(txnclient.TxnError) as failure:
                await call()
            assert failure.value.retriable
            assert cluster.clock.monotonic() - started < 2.6
        closing = cluster.clock.monotonic()
        assert closing - before < 25
        await client.close()
        assert cluster.clock.monotonic() - closing < 6


@virtual_time
async def test_close_terminates_with_everything_under_way_and_leaves_no_task() -> None:
    cluster = Cluster()
    await cluster.start()
    server = cluster.servers["broker:1"]
    client = await connect(cluster, "txn://broker:1")
    producer = await client.producer(TOPIC)
    consumer = await client.consumer(TOPIC, "sub")
    reader = await client.reader(TOPIC)
    await client.begin()
    await until(lambda: len(server.consumers) == 4)
    server.stall_sends = True
    for kind in ("leave_subscription", "end_txn", "ack"):
        server.ignore[kind] = 100
    server.deliver(SEGMENTS[0], 0, b"x")
    txn = await client.begin()
    waiting = [
        asyncio.ensure_future(one)
        for one in (
            producer.send(b"x"),
            producer.send(b"x", txn=txn),
            txn.commit(),
            consumer.receive(),
            reader.receive(),
        )
    ]
    await asyncio.sleep(0.5)
    before = cluster.clock.monotonic()
    await client.close()
    await client.close()
    assert cluster.clock.monotonic() - before < 8
    await asyncio.wait(waiting, timeout=1)
    allowed = (txnclient.ConnectionLost, txnclient.InvalidArgument, txnclient.OutcomeUnknown, txnclient.Timeout)
    assert all(task.done() for task in waiting)
    assert all(isinstance(error, allowed) for task in waiting if (error := task.exception()) is not None)
    with pytest.raises(txnclient.InvalidArgument, match="closed"):
        await client.begin()
    await cluster.stop()
    await asyncio.sleep(0)
    names = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not [name for name in names if "txnclient" in name or "broker" in name], names


@virtual_time
async def test_a_cancelled_call_leaves_the_client_well() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.ignore["new_txn"] = 1
        beginning = asyncio.create_task(client.begin())
        await until(lambda: server.seen["new_txn"])
        beginning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beginning
        async with client.transaction():
            pass


@virtual_time
async def test_cancellation_inside_a_transaction_aborts_it() -> None:
    async with connected() as (cluster, client):

        async def work() -> None:
            async with client.transaction():
                await asyncio.sleep(3600)

        working = asyncio.create_task(work())
        await until(lambda: cluster.states)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert list(cluster.states.values()) == ["ABORTED"]


def test_every_error_of_the_face_is_there() -> None:
    for name in [
        "TxnError",
        "TxnConflict",
        "TxnNotFound",
        "InvalidTxnState",
        "ExpiredTransaction",
        "NotAllowed",
        "OutcomeUnknown",
        "ProducerFenced",
        "TopicNotFound",
        "SegmentSealed",
        "NotOwner",
        "StoreUnavailable",
        "StoreFull",
        "Overloaded",
        "WouldBlock",
        "MessageTooLarge",
        "InvalidArgument",
        "Unauthorized",
        "Timeout",
    ]:
        error = getattr(txnclient, name)
        assert issubclass(error, txnclient.TxnError)
        assert all(isinstance(getattr(error, flag), bool) for flag in ("retriable", "fatal", "requires_abort"))
    assert issubclass(txnclient.Timeout, TimeoutError)


@virtual_time
async def test_connecting_where_the_client_is_refused_says_why_at_once() -> None:
    cluster = Cluster()
    await cluster.start("broker:1")
    cluster.servers["broker:1"].refuse["watch_cluster"] = [txnclient.InvalidArgument("too old") for _ in range(100)]
    before = cluster.clock.monotonic()
    with pytest.raises(txnclient.InvalidArgument, match="too old"):
        await connect(cluster, "txn://broker:1", timeout=30.0)
    assert cluster.clock.monotonic() - before < 5.0
    await cluster.stop()


@virtual_time
async def test_a_client_without_a_transaction_key_has_no_epoch_of_one() -> None:
    async with connected() as (_, client):
        assert (client.transaction_key, client.key_epoch) == (None, None)
