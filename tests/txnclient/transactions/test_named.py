"""A client's part in named transactions, against a scripted server: writers, lost replies, what is nobody's to end."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.consuming.attached import LEFT, acks, attached
from tests.txnclient.scripted_server import TOPIC, connected
from tests.waiting import until
from txnclient import TransactionState
from txnwire.entry import parse_metadata
from txnwire.errors import InvalidArgument, StoreUnavailable
from txnwire.proto import txn_pb2 as pb

NAME = "job-7/42"


def begins(server_commands: list[pb.Command]) -> list[pb.NewTxn]:
    return [command.new_txn for command in server_commands if command.HasField("new_txn")]


def ends(server_commands: list[pb.Command]) -> list[pb.EndTxn]:
    return [command.end_txn for command in server_commands if command.HasField("end_txn")]


@virtual_time
async def test_d7_a_lost_begin_of_a_name_is_repeated_under_one_attempt_wherever_it_goes() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        cluster.coordinators = {0: "broker:1", 1: "broker:2"}
        cluster.announce()
        await asyncio.sleep(0.1)
        for server in cluster.servers.values():
            server.lose_replies["new_txn"] = 1
        txn = await client.begin(name=NAME)
        assert (txn.name, txn.joined, txn.state) == (NAME, False, TransactionState.OPEN)
        assert list(cluster.states) == [txn.id]
        asked = [one for server in cluster.servers.values() for one in begins(server.commands)]
        assert len(asked) == 3
        assert len({one.attempt for one in asked}) == 1


@virtual_time
async def test_a_begin_asks_how_long_its_outcome_is_to_be_known() -> None:
    async with connected() as (cluster, client):
        for options in ({}, {"keep": timedelta(days=7)}, {"keep_newest": True}):
            await client.begin(name=NAME, **options)  # type: ignore[arg-type]
        asked = begins(cluster.servers["broker:1"].commands)
        assert [(one.keep_ms, one.keep_newest) for one in asked] == [(0, False), (7 * 86_400_000, False), (0, True)]
        for keep in (timedelta(seconds=59), timedelta(days=-1), timedelta(days=36_526), 3600):
            with pytest.raises(InvalidArgument, match="a minute to 100 years"):
                await client.begin(name=NAME, keep=keep)  # type: ignore[arg-type]
        for options in ({"keep": timedelta(days=7)}, {"keep_newest": True}):
            with pytest.raises(InvalidArgument, match="give a name"):
                await client.begin(**options)  # type: ignore[arg-type]


@virtual_time
async def test_every_begin_of_a_name_asks_the_same_coordinator_first() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        cluster.coordinators = dict(enumerate(("broker:1", "broker:2") * 4))
        cluster.announce()
        await asyncio.sleep(0.1)
        for _ in range(10):
            await client.begin(name=NAME)
        assert sorted(server.seen["new_txn"] for server in cluster.servers.values()) == [0, 10]


@virtual_time
async def test_a_commit_whose_reply_was_lost_is_asked_again_with_its_list_and_name() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        txn = await client.begin(name=NAME)
        server.lose_replies["end_txn"] = 1
        result = await txn.commit(writers=[2**64 - 1, 7, 7])
        assert (result.writers, txn.writers) == ((7, 2**64 - 1),) * 2
        for asked in ends(server.commands):
            assert (asked.name, list(asked.writers.writers)) == (NAME, [7, 2**64 - 1])
        assert len(ends(server.commands)) == 2
        none = await client.begin(name="none")
        await none.commit(writers=[])
        everybody = await client.begin(name="all")
        await everybody.commit()
        assert [one.HasField("writers") for one in ends(server.commands)[2:]] == [True, False]


@virtual_time
async def test_a_note_is_told_to_whoever_finds_the_name_committed() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        txn = await client.begin(name=NAME)
        early = await client.begin(name=NAME)
        server.lose_replies["end_txn"] = 1
        assert (await txn.commit(note="rows=3")).note == txn.note == "rows=3"
        assert [one.note for one in ends(server.commands)] == ["rows=3"] * 2
        assert (await client.begin(name=NAME)).note == "rows=3"
        assert (await early.commit()).note == "rows=3", "a commit without a note is no other one"
        with pytest.raises(txnclient.InvalidTxnState, match="another note: 'rows=3', asked for 'rows=4'"):
            await txn.commit(note="rows=4")
        assert (await txn.commit()).note == "rows=3"
        other = await client.begin(name="other")
        assert (await other.commit()).note is None


@pytest.mark.parametrize("note", ["", "n" * 257, "é" * 129, "\ud800", 7])
@virtual_time
async def test_notes_are_checked_and_belong_to_names(note: str) -> None:
    async with connected() as (_, client):
        plain, named = await client.begin(), await client.begin(name=NAME)
        with pytest.raises(txnclient.InvalidArgument, match="note"):
            await named.commit(note=note)
        with pytest.raises(txnclient.InvalidArgument, match="no name"):
            await plain.commit(note="rows=3")
        assert (plain.state, named.state) == (TransactionState.OPEN,) * 2


@virtual_time
async def test_sends_and_acks_are_made_as_the_writer_of_each_begin() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a", b"b")
        messages = await consumer.receive_many(2, timeout=1.0)
        first, second, plain = await client.begin(name=NAME), await client.begin(name=NAME), await client.begin()
        assert (first.id == second.id, plain.writer_id, plain.name) == (True, 0, None)
        assert 0 not in (first.writer_id, second.writer_id)
        async with await client.producer(TOPIC) as producer:
            for txn in (first, second, plain):
                await producer.send(b"x", txn=txn)
        sends = [command.send for command in server.commands if command.HasField("send")]
        expected = [first.writer_id, second.writer_id, 0]
        assert [send.writer for send in sends] == expected
        assert [parse_metadata(send.entry).writer for send in sends] == expected
        for txn, message in zip((first, second), messages, strict=True):
            await consumer.ack(message, txn=txn)
        assert [ack.writer for ack in acks(server)] == expected[:2]


@virtual_time
async def test_writers_are_checked() -> None:
    async with connected() as (_, client):
        plain, named = await client.begin(), await client.begin(name=NAME)
        with pytest.raises(txnclient.InvalidArgument, match="no name"):
            await plain.commit(writers=[])
        for wrong in ([-1], [2**64], [1, -1]):
            with pytest.raises(txnclient.InvalidArgument, match="no writer id"):
                await named.commit(writers=wrong)
        assert (plain.state, named.state) == (TransactionState.OPEN,) * 2
        for name in ("", "n" * 513, "\ud800"):
            with pytest.raises(txnclient.InvalidArgument, match="transaction name"):
                await client.begin(name=name)
        with pytest.raises(txnclient.InvalidArgument, match="positive number"):
            await client.begin(name=NAME, timeout=0)


@virtual_time
async def test_it_is_neither_announced_nor_aborted_by_a_client_that_leaves() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        named, plain = await client.begin(name=NAME), await client.begin()
        await server.cut()
        await until(lambda: [plain.id] in server.announced)
        assert all(named.id not in listed for listed in server.announced)
        await client.close()
        assert (cluster.states[named.id], cluster.states[plain.id]) == ("OPEN", "ABORTED")


@virtual_time
async def test_a_failed_send_fails_its_writer_and_leaves_the_transaction_to_the_others() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        mine, other = await client.begin(name=NAME), await client.begin(name=NAME)
        async with await client.producer(TOPIC) as producer:
            await producer.send(b"good", txn=other)
            await other.flush()
            server.refuse["send"] = [txnclient.TxnConflict("refused by the test")]
            sending = producer.send_nowait(b"bad", txn=mine)
            with pytest.raises(txnclient.TxnConflict):
                await mine.flush()
            for writers in (None, [mine.writer_id], [mine.writer_id, other.writer_id]):
                with pytest.raises(txnclient.TxnConflict):
                    await mine.commit(writers=writers)
                assert (mine.state, cluster.states[mine.id]) == (TransactionState.OPEN, "OPEN")
            with pytest.raises(txnclient.TxnConflict):
                await sending
            await mine.commit(writers=[other.writer_id])
            assert mine.state == TransactionState.COMMITTED


@virtual_time
async def test_flush_waits_for_sends_and_acks_and_ends_nothing() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        txn = await client.begin(name=NAME)
        async with await client.producer(TOPIC) as producer:
            server.hold["send"] = asyncio.Event()
            sending = producer.send_nowait(b"slow", txn=txn)
            flushing = asyncio.ensure_future(txn.flush())
            await asyncio.sleep(1.0)
            assert not flushing.done()
            server.hold.pop("send").set()
            await flushing
            assert sending.done()
            assert (txn.state, server.seen["end_txn"]) == (TransactionState.OPEN, 0)
            server.ignore["send"] = 1
            producer.send_nowait(b"lost", txn=txn)
            with pytest.raises(txnclient.Timeout):
                await txn.flush(timeout=0.5)
        await txn.abort()
        with pytest.raises(txnclient.InvalidTxnState, match="flush"):
            await txn.flush()


@virtual_time
async def test_d1_another_list_is_refused_and_the_state_tells_how_it_has_committed() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        mine, other = await client.begin(name=NAME), await client.begin(name=NAME)
        await other.commit(writers=[other.writer_id])
        server.refuse["end_txn"] = [txnclient.InvalidTxnState("with another list"), StoreUnavailable("for a while")]
        server.ignore["end_txn"] = 100
        with pytest.raises(txnclient.Timeout, match="commit again to ask"):
            await mine.commit(writers=[mine.writer_id], timeout=3.0)
        assert mine.state == TransactionState.COMMITTING, "how it has ended could not be asked"
        server.ignore["end_txn"] = 0
        with pytest.raises(txnclient.InvalidTxnState):
            await mine.commit(writers=[mine.writer_id])
        assert (mine.state, mine.writers) == (TransactionState.COMMITTED, (other.writer_id,))
        with pytest.raises(txnclient.InvalidTxnState, match="asked for all"):
            await mine.commit()
        assert (await mine.commit(writers=[other.writer_id])).revision == cluster.decided_at[mine.id]
        assert await mine.abort() == "COMMITTED"


@virtual_time
async def test_d1_how_it_has_committed_is_asked_until_somebody_tells() -> None:
    """▲ A lost answer must not stand for "all writers count": that is another outcome than the one decided."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        mine, other = await client.begin(name=NAME), await client.begin(name=NAME)
        await other.commit(writers=[other.writer_id])
        server.lose_replies["new_txn"] = 2
        assert await mine.abort() == "COMMITTED"
        assert (mine.state, mine.writers) == (TransactionState.COMMITTED, (other.writer_id,))
        late = await client.attach(mine.id, name=NAME)
        server.ignore["new_txn"] = 100
        with pytest.raises(txnclient.Timeout, match="commit again to ask"):
            await late.commit(writers=[late.writer_id], timeout=3.0)
        assert late.state == TransactionState.COMMITTING, "which writers count could not be asked"
        server.ignore["new_txn"] = 0
        with pytest.raises(txnclient.InvalidTxnState):
            await late.commit(writers=[late.writer_id])
        assert (late.state, late.writers) == (TransactionState.COMMITTED, (other.writer_id,))


