"""What a processing loop does around its handler: which producer sends, and the transaction that is begun ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.consuming.attached import LEFT, RIGHT, attached
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, connected
from tests.waiting import until
from txnclient.batch_pace import WORK_S
from txnclient.connection.tasks import OwnedTasks
from txnclient.consuming.consumer import consumer_impl
from txnclient.handlers import ABORT_TIMEOUT_S, PrefetchedTransaction

TIMEOUT_S = 30.0


@pytest.mark.parametrize("names", [["orders"], ["orders", "bills"], ["bills", "orders"]])
@virtual_time
async def test_an_output_that_names_no_producer_goes_to_the_only_one_or_to_none(names: list[str]) -> None:
    """▲ Sent to the first one of several, it would be in a topic where nobody looks for it."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        producers = {name: await client.producer(TOPIC, name=name) for name in names}
        server.deliver(LEFT, 0, b"value")
        given = txnclient.process(consumer, lambda message: message.value, producers, max_messages=1)
        if len(names) == 1:
            done = await given
            assert (done.outputs, server.seen["send"]) == (1, 1)
        else:
            with pytest.raises(txnclient.InvalidArgument) as told:
                await given
            assert str(told.value).endswith(f"the producers given by name are {names[0]!r}, {names[1]!r}")
            assert server.seen["send"] == 0


def open_ones(cluster: Cluster) -> int:
    return list(cluster.states.values()).count("OPEN")


async def prefetched(client: txnclient.Client, tasks: OwnedTasks, **options: Any) -> PrefetchedTransaction:
    consumer = await client.consumer(TOPIC, "sub", **options)
    return PrefetchedTransaction(consumer_impl(consumer), TIMEOUT_S, tasks)


async def begun(ahead: PrefetchedTransaction) -> None:
    ahead.prepare()
    assert ahead._beginning is not None
    await ahead._beginning


@virtual_time
async def test_a_transaction_is_begun_ahead_again_behind_one_that_was_dropped_or_taken() -> None:
    """▲ Else every batch behind the first idle moment would wait for its begin."""
    async with connected() as (cluster, client):
        tasks = OwnedTasks()
        ahead = await prefetched(client, tasks)
        for _ in range(2):
            await begun(ahead)
            assert open_ones(cluster) == 1
            await ahead.drop()
            assert open_ones(cluster) == 0
        for _ in range(2):
            await begun(ahead)
            before = len(cluster.states)
            txn = await ahead.take()
            assert len(cluster.states) == before, "no other was begun"
            await txn.abort()
        await tasks.close()


@virtual_time
async def test_one_whose_begin_failed_or_that_is_half_over_gives_way_to_a_new_one() -> None:
    async with connected() as (cluster, client):
        server, tasks = cluster.servers["broker:1"], OwnedTasks()
        ahead = await prefetched(client, tasks)
        server.refuse["new_txn"] = [txnclient.StoreFull("no room")]
        await begun(ahead)
        txn = await ahead.take()
        assert open_ones(cluster) == 1
        await txn.abort()
        await begun(ahead)
        (stale,) = [txn_id for txn_id, state in cluster.states.items() if state == "OPEN"]
        await asyncio.sleep(TIMEOUT_S / 2 + 1.0)
        txn = await ahead.take()
        assert (txn.id != stale, cluster.states[stale]) == (True, "ABORTED")
        await txn.abort()
        await tasks.close()


@virtual_time
async def test_one_that_is_dropped_and_whose_abort_nobody_answers_is_aborted_later() -> None:
    """▲ The batches that come need it as little as it needs them."""
    async with connected() as (cluster, client):
        server, tasks = cluster.servers["broker:1"], OwnedTasks()
        ahead = await prefetched(client, tasks)
        await begun(ahead)
        server.ignore["end_txn"] = 2
        await ahead.drop()
        assert open_ones(cluster) == 1
        await until(lambda: not open_ones(cluster), within_s=TIMEOUT_S)
        await tasks.close()


@virtual_time
async def test_a_commit_is_asked_for_until_it_is_known() -> None:
    """▲ Aborted instead, all of its batch would be done again."""
    async with connected(timeout=3.0) as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"value")
        server.ignore["end_txn"] = 1_000
        running = asyncio.create_task(txnclient.process(consumer, lambda _: None, max_messages=1))
        await asyncio.sleep(20.0)
        server.ignore.clear()
        done = await running
        assert (done.messages, done.again) == (1, 0)
        assert list(cluster.states.values()) == ["COMMITTED"]


