"""From a send to its ack: SCENARIOS "Late and lost writes", order, dedup, bounds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.segments.brokering import Cluster, Producer
from tests.segments.gates import GatedLedgers, is_ack_op, is_write_op
from tests.segments.log.small_logs import files
from tests.segments.owner.gated_owner import Gated
from tests.waiting import until
from txnstore import keys, records
from txnstore.records import Op
from txnwire.entry import OutgoingMessage, Piece, encode_entry
from txnwire.errors import (
    InvalidArgument,
    MessageTooLarge,
    NotOwner,
    Overloaded,
    SequenceGap,
    TxnConflict,
)
from txnwire.ids import Position, TxnId
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_ENTRY_BYTES


async def test_l5_nothing_is_acked_or_read_before_the_sync(gated: Gated) -> None:
    producer, reader = await gated.client.producer(gated.segment), await gated.client.reader(gated.segment)
    gated.ledgers.hold()
    waiting = [producer.send_nowait(str(number)) for number in range(5)]
    await until(lambda: gated.ledgers.waiting)
    await reader.wait()
    assert not any(future.done() for future in waiting)
    gated.ledgers.open()
    await asyncio.gather(*waiting)
    await reader.wait("0", "1", "2", "3", "4")


@pytest.mark.parametrize("in_flight", ["write", "ack"])
async def test_a_decision_that_waited_for_an_op_is_awaited_no_more_whatever_was_refused_meanwhile(
    gated: Gated, in_flight: str
) -> None:
    """Another op of the transaction asks for the decision, which was told already, and is refused; none remembers."""
    producer, consumer = (
        await gated.client.producer(gated.segment),
        await gated.cluster.subscribe(gated.client, gated.segment),
    )
    await producer.send("input")
    await consumer.wait("input")
    txn = await gated.cluster.begin()
    if in_flight == "write":
        gated.ledgers.hold()
        going = producer.send_nowait("output", txn=txn)
        await until(lambda: gated.ledgers.waiting)
    else:
        gated.store.hold_answers(is_ack_op)
        going = asyncio.ensure_future(consumer.ack(consumer.messages[0], txn=txn))
        await until(lambda: any(is_ack_op(commit) for commit in gated.store.applied))
    await gated.cluster.abort(txn)
    broker = gated.broker
    await until(lambda: broker.statistics().decisions.held == 0)
    late = consumer.ack(consumer.messages[0], txn=txn) if in_flight == "write" else producer.send("late", txn=txn)
    with pytest.raises(TxnConflict):
        await late
    gated.ledgers.open()
    gated.store.open()
    await going
    await gated.cluster.wait_no_ops(txn)
    assert broker.statistics().decisions.held == 0


async def test_a_failed_sync_fails_what_waits_and_the_segment_is_taken_over_anew(gated: Gated) -> None:
    producer = await gated.client.producer(gated.segment)
    await producer.send("stored")
    epoch = (await gated.broker.segment(gated.segment)).epoch
    gated.ledgers.fail_syncs = True
    with pytest.raises(NotOwner):
        await producer.send("not stored")
    gated.ledgers.fail_syncs = False
    await until(lambda: producer.closed)
    assert isinstance(producer.closed, NotOwner)
    again = await gated.client.producer(gated.segment)
    assert (await gated.broker.segment(gated.segment)).epoch > epoch
    await again.send("resent")
    await (await gated.client.reader(gated.segment)).wait("stored", "resent")


async def test_one_sync_serves_what_has_gathered_and_order_is_kept(gated: Gated) -> None:
    producers = [await gated.client.producer(gated.segment, f"p{number}") for number in range(4)]
    reader = await gated.client.reader(gated.segment)
    gated.ledgers.hold()
    waiting = [producer.send_nowait(f"{producer.name}-{n}") for n in range(25) for producer in producers]
    await until(lambda: gated.ledgers.waiting)
    gated.ledgers.open()
    stored = [reply.send_ok for reply in await asyncio.gather(*waiting)]
    dispatcher = gated.broker.segments[gated.segment].dispatcher
    cached = [dispatcher.cached(Position(one.ledger_id, one.entry_id)) for one in stored]
    assert None not in cached, "readers at the end read no file"
    pipeline, told = gated.broker.segments[gated.segment].pipeline, gated.broker.statistics().measures
    assert (pipeline.stored, pipeline.stored_messages, told.entries_stored, told.messages_stored) == (100,) * 4
    assert pipeline.stored_bytes == told.bytes_stored
    await until(lambda: len(reader.values) == 100)
    for producer in producers:
        assert [value for value in reader.values if value.startswith(producer.name)] == [
            f"{producer.name}-{n}" for n in range(25)
        ]


async def test_entries_stored_together_each_count_towards_the_next_checkpoint(gated: Gated) -> None:
    """A successor scans what came behind it, however few syncs have stored that."""
    await gated.cluster.nodes[-1].close()
    node = await gated.cluster.start("b2", settings=replace(gated.cluster.settings, checkpoint_entries=10))
    ledgers: GatedLedgers = node.ledgers  # type: ignore[assignment]
    producer = await (await gated.cluster.connect(node)).producer(gated.segment)
    ledgers.hold()
    waiting = [producer.send_nowait(str(number)) for number in range(20)]
    await until(lambda: ledgers.waiting)
    ledgers.open()
    stored = [reply.send_ok.ledger_id for reply in await asyncio.gather(*waiting)]
    await until(lambda: stored[0] in files(gated.cluster, gated.segment, "footer"), within_s=10)


async def test_all_that_was_asked_of_a_segment_that_is_lost_is_answered(gated: Gated) -> None:
    """Sends before their op and before their sync, and housekeeping, which rolls while a name is taken, say: one that
    hears nothing waits for ever."""
    producers = [await gated.client.producer(gated.segment, name) for name in ("one", "two", "three")]
    served = await gated.broker.segment(gated.segment)
    txn = await gated.cluster.begin()
    gated.ledgers.hold()
    gated.store.hold(is_write_op)
    waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(producers[0].send(value)) for value in "ab"]
    await until(lambda: gated.ledgers.waiting)
    waiting += [asyncio.ensure_future(one.send(value, txn=txn)) for one in producers[1:] for value in "cd"]
    await until(lambda: served.pipeline.inflight == 6)
    waiting += [asyncio.ensure_future(asked) for asked in (served.pipeline.roll(), served.checkpoint(), served.roll())]
    await asyncio.sleep(0)
    served.lost(NotOwner("taken away"))
    answers = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert [type(answer) for answer in answers] == [NotOwner] * 9
    gated.ledgers.open()
    gated.store.open()


async def test_what_producers_send_while_the_log_rolls_is_stored_behind_the_roll(gated: Gated) -> None:
    """Of each of them, and nothing more need come to move it."""
    producers = [await gated.client.producer(gated.segment, name) for name in ("one", "two", "three")]
    served = await gated.broker.segment(gated.segment)
    first = await producers[0].send("before")
    gated.store.hold(lambda commit: any(put.key == keys.ledger(gated.segment) for put in commit.puts))
    rolling = asyncio.ensure_future(served.pipeline.roll())
    await until(lambda: gated.store.waiting)
    waiting = [asyncio.ensure_future(producer.send(producer.name)) for producer in producers]
    await until(lambda: served.pipeline.inflight == len(producers))
    gated.store.open()
    stored = await asyncio.wait_for(asyncio.gather(*waiting), 10)
    await rolling
    assert {position.ledger_id for position in stored} == {first.ledger_id + 1}


async def test_what_is_recorded_and_not_stored_yet_has_nothing_behind_it(gated: Gated) -> None:
    producer = await gated.client.producer(gated.segment)
    txn = await gated.cluster.begin()
    gated.ledgers.hold()
    waiting = [producer.send_nowait("plain"), producer.send_nowait("op", txn=txn)]
    segment = await gated.broker.segment(gated.segment)
    await until(lambda: segment.statistics().pinning)
    assert segment.statistics().entries_behind == (0,)
    gated.ledgers.open()
    await asyncio.gather(*waiting)


async def test_producers_do_not_wait_for_each_others_op_records(gated: Gated) -> None:
    slow, fast = await gated.client.producer(gated.segment, "slow"), await gated.client.producer(gated.segment, "fast")
    txn = await gated.cluster.begin()
    gated.store.hold(is_write_op)
    waiting = [slow.send_nowait("op", txn=txn), slow.send_nowait("plain behind it")]
    await asyncio.wait_for(fast.send("plain"), 5)
    assert not any(future.done() for future in waiting)
    gated.store.open()
    await asyncio.gather(*waiting)
    await gated.cluster.commit(txn)
    await (await gated.client.reader(gated.segment)).wait("plain", "op", "plain behind it")


async def test_the_first_op_carries_the_index_key_and_the_others_wait_for_it(gated: Gated) -> None:
    """▲ Without it a refused or lost first op leaves ops that no index names."""
    one, two = await gated.client.producer(gated.segment, "one"), await gated.client.producer(gated.segment, "two")
    txn = await gated.cluster.begin()
    gated.store.hold(is_write_op)
    waiting = [one.send_nowait("1", txn=txn), one.send_nowait("2", txn=txn), two.send_nowait("3", txn=txn)]
    await until(lambda: gated.store.waiting)
    waiting += [one.send_nowait("4", txn=txn), two.send_nowait("5", txn=txn)]
    pipeline = gated.broker.segments[gated.segment].pipeline
    await until(lambda: pipeline.inflight == 5)
    await asyncio.sleep(0.01)
    assert gated.store.waiting == 1
    gated.store.open()
    await asyncio.gather(*waiting)
    ops = [commit for commit in gated.store.sent if is_write_op(commit)]
    assert [len(commit.puts) for commit in ops] == [2, 1, 1, 1]
    found = [records.decode(Op, commit.puts[0].value, key=commit.puts[0].key) for commit in ops]
    assert [(op.producer, op.messages) for op in found] == [("one", 2), ("two", 1), ("one", 1), ("two", 1)]
    assert sum(op.bytes for op in found) == pipeline.stored_bytes


async def test_entries_sent_in_one_go_share_an_op_of_one_transaction_producer_and_writer(gated: Gated) -> None:
    one, two = await gated.client.producer(gated.segment, "one"), await gated.client.producer(gated.segment, "two")
    txns = [await gated.cluster.begin(), await gated.cluster.begin()]
    sends = [one.send_nowait("a", "b", txn=txns[0]), one.send_nowait("c", txn=txns[0])]
    sends += [one.send_nowait("d", txn=txns[0], writer=7), two.send_nowait("e", txn=txns[0])]
    sends += [one.send_nowait("f", txn=txns[1]), one.send_nowait("g", txn=txns[0])]
    await asyncio.gather(*sends)
    ops = [
        records.decode(Op, commit.puts[0].value, key=commit.puts[0].key)
        for commit in gated.store.sent
        if is_write_op(commit)
    ]
    assert sorted((op.producer, op.sequence_id, op.messages, op.writer) for op in ops) == [
        ("one", 0, 4, None),
        ("one", 3, 1, f"{7:016x}"),
        ("one", 4, 1, None),
        ("two", 0, 1, None),
    ]
    before = len(gated.store.sent)
    await asyncio.gather(*(one.send(value, txn=txns[0]) for value in "hijkl"))
    assert len([commit for commit in gated.store.sent[before:] if is_write_op(commit)]) == 1
    reader = await gated.client.reader(gated.segment)
    await gated.cluster.commit(txns[0])
    await gated.cluster.abort(txns[1])
    await one.send("sentinel")
    await until(lambda: "sentinel" in reader.values)
    assert [value for value in reader.values if value in "abcghijkl"] == list("abcghijkl")
    assert "f" not in reader.values
    for txn in txns:
        await gated.cluster.wait_no_ops(txn)


@pytest.mark.parametrize("together", [1, 3, 5], ids=["one by one", "in one go", "of both in one go"])
async def test_l8_a_refused_op_fails_all_entries_it_would_have_claimed(gated: Gated, together: int) -> None:
    one, two = await gated.client.producer(gated.segment, "one"), await gated.client.producer(gated.segment, "two")
    pipeline = gated.broker.segments[gated.segment].pipeline
    txn = await gated.cluster.begin()
    senders = [(one, "1"), (one, "2"), (one, "3"), (two, "4"), (two, "5")]
    gated.store.hold(is_write_op)
    sends = [producer.send_nowait(value, txn=txn) for producer, value in senders[:together]]
    await until(lambda: gated.store.waiting)
    sends += [producer.send_nowait(value, txn=txn) for producer, value in senders[together:]]
    await until(lambda: pipeline.inflight == 5)
    await gated.cluster.abort(txn)
    gated.store.open()
    for number, sending in enumerate(sends):
        with pytest.raises(TxnConflict if number == 3 else (TxnConflict, SequenceGap)):
            await asyncio.wait_for(sending, 10)
    await until(lambda: not pipeline.inflight)
    assert not len(pipeline.gate), "nothing is remembered of the transaction"
    await one.send("plain", sequence_id=0, previous=-1)
    await (await gated.client.reader(gated.segment)).wait("plain")


@pytest.mark.parametrize("held", ["the op's answer", "the append"])
async def test_v1_a_decision_that_overtakes_the_ack_waits_for_the_op_in_flight(gated: Gated, held: str) -> None:
    """▲ In flight = from before the op is sent: the entry of a committed transaction must not be missed, nor that of an
    aborted one be read."""
    producer, reader = await gated.client.producer(gated.segment), await gated.client.reader(gated.segment)
    txn = await gated.cluster.begin()
    if held == "the append":
        gated.ledgers.hold()
    else:
        gated.store.hold_answers(is_write_op)
    sending = producer.send_nowait("late", txn=txn)
    await until(lambda: gated.ledgers.waiting or gated.store.applied)
    revision = await gated.cluster.abort(txn)
    followed = gated.broker._shared.decisions
    await followed.wait_followed(revision, timeout_s=5)
    with pytest.raises(TxnConflict):
        await producer.send("behind the decision", txn=txn)
    gated.ledgers.open()
    gated.store.open()
    await sending
    await producer.send("sentinel", sequence_id=1, previous=0)
    await reader.wait("sentinel")
    await gated.cluster.wait_no_ops(txn)


async def test_l6_a_send_behind_the_decision_is_refused_and_nothing_is_appended(gated: Gated) -> None:
    producer = await gated.client.producer(gated.segment)
    txn = await gated.cluster.begin()
    gated.store.hold(is_write_op)
    first = producer.send_nowait("1", txn=txn)
    others = [producer.send_nowait("2", txn=txn), producer.send_nowait("3")]
    await until(lambda: gated.store.waiting)
    await gated.cluster.commit(txn)
    gated.store.open()
    with pytest.raises(TxnConflict):
        await first
    for other in others:
        with pytest.raises((SequenceGap, TxnConflict)):
            await other
    producer.last = -1
    await producer.send("plain")
    await (await gated.client.reader(gated.segment)).wait("plain")
    assert await gated.cluster.ops(txn) == []


@pytest.mark.parametrize("how", ["aborted", "committed", "collected", "never begun"])
async def test_l1_no_late_write_joins_a_transaction_that_has_ended(cluster: Cluster, how: str) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    txn = await cluster.begin()
    if how == "never begun":
        txn = TxnId(9, 999)
    else:
        await cluster.end(txn, "COMMITTED" if how == "committed" else "ABORTED")
    if how == "collected":
        await cluster.collect(txn)
    successor = await cluster.begin()
    with pytest.raises(TxnConflict):
        await producer.send("late", txn=txn)
    producer.last = -1
    await producer.send("of the next one", txn=successor)
    with pytest.raises(TxnConflict):
        await producer.send("later", txn=txn, sequence_id=1, previous=0)
    await cluster.commit(successor)
    await producer.send("sentinel", sequence_id=1, previous=0)
    await (await client.reader(segment)).wait("of the next one", "sentinel")


async def test_l8_a_failure_fails_all_behind_it_and_the_resend_is_no_repeat(gated: Gated) -> None:
    producer, reader = await gated.client.producer(gated.segment), await gated.client.reader(gated.segment)
    txn, other = await gated.cluster.begin(), await gated.cluster.begin()
    await producer.send("0")
    gated.store.hold(lambda commit: is_write_op(commit) and str(txn).encode() in commit.puts[0].key)
    one = producer.send_nowait("1", txn=txn)
    two = producer.send_nowait("2", txn=other)
    three = producer.send_nowait("3")
    await until(lambda: gated.store.waiting)
    await gated.cluster.abort(txn)
    gated.store.open()
    with pytest.raises(TxnConflict):
        await one
    for behind in (two, three):
        with pytest.raises(SequenceGap):
            await behind
    # The client resends what it still wants, as new entries behind the last stored one.
    await producer.send("1 again", sequence_id=1, previous=0)
    await producer.send("2", txn=other)
    await gated.cluster.commit(other)
    await reader.wait("0", "1 again", "2")


async def test_l8_what_fails_before_its_op_was_sent_holds_no_reader_back(gated: Gated) -> None:
    """It was registered as it came, and waits for the op under way; that one is refused."""
    producer, reader = await gated.client.producer(gated.segment), await gated.client.reader(gated.segment)
    pipeline, txn = gated.broker.segments[gated.segment].pipeline, await gated.cluster.begin()
    await producer.send("0", txn=txn)
    gated.store.hold(is_write_op)
    sends = [producer.send_nowait("1", txn=txn)]
    await until(lambda: gated.store.waiting)
    sends += [producer.send_nowait("2", txn=txn), producer.send_nowait("3", txn=txn)]
    await until(lambda: pipeline.inflight == 3)
    await gated.cluster.abort(txn)
    gated.store.open()
    for sending in sends:
        with pytest.raises((TxnConflict, SequenceGap)):
            await sending
    await producer.send("plain", sequence_id=1, previous=0)
    await reader.wait("plain")
    await gated.cluster.wait_no_ops(txn)


async def test_l8_an_op_that_lands_behind_the_failure_of_its_entry_holds_no_reader_back(gated: Gated) -> None:
    """Of another transaction than the one that is refused: it goes on, and its commit shows what it has stored."""
    producer, reader = await gated.client.producer(gated.segment), await gated.client.reader(gated.segment)
    refused, kept = await gated.cluster.begin(), await gated.cluster.begin()
    await producer.send("kept", txn=kept)
    gated.store.hold(is_write_op)
    sends = [producer.send_nowait("refused", txn=refused), producer.send_nowait("behind it", txn=kept)]
    await until(lambda: gated.store.waiting == 2)
    await gated.cluster.abort(refused)
    gated.store.open()
    with pytest.raises(TxnConflict):
        await sends[0]
    with pytest.raises(SequenceGap):
        await sends[1]
    await gated.cluster.commit(kept)
    await producer.send("plain", sequence_id=1, previous=0)
    await reader.wait("kept", "plain")
    await gated.cluster.wait_no_ops(kept)


async def test_l8_a_frame_that_does_not_name_its_predecessor_is_refused(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    await producer.send("0")
    with pytest.raises(SequenceGap):
        await producer.send("2", sequence_id=2, previous=1)
    await producer.send("1", sequence_id=1, previous=0)


async def test_an_entry_that_is_not_what_its_send_says_is_refused(cluster: Cluster) -> None:
    """▲ A successor recovers from the entries' headers: they must name the transaction the op record names."""
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)

    async def refused(change: dict[str, object], match: str) -> None:
        command = producer.command("value", sequence_id=0, previous=-1)
        for field, value in change.items():
            setattr(command.send, field, value)
        with pytest.raises(InvalidArgument, match=match):
            await client.caller.call(command, timeout_s=5)

    entry = producer.command("value", sequence_id=0, previous=-1).send.entry
    await refused({"txnid_least_bits": 5}, "does not match")
    await refused({"sequence_id": 5}, "does not match")
    await refused({"count": 2}, "does not match")
    await refused({"writer": 2}, "does not match")
    await refused({"entry": entry[:-1]}, ".")
    await refused({"entry": entry[:-1] + bytes([entry[-1] ^ 1])}, ".")
    await refused({"entry": b""}, ".")
    piece = encode_entry(
        [OutgoingMessage(b"part")],
        producer=producer.name,
        incarnation=producer.incarnation,
        sequence_id=0,
        publish_time_ms=1,
        piece=Piece(0, 0, 2, 8),
    )
    await refused({"entry": piece}, "belong to a transaction")
    await refused({"producer_id": 999}, "open it first")
    command = producer.command("value", sequence_id=0, previous=-1)
    command.send.entry = bytes(MAX_ENTRY_BYTES + 1)
    with pytest.raises(MessageTooLarge):
        await client.caller.call(command, timeout_s=5)
    producer.last = -1
    await producer.send("fine")
    await (await client.reader(segment)).wait("fine")


