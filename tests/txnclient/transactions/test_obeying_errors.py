"""Errors of transactions say what to do: abort and begin again, leave, or nothing more."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import run
from tests.txnclient.scripted_server import TOPIC, connected
from txnclient import TransactionState
from txnclient.transactions.transaction import transaction_impl
from txnwire.errors import Timeout, TopicNotFound, TxnConflict
from txnwire.proto import txn_pb2 as pb

NAME = "job-7/42"


def test_an_abort_of_what_has_committed_is_quiet_and_tells_it() -> None:
    async def scenario() -> None:
        async with connected() as (cluster, client):
            txn = await client.begin()
            await txn.commit()
            assert await txn.abort() is TransactionState.COMMITTED
            assert cluster.states[txn.id] == "COMMITTED"
            mine, other = await client.begin(name=NAME), await client.begin(name=NAME)
            await other.commit()
            assert await mine.abort() is TransactionState.COMMITTED, "asked of a coordinator"
            aborted = await client.begin()
            assert await aborted.abort() is await aborted.abort() is TransactionState.ABORTED

    run(scenario())


def test_committed_otherwise_aborted_by_another_and_used_wrongly_are_different_errors() -> None:
    async def scenario() -> None:
        async with connected() as (_, client):
            mine, other = await client.begin(name=NAME), await client.begin(name=NAME)
            await other.commit(writers=[other.writer_id], note="first")
            for _ in range(2):  # asked of a coordinator, then known
                with pytest.raises(txnclient.TxnDecided) as decided:
                    await mine.commit(writers=[mine.writer_id])
                assert not decided.value.requires_abort
                assert not decided.value.retriable
            with pytest.raises(txnclient.TxnDecided):
                await mine.commit(writers=[other.writer_id], note="second")
            lost = await client.begin()
            await client._coordinators.end(transaction_impl(lost), pb.TXN_ACTION_ABORT, client._session.deadline())
            with pytest.raises(txnclient.TxnAborted) as aborted:
                await lost.commit()
            assert type(aborted.value) is txnclient.TxnAborted
            assert aborted.value.requires_abort
            assert await lost.abort() is TransactionState.ABORTED
            with pytest.raises(txnclient.InvalidTxnState) as wrong:
                await lost.commit()
            assert type(wrong.value) is txnclient.InvalidTxnState

    run(scenario())


def test_d2_a_commit_after_the_deadline_says_that_it_was_the_deadline() -> None:
    async def scenario() -> None:
        async with connected() as (_, client):
            for fails in (False, True):
                txn = await client.begin(timeout=1.0)
                if fails:
                    transaction_impl(txn).failed(TxnConflict("it has ended"))
                await asyncio.sleep(1.5)
                await client._coordinators.end(transaction_impl(txn), pb.TXN_ACTION_ABORT, client._session.deadline())
                with pytest.raises(txnclient.TxnTimedOut, match="timeout has passed") as late:
                    await txn.commit()
                assert late.value.requires_abort

    run(scenario())


@pytest.mark.parametrize("name", [None, NAME])
def test_a_commit_of_what_has_failed_asks_for_an_abort_and_is_not_repeated_in_vain(name: str | None) -> None:
    """▲ The failed send may be retriable. A caller that obeys that at the commit would repeat it until the deadline."""

    async def scenario() -> None:
        async with connected() as (cluster, client):
            txn = await client.begin(name=name)
            transaction_impl(txn).failed(Timeout("a send was not answered in time"))
            for call in (txn.flush, txn.commit):
                with pytest.raises(Timeout) as failed:
                    await call()
                assert (failed.value.retriable, failed.value.requires_abort) == (False, True)
            assert await txn.abort() is TransactionState.ABORTED
            assert cluster.states[txn.id] == "ABORTED"

    run(scenario())


def test_work_that_would_fail_again_is_not_asked_for_again() -> None:
    async def scenario() -> None:
        async with connected() as (_, client):
            txn = await client.begin()
            transaction_impl(txn).failed(TopicNotFound("deleted"))
            with pytest.raises(TopicNotFound) as failed:
                await txn.commit()
            assert (failed.value.retriable, failed.value.requires_abort) == (False, False)

    run(scenario())


def test_a_commit_that_had_decided_stays_one_whatever_fails_behind_it() -> None:
    """▲ Its answer was lost, then an ack's task was cancelled as its answer came. The work must not be done again."""

    async def scenario() -> None:
        async with connected() as (cluster, client):
            txn = await client.begin()
            cluster.states[txn.id] = "COMMITTED"
            transaction_impl(txn).failed(Timeout("an ack was cancelled"))
            await txn.commit()
            assert txn.state is TransactionState.COMMITTED

    run(scenario())


def test_a_writer_whose_work_failed_can_leave_and_the_other_one_commits() -> None:
    async def scenario() -> None:
        async with connected() as (cluster, client):
            winner, loser = await client.begin(name=NAME), await client.begin(name=NAME)
            transaction_impl(loser).failed(TxnConflict("another transaction has acked it"))
            await loser.leave()
            assert cluster.states[winner.id] == "OPEN"
            await winner.commit(writers=[winner.writer_id])
            await loser.leave()  # quiet

    run(scenario())


def test_who_has_left_takes_no_further_part_and_ends_nothing() -> None:
    async def scenario() -> None:
        async with connected() as (cluster, client):
            producer = await client.producer(TOPIC, buffer_bytes=1000)
            stays, leaves = await client.begin(name=NAME), await client.begin(name=NAME)
            cluster.servers["broker:1"].stall_sends = True
            stored = producer.send_nowait(bytes(600), key="k", txn=leaves)
            waiting = asyncio.ensure_future(producer.send(bytes(600), key="k", txn=leaves))
            await asyncio.sleep(0.1)
            leaving = asyncio.ensure_future(leaves.leave())
            with pytest.raises(txnclient.InvalidTxnState, match="was left"):
                await waiting
            assert not leaving.done(), "it waits for what was sent"
            cluster.servers["broker:1"].stall_sends = False
            stored.cancel()
            assert leaves.state is TransactionState.LEFT
            assert await leaves.abort() is TransactionState.LEFT
            with pytest.raises(txnclient.InvalidTxnState, match="LEFT"):
                await leaves.commit()
            with pytest.raises(txnclient.InvalidTxnState, match="LEFT"):
                await producer.send(b"x", txn=leaves)
            assert cluster.states[stays.id] == "OPEN"
            leaving.cancel()

    run(scenario())


@pytest.mark.parametrize("state", [TransactionState.COMMITTED, TransactionState.ABORTED])
def test_who_leaves_what_it_has_ended_knows_how_it_ended(state: TransactionState) -> None:
    async def scenario() -> None:
        async with connected() as (_, client):
            txn = await client.begin(name=NAME)
            ended = await (txn.commit() if state is TransactionState.COMMITTED else txn.abort())
            await txn.leave()
            assert txn.state is state
            assert await (txn.commit() if state is TransactionState.COMMITTED else txn.abort()) == ended

    run(scenario())


def test_only_a_named_transaction_can_be_left() -> None:
    async def scenario() -> None:
        async with connected() as (_, client):
            with pytest.raises(txnclient.InvalidArgument, match="abort it"):
                await (await client.begin()).leave()

    run(scenario())


def test_a_token_is_refused_until_tokens_exist() -> None:
    """▲ Who passes one believes that it protects something."""
    with pytest.raises(txnclient.InvalidArgument, match="token"):
        txnclient.connect("txn://a:1", token="secret")
