"""When a subscription is said to be done with a sealed segment, and what that lets its consumers read (S7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from segments.layout.assignment import consumer_id
from segments.subscription.drained import DrainedMark
from tests.segments.brokering import TOPIC, Client, Cluster, Consumer, Node
from tests.segments.changing import controlling, topology_of
from tests.segments.gates import GatedStore, gate_stores
from tests.segments.owner.seals import begin, give_up, serving
from tests.waiting import until, until_answer
from txnstore import keys, records
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import CursorMark, SubscriptionRecord
from txnstore.store import Commit, CommitVerdict, Delete, Put
from txnwire.errors import ConnectionLost, NotAllowed, NotOwner, OutcomeUnknown, Timeout
from txnwire.ids import EARLIEST, Position
from txnwire.proto import txn_pb2 as pb

DRAINED = keys.drained(TOPIC.path, "sub", 0)


def puts_drained(commit: Commit) -> bool:
    return any(put.key.startswith(keys.DRAINED) for put in commit.puts)


def deletes_drained(commit: Commit) -> bool:
    return any(delete.key.startswith(keys.DRAINED) for delete in commit.deletes)


def puts_cursor(commit: Commit) -> bool:
    return any(put.key.startswith(keys.CURSOR) for put in commit.puts)


async def is_drained(cluster: Cluster, key: bytes = DRAINED) -> bool:
    return await cluster.store.get(key) is not None


async def until_drained(cluster: Cluster, *, drained: bool, key: bytes = DRAINED) -> None:
    async def is_told() -> bool:
        return await is_drained(cluster, key) is drained

    await until(is_told, f"drained to be {drained}")


async def stored_mark(cluster: Cluster, segment: str) -> Position | None:
    key = keys.cursor_block(segment, "sub", "mark")
    found = await cluster.store.get(key)
    return None if found is None else Position(*records.decode(CursorMark, found.value, key=key).position)


class Setting:
    """One topic of one segment with three messages, a stream consumer, the broker's store gated."""

    def __init__(self, cluster: Cluster, segment: str, node: Node, client: Client, consumer: Consumer) -> None:
        self.cluster = cluster
        self.segment = segment
        self.node = node
        self.client = client
        self.consumer = consumer
        self.last = consumer.messages[-1].position

    @property
    def store(self) -> GatedStore:
        assert isinstance(self.node.store, GatedStore)
        return self.node.store

    async def split(self) -> list[str]:
        async with controlling(self.cluster) as controller:
            return await controller.split(self.segment)

    async def waiting(self) -> None:
        await until(lambda: self.store.waiting)

    async def crash(self) -> Node:
        """The broker is gone, and its lease with it. Returns another one."""
        gone = Delete(keys.OWNER, keys.prefix_end(keys.OWNER)), Delete(keys.broker("b1"))
        await self.node.crash()
        await self.cluster.store.commit(Commit(deletes=gone))
        return await self.cluster.start("b2")

    async def seek_to_the_beginning(self) -> None:
        await self.client.call(seek=pb.Seek(segment=self.segment, subscription="sub", start=pb.Start(earliest=True)))


@pytest.fixture
async def setting(memory_cluster: Cluster) -> Setting:
    gate_stores(memory_cluster)
    [segment] = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    client = await memory_cluster.connect(node)
    producer = await client.producer(segment)
    for value in "abc":
        await producer.send(value)
    consumer = await memory_cluster.subscribe(client, segment)
    await consumer.wait(*"abc")
    return Setting(memory_cluster, segment, node, client, consumer)


async def test_a_segment_is_drained_only_once_the_cursor_at_its_end_is_stored(setting: Setting) -> None:
    await setting.split()
    setting.store.hold(puts_cursor)
    await setting.consumer.ack(*setting.consumer.messages)
    await setting.waiting()
    assert not await is_drained(setting.cluster)
    assert not any(puts_drained(commit) for commit in setting.store.sent)
    setting.store.open()
    await until_drained(setting.cluster, drained=True)
    assert await stored_mark(setting.cluster, setting.segment) == setting.last