@virtual_time
async def test_d1_a_commit_whose_outcome_is_kept_no_more_is_one_without_a_list() -> None:
    """▲ Asked again and again, nobody would ever tell."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        mine, other = await client.begin(name=NAME), await client.begin(name=NAME)
        await other.commit(writers=[other.writer_id])
        server.refuse["new_txn"] = [txnclient.TxnNotFound("its outcome is no longer kept")]
        with pytest.raises(txnclient.InvalidTxnState):
            await mine.commit(writers=[mine.writer_id])
        assert (mine.state, mine.result) == (TransactionState.COMMITTED, None)


@virtual_time
async def test_what_was_acked_comes_back_where_nobody_can_tell_which_writers_count() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a")
        shared, other = await client.begin(name=NAME), await client.begin(name=NAME)
        await consumer.ack(await consumer.receive(), txn=shared)
        await other.commit(writers=[other.writer_id])
        before = server.consumer_of(LEFT)
        server.ignore["new_txn"] = 100
        assert await shared.abort(timeout=3.0) == "COMMITTED"
        assert (shared.state, shared.result) == (TransactionState.COMMITTED, None)
        await until(lambda: server.consumer_of(LEFT) != before)


@virtual_time
async def test_after_an_abort_by_others_it_is_aborted_here_too_and_the_name_is_not_begun_by_asking() -> None:
    async with connected() as (cluster, client):
        mine, other = await client.begin(name=NAME), await client.begin(name=NAME)
        await other.abort()
        with pytest.raises(txnclient.InvalidTxnState):
            await mine.commit(writers=[mine.writer_id])
        assert mine.state == TransactionState.ABORTED
        assert list(cluster.states) == [mine.id]


@pytest.mark.parametrize("counted", [True, False])
@virtual_time
async def test_what_a_writer_acked_comes_back_where_it_does_not_count(counted: bool) -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"a")
        shared = await client.begin(name=NAME)
        await consumer.ack(await consumer.receive(), txn=shared)
        before = server.consumer_of(LEFT)
        await shared.commit(writers=[shared.writer_id] if counted else [])
        await asyncio.sleep(1.0)
        again = server.consumer_of(LEFT) != before
        assert again is not counted
        if again:
            assert server.consumers[server.consumer_of(LEFT)][1].min_revision >= cluster.decided_at[shared.id]


@virtual_time
async def test_a_rewind_by_somebody_else_s_decision_that_is_lost_with_the_connection_is_made_up_for() -> None:
    """▲ What a losing writer acked comes back behind what its consumer has read since, and not as if in order."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"acked")
        server.deliver(LEFT, 1, b"held")
        shared = await client.begin(name=NAME)
        await consumer.ack(await consumer.receive(), txn=shared)
        held = await consumer.receive()
        await server.cut()  # and meanwhile somebody commits without this writer: nobody tells the client
        await until(lambda: server.seen["subscribe"] == 4)
        server.deliver(LEFT, 0, b"acked")
        server.deliver(LEFT, 1, b"held")
        assert [(await consumer.receive()).value for _ in range(2)] == [b"acked", b"held"]
        with pytest.raises(txnclient.TxnConflict, match="delivered again"):
            await consumer.ack(held, txn=await client.begin())