async def test_more_in_flight_than_the_bound_is_refused_and_may_be_sent_again(gated: Gated) -> None:
    settings = replace(gated.cluster.settings, segment_inflight_bytes=3_000)
    await gated.cluster.nodes[-1].close()
    node = await gated.cluster.start("b2", settings=settings)
    client = await gated.cluster.connect(node)
    ledgers: GatedLedgers = node.ledgers  # type: ignore[assignment]
    producer: Producer = await client.producer(gated.segment)
    ledgers.hold()
    fits = [producer.send_nowait("x" * 1_000) for _ in range(2)]
    with pytest.raises(Overloaded):
        await producer.send("x" * 1_000)
    ledgers.open()
    await asyncio.gather(*fits)
    await producer.send("x" * 1_000, sequence_id=2, previous=1)
    assert node.broker.statistics().inflight_bytes == 0


async def test_closing_a_producer_lets_what_is_in_flight_go_on(gated: Gated) -> None:
    producer = await gated.client.producer(gated.segment)
    gated.ledgers.hold()
    sending = producer.send_nowait("on its way")
    await until(lambda: gated.ledgers.waiting)
    await gated.client.call(close_producer=pb.CloseProducer(producer_id=producer.id))
    gated.ledgers.open()
    await sending
    with pytest.raises(InvalidArgument, match="open it first"):
        await producer.send("closed")