async def test_s7_the_owner_that_dies_behind_the_cursor_leaves_it_to_its_successor_to_say_drained(
    setting: Setting,
) -> None:
    """Without any consumer."""
    await setting.split()
    setting.store.hold(puts_drained)
    await setting.consumer.ack(*setting.consumer.messages)
    await setting.waiting()
    assert await stored_mark(setting.cluster, setting.segment) == setting.last
    await setting.crash()
    await until_drained(setting.cluster, drained=True)


@pytest.mark.parametrize("committed", [True, False])
async def test_p10_a_pending_ack_on_a_sealed_segment_keeps_it_from_being_drained(
    setting: Setting, committed: bool
) -> None:
    cluster, consumer = setting.cluster, setting.consumer
    txn = await cluster.begin()
    a, b, c = consumer.take()
    await consumer.ack(a, txn=txn)
    await setting.split()
    await consumer.ack(c, txn=txn)
    await consumer.ack(b)
    if committed:
        await cluster.commit(txn)
    else:
        await cluster.abort(txn)
        await consumer.wait("a", "c")
        assert not await is_drained(cluster)
        await consumer.ack(*consumer.messages)
    await until_drained(cluster, drained=True)
    await cluster.wait_no_ops(txn)


async def test_a_seal_that_is_taken_back_has_drained_nothing(setting: Setting) -> None:
    """▲ What is drained is never read again: the seal alone does not make it so, it may be taken back."""
    cluster, consumer = setting.cluster, setting.consumer
    change = await begin(cluster, setting.segment)
    served = await serving(setting.node, setting.segment)
    await served.sealing.seal(change)
    await consumer.ack(*consumer.take())
    await served.hand_over(timeout_s=5.0)  # everything there is to write
    assert await stored_mark(cluster, setting.segment) == setting.last
    assert not await is_drained(cluster)
    await give_up(cluster, change)
    node = await setting.crash()
    client = await cluster.connect(node)
    await until(lambda: setting.segment in node.broker.segments)
    await until(lambda: not node.broker.segments[setting.segment].ledgers.sealed)
    await (await client.producer(setting.segment, "p2")).send("d")
    consumer = await cluster.subscribe(client, setting.segment, epoch=2)
    await consumer.wait("d")
    assert not await is_drained(cluster)


async def test_s7_a_child_is_not_attached_to_before_its_parent_is_drained_whatever_the_assignment_says(
    setting: Setting,
) -> None:
    """▲ The controller's knowledge of what is drained may be of before a seek, or of a former subscription."""
    cluster = setting.cluster
    child, _ = await setting.split()
    await cluster.assign({consumer_id("c1", 7): [setting.segment, child]}, epoch=2)
    with pytest.raises(NotAllowed, match="has to consume segment 0 of topic://public/nyc/flights first"):
        await setting.client.subscribe(child, epoch=2)
    await setting.consumer.ack(*setting.consumer.messages)
    await until_drained(cluster, drained=True)
    attached = await setting.client.subscribe(child, epoch=2)
    await setting.seek_to_the_beginning()
    await setting.client.call(seek=pb.Seek(segment=child, subscription="sub", start=pb.Start(earliest=True)))
    await until(lambda: attached.closed is not None)
    with pytest.raises(NotAllowed, match="has to consume segment 0"):
        await setting.client.subscribe(child, epoch=2)


async def test_s7_a_grandchild_is_not_attached_to_while_its_grandparent_is_read_again(setting: Setting) -> None:
    """▲ A seek goes from parents to children and may stop in between: what lies in the middle still counts as
    drained."""
    cluster = setting.cluster
    async with controlling(cluster) as controller:
        child, _ = await controller.split(setting.segment)
        grandchild, _ = await controller.split(child)
    await setting.consumer.ack(*setting.consumer.messages)
    await until_drained(cluster, drained=True)
    await cluster.subscribe(setting.client, child, epoch=2)
    await until_drained(cluster, drained=True, key=keys.drained(TOPIC.path, "sub", 1))
    await setting.seek_to_the_beginning()
    await cluster.assign({consumer_id("c1", 7): [grandchild]}, epoch=3)
    with pytest.raises(NotAllowed, match="has to consume segment 0 of"):
        await setting.client.subscribe(grandchild, epoch=3)


