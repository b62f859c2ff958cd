"""Seek at the broker (API.md, `consumer.seek`): both types, every start, against acks that are under way."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.segments.brokering import CALL_S, Client, Cluster, Consumer, Node, Producer
from tests.segments.gates import GatedStore, gate_stores, is_ack_op, is_clean_up
from tests.waiting import until
from txnstore import keys
from txnstore.store import Commit
from txnwire.errors import NotAllowed, NotOwner, OutcomeUnknown, SubscriptionNotFound, Timeout, TxnConflict
from txnwire.proto import txn_pb2 as pb

TYPES = ["stream", "queue"]


class Setting:
    """A segment with a few messages and one subscription of either type."""

    def __init__(self, cluster: Cluster, type: str) -> None:
        self.cluster = cluster
        self.type = type
        self.epoch = 0

    async def start(self) -> Setting:
        [self.segment] = await self.cluster.create_topic()
        await self.restart()
        self.producer: Producer = await self.client.producer(self.segment)
        return self

    async def restart(self) -> None:
        self.node: Node = await self.cluster.start()
        self.client: Client = await self.cluster.connect(self.node)

    async def attach(self) -> Consumer:
        if self.type == "queue":
            return await self.cluster.queue(self.client, self.segment, name="sub")
        self.epoch += 1
        return await self.cluster.subscribe(self.client, self.segment, epoch=self.epoch)

    async def seek(self, start: pb.Start | None = None) -> None:
        request = pb.Seek(segment=self.segment, subscription="sub", start=start)
        await self.client.call(seek=request)


@pytest.fixture(params=TYPES)
async def setting(memory_cluster: Cluster, request: pytest.FixtureRequest) -> Setting:
    return await Setting(memory_cluster, request.param).start()


async def consumed(setting: Setting, *values: str) -> Consumer:
    """A consumer that has had and acked `values`, which were sent at 100, 200, …"""
    consumer = await setting.attach()
    for number, value in enumerate(values):
        await setting.producer.send(value, publish_time_ms=100 * (number + 1))
    await consumer.wait(*values)
    await consumer.ack(*consumer.messages)
    return consumer


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (None, "abcd"),
        (pb.Start(earliest=True), "abcd"),
        (pb.Start(timestamp_ms=250), "cd"),
        (pb.Start(ledger_id=1, entry_id=1), "bcd"),
        (pb.Start(ledger_id=1, entry_id=1, after=True), "cd"),
        (pb.Start(latest=True), ""),
    ],
)
async def test_everything_from_the_start_comes_again(setting: Setting, start: pb.Start | None, expected: str) -> None:
    if start is not None and start.ledger_id:
        start.segment = setting.segment
    former = await consumed(setting, *"abcd")
    await setting.seek(start)
    await until(lambda: former.closed)
    consumer = await setting.attach()
    await setting.producer.send("e")
    await consumer.wait(*expected, "e")


async def test_a_seek_into_an_entry_leaves_out_the_messages_before(setting: Setting) -> None:
    consumer = await setting.attach()
    await setting.producer.send("a", "b", "c")
    await consumer.wait(*"abc")
    await setting.seek(pb.Start(segment=setting.segment, ledger_id=1, entry_id=0, index=1))
    await (await setting.attach()).wait("b", "c")
    await setting.seek(pb.Start(segment=setting.segment, ledger_id=1, entry_id=0, index=2, after=True))
    await setting.producer.send("d")
    await (await setting.attach()).wait("d")


async def test_a_seek_needs_no_consumer_and_may_go_forward(setting: Setting) -> None:
    await (await setting.attach()).close()
    await setting.producer.send("a", publish_time_ms=100)
    await setting.producer.send("b", publish_time_ms=200)
    await setting.seek(pb.Start(timestamp_ms=150))
    await (await setting.attach()).wait("b")
    with pytest.raises(SubscriptionNotFound):
        await setting.client.call(seek=pb.Seek(segment=setting.segment, subscription="nothing"))


async def test_the_sought_cursor_survives_a_crash_at_once(setting: Setting) -> None:
    """▲ It is stored before the seek is answered, and so is the number that tells consumers what is void."""
    await consumed(setting, *"abc")
    await setting.seek()
    await setting.node.crash()
    await setting.restart()
    consumer = await setting.attach()
    await consumer.wait(*"abc")
    assert consumer.seeks == 1


async def test_acks_of_what_was_received_before_the_seek_are_void(setting: Setting) -> None:
    """▲ Plain ones and in transactions, whether they come before the consumer hears of the seek or after."""
    consumer = await setting.attach()
    for value in "ab":
        await setting.producer.send(value)
    await consumer.wait("a", "b")
    assert consumer.seeks == 0
    txn = await setting.cluster.begin()
    seeking = setting.client.caller.call_nowait(
        pb.Command(seek=pb.Seek(segment=setting.segment, subscription="sub")), timeout_s=CALL_S
    )
    late = setting.client.caller.call_nowait(consumer.ack_command(consumer.messages[:1], txn=None), timeout_s=CALL_S)
    await seeking
    await asyncio.gather(late, return_exceptions=True)
    for in_txn in (None, txn):
        with pytest.raises(NotOwner, match="sought"):
            await consumer.ack(consumer.messages[1], txn=in_txn)
    again = await setting.attach()
    await again.wait("a", "b")
    assert again.seeks == 1


async def test_a_seek_waits_for_the_decision_of_pending_acks(setting: Setting) -> None:
    """A commit's acks are forgotten like all others, and their op records are gone before the cursor is set."""
    consumer = await setting.attach()
    for value in "ab":
        await setting.producer.send(value)
    await consumer.wait("a", "b")
    txn = await setting.cluster.begin()
    await consumer.ack(consumer.messages[0], txn=txn)
    seeking = asyncio.ensure_future(setting.seek())
    await until(lambda: consumer.closed)
    attaching = asyncio.ensure_future(setting.attach())
    await setting.producer.send("c")
    assert not seeking.done()
    assert not attaching.done()
    await setting.cluster.commit(txn)
    await seeking
    assert await setting.cluster.ops(txn) == []
    await (await attaching).wait("a", "b", "c")
    await setting.node.crash()
    await setting.restart()
    await (await setting.attach()).wait("a", "b", "c")


