"""Begin, commit and abort against a scripted server: lost replies, both orders of things, what hangs on what."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, connected
from tests.waiting import until
from txnclient import TransactionState
from txnclient.client import ABORTED_AT_ONCE
from txnclient.transactions.transaction import transaction_impl


@virtual_time
async def test_d7_a_begin_whose_reply_was_lost_is_repeated_under_its_own_attempt() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.lose_replies["new_txn"] = 2
        txn = await client.begin()
        assert list(cluster.states) == [txn.id]
        assert len({command.new_txn.attempt for command in server.commands if command.HasField("new_txn")}) == 1
        await txn.commit()


@virtual_time
async def test_d7_a_begin_goes_elsewhere_under_another_attempt_when_its_coordinator_is_gone() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        first, second = cluster.servers["broker:1"], cluster.servers["broker:2"]
        cluster.coordinators = {0: "broker:1"}
        cluster.announce()
        await asyncio.sleep(0.1)
        first.ignore["new_txn"] = 1
        beginning = asyncio.create_task(client.begin())
        await until(lambda: first.seen["new_txn"])
        cluster.coordinators = {1: "broker:2"}
        await first.stop()
        cluster.announce()
        txn = await beginning
        assert txn.id.tcid == 1
        assert second.seen["new_txn"] == 1


@virtual_time
async def test_d1_a_commit_whose_reply_was_lost_is_asked_again_and_is_ok() -> None:
    async with connected() as (cluster, client):
        txn = await client.begin()
        cluster.servers["broker:1"].lose_replies["end_txn"] = 1
        result = await txn.commit()
        assert result.revision == cluster.decided_at[txn.id]
        assert cluster.servers["broker:1"].seen["end_txn"] == 2


@virtual_time
async def test_d1_the_opposite_decision_is_an_invalid_state() -> None:
    async with connected() as (cluster, client):
        txn = await client.begin()
        cluster.states[txn.id] = "ABORTED"
        with pytest.raises(txnclient.InvalidTxnState, match="timeout"):
            await txn.commit()
        assert txn.state == TransactionState.ABORTED


@virtual_time
async def test_d2_a_commit_behind_the_deadline_raises_one_thing_whatever_has_failed_in_it() -> None:
    """Before the deadline what failed is raised; behind it that it has passed, also where the abort is not answered."""
    async with connected(timeout=5.0) as (cluster, client):
        conflict = txnclient.TxnConflict("it has ended")
        for waits_s, ignored, raised in (
            (0.5, 0, txnclient.TxnConflict),
            (1.5, 0, txnclient.TxnTimedOut),
            (1.5, 9, txnclient.TxnTimedOut),
        ):
            txn = await client.begin(timeout=1.0)
            transaction_impl(txn).failed(conflict)
            await asyncio.sleep(waits_s)
            cluster.servers["broker:1"].ignore["end_txn"] = ignored
            with pytest.raises(raised) as refused:
                await txn.commit()
            assert type(refused.value) is raised
            assert transaction_impl(txn).aborting
            cluster.servers["broker:1"].ignore["end_txn"] = 0


@virtual_time
async def test_k1_a_fenced_commit_behind_the_deadline_says_that_it_was_fenced() -> None:
    """▲ `InvalidTxnState` is for who may do it again."""
    async with connected() as (_, client):
        txn = await client.begin(timeout=1.0)
        transaction_impl(txn).failed(txnclient.ExpiredTransaction("a newer holder has fenced it"))
        await asyncio.sleep(1.5)
        with pytest.raises(txnclient.ExpiredTransaction):
            await txn.commit()


@virtual_time
async def test_a_commit_that_cannot_be_told_times_out_and_may_be_asked_again() -> None:
    async with connected(timeout=5.0) as (cluster, client):
        txn = await client.begin()
        server = cluster.servers["broker:1"]
        server.ignore["end_txn"] = 1
        with pytest.raises(txnclient.Timeout) as failure:
            await txn.commit()
        assert failure.value.retriable
        assert txn.state == TransactionState.COMMITTING
        assert (await txn.commit()).revision


@virtual_time
async def test_d1_a_commit_that_may_have_been_made_is_never_told_as_one_that_was_not() -> None:
    """▲ Its first answer was lost; that the store takes nothing since says nothing about it."""
    async with connected("broker:1", "broker:2", timeout=5.0) as (cluster, client):
        first, second = cluster.servers["broker:1"], cluster.servers["broker:2"]
        cluster.coordinators = {0: "broker:1"}
        cluster.announce()
        await asyncio.sleep(0.1)
        txn = await client.begin()
        cluster.coordinators = {0: "broker:2"}
        cluster.announce()
        await asyncio.sleep(0.1)
        first.lose_replies["end_txn"] = 1
        second.refuse["end_txn"] = [txnclient.StoreUnavailable("down") for _ in range(1000)]
        with pytest.raises(txnclient.Timeout):
            await txn.commit()
        assert cluster.states[txn.id] == "COMMITTED"
        assert txn.state == TransactionState.COMMITTING
        second.refuse["end_txn"].clear()
        assert (await txn.commit()).revision == cluster.decided_at[txn.id]


@virtual_time
async def test_d4_a_commit_is_made_by_another_coordinator_where_its_own_does_not_answer() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        cluster.coordinators = {0: "broker:1"}
        cluster.announce()
        await asyncio.sleep(0.1)
        txn = await client.begin()
        cluster.coordinators = {0: "broker:1", 1: "broker:2"}
        cluster.announce()
        cluster.servers["broker:1"].ignore["end_txn"] = 1000
        await txn.commit()
        assert cluster.states[txn.id] == "COMMITTED"
        assert cluster.servers["broker:2"].seen["end_txn"] == 1


@virtual_time
async def test_ending_twice_is_ok_and_the_other_way_round_is_refused() -> None:
    async with connected() as (cluster, client):
        committed, aborted = await client.begin(), await client.begin()
        first = await committed.commit()
        assert await committed.commit() == first
        assert await committed.abort() == "COMMITTED"
        await aborted.abort()
        await aborted.abort()
        with pytest.raises(txnclient.InvalidTxnState):
            await aborted.commit()
        assert cluster.servers["broker:1"].seen["end_txn"] == 2


@virtual_time
async def test_publishing_and_acking_in_a_finished_transaction_is_refused_at_once() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        async with client.transaction() as txn:
            pass
        with pytest.raises(txnclient.InvalidTxnState, match="COMMITTED"):
            await producer.send(b"late", txn=txn)
        with pytest.raises(txnclient.InvalidTxnState):
            producer.send_nowait(b"late", txn=txn)
        consumer = await client.consumer(TOPIC, "sub")
        with pytest.raises(txnclient.InvalidTxnState):
            await consumer.ack([], txn=txn)
        assert not cluster.servers["broker:1"].seen["send"]


@virtual_time
async def test_l6_commit_waits_for_sends_in_flight() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        server.stall_sends = True
        txn = await client.begin()
        future = producer.send_nowait(b"in flight", txn=txn)
        committing = asyncio.create_task(txn.commit())
        await until(lambda: server.seen["send"])
        await asyncio.sleep(1)
        assert not committing.done()
        assert not server.seen["end_txn"]
        server.stall_sends = False
        server.finish_sends()
        await committing
        assert future.done()
        assert cluster.stored[future.result().segment] == [(0, 0, txn.id)]


@virtual_time
async def test_l6_commit_fails_and_aborts_if_a_send_failed_even_if_nobody_looked() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC)
        server.refuse["send"] = [txnclient.TxnConflict("no")]
        txn = await client.begin()
        producer.send_nowait(b"refused", txn=txn)
        with pytest.raises(txnclient.TxnConflict):
            await txn.commit()
        assert txn.state == TransactionState.ABORTED
        assert cluster.states[txn.id] == "ABORTED"


@virtual_time
async def test_l6_commit_flushes_what_lingers() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=3_600_000)
        server.stall_sends = True
        txn = await client.begin()
        producer.send_nowait(b"first", key="k", txn=txn)
        await until(lambda: server.seen["send"] == 1)
        second = producer.send_nowait(b"second", key="k", txn=txn)
        await asyncio.sleep(1)
        assert server.seen["send"] == 1  # it gathers behind the first
        committing = asyncio.create_task(txn.commit())
        await until(lambda: server.seen["send"] == 2)
        assert not server.seen["end_txn"]
        server.stall_sends = False
        server.finish_sends()
        await committing
        assert second.result().position.entry_id == 1


@virtual_time
async def test_abort_fails_what_is_not_sent_and_awaits_what_is() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer = await client.producer(TOPIC, linger_ms=3_600_000)
        server.stall_sends = True
        txn = await client.begin()
        sent = producer.send_nowait(b"sent", key="k", txn=txn)
        await until(lambda: server.seen["send"])
        unsent = producer.send_nowait(b"unsent", key="k", txn=txn)
        waiting = asyncio.create_task(producer.send(b"unsent too", key="k", txn=txn))
        await asyncio.sleep(0)
        aborting = asyncio.create_task(txn.abort())
        await until(lambda: cluster.states[txn.id] == "ABORTED")
        await asyncio.sleep(0.1)
        assert not aborting.done()
        server.stall_sends = False
        server.finish_sends()
        await aborting
        assert isinstance(sent.exception(), txnclient.TxnConflict)
        assert isinstance(unsent.exception(), txnclient.InvalidTxnState)
        with pytest.raises(txnclient.InvalidTxnState):
            await waiting


@virtual_time
async def test_an_abort_brings_back_what_was_acked_though_a_send_is_never_answered() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer, consumer = await client.producer(TOPIC), await client.consumer(TOPIC, "sub")
        await until(lambda: server.seen["subscribe"] == len(SEGMENTS))
        server.deliver(SEGMENTS[0], 0, b"m")
        server.stall_sends = True
        txn = await client.begin()
        await consumer.ack(await consumer.receive(), txn=txn)
        producer.send_nowait(b"hangs", key="k", txn=txn)
        await until(lambda: server.seen["send"])
        await txn.abort(timeout=2.0)
        assert txn.state == TransactionState.ABORTED
        await until(lambda: server.seen["subscribe"] == len(SEGMENTS) + 1)
        server.deliver(SEGMENTS[0], 0, b"m")
        assert (await consumer.receive()).value == b"m"


@virtual_time
async def test_an_abort_gives_up_what_an_overloaded_segment_refuses_meanwhile() -> None:
    """▲ Not behind the pause before it would be sent again."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producer, txn = await client.producer(TOPIC), await client.begin()
        server.refuse["send"] = [txnclient.Overloaded("full")] * 10
        refused = producer.send_nowait(b"refused", key="k", txn=txn)
        await until(lambda: not server.refuse["send"])
        held = server.hold["send"], server.hold["end_txn"] = asyncio.Event(), asyncio.Event()
        server.refuse["send"] = [txnclient.Overloaded("full")]
        await until(lambda: server.seen["send"] == 11)
        aborting = asyncio.create_task(txn.abort())
        await until(lambda: server.seen["end_txn"])
        for answer in held:
            answer.set()
            await asyncio.sleep(0.1)
        assert aborting.done()
        await aborting
        assert isinstance(refused.exception(), txnclient.InvalidTxnState)


