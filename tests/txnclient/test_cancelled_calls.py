"""Calls of transactions whose caller goes away: nothing stays open for longer than it takes to end it (C1, C5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, ScriptedServer, connected
from tests.waiting import until
from txnclient import TransactionState
from txnclient.consuming.consumer import consumer_impl
from txnclient.transactions.transaction import transaction_impl

DEADLINE_S = 3600.0
"""Of the transactions here: whoever waits for it waits for ever."""


def server_of(cluster: Cluster) -> ScriptedServer:
    return cluster.servers["broker:1"]


async def cancelled(call: Coroutine[Any, Any, object], once: Any) -> None:
    """Make a call, and cancel it as soon as `once` holds."""
    task = asyncio.create_task(call)
    await until(once)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def ended(cluster: Cluster, state: str) -> None:
    await until(lambda: list(cluster.states.values()) == [state])


# ---- ack ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["ack", "ack_cumulative"])
@virtual_time
async def test_c1_an_ack_that_is_cancelled_leaves_its_transaction_only_able_to_abort(how: str) -> None:
    """Its caller may take it for not done, and ack the messages in another transaction."""
    async with connected() as (cluster, client):
        server = server_of(cluster)
        consumer = await client.consumer(TOPIC, "sub")
        await until(lambda: len(server.permits) == len(SEGMENTS))
        server.deliver(SEGMENTS[0], 0, b"a")
        message = await consumer.receive()
        server.hold["ack"] = asyncio.Event()
        txn = await client.begin(timeout=DEADLINE_S)
        await cancelled(getattr(consumer, how)(message, txn=txn), lambda: server.seen["ack"])
        server.hold["ack"].set()
        with pytest.raises(txnclient.InvalidTxnState, match="an ack in it was cancelled"):
            await txn.commit()
        await ended(cluster, "ABORTED")


@virtual_time
async def test_c1_messages_to_ack_whose_iterator_raises_leave_their_transaction_only_able_to_abort() -> None:
    async with connected() as (cluster, client):
        consumer = await client.consumer(TOPIC, "sub")
        messages: list[txnclient.Message] = []
        txn = await client.begin(timeout=DEADLINE_S)
        with pytest.raises(ZeroDivisionError):
            await consumer.ack((messages[1 // n] for n in (0, 1)), txn=txn)
        with pytest.raises(txnclient.InvalidTxnState, match="an ack in it was ended by ZeroDivisionError"):
            await txn.commit()
        await ended(cluster, "ABORTED")


# ---- begin ----------------------------------------------------------------------------------------------------------


@virtual_time
async def test_c5_a_begin_that_was_cancelled_is_aborted_once_its_id_is_known() -> None:
    async with connected() as (cluster, client):
        transaction_impl(await client.begin()).settle_later()
        await ended(cluster, "ABORTED")
        cluster.states.clear()
        server = server_of(cluster)
        server.hold["new_txn"] = asyncio.Event()
        await cancelled(client.begin(timeout=DEADLINE_S), lambda: server.seen["new_txn"] == 2)
        server.hold["new_txn"].set()
        await ended(cluster, "ABORTED")
        assert server.seen["new_txn"] == 2


@pytest.mark.parametrize("fate", ["answered", "lost", "refused at first"])
@virtual_time
async def test_c5_a_begin_that_was_cancelled_before_there_was_a_connection_is_aborted(fate: str) -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        server.hold["new_txn"] = asyncio.Event()
        await server.cut()
        if fate == "refused at first":
            server.refuse["new_txn"] = [txnclient.StoreUnavailable("not now")]
        await cancelled(client.begin(timeout=DEADLINE_S), lambda: server.seen["new_txn"])
        server.lose_replies["new_txn"] = int(fate == "lost")
        server.hold["new_txn"].set()
        await ended(cluster, "ABORTED")


@virtual_time
async def test_c5_a_begin_that_was_cancelled_and_whose_answer_is_lost_is_asked_for_again_and_aborted() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        server.hold["new_txn"] = asyncio.Event()
        await cancelled(client.begin(timeout=DEADLINE_S), lambda: server.seen["new_txn"])
        server.lose_replies["new_txn"] = 2
        server.hold["new_txn"].set()
        await ended(cluster, "ABORTED")
        assert server.seen["new_txn"] == 3


@virtual_time
async def test_c5_a_client_that_closes_waits_for_begins_that_were_cancelled() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        server.hold["new_txn"] = asyncio.Event()
        await cancelled(client.begin(timeout=DEADLINE_S), lambda: server.seen["new_txn"])
        asyncio.get_running_loop().call_later(0.5, server.hold["new_txn"].set)
        await client.close()
        assert list(cluster.states.values()) == ["ABORTED"]


@virtual_time
async def test_c5_a_client_that_closes_waits_for_the_abort_of_such_a_begin_too() -> None:
    """▲ It begins only behind the answer, and its first try may fail."""
    async with connected() as (cluster, client):
        server = server_of(cluster)
        server.hold["new_txn"] = asyncio.Event()
        server.refuse["end_txn"] = [txnclient.StoreUnavailable("not now") for _ in range(3)]
        await cancelled(client.begin(timeout=DEADLINE_S), lambda: server.seen["new_txn"])
        asyncio.get_running_loop().call_later(0.5, server.hold["new_txn"].set)
        await client.close()
        assert list(cluster.states.values()) == ["ABORTED"]


@virtual_time
async def test_a_client_closes_although_nobody_answers_a_begin_that_was_cancelled() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        server.ignore["new_txn"] = 1
        await cancelled(client.begin(timeout=DEADLINE_S), lambda: server.seen["new_txn"])
        await client.close()
        assert [task for task in asyncio.all_tasks() if "begin" in task.get_name()] == []


@virtual_time
async def test_c5_a_named_begin_that_was_cancelled_leaves_the_transaction_to_the_others() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        server.hold["new_txn"] = asyncio.Event()
        await cancelled(client.begin(timeout=DEADLINE_S, name="job"), lambda: server.seen["new_txn"])
        server.hold["new_txn"].set()
        await until(lambda: cluster.states)
        other = await client.begin(name="job")
        await other.commit()
        assert cluster.states == {other.id: "COMMITTED"}


# ---- commit ---------------------------------------------------------------------------------------------------------


@virtual_time
async def test_c5_a_commit_that_was_cancelled_before_it_was_asked_for_is_an_abort() -> None:
    """Dies where it stays open until its deadline, because a send in it is not answered."""
    async with connected() as (cluster, client):
        server = server_of(cluster)
        producer = await client.producer(TOPIC)
        server.stall_sends = True
        txn = await client.begin(timeout=DEADLINE_S)
        producer.send_nowait(b"never answered", txn=txn)
        await cancelled(txn.commit(), lambda: server.stalled)
        await ended(cluster, "ABORTED")
        with pytest.raises(txnclient.InvalidTxnState):
            await txn.commit()
        server.drop_stalled()


@pytest.mark.parametrize("carried_out", [True, False])
@virtual_time
async def test_c5_the_outcome_of_a_commit_that_was_cancelled_on_its_way_is_found_out(carried_out: bool) -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        txn = await client.begin(timeout=DEADLINE_S)
        if carried_out:
            server.hold["end_txn"] = asyncio.Event()
        else:
            server.ignore["end_txn"] = 1
        await cancelled(txn.commit(), lambda: server.seen["end_txn"])
        if carried_out:
            server.hold["end_txn"].set()
        if carried_out:
            await until(lambda: txn.state is TransactionState.COMMITTED)
            assert (await txn.commit()).revision == cluster.decided_at[txn.id] == client._session.commit_revision
        else:
            await until(lambda: txn.state is TransactionState.ABORTED)
            assert cluster.states == {txn.id: "ABORTED"}


@pytest.mark.parametrize("carried_out", [True, False])
@virtual_time
async def test_c5_a_commit_that_is_repeated_behind_a_cancelled_one_tells_what_has_happened(carried_out: bool) -> None:
    """Dies where it is called aborted while the first one decides."""
    async with connected() as (cluster, client):
        server = server_of(cluster)
        txn = await client.begin(timeout=DEADLINE_S)
        server.hold["end_txn"] = asyncio.Event()
        server.ignore["end_txn"] = int(not carried_out)
        await cancelled(txn.commit(), lambda: server.seen["end_txn"])
        again = asyncio.create_task(txn.commit())
        await asyncio.sleep(1)
        server.hold["end_txn"].set()
        await asyncio.wait((again,))
        if carried_out:
            assert again.result().revision == cluster.decided_at[txn.id]
        else:
            assert isinstance(again.exception(), txnclient.InvalidTxnState)
        assert cluster.states == {txn.id: "COMMITTED" if carried_out else "ABORTED"}


@virtual_time
async def test_a_cancelled_commit_of_what_was_aborted_meanwhile_shows_so() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        txn = await client.begin(timeout=DEADLINE_S)
        server.ignore["end_txn"] = 1
        await cancelled(txn.commit(), lambda: server.seen["end_txn"])
        cluster.states[txn.id], cluster.decided_at[txn.id] = "ABORTED", 7
        await until(lambda: txn.state is TransactionState.ABORTED)


@virtual_time
async def test_a_cancelled_commit_of_a_named_transaction_is_its_writer_s_to_repeat() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        producer = await client.producer(TOPIC)
        server.stall_sends = True
        txn = await client.begin(timeout=DEADLINE_S, name="job")
        producer.send_nowait(b"answered later", txn=txn)
        await cancelled(txn.commit(), lambda: server.stalled)
        assert txn.state is TransactionState.OPEN
        server.stall_sends = False
        server.finish_sends()
        await txn.commit()
        assert cluster.states == {txn.id: "COMMITTED"}


@virtual_time
async def test_a_named_commit_that_was_cancelled_on_its_way_is_asked_for_with_the_same_writers() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        txn = await client.begin(timeout=DEADLINE_S, name="job")
        server.ignore["end_txn"] = 1
        await cancelled(txn.commit(writers=[txn.writer_id]), lambda: server.seen["end_txn"])
        await until(lambda: txn.state is TransactionState.COMMITTED)
        assert cluster.writers[txn.id] == [txn.writer_id]


# ---- abort, and the block -------------------------------------------------------------------------------------------


@virtual_time
async def test_c5_an_abort_that_was_cancelled_goes_on() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        txn = await client.begin(timeout=DEADLINE_S)
        server.ignore["end_txn"] = 1
        await cancelled(txn.abort(), lambda: server.seen["end_txn"])
        await ended(cluster, "ABORTED")


@virtual_time
async def test_c5_a_block_that_is_cancelled_in_its_commit_leaves_nothing_open() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        producer = await client.producer(TOPIC)
        server.stall_sends = True

        async def block() -> None:
            async with client.transaction(timeout=DEADLINE_S) as txn:
                producer.send_nowait(b"never answered", txn=txn)

        await cancelled(block(), lambda: server.stalled)
        await ended(cluster, "ABORTED")
        server.drop_stalled()


@virtual_time
async def test_c5_a_block_whose_commit_times_out_leaves_nothing_open() -> None:
    async with connected(timeout=5.0) as (cluster, client):
        server = server_of(cluster)
        server.ignore["end_txn"] = 1
        with pytest.raises(txnclient.Timeout):
            async with client.transaction(timeout=DEADLINE_S):
                pass
        await ended(cluster, "ABORTED")


@virtual_time
async def test_c5_a_block_whose_abort_times_out_leaves_nothing_open() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        server.ignore["end_txn"] = 1
        with pytest.raises(ZeroDivisionError):
            async with client.transaction(timeout=DEADLINE_S):
                raise ZeroDivisionError
        await ended(cluster, "ABORTED")


@virtual_time
async def test_c5_a_client_that_closes_finishes_what_it_settles() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        txn = await client.begin(timeout=DEADLINE_S)
        server.hold["end_txn"] = asyncio.Event()
        await cancelled(txn.abort(), lambda: server.seen["end_txn"])
        asyncio.get_running_loop().call_later(0.5, server.hold["end_txn"].set)
        await client.close()
        assert txn.state is TransactionState.ABORTED


@virtual_time
async def test_what_cannot_be_settled_is_given_up_at_its_deadline() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        txn = await client.begin(timeout=20.0)
        server.ignore["end_txn"] = 1_000_000
        await cancelled(txn.abort(), lambda: server.seen["end_txn"])
        await asyncio.sleep(120)
        asked = server.seen["end_txn"]
        await asyncio.sleep(120)
        assert server.seen["end_txn"] == asked


# ---- the loops ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [False, True])
@virtual_time
async def test_c5_a_loop_that_is_cancelled_while_its_sends_are_unanswered_leaves_nothing_open(batches: bool) -> None:
    async with connected(timeout=2.0) as (cluster, client):
        server = server_of(cluster)
        producer = await client.producer(TOPIC)
        consumer = await client.consumer(TOPIC, "workers")
        await until(lambda: len(server.consumers) == 2)
        server.deliver(SEGMENTS[0], 0, b"a")
        server.stall_sends = True

        async def handle(messages: Any, txn: txnclient.Transaction) -> None:
            producer.send_nowait(b"never answered", txn=txn)

        loop: Coroutine[Any, Any, object] = (
            txnclient.process_batches(consumer, handle, txn_timeout=DEADLINE_S)
            if batches
            else txnclient.process(consumer, lambda message: b"never answered", producer, txn_timeout=DEADLINE_S)
        )
        await cancelled(loop, lambda: server.stalled)
        await until(lambda: "OPEN" not in cluster.states.values())
        assert list(cluster.states.values()) == ["ABORTED"]
        server.drop_stalled()


@virtual_time
async def test_c5_a_loop_that_is_cancelled_twice_leaves_nothing_open() -> None:
    """The second time while it waits for what is under way: a commit, and one that waits for that."""
    async with connected() as (cluster, client):
        server = server_of(cluster)
        producer = await client.producer(TOPIC)
        consumer = await client.consumer(TOPIC, "workers")
        await until(lambda: len(server.consumers) == 2)
        server.stall_sends = True
        loop = asyncio.create_task(
            txnclient.process(
                consumer, lambda message: message.value, producer, txn_timeout=DEADLINE_S, batch_messages=1
            )
        )
        for number in range(3):
            server.deliver(SEGMENTS[0], number, b"never answered")
        await until(lambda: len(cluster.states) == 3)
        await asyncio.sleep(0.1)
        loop.cancel()
        await asyncio.sleep(0.1)
        loop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loop
        await until(lambda: "OPEN" not in cluster.states.values(), within_s=5.0)
        assert set(cluster.states.values()) == {"ABORTED"}
        server.drop_stalled()


@virtual_time
async def test_c5_a_move_to_the_dead_letters_that_is_cut_off_by_closing_leaves_nothing_open() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        consumer = await client.consumer(
            TOPIC, "workers", type="queue", max_redeliveries=0, dead_letter_topic="topic://public/default/dead"
        )
        assert consumer_impl(consumer)._dead_letters is not None  # there is one topic here
        consumer_impl(consumer)._dead_letters._policy = replace(
            consumer_impl(consumer)._dead_letters._policy, topic=TOPIC
        )
        await until(lambda: len(server.consumers) == 2)
        server.stall_sends = True
        server.deliver(SEGMENTS[0], 0, b"dead", redelivery_count=1)
        receiving = asyncio.create_task(consumer.receive())
        await until(lambda: server.stalled)
        await consumer.close()
        await ended(cluster, "ABORTED")
        receiving.cancel()
        await asyncio.wait((receiving,))
        server.drop_stalled()


# ---- closing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["producer", "consumer", "reader"])
@virtual_time
async def test_what_is_being_opened_while_its_client_closes_is_not_opened(what: str) -> None:
    """Dies where a producer is given out whose sends nobody ends."""
    async with connected() as (cluster, client):
        server = server_of(cluster)
        asked = {"producer": "watch_layout", "consumer": "join_subscription", "reader": "take_snapshot"}[what]
        server.ignore["new_txn"] = 1
        await cancelled(client.begin(), lambda: server.seen["new_txn"])  # closing will wait for it
        server.hold[asked] = asyncio.Event()
        opening: dict[str, Callable[[], Awaitable[object]]] = {
            "producer": lambda: client.producer(TOPIC).__aenter__(),
            "consumer": lambda: client.consumer(TOPIC, "sub").__aenter__(),
            "reader": lambda: client.reader(TOPIC, end="latest").__aenter__(),
        }
        opened = asyncio.ensure_future(opening[what]())
        await until(lambda: server.seen[asked])
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0.1)
        server.hold[asked].set()
        with pytest.raises(txnclient.InvalidArgument, match="this client is closed"):
            await opened
        await closing
        assert [task for task in asyncio.all_tasks() if "feed" in task.get_name()] == []


@pytest.mark.parametrize("turns", range(4))
@virtual_time
async def test_c5_a_client_whose_closing_is_cancelled_twice_is_closed(turns: int) -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        before = len(asyncio.all_tasks())
        await client.producer(TOPIC)
        server.ignore["new_txn"] = 1
        await cancelled(client.begin(), lambda: server.seen["new_txn"])  # closing will wait for it
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0.1)
        closing.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await until(lambda: not server.followers, within_s=5.0)
        assert len(asyncio.all_tasks()) < before