@pytest.mark.parametrize("type", TYPES)
async def test_a_seek_goes_on_as_the_only_ack_it_waits_for_is_refused(memory_cluster: Cluster, type: str) -> None:
    gate_stores(memory_cluster)
    setting = await Setting(memory_cluster, type).start()
    store: GatedStore = setting.node.store  # type: ignore[assignment]
    consumer = await setting.attach()
    await setting.producer.send("a")
    await consumer.wait("a")
    txn = await setting.cluster.begin()
    store.hold(is_ack_op)
    acking = asyncio.ensure_future(consumer.ack(consumer.messages[0], txn=txn))
    await until(lambda: store.waiting)
    seeking = asyncio.ensure_future(setting.seek())
    await until(lambda: consumer.closed)
    await setting.cluster.abort(txn)
    store.open()
    with pytest.raises(TxnConflict):
        await acking
    await seeking
    await (await setting.attach()).wait("a")


async def test_a_seek_gives_up_naming_the_transaction_that_holds_it(memory_cluster: Cluster) -> None:
    memory_cluster.settings = replace(memory_cluster.settings, seek_wait_s=0.05)
    setting = await Setting(memory_cluster, "queue").start()
    consumer = await setting.attach()
    await setting.producer.send("a")
    await consumer.wait("a")
    txn = await setting.cluster.begin()
    await consumer.ack(consumer.messages[0], txn=txn)
    with pytest.raises(Timeout, match=str(txn)) as failure:
        await setting.seek()
    assert failure.value.retriable
    again = await setting.attach()
    assert again.seeks == 0
    await setting.cluster.abort(txn)
    await again.wait("a")
    await setting.seek()


async def test_a_crash_within_a_seek_leaves_the_cursor_before_or_behind_it(memory_cluster: Cluster) -> None:
    """▲ Never a mark that has gone back beside acks from before: messages would be left out for good."""
    make_store = memory_cluster.make_store

    async def make_gated() -> GatedStore:
        return GatedStore(await make_store())

    memory_cluster.make_store = make_gated  # type: ignore[assignment]
    setting = await Setting(memory_cluster, "queue").start()
    consumer = await setting.attach()
    for value in "abc":
        await setting.producer.send(value)
    await consumer.wait(*"abc")
    await consumer.ack(consumer.messages[0], consumer.messages[2])
    store: GatedStore = setting.node.store  # type: ignore[assignment]
    await until(lambda: any(_is_cursor(commit, setting.segment) for commit in store.sent))
    store.hold(lambda commit: _is_cursor(commit, setting.segment))
    seeking = asyncio.ensure_future(setting.seek())
    await until(lambda: store.waiting)
    await setting.node.crash()
    await asyncio.gather(seeking, return_exceptions=True)
    await setting.restart()
    await (await setting.attach()).wait("b")