@virtual_time
async def test_a_loop_that_was_told_to_stop_takes_nothing_more() -> None:
    """▲ What it took behind its end, nobody would handle."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        stop = asyncio.Event()
        running = asyncio.create_task(txnclient.process(consumer, lambda _: None, stop=stop))
        await asyncio.sleep(1.0)
        stop.set()
        assert (await running).messages == 0
        server.deliver(LEFT, 0, b"value")
        assert (await consumer.receive(timeout=5.0)).value == b"value"


@virtual_time
async def test_a_queue_s_loop_ends_with_its_own_error_also_where_its_messages_cannot_be_given_back() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        server.deliver(LEFT, 0, b"value")
        server.hold["new_txn"] = asyncio.Event()
        server.refuse["new_txn"] = [txnclient.DataCorrupt("the record is damaged")]
        running = asyncio.create_task(txnclient.process(consumer, lambda _: None))
        await until(lambda: server.seen["new_txn"])
        server.assign(RIGHT)
        await until(lambda: consumer.segments == [RIGHT])
        server.hold["new_txn"].set()
        with pytest.raises(txnclient.DataCorrupt):
            await asyncio.wait_for(running, 60.0)


@virtual_time
async def test_a_loop_that_pauses_before_it_tries_again_stops_at_once() -> None:
    """▲ The supervisor of a worker that is told to stop counts the seconds."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.refuse["new_txn"] = [txnclient.StoreFull("no room") for _ in range(100)]
        stop = asyncio.Event()
        running = asyncio.create_task(txnclient.process(consumer, lambda _: None, stop=stop))
        for times in range(1, 8):
            server.deliver(LEFT, 0, b"again")
            await until(lambda times=times: server.seen["new_txn"] == times)  # type: ignore[misc]
            attached_anew = len(SEGMENTS) * (times + 1)
            await until(lambda wanted=attached_anew: len(server.permits) == wanted)  # type: ignore[misc]
        began_s = cluster.clock.monotonic()
        stop.set()
        done = await running
        assert cluster.clock.monotonic() - began_s < 0.1
        assert (done.messages, done.again) == (0, 7)


@pytest.mark.parametrize(("type", "transactions"), [("stream", 1), ("queue", 2)])
@virtual_time
async def test_a_queue_s_first_batch_is_one_message_and_a_stream_s_is_all_there_is(
    type: str, transactions: int
) -> None:
    """Who else could work on a queue's messages gets none of those in a batch, however long each of them takes."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type=type)
        server.deliver(LEFT, 0, *[b"value"] * 10)
        await until(lambda: consumer_impl(consumer).has_buffered)
        done = await txnclient.process(consumer, lambda _: None, max_messages=10)
        assert (done.messages, done.transactions) == (10, transactions)


@virtual_time
async def test_a_wait_for_a_commit_that_is_over_makes_no_batch_of_a_queue_longer() -> None:
    """What lies in a long batch, no other worker gets."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        server.deliver(LEFT, 0, *[b"value"] * 10)
        await until(lambda: consumer_impl(consumer).has_buffered)

        async def handler(message: txnclient.Message[bytes]) -> None:
            await asyncio.sleep(WORK_S)

        done = await txnclient.process(consumer, handler, commits_under_way=1, max_messages=10)
        assert (done.messages, done.transactions) == (10, 10)


