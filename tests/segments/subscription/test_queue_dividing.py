"""A queue divides an entry's messages among its consumers by their permits, and takes back what nobody has begun."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.segments.brokering import Cluster
from tests.segments.queueing import Rig, Taker
from tests.waiting import until
from txnwire.proto import txn_pb2 as pb
from watchers.acks import ack_position


def _indexes(taker: Taker) -> list[int]:
    return sorted(index for _, index, _ in taker.got)


def test_an_entry_s_messages_go_to_as_many_consumers_as_have_permits() -> None:
    rig = Rig()
    rig.append(10)
    a, b, c = rig.taker("a", 2), rig.taker("b", 3), rig.taker("c", 1)
    rig.run()
    assert (_indexes(a), _indexes(b), _indexes(c)) == ([0, 1], [2, 3, 4], [5])
    assert a.permits == b.permits == c.permits == 0
    rig.permit(b, 100)
    rig.run()
    assert _indexes(b) == [2, 3, 4, 6, 7, 8, 9]
    assert b.permits == 96


def test_what_is_left_of_a_divided_entry_comes_before_the_next_entry() -> None:
    rig = Rig()
    first, second = rig.append(3), rig.append(1)
    taker = rig.taker(permits=2)
    rig.run()
    rig.permit(taker, 2)
    rig.run()
    assert [(position, index) for position, index, _ in taker.got] == [(first, 0), (first, 1), (first, 2), (second, 0)]


def test_a_divided_entry_is_not_given_out_to_its_end_before_all_of_it_is() -> None:
    """▲ Otherwise the consumers would be told the end of a sealed segment with messages to come."""
    rig = Rig()
    rig.append(4)
    taker = rig.taker(permits=3)
    rig.run()
    assert not rig.queue.all_given_out(rig.end)
    rig.permit(taker, 1)
    rig.run()
    assert rig.queue.all_given_out(rig.end)


def test_of_a_divided_entry_each_consumer_gives_back_its_own_part() -> None:
    rig = Rig()
    position = rig.append(4)
    a, b = rig.taker("a", 2), rig.taker("b", 2)
    rig.run()
    rig.queue.leave(a)
    rig.permit(b, 10)
    rig.run()
    assert sorted(b.got) == [(position, 0, 1), (position, 1, 1), (position, 2, 0), (position, 3, 0)]
    rig.ack(ack_position(position, 4, 0b1111))
    rig.cursor.advance()
    assert rig.cursor.mark_delete == position
    assert (rig.queue.statistics().unacked, b.held) == (0, {})


def test_what_nobody_has_begun_comes_again_uncounted() -> None:
    rig = Rig()
    position = rig.append(2)
    a = rig.taker("a", 2)
    rig.run()
    rig.queue.given_back([ack_position(position, 2, 0b10)], a, counted=False)
    rig.queue.given_back([ack_position(position, 2, 0b01)], a)
    b = rig.taker("b", 2)
    rig.run()
    assert sorted(b.got) == [(position, 0, 1), (position, 1, 0)]


@given(
    entries=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    grants=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), max_size=30),
)
def test_nobody_gets_more_than_its_permits_and_nothing_comes_twice_or_never(
    entries: list[int], grants: list[tuple[int, int]]
) -> None:
    rig = Rig()
    for messages in entries:
        rig.append(messages)
    takers, granted = [rig.taker(str(number), 0) for number in range(3)], [0, 0, 0]
    for number, permits in grants:
        granted[number] += permits
        rig.permit(takers[number], permits)
        rig.run()
        for taker, most in zip(takers, granted, strict=True):
            assert len(taker.got) + taker.permits == most
    rig.permit(takers[0], 1000)
    rig.run()
    everything = [(position, index) for position, entry in rig.log.items() for index in range(entry.messages)]
    assert sorted((position, index) for taker in takers for position, index, _ in taker.got) == everything


async def test_one_batch_is_divided_among_consumers_and_read_once(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(segment)
    await producer.send(*map(str, range(12)))
    served = node.broker.segments[segment]
    reads: list[object] = []
    read = served.ledgers.read

    async def counted(first: object, *given: object, **named: object) -> object:
        reads.append(first)
        return await read(first, *given, **named)  # type: ignore[arg-type]

    served.ledgers.read = counted  # type: ignore[assignment, method-assign]
    served._cache.resize(0)  # nothing is served from memory
    consumers = [await cluster.queue(client, segment, consumer=f"c{number}", permits=2) for number in range(4)]
    await until(lambda: sum(len(one.messages) for one in consumers) == 8)
    assert [len(one.messages) for one in consumers] == [2, 2, 2, 2]
    consumers[3].flow(4)
    await until(lambda: len(consumers[3].messages) == 6)
    assert sorted(value for one in consumers for value in one.values) == sorted(map(str, range(12)))
    assert len(reads) == 1


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