def _is_cursor(commit: Commit, segment: str) -> bool:
    prefix = keys.cursors(segment)
    return any(put.key.startswith(prefix) for put in commit.puts)


async def test_the_ops_of_committed_acks_are_gone_before_the_sought_cursor_is_stored(memory_cluster: Cluster) -> None:
    """▲ However many have not been cleaned up yet: a successor would apply what it finds to the cursor it finds."""
    make_store = memory_cluster.make_store

    async def make_gated() -> GatedStore:
        return GatedStore(await make_store())

    memory_cluster.make_store = make_gated  # type: ignore[assignment]
    setting = await Setting(memory_cluster, "queue").start()
    consumer = await setting.attach()
    values = [str(number) for number in range(70)]
    for value in values:
        await setting.producer.send(value)
    await consumer.wait(*values)
    store: GatedStore = setting.node.store  # type: ignore[assignment]
    store.hold(is_clean_up)
    for message in consumer.messages:
        txn = await memory_cluster.begin()
        await consumer.ack(message, txn=txn)
        await memory_cluster.commit(txn)
    await until(lambda: store.waiting)
    seeking = asyncio.ensure_future(setting.seek())
    await until(lambda: consumer.closed)
    store.open()
    await seeking
    [sought] = [at for at, commit in enumerate(store.sent) if any(b'"seeks":1' in put.value for put in commit.puts)]
    assert [at for at, commit in enumerate(store.sent) if is_clean_up(commit) and at >= sought] == []
    await (await setting.attach()).wait(*values)


async def test_who_waited_for_a_seek_attaches_under_the_assignment_of_then(memory_cluster: Cluster) -> None:
    """A stream's assignment may change while a seek waits; nobody would fence a holder that was let in by the old."""
    setting = await Setting(memory_cluster, "stream").start()
    consumer = await setting.attach()
    await setting.producer.send("a")
    await consumer.wait("a")
    txn = await memory_cluster.begin()
    await consumer.ack(consumer.messages[0], txn=txn)
    seeking = asyncio.ensure_future(setting.seek())
    await until(lambda: consumer.closed)
    attaching = asyncio.ensure_future(setting.client.subscribe(setting.segment, epoch=1))
    await setting.producer.send("b")
    await memory_cluster.assign({"c2@0000000000000007": [setting.segment]}, epoch=2)
    await memory_cluster.commit(txn)
    await seeking
    with pytest.raises(NotAllowed):
        await attaching


@pytest.mark.parametrize("sought", [False, True])
async def test_what_is_delivered_again_by_a_seek_counts_as_new(memory_cluster: Cluster, sought: bool) -> None:
    """Or a consumer would take messages that were sought for ones that have failed many times."""
    setting = await Setting(memory_cluster, "stream").start()
    consumer = await setting.attach()
    for value in "ab":
        await setting.producer.send(value)

    async def aborted(rewinds: int) -> list[int]:
        await consumer.wait("a", "b")
        txn = await memory_cluster.begin()
        await consumer.ack(*consumer.messages, txn=txn)
        await memory_cluster.abort(txn)
        await until(lambda: consumer.rewinds == rewinds)
        await consumer.wait("a", "b")
        return [message.redelivery_count for message in consumer.messages]

    assert await aborted(1) == [1, 1]
    if sought:
        await setting.seek()
        await until(lambda: consumer.closed)
        consumer = await setting.attach()
        await consumer.wait("a", "b")
        assert [message.redelivery_count for message in consumer.messages] == [0, 0]
        assert await aborted(1) == [1, 1]
    else:
        assert await aborted(2) == [2, 2]


async def test_a_seek_that_the_store_has_not_confirmed_is_told_as_one_to_repeat(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await consumed(setting, "a")

    async def unheard(*_: object) -> None:
        raise OutcomeUnknown("the time ran out")

    served = setting.node.broker.segments[setting.segment]
    with monkeypatch.context() as away:
        away.setattr(served.subscriptions, "_move", unheard)
        with pytest.raises(Timeout, match="not confirmed by the store yet, repeat it"):
            await setting.seek(pb.Start(earliest=True))
    await setting.seek(pb.Start(earliest=True))
    await (await setting.attach()).wait("a")