@pytest.mark.parametrize(
    ("worse", "done", "nacked", "again"),
    [(ZeroDivisionError("by nought"), 2, 2, 0), (txnclient.Overloaded("no room"), 1, 0, 1)],
    ids=["for good", "passing"],
)
@virtual_time
async def test_of_a_queue_s_batch_every_failure_counts(
    worse: Exception, done: int, nacked: int, again: int, caplog: pytest.LogCaptureFixture
) -> None:
    """▲ One that passes, wherever it stands in the batch, is no message's own: nacked for it, it would die one day."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        server.deliver(LEFT, 0, b"good", b"bad", b"worse", b"good, too")
        await until(lambda: consumer_impl(consumer).has_buffered)
        failures, stop = {b"bad": ValueError("bad"), b"worse": worse}, asyncio.Event()

        def handler(message: txnclient.Message[bytes]) -> None:
            if message.value in failures:
                raise failures[message.value]

        running = asyncio.create_task(txnclient.process(consumer, handler, stop=stop))
        await until(lambda: server.seen["nack"])
        stop.set()
        found = await running
        assert (found.messages, found.nacked, found.again) == (done, nacked, again)
        assert caplog.text.count("is given back: the handler raised") == max(1, nacked)


@virtual_time
async def test_what_gathers_while_commits_are_under_way_stays_about_the_bytes_of_a_batch() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        committing = server.hold["end_txn"] = asyncio.Event()
        batches: list[int] = []

        async def work(messages: Sequence[txnclient.Message[bytes]], txn: txnclient.Transaction) -> None:
            batches.append(len(messages))

        running = asyncio.create_task(
            txnclient.process_batches(consumer, work, linger_ms=100.0, batch_bytes=1000, max_messages=5)
        )
        for entry_id in range(5):
            server.deliver(LEFT, entry_id, bytes(600))
            await asyncio.sleep(0.01)
        await until(lambda: sum(batches) == 5)
        committing.set()
        await running
        assert batches == [1, 2, 2]


@virtual_time
async def test_no_more_messages_are_taken_than_asked_for_however_many_commits_are_under_way() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, *[b"value"] * 10)
        committing = server.hold["end_txn"] = asyncio.Event()
        taken: list[bytes] = []
        running = asyncio.create_task(
            txnclient.process(consumer, lambda message: taken.append(message.value), batch_messages=1, max_messages=3)
        )
        await until(lambda: len(taken) == 3)
        await asyncio.sleep(1.0)
        committing.set()
        assert (await running).messages == len(taken) == 3


@virtual_time
async def test_a_loop_that_ends_with_an_error_waits_for_all_commits_that_are_under_way() -> None:
    """▲ Given up, what they have done would be done again."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, *[b"good"] * 2, b"bad")
        first, second = asyncio.Event(), asyncio.Event()
        server.hold["end_txn"] = first

        def handler(message: txnclient.Message[bytes]) -> None:
            if message.value == b"bad":
                raise ValueError("bad")

        running = asyncio.create_task(txnclient.process(consumer, handler, batch_messages=1))
        await until(lambda: server.seen["end_txn"])
        await asyncio.sleep(1.0)
        server.hold["end_txn"] = second
        first.set()
        await asyncio.sleep(2 * ABORT_TIMEOUT_S)  # also of the transaction that was begun ahead
        assert not running.done()
        second.set()
        with pytest.raises(ValueError, match="bad"):
            await running
        assert list(cluster.states.values()).count("COMMITTED") == 2


@virtual_time
async def test_a_failure_of_the_handler_is_told_though_nobody_answers_the_abort() -> None:
    """The transaction's own time is for errors that pass, behind which a stream goes on."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.ignore["end_txn"] = 100
        server.deliver(LEFT, 0, b"value")

        async def refuse(messages: Sequence[txnclient.Message[bytes]], txn: txnclient.Transaction) -> None:
            raise ValueError(messages[0].value)

        began_s = cluster.clock.monotonic()
        with pytest.raises(ValueError, match="value"):
            await txnclient.process_batches(consumer, refuse, txn_timeout=300.0)
        assert cluster.clock.monotonic() - began_s < 60.0
        server.ignore.clear()


@virtual_time
async def test_a_queue_gives_its_messages_back_though_nobody_answers_the_abort() -> None:
    """Only a stream has to know that the transaction is over: the next messages of a key would overtake it."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client, type="queue")
        server.ignore["end_txn"] = 100
        server.deliver(LEFT, 0, b"value")
        failures = [txnclient.Overloaded("no room")]

        async def work(messages: Sequence[txnclient.Message[bytes]], txn: txnclient.Transaction) -> None:
            if failures:
                raise failures.pop()

        running = asyncio.create_task(
            txnclient.process_batches(consumer, work, txn_timeout=300.0, patience=1000.0, max_messages=1)
        )
        await until(lambda: server.seen["nack"])
        server.ignore.clear()
        server.deliver(LEFT, 0, b"value", redelivery_count=1)
        assert (await running).again == 1
        await until(lambda: not open_ones(cluster), "aborted later", within_s=60.0)
