"""Where a subscription stands, kept as text: a place for a reader, for another subscription and for a seek."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.waiting import until
from txnclient import NextMessage, Positions, TopicPositions
from txnclient.connection.topic_layout import TopicLayout
from txnclient.consuming.places.positions import check_topics, start_in, start_of_topic
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb

TOPIC, OTHER = "topic://public/default/orders", "topic://public/default/invoices"
PATH = "public/default/orders/0000-ffff-0"


async def sent(client: txnclient.Client, topic: str, values: range) -> None:
    async with client.producer(topic, batch_bytes=1) as producer:
        for value in values:
            await producer.send(b"%d" % value, key=f"k{value % 7}")


async def values(receiver: txnclient.Consumer[bytes] | txnclient.Reader[bytes], count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count and (messages := await receiver.receive_many(count - len(found), timeout=10)):
        if isinstance(receiver, txnclient.Consumer):
            await receiver.ack(messages)
        found += [int(message.value) for message in messages]
    return sorted(found)


def test_they_are_kept_as_text() -> None:
    positions = Positions({TOPIC: TopicPositions(7, 2, {PATH: NextMessage(Position(3, 4), 5)})})
    assert Positions.from_json(positions.to_json()) == positions
    paths = [
        f"{one.removeprefix('topic://')}/{low}" for one in (TOPIC, OTHER) for low in ("0000-7fff-0", "8000-ffff-1")
    ]
    at = {path: NextMessage(Position(3, number), number) for number, path in enumerate(paths)}
    several = Positions(
        {
            TOPIC: TopicPositions(7, 2, {path: at[path] for path in paths[:2]}),
            OTHER: TopicPositions(8, 3, {path: at[path] for path in paths[2:]}),
        }
    )
    assert Positions.from_json(several.to_json()) == several
    for wrong in (
        "", "[]", "{}", '{"v":2,"topics":{}}', '{"v":1,"topics":{"x":{}}}', '{"v":1}', "7",
        positions.to_json().replace("[3,4,5]", "[3,4]"),
        positions.to_json().replace("[3,4,5]", "[3,-4,5]"),
        positions.to_json().replace("[3,4,5]", "[3,4.5,5]"),
        positions.to_json().replace("[3,4,5]", f"[{2**64},4,5]"),
        positions.to_json().replace("[3,4,5]", f"[3,4,{2**32}]"),
        positions.to_json().replace('"life":7', '"life":true'),
        positions.to_json().replace('"epoch":2', '"epoch":-2'),
        positions.to_json().replace(PATH, PATH.replace("orders", "invoices")),
    ):  # fmt: skip
        with pytest.raises(txnclient.InvalidArgument):
            Positions.from_json(wrong)


@pytest.mark.parametrize("topic", [TOPIC, OTHER])
def test_wherever_a_segment_of_another_topic_stands_in_the_text_it_is_refused(topic: str) -> None:
    """▲ A broker would read its position in the wrong log."""
    segments = ("0000-7fff-0", "8000-ffff-1")
    paths = {one: [f"{one.removeprefix('topic://')}/{segment}" for segment in segments] for one in (TOPIC, OTHER)}
    paths[topic][1] = "public/default/parcels/8000-ffff-1"
    at = NextMessage(Position(3, 4), 5)
    positions = Positions({one: TopicPositions(7, 2, dict.fromkeys(paths[one], at)) for one in paths})
    with pytest.raises(txnclient.InvalidArgument, match=f"positions of {topic} name segment {paths[topic][1]}"):
        Positions.from_json(positions.to_json())


async def test_a_reader_and_another_subscription_go_on_where_the_first_stands(client: txnclient.Client) -> None:
    """Also amid a batch, and in segments of which nothing was acked."""
    await client.create_topic(TOPIC, segments=3)
    await sent(client, TOPIC, range(50))
    async with client.consumer(TOPIC, "first") as consumer:
        acked = await values(consumer, 20)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([("k0", b"%d" % value) for value in range(100, 110)])
        positions = Positions.from_json((await consumer.positions()).to_json())
        rest = sorted({*range(50), *range(100, 110)} - {*acked})
        async with client.reader(TOPIC, start=positions, end="latest") as reader:
            assert await values(reader, 1000) == rest
        async with client.consumer(TOPIC, "second", start=positions) as second:
            assert await values(second, len(rest)) == rest
            assert await second.receive_many(10, timeout=0.05) == []


async def test_it_stands_amid_a_batch(client: txnclient.Client) -> None:
    await client.create_topic(TOPIC)
    async with client.producer(TOPIC) as producer, client.consumer(TOPIC, "first") as consumer:
        await producer.send_many([("k", b"%d" % value) for value in range(10)])
        messages = [await consumer.receive(timeout=10) for _ in range(10)]
        await consumer.ack(messages[:4])
        await consumer.ack(messages[6])
        positions = await consumer.positions()
        async with client.reader(TOPIC, start=positions, end="latest") as reader:
            assert await values(reader, 100) == [4, 5, 6, 7, 8, 9]
        async with client.consumer(TOPIC, "second", start=positions) as second:
            assert await values(second, 6) == [4, 5, 6, 7, 8, 9]
        await consumer.ack(messages)
        await client.seek_subscription(TOPIC, "first", positions)
        assert await values(consumer, 6) == [4, 5, 6, 7, 8, 9]


async def test_over_a_split_what_came_of_a_named_segment_begins_at_its_beginning(client: txnclient.Client) -> None:
    """And what a named one came from is passed, even if it holds messages."""
    await client.create_topic(TOPIC)
    await sent(client, TOPIC, range(10))
    async with client.consumer(TOPIC, "first") as consumer:
        assert await values(consumer, 5) == [0, 1, 2, 3, 4]
        before = await consumer.positions()
        (parent,) = consumer.segments
        await client.split(parent)
        await sent(client, TOPIC, range(10, 40))
        async with client.reader(TOPIC, start=before, end="latest") as reader:
            assert await values(reader, 1000) == list(range(5, 40))
        async with client.consumer(TOPIC, "second", start=before) as second:
            assert await values(second, 35) == list(range(5, 40))
        acked = await values(consumer, 20)
        after = await consumer.positions()
        rest = sorted({*range(5, 40)} - {*acked})
        children = {path: at for path, at in after.topics[TOPIC].segments.items() if path != parent}
        only_children = Positions(
            {TOPIC: TopicPositions(after.topics[TOPIC].life, after.topics[TOPIC].epoch, children)}
        )
        for positions in (after, only_children):
            async with client.reader(TOPIC, start=positions, end="latest") as reader:
                assert await values(reader, 1000) == rest
            await consumer.seek(positions)
            assert await values(consumer, len(rest)) == rest
            assert await consumer.receive_many(10, timeout=0.05) == []
        async with client.consumer(TOPIC, "third", start=only_children) as third:
            assert await values(third, len(rest)) == rest


def test_of_positions_every_topic_is_looked_at() -> None:
    empty, named = TopicPositions(7, 2, {}), TopicPositions(7, 2, {PATH: NextMessage(Position(3, 4))})
    check_topics(Positions({OTHER: empty, TOPIC: named}), [TOPIC, OTHER])
    with pytest.raises(txnclient.InvalidArgument, match=f"belong to {OTHER}"):
        check_topics(Positions({TOPIC: named, OTHER: empty}), [TOPIC])


@pytest.mark.parametrize("found", [TopicPositions(7, 2, {}), None])
def test_a_new_subscription_begins_at_the_earliest_of_a_topic_of_which_no_segment_is_named(
    found: TopicPositions | None,
) -> None:
    """▲ The positions may be of another topic of the same consumer."""
    assert start_of_topic(found) == pb.Start(earliest=True)


@pytest.mark.parametrize("named", [3, 4, 5, 6])
def test_a_segment_of_which_any_far_descendant_is_named_is_passed(named: int) -> None:
    """▲ Begun at its earliest, all of it would come again."""
    wire = pb.Layout(topic=TOPIC, exists=True, epoch=3)
    children = {0: (1, 2), 1: (3, 4), 2: (5, 6)}
    for number in range(7):
        wire.segments.add(
            segment_id=number, path=f"public/default/orders/0-{number}", children=children.get(number, ())
        )
    layout = TopicLayout.from_wire(wire)
    path = layout.segments[named].path
    found = TopicPositions(1, 3, {path: NextMessage(Position(7, 8), 9)})
    assert start_in(found, layout, layout.segments[0]) == pb.Start(segment=path, ledger_id=7, entry_id=8, index=9)
    assert start_in(found, layout, layout.segments[1 if named > 4 else 2]) == pb.Start(earliest=True)


async def test_positions_of_a_topic_that_was_deleted_and_made_again_are_refused(client: txnclient.Client) -> None:
    """▲ None of its segments is there, so everything would go back to the earliest."""
    await client.create_topic(TOPIC)
    await sent(client, TOPIC, range(3))
    async with client.consumer(TOPIC, "s") as consumer:
        await values(consumer, 3)
        positions = await consumer.positions()
    await client.delete_topic(TOPIC)
    await client.create_topic(TOPIC)
    await sent(client, TOPIC, range(3))
    unknown = Positions({TOPIC: TopicPositions(0, 1, positions.topics[TOPIC].segments)})
    async with client.consumer(TOPIC, "s") as consumer:
        assert await values(consumer, 3) == [0, 1, 2]
        there = (await consumer.positions()).topics[TOPIC].segments
        mixed = Positions({TOPIC: TopicPositions(0, 1, {**there, **positions.topics[TOPIC].segments})})
        for old in (positions, unknown, mixed):
            with pytest.raises(txnclient.InvalidArgument, match="deleted"):
                await consumer.seek(old)
            with pytest.raises(txnclient.InvalidArgument, match="deleted"):
                await client.reader(TOPIC, start=old)
            with pytest.raises(txnclient.InvalidArgument, match="deleted"):
                await client.consumer(TOPIC, "another", start=old)
        assert await consumer.receive_many(10, timeout=0.05) == [], "nothing has moved"


async def test_positions_of_which_any_topic_was_made_again_move_none(client: txnclient.Client) -> None:
    for topic in (TOPIC, OTHER):
        await client.create_topic(topic)
        await sent(client, topic, range(3))
    async with client.consumer([TOPIC, OTHER], "s") as consumer:
        beginning = (await consumer.positions()).topics
        await values(consumer, 6)
        stands = await consumer.positions()
        assert list(stands.topics) == [TOPIC, OTHER]
        former = TopicPositions(1, 1, beginning[OTHER].segments)
        with pytest.raises(txnclient.InvalidArgument, match=f"an earlier topic {OTHER}"):
            await consumer.seek(Positions({TOPIC: beginning[TOPIC], OTHER: former}))
        assert await consumer.positions() == stands
        await consumer.seek(Positions(beginning))
        assert await values(consumer, 6) == [0, 0, 1, 1, 2, 2]


async def test_positions_wait_for_a_layout_as_new_as_theirs(cluster: InProcessCluster) -> None:
    """▲ In an older one a named child would seem gone, and its parent would go back to the earliest."""
    async with cluster.connect() as client:
        await client.create_topic(TOPIC)
        life = (await client.describe_topic(TOPIC)).life
        client._session.timeout_s = 0.5
        newer = Positions({TOPIC: TopicPositions(life, 2, {PATH.replace("-0", "-1"): NextMessage(Position(1, 0))})})
        with pytest.raises(txnclient.Timeout, match="layout 2"):
            await client.reader(TOPIC, start=newer)
        with pytest.raises(txnclient.Timeout, match="layout 2"):
            await client.seek_subscription(TOPIC, "s", newer)


async def test_a_seek_leaves_topics_alone_that_the_positions_do_not_name(client: txnclient.Client) -> None:
    for topic in (TOPIC, OTHER):
        await client.create_topic(topic)
        await sent(client, topic, range(3))
    async with client.consumer(TOPIC, "s") as consumer:
        beginning = await consumer.positions()
    async with client.consumer([TOPIC, OTHER], "s") as consumer:
        assert await values(consumer, 6) == [0, 0, 1, 1, 2, 2]
        await consumer.seek(beginning)
        assert await values(consumer, 3) == [0, 1, 2]
        assert await consumer.receive_many(10, timeout=0.05) == []
    for wrong in (Positions({}), Positions({TOPIC: TopicPositions(0, 0, {})})):
        with pytest.raises(txnclient.InvalidArgument, match="name no segment"):
            await client.seek_subscription(TOPIC, "s", wrong)
    with pytest.raises(txnclient.InvalidArgument, match="name that topic"):
        await client.seek_subscription(OTHER, "s", beginning)
    with pytest.raises(txnclient.InvalidArgument, match="name that topic"):
        await client.consumer(OTHER, "other", start=beginning)
    with pytest.raises(txnclient.InvalidArgument, match="name that topic"):
        await client.reader(OTHER, start=beginning)


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_reader_to_which_nothing_has_come_stands_at_the_beginning(client: txnclient.Client, start: str) -> None:
    """▲ A program that keeps its place at its end could not be started again."""
    await client.create_topic(TOPIC, segments=2)
    async with client.reader(TOPIC, start=start) as reader:
        kept = Positions.from_json(reader.positions().to_json())
    await sent(client, TOPIC, range(10))
    async with client.reader(TOPIC, start=kept) as reader:
        assert await values(reader, 10) == [*range(10)]
    async with client.consumer(TOPIC, "s", start=kept) as consumer:
        assert await values(consumer, 10) == [*range(10)]
        await consumer.seek(kept)
        assert await values(consumer, 10) == [*range(10)]


async def test_positions_are_whole_or_not_told(cluster: InProcessCluster) -> None:
    """▲ A segment that is left out would be read from the earliest on."""
    async with cluster.connect(timeout=1.0) as client:
        await client.create_topic(TOPIC)
        async with client.consumer(TOPIC, "s") as consumer:
            await cluster.stop_server("broker")
            with pytest.raises((txnclient.Timeout, txnclient.NotOwner)):
                await consumer.positions()
            await cluster.start_server("broker", "broker")
            await until(lambda: cluster.servers["broker"].server.broker is not None)
            async with asyncio.timeout(20):
                while True:
                    try:
                        assert list((await consumer.positions()).topics) == [TOPIC]
                        break
                    except txnclient.TxnError:
                        continue


async def test_unsubscribe_leaves_nothing(client: txnclient.Client) -> None:
    await client.create_topic(TOPIC)
    await client.create_topic(OTHER)
    await sent(client, TOPIC, range(3))
    consumer = await client.consumer([TOPIC, OTHER], "s")
    await values(consumer, 3)
    other = await client.consumer(TOPIC, "s")
    with pytest.raises(txnclient.NotAllowed):
        await consumer.unsubscribe()
    await other.close()
    await consumer.unsubscribe()
    for topic in (TOPIC, OTHER):
        answer = await client.admin("subscriptions.list", topic=topic)
        assert answer["subscriptions"] == []
    await consumer.unsubscribe()  # again: there is nothing left to do
    async with client.consumer(TOPIC, "s") as again:
        assert await values(again, 3) == [0, 1, 2]


async def test_unsubscribe_goes_on_where_one_of_the_topics_was_deleted(client: txnclient.Client) -> None:
    """▲ The other topics would keep everything for a subscription that nobody has."""
    await client.create_topic(TOPIC)
    await client.create_topic(OTHER)
    consumer = await client.consumer([TOPIC, OTHER], "s")
    await client.delete_topic(TOPIC, force=True)
    await consumer.unsubscribe()
    assert (await client.admin("subscriptions.list", topic=OTHER))["subscriptions"] == []