async def test_s7_a_merged_segment_is_not_attached_to_before_both_its_parents_are_drained(
    memory_cluster: Cluster,
) -> None:
    cluster, holder = memory_cluster, consumer_id("c1", 7)
    parents = await cluster.create_topic(segments=2)
    client = await cluster.connect(await cluster.start())
    await cluster.create_subscription()
    await cluster.assign({holder: parents}, epoch=1)
    consumers = [await client.subscribe(parent) for parent in parents]
    for parent in parents:
        await (await client.producer(parent)).send("m")
    async with controlling(cluster) as controller:
        [child] = await controller.merge(*parents)
    await cluster.assign({holder: [*parents, child]}, epoch=2)
    for number, consumer in enumerate(consumers):
        with pytest.raises(NotAllowed, match=f"has to consume segment {number} of"):
            await client.subscribe(child, epoch=2)
        await consumer.wait("m")
        await consumer.ack(*consumer.messages)
        await until_drained(cluster, drained=True, key=keys.drained(TOPIC.path, "sub", number))
    await client.subscribe(child, epoch=2)


async def test_an_attach_that_is_on_its_way_during_a_seek_looks_at_its_parents_again(setting: Setting) -> None:
    """▲ It has looked before the parent was sought, and would be attached behind the child's own seek."""
    cluster, store = setting.cluster, setting.store
    child, _ = await setting.split()
    await setting.consumer.ack(*setting.consumer.messages)
    await until_drained(cluster, drained=True)
    await cluster.assign({consumer_id("c1", 7): [setting.segment, child]}, epoch=2)
    gate = Gate(store.range)
    store.range = gate  # type: ignore[attr-defined]
    attaching = asyncio.ensure_future(setting.client.subscribe(child, epoch=2))
    await until(lambda: gate.reached)
    await setting.seek_to_the_beginning()
    await setting.client.call(seek=pb.Seek(segment=child, subscription="sub", start=pb.Start(earliest=True)))
    gate.open()
    with pytest.raises(NotAllowed, match="has to consume segment 0"):
        await attaching


class Gate:
    """Holds the first answer back that tells of a key."""

    def __init__(self, read: Callable[..., object], prefix: bytes = keys.DRAINED) -> None:
        self._read = read
        self._prefix = prefix
        self._open = asyncio.Event()
        self.reached = False

    def open(self) -> None:
        self._open.set()

    async def __call__(self, key: bytes, *args: object, **options: object) -> object:
        found = await self._read(key, *args, **options)  # type: ignore[misc]
        if key.startswith(self._prefix) and not self.reached:
            self.reached = True
            await self._open.wait()
        return found


class SlowRead(Gate):
    """Holds the first read of the log back."""

    async def __call__(self, *args: object, **options: object) -> object:  # type: ignore[override]
        if not self.reached:
            self.reached = True
            await self._open.wait()
        return await self._read(*args, **options)  # type: ignore[misc]


async def turns() -> None:
    """As far as everything gets that waits for nothing but its turn, and the store in memory."""
    for _ in range(300):
        await asyncio.sleep(0)


async def test_a_seek_back_takes_drained_away_before_the_cursor_goes_back(setting: Setting) -> None:
    await setting.split()
    await setting.consumer.ack(*setting.consumer.messages)
    await until_drained(setting.cluster, drained=True)
    setting.store.hold(deletes_drained)
    seeking = asyncio.ensure_future(setting.seek_to_the_beginning())
    await setting.waiting()
    assert await stored_mark(setting.cluster, setting.segment) == setting.last
    setting.store.open()
    await seeking
    assert await stored_mark(setting.cluster, setting.segment) != setting.last
    assert not await is_drained(setting.cluster)
    consumer = await setting.cluster.subscribe(setting.client, setting.segment, epoch=2)
    await consumer.wait(*"abc")
    await consumer.ack(*consumer.messages)
    await until_drained(setting.cluster, drained=True)


