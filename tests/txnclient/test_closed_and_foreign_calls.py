"""Objects that cannot go on say so, and let the loop live (C6); calls from elsewhere fail at once (C7)."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import pytest

import txnclient
import txnclient.sync
from tests.cluster import InProcessCluster
from tests.segments.virtual_time import run, virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, ScriptedServer, connected
from tests.waiting import until
from txnclient.consuming.consumer import consumer_impl
from txnclient.producing.producer import producer_impl
from txnclient.reading.reader import reader_impl
from txnclient.sync.bridge import Bridge
from txnwire.snapshot import TopicBounds

CALLS = 50
TAKEN = txnclient.Snapshot(1, {TOPIC: TopicBounds(1, {})})


class Things(NamedTuple):
    """Everything public, of one client."""

    client: txnclient.Client
    producer: txnclient.Producer
    consumer: txnclient.Consumer
    queue: txnclient.Consumer
    reader: txnclient.Reader
    watch: txnclient.Watch
    txn: txnclient.Transaction
    message: txnclient.Message


async def opened(client: txnclient.Client, server: ScriptedServer) -> Things:
    consumer = await client.consumer(TOPIC, "sub")
    await until(lambda: len(server.consumers) == 2)
    server.deliver(SEGMENTS[0], 0, b"one", b"two")
    message = await consumer.receive()
    return Things(
        client,
        await client.producer(TOPIC),
        consumer,
        await client.consumer(TOPIC, "queue", type="queue"),
        await client.reader(TOPIC),
        await client.watch(TAKEN),
        await client.begin(),
        message,
    )


async def _sync(call: Callable[[], object]) -> None:
    call()


async def _block(block: AbstractAsyncContextManager[object]) -> None:
    async with block:
        pass


CALLS_OF_ALL: dict[str, Callable[[Things], Awaitable[object]]] = {
    "client.begin": lambda on: on.client.begin(),
    "client.begin(name)": lambda on: on.client.begin(name="n"),
    "client.attach": lambda on: on.client.attach(on.txn.id, name="n"),
    "client.transaction": lambda on: _block(on.client.transaction()),
    "client.producer": lambda on: on.client.producer(TOPIC),
    "client.consumer": lambda on: on.client.consumer(TOPIC, "s"),
    "client.reader": lambda on: on.client.reader(TOPIC),
    "client.list_topics": lambda on: on.client.list_topics(),
    "client.create_topic": lambda on: on.client.create_topic(TOPIC),
    "client.update_topic": lambda on: on.client.update_topic(TOPIC, retention_ms=1),
    "client.delete_topic": lambda on: on.client.delete_topic(TOPIC),
    "client.delete_subscription": lambda on: on.client.delete_subscription(TOPIC, "s"),
    "client.seek_subscription": lambda on: on.client.seek_subscription(TOPIC, "s", "earliest"),
    "client.describe_topic": lambda on: on.client.describe_topic(TOPIC),
    "client.split": lambda on: on.client.split("segment://" + SEGMENTS[0]),
    "client.merge": lambda on: on.client.merge("segment://" + SEGMENTS[0], "segment://" + SEGMENTS[1]),
    "client.snapshot": lambda on: on.client.snapshot(TOPIC),
    "client.outcomes": lambda on: on.client.outcomes([on.txn.id]),
    "client.transaction_info": lambda on: on.client.transaction_info(on.txn.id),
    "client.admin": lambda on: on.client.admin("transactions.list"),
    "client.read_entries": lambda on: _sync(
        lambda: on.client.read_entries(SEGMENTS[0], after=on.message.position, end=on.message.position)
    ),
    "client.scan_entries": lambda on: _sync(
        lambda: on.client.scan_entries(SEGMENTS[0], after=on.message.position, end=on.message.position)
    ),
    "client.watch": lambda on: on.client.watch(TAKEN),
    "client.lag": lambda on: on.client.lag(TOPIC, "s"),
    "client.positions_before": lambda on: on.client.positions_before(TOPIC, 1),
    "client.close": lambda on: on.client.close(),
    "producer.send": lambda on: on.producer.send(b"x"),
    "producer.send_nowait": lambda on: _sync(lambda: on.producer.send_nowait(b"x")),
    "producer.send_many": lambda on: on.producer.send_many([b"x"]),
    "producer.flush": lambda on: on.producer.flush(),
    "producer.close": lambda on: on.producer.close(),
    "consumer.receive": lambda on: on.consumer.receive(),
    "consumer.receive_many": lambda on: on.consumer.receive_many(2),
    "consumer.receive_batch": lambda on: consumer_impl(on.consumer).receive_batch(1, 1, None),
    "consumer.__anext__": lambda on: on.consumer.__anext__(),
    "consumer.ack": lambda on: on.consumer.ack(on.message),
    "consumer.ack_nowait": lambda on: _sync(lambda: consumer_impl(on.consumer).ack_nowait(on.message)),
    "consumer.ack_cumulative": lambda on: on.consumer.ack_cumulative(on.message),
    "consumer.nack": lambda on: on.queue.nack(on.message),
    "consumer.transaction": lambda on: _block(on.consumer.transaction(on.message)),
    "consumer.lag": lambda on: on.consumer.lag(),
    "consumer.positions": lambda on: on.consumer.positions(),
    "consumer.pause": lambda on: _sync(lambda: on.consumer.pause()),
    "consumer.resume": lambda on: _sync(lambda: on.consumer.resume()),
    "consumer.unsubscribe": lambda on: on.consumer.unsubscribe(),
    "consumer.seek": lambda on: on.consumer.seek("earliest"),
    "consumer.rewind": lambda on: _sync(lambda: on.consumer.rewind()),
    "consumer.close": lambda on: on.consumer.close(),
    "reader.receive": lambda on: on.reader.receive(),
    "reader.receive_many": lambda on: on.reader.receive_many(2),
    "reader.__anext__": lambda on: on.reader.__anext__(),
    "reader.positions": lambda on: _sync(lambda: on.reader.positions()),
    "reader.seek": lambda on: on.reader.seek("earliest"),
    "reader.close": lambda on: on.reader.close(),
    "watch.move": lambda on: on.watch.move(TAKEN),
    "watch.wait": lambda on: on.watch.wait(1.0),
    "watch.close": lambda on: on.watch.close(),
    "txn.commit": lambda on: on.txn.commit(),
    "txn.abort": lambda on: on.txn.abort(),
    "txn.leave": lambda on: on.txn.leave(),
    "txn.flush": lambda on: on.txn.flush(),
    "process": lambda on: txnclient.process(on.consumer, lambda message: None),
    "process_batches": lambda on: txnclient.process_batches(on.consumer, lambda messages, txn: None),
}


def in_another_thread(call: Callable[[], Awaitable[object]]) -> BaseException | None:
    """What a call raises in an event loop of another thread, which it must do without that of this one."""
    raised: list[BaseException] = []

    async def awaited() -> None:
        await call()

    def work() -> None:
        try:
            asyncio.run(awaited())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test looks at it
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    return raised[0] if raised else None


# ---- C7 -------------------------------------------------------------------------------------------------------------


async def test_c7_every_call_from_another_thread_s_loop_is_refused_and_breaks_nothing() -> None:
    async with connected() as (cluster, client):
        things = await opened(client, cluster.servers["broker:1"])
        for name, call in CALLS_OF_ALL.items():
            error = in_another_thread(lambda call=call: call(things))  # type: ignore[misc]
            assert isinstance(error, txnclient.InvalidArgument), (name, error)
            assert error.fatal, name
            assert "another event loop" in str(error), (name, error)
        await things.producer.send(b"still works", txn=things.txn)
        assert (await things.consumer.receive()).value == b"two"
        await things.txn.commit()


@pytest.mark.leaves("budgets", "nobody closes what it opens")
def test_c7_every_call_in_a_second_loop_says_that_the_first_one_has_ended() -> None:
    kept: list[Things] = []

    async def first() -> None:
        async with connected() as (cluster, client):
            kept.append(await opened(client, cluster.servers["broker:1"]))
            for thing in kept[0]:
                if hasattr(thing, "_closed"):
                    thing._closed = True  # as if nobody had closed it
                if hasattr(thing, "_all_closed"):
                    thing._all_closed.set()

    run(first(), leaves_tasks=True)
    for thing in kept[0]:
        if hasattr(thing, "_closed"):
            thing._closed = False
    for name, call in CALLS_OF_ALL.items():

        async def second(call: Callable[[Things], Awaitable[object]] = call) -> None:
            await call(kept[0])

        with pytest.raises(txnclient.InvalidArgument, match=r"has ended: connect again") as raised:
            run(second())
        assert raised.value.fatal, name


async def test_c7_a_forked_child_of_a_process_that_had_connected_is_refused_at_once(cluster: InProcessCluster) -> None:
    """Dies where its `connect` waits for its timeout, which is ten minutes here."""
    script = textwrap.dedent(
        """
        import asyncio, os, sys, txnclient, txnclient.sync

        async def once():
            async with txnclient.connect(sys.argv[1], timeout=600) as client:
                await client.list_topics()

        def told(call):
            try:
                call()
            except txnclient.InvalidArgument as error:
                print("fatal" if error.fatal else "not fatal", "fork" in str(error), flush=True)

        asyncio.run(once())
        with txnclient.sync.connect(sys.argv[1]) as client:
            producer = client.producer(sys.argv[2])
            if os.fork() == 0:
                told(lambda: asyncio.run(once()))
                told(lambda: txnclient.sync.connect(sys.argv[1], timeout=600))
                told(client.begin)
                told(lambda: producer.send(b"from the child"))
                told(client.close)
                os._exit(0)
            os.wait()
            producer.send(b"from the parent")

        async def open_at_the_fork():
            async with txnclient.connect(sys.argv[1]) as client:
                if os.fork() == 0:
                    told(lambda: asyncio.run(client.begin()))
                    told(lambda: asyncio.run(client.close()))
                    os._exit(0)
                os.wait()
                print(await client.list_topics())

        asyncio.run(open_at_the_fork())
        """
    )
    async with cluster.connect() as client:
        await client.create_topic(TOPIC)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, cluster.url, TOPIC), stdout=asyncio.subprocess.PIPE, cwd=os.getcwd()
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    assert output.decode().splitlines() == ["fatal True"] * 7 + [f"[{TOPIC!r}]"]
    assert process.returncode == 0


def test_c7_a_lock_that_was_held_at_the_fork_does_not_hold_up_the_child() -> None:
    with Bridge._lock:
        child = os.fork()
        if child == 0:
            os._exit(7 if Bridge._lock.acquire(timeout=5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# ---- C6 -------------------------------------------------------------------------------------------------------------


async def called_on(call: Callable[[], Awaitable[object]], error: type[Exception] = txnclient.TxnError) -> list[Any]:
    """What so many calls in a row raise. The loop goes on meanwhile."""
    ticks = 0
    raised: list[Any] = []

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    for _ in range(CALLS):
        with pytest.raises(error) as caught:
            await call()
        raised.append(caught.value)
    ticking.cancel()
    assert ticks >= CALLS - 1
    assert len({id(one) for one in raised}) == CALLS
    return raised


@pytest.mark.parametrize("kind", ["stream", "queue"])
@virtual_time
async def test_c6_a_failed_consumer_says_so_as_fatal_and_costs_nothing(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.refuse["subscribe"] = [txnclient.SubscriptionNotFound("gone") for _ in SEGMENTS]
        consumer = await client.consumer(TOPIC, "sub", type=kind)
        calls = 0

        async def call_on() -> None:
            nonlocal calls
            while True:
                with pytest.raises(txnclient.SubscriptionNotFound) as caught:
                    await consumer.receive()
                assert (caught.value.fatal, caught.value.retriable) == (True, False)
                calls += 1

        calling = asyncio.create_task(call_on())
        await asyncio.sleep(100)
        calling.cancel()
        await asyncio.wait((calling,))
        assert 100 <= calls < 150
        for error in await called_on(lambda: consumer.receive_many(1, timeout=0)):
            assert error.fatal
        assert len([one for one in caplog.records if "cannot continue" in one.getMessage()]) == 1


@virtual_time
async def test_c6_everybody_who_waits_when_a_consumer_fails_is_told_at_once() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        consumer = await client.consumer(TOPIC, "sub")
        await until(lambda: len(server.consumers) == 2)
        waiting = [asyncio.create_task(consumer.receive(timeout=1000)) for _ in range(20)]
        await asyncio.sleep(1)
        began = cluster.clock.monotonic()
        consumer_impl(consumer)._receiver.fail(txnclient.TopicNotFound("gone"))
        await asyncio.wait(waiting)
        assert cluster.clock.monotonic() < began + txnclient.connection.deadlines.FIRST_PAUSE_S / 2
        assert all(isinstance(task.exception(), txnclient.TopicNotFound) for task in waiting)


@virtual_time
async def test_c6_acks_of_a_segment_that_has_failed_fail_at_once() -> None:
    """Dies where they wait for their timeout, which is for ever here."""
    async with connected(timeout=1e6) as (cluster, client):
        server = cluster.servers["broker:1"]
        consumer = await client.consumer(TOPIC, "sub")
        await until(lambda: len(server.consumers) == 2)
        server.deliver(SEGMENTS[0], 0, b"one", b"two")
        one, two = await consumer.receive(), await consumer.receive()
        server.hold["ack"] = asyncio.Event()
        under_way = asyncio.create_task(consumer.ack(one))
        await until(lambda: server.seen["ack"])
        server.refuse["subscribe"] = [txnclient.SubscriptionNotFound("gone") for _ in SEGMENTS]
        await server.cut()
        with pytest.raises(txnclient.SubscriptionNotFound):
            await consumer.receive()
        for ack in (under_way, consumer.ack(two)):
            async with asyncio.timeout(10):
                with pytest.raises(txnclient.SubscriptionNotFound) as caught:
                    await ack
            assert caught.value.fatal


@virtual_time
async def test_c6_a_loop_ends_with_what_its_consumer_failed_with() -> None:
    """`NotAllowed` passes, of a consumer that lives."""
    async with connected() as (_, client):
        consumer = await client.consumer(TOPIC, "sub")
        consumer_impl(consumer)._receiver.fail(txnclient.NotAllowed("the subscription is a queue by now"))
        with pytest.raises(txnclient.NotAllowed, match="by now") as caught:
            await txnclient.process(consumer, lambda message: None, patience=1e9)
        assert caught.value.fatal


@virtual_time
async def test_c6_failed_and_closed_things_let_the_loop_live() -> None:
    async with connected() as (cluster, client):
        things = await opened(client, cluster.servers["broker:1"])
        reader_impl(things.reader)._receiver.fail(txnclient.DataTrimmed("gone"))
        assert (await called_on(lambda: things.reader.receive(timeout=0)))[0].fatal
        fenced = await client.producer(TOPIC)
        producer_impl(fenced).fenced(txnclient.ProducerFenced("a newer one"))
        for call in (lambda: fenced.send(b"x"), lambda: fenced.send_many([b"x"])):
            assert (await called_on(call))[-1].fatal
        for thing in things[1:5]:
            await thing.close()  # type: ignore[attr-defined]
        await client.close()
        for name, call_closed in CALLS_OF_ALL.items():
            if (
                name.split(".")[0] in ("producer", "consumer", "reader", "client")
                and not name.endswith(
                    (".close", "__anext__", "nowait", "rewind", "flush", "_entries", "receive_batch", "pause", "resume")
                )
                and name != "reader.positions"
            ):
                quick = name.replace("receive", "").endswith(".") or name.endswith("_many")
                errors = await called_on(
                    (lambda name=name: _impatient(name, things)) if quick else lambda c=call_closed: c(things)  # type: ignore[misc]
                )
                assert errors[-1].fatal, name


async def _impatient(name: str, on: Things) -> None:
    if name == "producer.send_many":
        await on.producer.send_many([b"x"])
    receiver: Any = on.consumer if name.startswith("consumer") else on.reader
    await receiver.receive_many(1, timeout=0)


@virtual_time
async def test_c6_asking_on_behind_the_end_lets_the_loop_live() -> None:
    async with connected() as (_, client):
        reader = await client.reader(TOPIC, end="latest")
        await called_on(reader.receive, txnclient.EndOfStream)
        others = asyncio.create_task(asyncio.sleep(0))
        while not others.done():
            assert await reader.receive_many(1) == []
