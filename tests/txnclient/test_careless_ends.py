"""Ends of transactions that race, are repeated or lost, and what their objects say then (scenarios A5, C1, C5, C9)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from random import Random
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.txnclient.test_cancelled_calls import DEADLINE_S, cancelled, server_of
from tests.waiting import until
from txnclient import TransactionState
from txnclient.client import ABORT_ON_CLOSE_S
from txnwire.ids import TxnId
from txnwire.proto import txn_pb2 as pb

NAME = "job/1"


@virtual_time
async def test_c1_a_commit_whose_sends_an_abort_has_withdrawn_commits_nothing_though_that_abort_is_lost() -> None:
    """It waits for them as the abort comes: they are answered then, and it would commit without them."""
    async with connected() as (cluster, client):
        server = server_of(cluster)
        server.hold["open_producer"] = asyncio.Event()
        producer = await client.producer(TOPIC)
        txn = await client.begin(timeout=DEADLINE_S)
        sent = producer.send_nowait(b"x", txn=txn)
        await until(lambda: server.seen["open_producer"])
        committing = asyncio.ensure_future(txn.commit())
        await asyncio.sleep(0.1)
        server.ignore["end_txn"] = 1
        with pytest.raises(txnclient.Timeout):
            await txn.abort(timeout=1.0)
        with pytest.raises(txnclient.InvalidTxnState, match="aborted meanwhile"):
            await committing
        assert isinstance(sent.exception(), txnclient.InvalidTxnState)
        assert cluster.states == {txn.id: "OPEN"}
        await txn.abort()


@virtual_time
async def test_c1_of_several_failures_a_commit_raises_the_first() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        producer = await client.producer(TOPIC)
        txn = await client.begin()
        for number in range(3):
            server.refuse["send"] = [txnclient.TxnConflict(f"failure {number}")]
            lost = producer.send_nowait(b"x", key="k", txn=txn)
            await until(lambda lost=lost: lost.done())  # type: ignore[misc]
        with pytest.raises(txnclient.TxnConflict, match="failure 0"):
            await txn.commit()


@virtual_time
async def test_c5_what_is_settled_is_asked_for_no_more_once_nobody_can_tell() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        txn = await client.begin(timeout=DEADLINE_S)
        server.ignore["end_txn"] = 1
        await cancelled(txn.abort(), lambda: server.seen["end_txn"])
        server.refuse["end_txn"] = [txnclient.TxnNotFound("never given out") for _ in range(100)]
        await asyncio.sleep(300.0)
        assert server.seen["end_txn"] == 2


@virtual_time
async def test_c5_a_client_that_closes_waits_for_what_it_settles_no_longer_than_it_says() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        server.ignore["new_txn"] = 1
        await cancelled(client.begin(timeout=DEADLINE_S), lambda: server.seen["new_txn"])
        before = cluster.clock.monotonic()
        await client.close()
        assert cluster.clock.monotonic() - before < ABORT_ON_CLOSE_S + 0.1


@virtual_time
async def test_c5_a_commit_that_a_closing_client_cuts_off_is_of_unknown_outcome_and_turned_round_by_nobody() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        txn = await client.begin(timeout=DEADLINE_S)
        server.refuse["end_txn"] = [txnclient.StoreUnavailable("not now") for _ in range(1000)]
        committing = asyncio.ensure_future(txn.commit())
        await until(lambda: server.seen["end_txn"] > 1)
        await client.close()
        with pytest.raises(txnclient.OutcomeUnknown, match="was closed before it knew"):
            await committing
        ends = [command.end_txn.action for command in server.commands if command.HasField("end_txn")]
        assert set(ends) == {pb.TXN_ACTION_COMMIT}


@virtual_time
async def test_c5_what_is_settled_is_asked_for_until_somebody_answers() -> None:
    async with connected(timeout=5.0) as (cluster, client):
        server = server_of(cluster)
        txn = await client.begin(timeout=DEADLINE_S)
        server.ignore["end_txn"] = 5
        await cancelled(txn.abort(), lambda: server.seen["end_txn"])
        await until(lambda: txn.state is TransactionState.ABORTED, within_s=120.0)
        assert cluster.states == {txn.id: "ABORTED"}


@pytest.mark.parametrize("first_fails", [True, False])
@virtual_time
async def test_c4_a_client_whose_producer_tells_of_a_loss_as_it_closes_closes_the_rest_as_ever(
    first_fails: bool,
) -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        producers = [await client.producer(TOPIC) for _ in range(2)]
        if not first_fails:
            producers.reverse()
        server.refuse["send"] = [txnclient.StoreFull("full")]
        lost = producers[0].send_nowait(b"lost", key="k")
        await until(lambda: lost.done())
        txn = await client.begin(timeout=DEADLINE_S)
        server.stall_sends = True
        sent = producers[1].send_nowait(b"sent", key="k")
        await until(lambda: server.stalled)
        asyncio.get_running_loop().call_later(1.0, server.finish_sends)
        with pytest.raises(txnclient.StoreFull):
            await client.close()
        assert sent.done()
        assert sent.result().segment
        assert cluster.states == {txn.id: "ABORTED"}


@virtual_time
async def test_c5_a_client_that_closes_aborts_however_many_transactions_are_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txnclient.client.ABORTED_AT_ONCE", 2)
    async with connected() as (cluster, client):
        for _ in range(7):
            await client.begin(timeout=DEADLINE_S)
        server = server_of(cluster)
        server.hold["end_txn"] = asyncio.Event()
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(1.0)
        assert server.seen["end_txn"] == 2, "so many at a time"
        server.hold["end_txn"].set()
        await closing
        assert list(cluster.states.values()) == ["ABORTED"] * 7


@virtual_time
async def test_c4_the_failures_of_a_writer_that_does_not_count_are_told() -> None:
    """Whoever has committed without it knows: nobody waits for what it has sent."""
    async with connected() as (cluster, client):
        server = server_of(cluster)
        producer = await client.producer(TOPIC)
        txn = await client.begin(name=NAME)
        server.refuse["send"] = [txnclient.TxnConflict("refused")]
        lost = producer.send_nowait(b"lost", key="k", txn=txn)
        await until(lambda: lost.done())
        await txn.commit(writers=[])
        await producer.flush()


# ---- named ones -----------------------------------------------------------------------------------------------------


@virtual_time
async def test_a5_a_named_commit_that_was_cancelled_on_its_way_is_asked_for_with_the_same_note() -> None:
    async with connected() as (cluster, client):
        server = server_of(cluster)
        txn = await client.begin(timeout=DEADLINE_S, name=NAME)
        server.ignore["end_txn"] = 1
        await cancelled(txn.commit(note="rows=7"), lambda: server.seen["end_txn"])
        await until(lambda: txn.state is TransactionState.COMMITTED)
        assert (cluster.notes[txn.id], txn.note) == ("rows=7", "rows=7")


@virtual_time
async def test_a5_a_named_commit_that_was_cancelled_on_its_way_is_asked_for_as_long_as_it_may_be_open() -> None:
    async with connected(timeout=5.0) as (cluster, client):
        server = server_of(cluster)
        txn = await client.begin(timeout=DEADLINE_S, name=NAME)
        server.ignore["end_txn"] = 5
        await cancelled(txn.commit(), lambda: server.seen["end_txn"])
        await until(lambda: txn.state is TransactionState.COMMITTED, within_s=120.0)


@virtual_time
async def test_a5_how_another_transaction_of_its_name_has_committed_is_not_told_as_its_own() -> None:
    async with connected() as (cluster, client):
        txn = await client.begin(name=NAME)
        later = TxnId(0, 4711)
        for one, revision in ((txn.id, 7), (later, 9)):
            cluster.states[one], cluster.decided_at[one], cluster.notes[one] = "COMMITTED", revision, "a note"
            cluster.writers[one] = [1, 2]
        cluster.names[NAME] = later
        assert await txn.abort() == "COMMITTED"
        assert (txn.state, txn.result) == (TransactionState.COMMITTED, None)


@pytest.mark.parametrize("asks", ["begin", "how it has committed"])
@virtual_time
async def test_a5_a_name_is_asked_for_at_another_coordinator_where_its_own_does_not_answer(asks: str) -> None:
    async with connected("broker:1", "broker:2", timeout=60.0) as (cluster, client):
        cluster.coordinators = {0: "broker:1", 1: "broker:2"}
        cluster.announce()
        await asyncio.sleep(0.1)
        txns = []
        for name in ("job/1", "job/2", "job/3", "job/4"):
            if asks == "begin":
                cluster.servers["broker:1"].ignore["new_txn"] = 10
            txns.append(await client.begin(name=name))
        for txn in txns if asks != "begin" else ():
            cluster.states[txn.id], cluster.decided_at[txn.id] = "COMMITTED", 7
            cluster.notes[txn.id], cluster.writers[txn.id] = "", None
            cluster.servers["broker:1"].ignore["new_txn"] = 10
            assert await txn.abort() == "COMMITTED"
            assert txn.result is not None


@virtual_time
async def test_a5_whoever_finds_a_name_committed_reads_what_it_has_committed() -> None:
    async with connected() as (cluster, client):
        await (await client.begin(name=NAME)).commit()
        other: Any = txnclient.connect(
            "txn://broker:1", transport=cluster.transport, clock=cluster.clock, random=Random(2)
        )
        async with other as late:
            joined = await late.begin(name=NAME)
            assert joined.state is TransactionState.COMMITTED
            await late.consumer(TOPIC, "sub")
            server = server_of(cluster)
            await until(lambda: len(server.consumers) == len(SEGMENTS))
            asked = [request.min_revision for _, request in server.consumers.values()]
            assert min(asked) >= cluster.decided_at[joined.id]


@pytest.mark.parametrize(
    ("taken", "refused"),
    [
        ({"attempt": b"x" * 32}, {"attempt": b"x" * 33}),
        ({"attempt": b"x"}, {"attempt": b""}),
        ({"writer_id": 1}, {"writer_id": 0}),
        ({"writer_id": (1 << 64) - 1}, {"writer_id": 1 << 64}),
        ({"keep": timedelta(minutes=1)}, {"keep": timedelta(seconds=59)}),
        ({"keep": timedelta(days=36_525)}, {"keep": timedelta(days=36_526)}),
    ],
    ids=["longest attempt", "shortest attempt", "lowest writer", "highest writer", "shortest keep", "longest keep"],
)
@virtual_time
async def test_c9_what_a_begin_of_a_name_is_given_is_taken_at_its_bounds_and_one_more_is_refused(
    taken: dict[str, Any], refused: dict[str, Any]
) -> None:
    async with connected() as (cluster, client):
        txn = await client.begin(name=NAME, **taken)
        assert txn.writer_id == taken.get("writer_id", txn.writer_id)
        begun = server_of(cluster).seen["new_txn"]
        with pytest.raises(txnclient.InvalidArgument):
            await client.begin(name=NAME, **refused)
        for name in ("", "\ud800", "x" * 513):
            with pytest.raises(txnclient.InvalidArgument):
                await client.attach(txn.id, name=name)
        with pytest.raises(txnclient.InvalidArgument, match="give a name"):
            await client.begin(keep_newest=True)
        assert server_of(cluster).seen["new_txn"] == begun