async def test_a_seek_that_the_store_does_not_confirm_is_to_be_repeated(setting: Setting) -> None:
    """Its consumer would end with an error that nothing passes away."""
    await setting.split()
    await setting.consumer.ack(*setting.consumer.messages)
    await until_drained(setting.cluster, drained=True)
    store = setting.store
    commit_really = store.commit

    async def unanswered(commit: Commit, *, timeout_s: float = 10.0) -> CommitVerdict:
        del store.commit  # type: ignore[method-assign]
        await commit_really(commit, timeout_s=timeout_s)
        raise OutcomeUnknown("etcd did not answer in time")

    store.commit = unanswered  # type: ignore[method-assign]
    with pytest.raises(Timeout, match="repeat it"):
        await setting.seek_to_the_beginning()
    await setting.seek_to_the_beginning()
    assert not await is_drained(setting.cluster)
    consumer = await setting.cluster.subscribe(setting.client, setting.segment, epoch=2)
    await consumer.wait(*"abc")


async def test_a_seek_that_is_cut_off_as_it_takes_drained_back_has_it_put_again(setting: Setting) -> None:
    """▲ The cursor is where it was, so nothing else would: what came of the segment would be read by nobody."""
    await setting.split()
    await setting.consumer.ack(*setting.consumer.messages)
    await until_drained(setting.cluster, drained=True)
    seeker = await setting.cluster.connect(setting.node)
    store = setting.store
    commit_really = store.commit

    async def slow(commit: Commit, *, timeout_s: float = 10.0) -> CommitVerdict:
        del store.commit  # type: ignore[method-assign]
        result = await commit_really(commit, timeout_s=timeout_s)
        await asyncio.sleep(60.0)
        return result

    store.commit = slow  # type: ignore[method-assign]
    start = pb.Start(earliest=True)
    seeking = asyncio.ensure_future(seeker.call(seek=pb.Seek(segment=setting.segment, subscription="sub", start=start)))
    await until_drained(setting.cluster, drained=False)
    await seeker.close()
    with pytest.raises(ConnectionLost):
        await seeking
    await until_drained(setting.cluster, drained=True)


async def test_a_seek_that_comes_while_drained_is_being_written_waits_for_it_and_takes_it_away(
    setting: Setting,
) -> None:
    """▲ A late put behind the seek would hide a segment that is to be read again."""
    await setting.split()
    setting.store.hold(puts_drained)
    await setting.consumer.ack(*setting.consumer.messages)
    await setting.waiting()
    seeking = asyncio.ensure_future(setting.seek_to_the_beginning())
    await turns()
    assert not any(deletes_drained(commit) for commit in setting.store.sent)
    setting.store.open()
    await seeking
    assert not await is_drained(setting.cluster)


async def test_a_seal_that_comes_in_the_midst_of_a_seek_drains_nothing(setting: Setting) -> None:
    """▲ All is acked, so with the seal it is drained, but for the seek that is about to move the cursor."""
    cluster, store = setting.cluster, setting.store
    await setting.consumer.ack(*setting.consumer.messages)
    await until_answer(
        lambda: stored_mark(cluster, setting.segment), lambda found: found == setting.last, "all acks", within_s=10.0
    )
    served = setting.node.broker.segments[setting.segment]
    gate = SlowRead(served.ledgers.read)
    served.ledgers.read = gate  # type: ignore[method-assign]
    long_ago = pb.Start(timestamp_ms=1)  # it is looked up in the log
    seek = pb.Seek(segment=setting.segment, subscription="sub", start=long_ago)
    seeking = asyncio.ensure_future(setting.client.call(seek=seek))
    await until(lambda: gate.reached)
    store.hold(puts_drained)
    await setting.split()
    await until(lambda: served.ledgers.end is not None)
    clean_up = setting.node.broker._shared.clean_up
    writing = asyncio.ensure_future(clean_up.drain(served.subscriptions.targets[0], timeout_s=5.0))
    await turns()
    gate.open()
    [subscription] = served.subscriptions
    await until(lambda: subscription.cursor.seeks == 1)  # what says drained was taken back before
    store.open()
    await asyncio.gather(seeking, writing)
    assert not await is_drained(cluster)


