"""What a broker sends to consumers that share a queue: who shares it, an entry's bytes once, permits made void."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from segments.owner.segment import Segment
from segments.subscription.dispatch import Delivery
from segments.subscription.queue_subscription import AttachedConsumer, QueueSubscription
from tests.segments.brokering import Client, Cluster
from tests.waiting import until
from txnwire.entry import decode_block
from txnwire.errors import TxnError
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb


@dataclass
class Sink:
    """Implements `dispatch.DeliverySink` as a client does that shares."""

    told: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    """Bytes of each delivery."""
    values: list[str] = field(default_factory=list)
    kept: tuple[Position, bytes] | None = None
    closed: bool = False
    pending_bytes: int = 0

    async def drain(self, below_bytes: int) -> None:
        """Nothing is queued."""

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        for one in deliveries:
            self.sent.append(len(one.data))
            data = one.data
            if not data:
                assert self.kept is not None
                assert self.kept[0] == one.position
                data = self.kept[1]
            else:
                self.kept = (one.position, data) if one.skip else None
            block, skip = decode_block(data), int.from_bytes(one.skip, "little")
            self.values += [block.value(index).decode() for index in range(len(block)) if not skip >> index & 1]

    def passed(self, through: Position) -> None:
        raise AssertionError("queues have no order")

    def sharing(self, told: int) -> None:
        self.told.append(told)

    def rewind(self) -> None:
        raise AssertionError("queues are not rewound")

    def end_of_segment(self, *, sealed: bool) -> None:
        raise AssertionError("the segment goes on")

    def consumer_closed(self, error: TxnError) -> None:
        """The broker stops."""


@dataclass
class Member:
    sink: Sink
    queue: QueueSubscription
    consumer: AttachedConsumer

    def flow(self, permits: int, sharing: int | None = None) -> None:
        told = self.consumer.sharing if sharing is None else sharing
        self.queue.add_permits(self.consumer, permits, sharing=told)

    def leave(self) -> None:
        self.queue.detach(self.consumer, counted=False)


async def served(cluster: Cluster) -> tuple[Client, str, Segment]:
    """A client, the path of a segment with a queue, and the segment at its owner."""
    [path] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    await (await cluster.queue(client, path, permits=0)).close()
    return client, path, node.broker.segments[path]


async def member(segment: Segment, name: str = "c", *, may_share: bool = True) -> Member:
    sink = Sink()
    queue, consumer = await segment.subscriptions.attach_to_queue(
        sink, subscription="jobs", holder=f"{name}@1", min_revision=0, may_share=may_share
    )
    return Member(sink, queue, consumer)


async def test_consumers_are_told_when_they_get_company_and_when_they_are_alone_again(memory_cluster: Cluster) -> None:
    _, _, segment = await served(memory_cluster)
    one = await member(segment)
    assert one.sink.told == []
    two = await member(segment)
    three = await member(segment)
    assert (one.sink.told, two.sink.told, three.sink.told) == ([1], [1], [1])
    two.leave()
    assert one.sink.told == [1]
    three.leave()
    assert one.sink.told == [1, 2]
    old = await member(segment, may_share=False)
    assert (one.sink.told, old.sink.told) == ([1, 2, 3], [])


async def test_what_a_consumer_granted_while_it_was_alone_is_void(memory_cluster: Cluster) -> None:
    """▲ It has granted hundreds, and more are under way: one consumer would get all that is sent next."""
    client, path, segment = await served(memory_cluster)
    producer = await client.producer(path)
    one = await member(segment)
    one.flow(1000)
    two = await member(segment)
    one.flow(1000, sharing=0)  # was under way
    one.flow(2)
    two.flow(3)
    await producer.send(*map(str, range(12)))
    await until(lambda: len(two.sink.values) == 3)
    assert len(one.sink.values) == 2
    two.leave()
    one.flow(100)
    await until(lambda: len(one.sink.values) == 12)


async def test_permits_that_a_consumer_revokes_are_void_and_it_is_told(memory_cluster: Cluster) -> None:
    client, path, segment = await served(memory_cluster)
    producer = await client.producer(path)
    one, two = await member(segment), await member(segment)
    one.flow(100)
    one.queue.void_permits(one.consumer)
    assert one.sink.told == [1, 3]
    one.flow(100, sharing=1)  # was under way
    two.flow(4)
    await producer.send("a", "b", "c", "d")
    await until(lambda: len(two.sink.values) == 4)
    assert one.sink.values == []
    one.flow(5)
    await producer.send("e")
    await until(lambda: one.sink.values == ["e"])


async def test_an_entry_s_bytes_go_to_each_consumer_once(memory_cluster: Cluster) -> None:
    """▲ A batch of a thousand jobs would be sent a thousand times."""
    client, path, segment = await served(memory_cluster)
    producer = await client.producer(path)
    members = [await member(segment, f"c{number}") for number in range(4)]
    jobs = [str(number) * 50 for number in range(40)]
    await producer.send(*jobs)
    for turn in range(10):
        for one in members:
            one.flow(1)
        await until(lambda done=turn: sum(len(one.sink.values) for one in members) == 4 * (done + 1))  # type: ignore[misc]
    assert sorted(value for one in members for value in one.sink.values) == sorted(jobs)
    for one in members:
        assert len(one.sink.sent) == 10
        assert [bool(sent) for sent in one.sink.sent] == [True, *[False] * 9]
    await producer.send("next", "to it")
    members[0].flow(2)
    await until(lambda: members[0].sink.values[-1] == "to it")


async def test_a_divided_entry_is_read_once(memory_cluster: Cluster) -> None:
    client, path, segment = await served(memory_cluster)
    producer = await client.producer(path)
    await producer.send(*map(str, range(12)))
    reads: list[object] = []
    read = segment.ledgers.read

    async def counted(first: object, *given: object, **named: object) -> object:
        reads.append(first)
        return await read(first, *given, **named)  # type: ignore[arg-type]

    segment.ledgers.read = counted  # type: ignore[assignment, method-assign]
    segment._cache.resize(0)  # nothing is served from memory
    members = [await member(segment, f"c{number}") for number in range(4)]
    for one in members:
        one.flow(2)
    await until(lambda: sum(len(one.sink.values) for one in members) == 8)
    assert [len(one.sink.values) for one in members] == [2, 2, 2, 2]
    members[3].flow(4)
    await until(lambda: len(members[3].sink.values) == 6)
    assert len(reads) == 1


async def test_what_is_in_memory_is_given_out_without_a_read(memory_cluster: Cluster) -> None:
    client, path, segment = await served(memory_cluster)
    producer = await client.producer(path)
    for value in "abc":
        await producer.send(value)
    reads: list[object] = []
    read = segment.ledgers.read

    async def counted(first: object, *given: object, **named: object) -> object:
        reads.append(first)
        return await read(first, *given, **named)  # type: ignore[arg-type]

    segment.ledgers.read = counted  # type: ignore[assignment, method-assign]
    leaving, staying = await member(segment, "leaving"), await member(segment, "staying")
    leaving.flow(3)
    await until(lambda: leaving.sink.values == ["a", "b", "c"])
    leaving.leave()
    staying.flow(3)
    await until(lambda: staying.sink.values == ["a", "b", "c"])
    assert reads == []


async def test_a_nack_of_what_was_not_begun_is_not_counted(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start())
    producer = await client.producer(segment)
    consumer = await cluster.queue(client, segment, permits=2)
    await producer.send("a", "b")
    await consumer.wait("a", "b")
    positions = consumer.ack_command(consumer.take(), txn=None).ack.positions
    await client.call(nack=pb.Nack(consumer_id=consumer.id, positions=positions, unbegun=True))
    consumer.flow(2)
    await consumer.wait("a", "b")
    assert {message.redelivery_count for message in consumer.messages} == {0}