@virtual_time
async def test_after_an_abort_by_the_service_consumers_start_over_where_it_is_known() -> None:
    """▲ A broker that has not heard of it yet would go on behind what was acked in it: out of order."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        consumer = await client.consumer(TOPIC, "sub")
        await until(lambda: server.seen["subscribe"] == len(SEGMENTS))
        server.deliver(SEGMENTS[0], 0, b"m")
        txn = await client.begin()
        await consumer.ack(await consumer.receive(), txn=txn)
        cluster.states[txn.id], cluster.decided_at[txn.id] = "ABORTED", 4711
        with pytest.raises(txnclient.InvalidTxnState):
            await txn.commit()
        assert txn.state == TransactionState.ABORTED
        await until(lambda: server.seen["subscribe"] == len(SEGMENTS) + 1)
        again = [command.subscribe for command in server.commands if command.HasField("subscribe")][-1]
        assert again.min_revision >= 4711


@virtual_time
async def test_an_exception_in_the_block_aborts_and_is_raised_again() -> None:
    async with connected() as (cluster, client):
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as txn:
                raise ZeroDivisionError
        assert cluster.states[txn.id] == "ABORTED"


@virtual_time
async def test_a_conflict_in_the_block_aborts() -> None:
    async with connected() as (cluster, client):
        producer = await client.producer(TOPIC)
        cluster.servers["broker:1"].refuse["send"] = [txnclient.TxnConflict("decided")]
        with pytest.raises(txnclient.TxnConflict):
            async with client.transaction() as txn:
                await producer.send(b"x", txn=txn)
        assert txn.state == TransactionState.ABORTED


@virtual_time
async def test_a_transaction_ended_by_hand_in_its_block_stays_as_it_is() -> None:
    async with connected() as (cluster, client):
        async with client.transaction() as aborted:
            await aborted.abort()
        async with client.transaction() as committed:
            await committed.commit()
        assert cluster.states == {aborted.id: "ABORTED", committed.id: "COMMITTED"}


@virtual_time
async def test_a_commit_finds_its_coordinator_after_it_has_moved() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        txn = await client.begin()
        cluster.coordinators = {0: "broker:2", 1: "broker:2"}
        await cluster.servers["broker:1"].stop()
        cluster.announce()
        await txn.commit()
        assert cluster.states[txn.id] == "COMMITTED"


@virtual_time
async def test_begin_times_out_with_a_retriable_error_when_no_coordinator_is_up() -> None:
    async with connected(timeout=3.0) as (cluster, client):
        cluster.coordinators = {}
        cluster.announce()
        await asyncio.sleep(0.1)
        with pytest.raises(txnclient.Timeout) as failure:
            await client.begin()
        assert failure.value.retriable


@pytest.mark.parametrize("timeout", [0, -1])
@virtual_time
async def test_begin_refuses_a_timeout_that_is_not_positive(timeout: float) -> None:
    async with connected() as (_, client):
        with pytest.raises(txnclient.InvalidArgument):
            await client.begin(timeout=timeout)


@virtual_time
async def test_store_full_is_told_at_once() -> None:
    async with connected() as (cluster, client):
        cluster.servers["broker:1"].refuse["new_txn"] = [txnclient.StoreFull("above the soft limit")]
        with pytest.raises(txnclient.StoreFull):
            await client.begin()


@virtual_time
async def test_store_unavailable_is_waited_out() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.refuse["new_txn"] = [txnclient.StoreUnavailable("down") for _ in range(3)]
        txn = await client.begin()
        server.refuse["end_txn"] = [txnclient.StoreUnavailable("down") for _ in range(3)]
        await txn.commit()


@virtual_time
async def test_closing_the_client_aborts_what_is_open() -> None:
    async with connected() as (cluster, client):
        txn = await client.begin()
    assert cluster.states[txn.id] == "ABORTED"


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
@virtual_time
async def test_ends_are_remembered_for_reading_what_is_behind_them(committed: bool) -> None:
    """An abort, too: what was committed behind an aborted entry was hidden where its owner had yet to hear of that."""
    async with connected() as (cluster, client):
        async with client.transaction():
            pass
        txn = await client.begin()
        await (txn.commit() if committed else txn.abort())
        reader = await client.reader(TOPIC, end="latest", isolation="read_uncommitted")
        assert reader.ended
        asked = [c.segment_positions for c in cluster.servers["broker:1"].commands if c.HasField("segment_positions")]
        assert {request.segment for request in asked} == set(SEGMENTS)
        assert {request.min_revision for request in asked} == {max(cluster.decided_at.values())}
        await client.reader(TOPIC)
        await until(lambda: len(cluster.servers["broker:1"].consumers) == len(SEGMENTS))
        for _, request in cluster.servers["broker:1"].consumers.values():
            assert request.min_revision == max(cluster.decided_at.values())


@virtual_time
async def test_an_unknown_outcome_of_a_commit_is_raised_as_it_is() -> None:
    async with connected() as (cluster, client):
        txn = await client.begin()
        cluster.servers["broker:1"].refuse["end_txn"] = [txnclient.OutcomeUnknown("collected long ago")]
        with pytest.raises(txnclient.OutcomeUnknown):
            await txn.commit()
        assert txn.state == TransactionState.COMMITTING


@virtual_time
async def test_transactions_that_nobody_ends_are_forgotten_after_their_deadline() -> None:
    async with connected() as (cluster, client):
        for _ in range(1100):
            await client.begin(timeout=1.0)
        await asyncio.sleep(60)
        alive = [await client.begin() for _ in range(1000)]
        server = cluster.servers["broker:1"]
        await server.cut()
        await until(lambda: len(server.announced) > 1)
        assert sorted(server.announced[1]) == sorted(txn.id for txn in alive)


@virtual_time
async def test_a_client_that_closes_aborts_many_transactions_some_at_a_time() -> None:
    """All at once would stop the application's event loop for seconds."""
    cluster = Cluster()
    await cluster.start("broker:1")
    client = await txnclient.connect("txn://broker:1", transport=cluster.transport, clock=cluster.clock)
    server = cluster.servers["broker:1"]
    txns = [await client.begin() for _ in range(ABORTED_AT_ONCE + 100)]
    server.ignore["end_txn"] = len(txns)
    closing = asyncio.create_task(client.close())
    await until(lambda: server.seen["end_txn"])
    await asyncio.sleep(1.0)
    assert server.seen["end_txn"] == ABORTED_AT_ONCE
    await closing
    await cluster.stop()


@virtual_time
async def test_a_client_that_closes_aborts_all_that_is_open() -> None:
    async with connected() as (cluster, client):
        txns = [await client.begin() for _ in range(2 * ABORTED_AT_ONCE)]
        await txns[0].commit()
    assert [cluster.states[txn.id] for txn in txns] == ["COMMITTED"] + ["ABORTED"] * (len(txns) - 1)