class Done:
    """Implements `Consumption`."""

    drained = True


async def test_a7_a_stream_is_told_of_the_end_again_behind_what_an_abort_brings_back(memory_cluster: Cluster) -> None:
    """▲ Pieces of a value that was cut off by the seal come again, too: only the end says that they make no whole, and
    until they are acked away the segment is not drained."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer, consumer = await client.producer(segment), await cluster.subscribe(client, segment)
    await producer.send("a")
    await consumer.wait("a")
    async with controlling(cluster) as controller:
        await controller.split(segment)
    await until(lambda: consumer.ended == "sealed")
    consumer.ended, txn = None, await cluster.begin()
    await consumer.ack(consumer.messages[0], txn=txn)
    await cluster.abort(txn)
    await until(lambda: consumer.rewinds == 1)
    await consumer.wait("a")
    await until(lambda: consumer.ended == "sealed")


async def test_only_the_owner_says_drained_and_only_of_the_subscription_it_knows(memory_store: MemoryStore) -> None:
    """▲ Not a former owner that wakes up, nor of a subscription that was made anew under the name."""
    segment, sub = f"{TOPIC.path}/0000-ffff-0", keys.subscription(TOPIC.path, "sub")

    async def put(key: bytes) -> int:
        return (await memory_store.commit(Commit(puts=(Put(key, b"{}"),)))).revision

    async def say() -> None:
        mark = DrainedMark(
            segment, "sub", owner_epoch=epoch, subscription_created=created, consumption=Done(), end=lambda: EARLIEST
        )
        assert mark.due
        mark.settle(await memory_store.commit(mark.commit()))
        assert not mark.due

    epoch, created = await put(keys.owner(segment)), await put(sub)
    await memory_store.commit(Commit(deletes=(Delete(sub),)))
    await put(sub)
    await say()
    assert await memory_store.get(DRAINED) is None
    created = (await memory_store.get(sub)).create_revision  # type: ignore[union-attr]
    await memory_store.commit(Commit(deletes=(Delete(keys.owner(segment)),)))
    await put(keys.owner(segment))
    with pytest.raises(NotOwner):
        await say()
    assert await memory_store.get(DRAINED) is None
    epoch = (await memory_store.get(keys.owner(segment))).create_revision  # type: ignore[union-attr]
    await say()
    await say()  # as a successor that finds it
    former = DrainedMark(
        segment, "sub", owner_epoch=1, subscription_created=created, consumption=Done(), end=lambda: EARLIEST
    )
    with pytest.raises(NotOwner):
        former.taken_back(await memory_store.commit(former.take_back()))
    assert await memory_store.get(DRAINED) is not None


async def test_of_an_empty_parent_and_of_one_that_a_subscription_starts_behind_all_is_drained_at_once(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    await cluster.subscribe(client, segment)
    async with controlling(cluster) as controller:
        child, _ = await controller.split(segment)
        await until_drained(cluster, drained=True)
        consumer = await cluster.subscribe(client, child, epoch=2)
        await (await client.producer(child)).send("a")
        await consumer.wait("a")
        grandchild, _ = await controller.split(child)
        start = {"kind": "message_id", "segment": grandchild, "ledger_id": 1, "entry_id": 0, "ancestors": [0, 1]}
        record = SubscriptionRecord(type="stream", start=start)
        await cluster.create_subscription("late", record=record)
        for at, path in enumerate((segment, child)):
            await cluster.subscribe(client, path, name="late", epoch=at + 1)
            await until_drained(cluster, drained=True, key=keys.drained(TOPIC.path, "late", at))
    assert [entry.id for entry in (await topology_of(cluster)).active] == [3, 4, 2]