@virtual_time
async def test_a_named_transaction_whose_end_nobody_told_is_forgotten_after_its_deadline() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for number in range(3):
            server.deliver(LEFT, number, b"%d" % number)
        await consumer.ack(await consumer.receive(), txn=await client.begin(name=NAME, timeout=5.0))
        await asyncio.sleep(60)
        later = await client.begin(name="later")
        await consumer.ack(await consumer.receive(), txn=later)
        await later.commit(writers=[later.writer_id])
        held = await consumer.receive()
        await server.cut()
        await until(lambda: server.seen["subscribe"] == 4)
        server.deliver(LEFT, 2, b"2")
        with pytest.raises(txnclient.Timeout):
            await consumer.receive(timeout=1.0)
        await consumer.ack(held, txn=await client.begin())


@virtual_time
async def test_what_waits_to_be_sent_is_given_up_by_a_commit_that_does_not_count_it() -> None:
    """The transaction is not aborting: only its writer has not happened."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.hold["open_producer"] = asyncio.Event()
        shared = await client.begin(name=NAME)
        producer = await client.producer(TOPIC)
        sent = [asyncio.ensure_future(producer.send(b"x", txn=shared)) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert server.seen["open_producer"] == 1
        assert (await shared.commit(writers=[])).writers == ()
        for one in sent:
            with pytest.raises(txnclient.InvalidTxnState):
                await asyncio.wait_for(one, 1.0)
        server.hold.pop("open_producer").set()
        await producer.send(b"alone")
        assert server.seen["send"] == 1


@virtual_time
async def test_who_has_attached_long_ago_is_told_of_an_abort_as_of_one() -> None:
    """▲ The deadline of the transaction is not known there: that of the call said that its time was up."""
    async with connected() as (_, client):
        mine = await client.begin(name=NAME, timeout=600.0)
        late = await client.attach(mine.id, name=NAME)
        await asyncio.sleep(60.0)
        await mine.abort()
        with pytest.raises(txnclient.TxnAborted) as raised:
            await late.commit()
        assert type(raised.value) is txnclient.TxnAborted


@virtual_time
async def test_a_commit_that_is_cancelled_is_asked_for_again_long_after_its_object_was_attached() -> None:
    async with connected() as (cluster, client):
        server, mine = cluster.servers["broker:1"], await client.begin(name=NAME, timeout=600.0)
        late = await client.attach(mine.id, name=NAME)
        await asyncio.sleep(60.0)
        server.ignore["end_txn"] = 5
        committing = asyncio.ensure_future(late.commit())
        await until(lambda: server.seen["end_txn"])
        committing.cancel()
        await until(lambda: cluster.states[mine.id] == "COMMITTED")


@virtual_time
async def test_the_shortest_timeout_of_a_name_is_not_taken_for_none() -> None:
    """▲ None is the service's default: a minute."""
    async with connected() as (cluster, client):
        await client.begin(name=NAME, timeout=0.0001)
        asked = [one.new_txn.timeout_ms for one in cluster.servers["broker:1"].commands if one.HasField("new_txn")]
        assert asked == [1]
