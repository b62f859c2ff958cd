"""Which segments are paused: by name, all, all but some; those that come back, and those that come of them."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

import txnclient
from tests.waiting import until
from txnclient.connection.topic_layout import TopicLayout
from txnclient.consuming.pauses import PausedSegments
from txnwire.proto import txn_pb2 as pb

TOPIC = "topic://public/default/orders"
LEFT, RIGHT, CHILD = (f"public/default/orders/{one}" for one in ("0000-7fff-0", "8000-ffff-1", "0000-ffff-2"))


def layout() -> TopicLayout:
    """The two were merged."""
    segments = [
        pb.Segment(segment_id=0, path=LEFT, lo=0, hi=0x7FFF, state="SEALED", children=[2]),
        pb.Segment(segment_id=1, path=RIGHT, lo=0x8000, hi=0xFFFF, state="SEALED", children=[2]),
        pb.Segment(segment_id=2, path=CHILD, lo=0, hi=0xFFFF, state="ACTIVE", parents=[0, 1]),
    ]
    return TopicLayout.from_wire(pb.Layout(topic=TOPIC, exists=True, segments=segments))


def paused(pauses: PausedSegments) -> list[str]:
    return [path for path in (LEFT, RIGHT, CHILD) if pauses.is_paused(path)]


def test_resuming_one_leaves_the_others_paused() -> None:
    """▲ Also those that were paused all at once, and those that come later."""
    pauses = PausedSegments(lambda: [TOPIC])
    pauses.pause([LEFT, f"segment://{RIGHT}"])
    pauses.resume([LEFT])
    assert paused(pauses) == [RIGHT]
    pauses.pause(None)
    assert paused(pauses) == [LEFT, RIGHT, CHILD]
    pauses.resume([RIGHT])
    assert paused(pauses) == [LEFT, CHILD]
    pauses.pause([RIGHT])
    assert paused(pauses) == [LEFT, RIGHT, CHILD]
    pauses.resume(None)
    assert paused(pauses) == []


def test_a_child_takes_after_its_parents() -> None:
    pauses = PausedSegments(lambda: [TOPIC])
    pauses.pause([LEFT])
    pauses.comes(CHILD, layout())
    assert paused(pauses) == [LEFT, CHILD], "any of them is paused"
    pauses.resume([CHILD])
    pauses.comes(CHILD, layout())
    assert paused(pauses) == [LEFT], "once it is known, it is what was asked of it"

    pauses = PausedSegments(lambda: [TOPIC])
    pauses.pause(None)
    pauses.resume([LEFT])
    pauses.comes(CHILD, layout())
    assert paused(pauses) == [RIGHT, CHILD]
    pauses = PausedSegments(lambda: [TOPIC])
    pauses.pause(None)
    pauses.resume([LEFT, RIGHT])
    pauses.comes(CHILD, layout())
    assert paused(pauses) == []


def test_a_child_that_comes_before_its_layout_takes_after_its_parents_once_that_is_there() -> None:
    """▲ Assignments and layouts come by different ways."""
    older = [
        pb.Segment(segment_id=0, path=LEFT, lo=0, hi=0x7FFF, state="ACTIVE"),
        pb.Segment(segment_id=1, path=RIGHT, lo=0x8000, hi=0xFFFF, state="ACTIVE"),
    ]
    pauses = PausedSegments(lambda: [TOPIC])
    pauses.pause([LEFT])
    pauses.comes(CHILD, None)
    pauses.comes(CHILD, TopicLayout.from_wire(pb.Layout(topic=TOPIC, exists=True, segments=older)))
    pauses.comes(CHILD, layout())
    assert paused(pauses) == [LEFT, CHILD]
    pauses = PausedSegments(lambda: [TOPIC])
    pauses.pause([LEFT])
    pauses.comes(CHILD, None)
    pauses.resume([CHILD])
    pauses.comes(CHILD, layout())
    assert paused(pauses) == [LEFT], "what was asked of it by name holds"


def test_a_grandchild_takes_after_a_parent_that_was_elsewhere() -> None:
    grandchild = "public/default/orders/0000-7fff-3"
    family = pb.Layout(topic=TOPIC, exists=True)
    family.segments.extend(
        (
            pb.Segment(segment_id=0, path=LEFT, lo=0, hi=0x7FFF, state="SEALED", children=[2]),
            pb.Segment(segment_id=1, path=RIGHT, lo=0x8000, hi=0xFFFF, state="SEALED", children=[2]),
            pb.Segment(segment_id=2, path=CHILD, lo=0, hi=0xFFFF, state="SEALED", parents=[0, 1], children=[3, 4]),
            pb.Segment(segment_id=3, path=grandchild, lo=0, hi=0x7FFF, state="ACTIVE", parents=[2]),
            pb.Segment(
                segment_id=4,
                path="public/default/orders/8000-ffff-4",
                lo=0x8000,
                hi=0xFFFF,
                state="ACTIVE",
                parents=[2],
            ),
        )
    )
    pauses = PausedSegments(lambda: [TOPIC])
    pauses.pause([LEFT])
    pauses.comes(grandchild, TopicLayout.from_wire(family))
    assert pauses.is_paused(grandchild)


def test_a_merged_segment_takes_after_whichever_parent_takes_after_a_paused_one() -> None:
    """Neither of the two parents was here."""
    family = {0: ((), (2, 3)), 1: ((), (4, 5)), 3: ((0,), (6,)), 4: ((1,), (6,)), 6: ((3, 4), ())}
    segments = [
        pb.Segment(
            segment_id=number, path=f"public/default/orders/0000-ffff-{number}", parents=parents, children=children
        )
        for number, (parents, children) in family.items()
    ]
    merged = segments[-1].path
    for grandparent in segments[:2]:
        pauses = PausedSegments(lambda: [TOPIC])
        pauses.pause([grandparent.path])
        pauses.comes(merged, TopicLayout.from_wire(pb.Layout(topic=TOPIC, exists=True, segments=segments)))
        assert pauses.is_paused(merged)


def test_what_is_no_segment_of_the_topics_is_refused_and_nothing_is_paused() -> None:
    pauses = PausedSegments(lambda: [TOPIC])
    for wrong in (["nonsense"], [LEFT, "public/default/others/0000-ffff-0"], [LEFT, 7], 7):
        with pytest.raises((txnclient.InvalidArgument, TypeError)):
            pauses.pause(wrong)  # type: ignore[arg-type]
    assert paused(pauses) == []
    pauses.pause(LEFT)  # one path is as good as a list of one
    assert paused(pauses) == [LEFT]


@pytest.mark.parametrize("type", ["stream", "queue"])
async def test_nothing_of_a_paused_segment_is_handed_out_not_even_what_is_there(
    client: txnclient.Client, type: Literal["stream", "queue"]
) -> None:
    await client.create_topic(TOPIC, segments=2)
    async with client.consumer(TOPIC, "s", type=type) as consumer, client.producer(TOPIC) as producer:
        await producer.send_many([(f"k{number}", b"v") for number in range(100)])
        await until(lambda: len(consumer.segments) == 2 and consumer._impl.has_buffered)
        await until(lambda: all(feed.buffered for feed in consumer._impl._feeds.values()))
        left, right = consumer.segments
        consumer.pause([left])
        assert consumer.paused == [left]
        first = await consumer.receive_many(1000, timeout=10)
        assert {message.entry.segment for message in first} == {right}
        assert await consumer.receive_many(1000, timeout=0.05) == []
        with pytest.raises(txnclient.Timeout):
            await consumer.receive(timeout=0.05)
        waiting = asyncio.ensure_future(consumer.receive())
        consumer.pause()
        assert consumer.paused == [left, right]
        consumer.resume([left])
        assert consumer.paused == [right]
        assert (await asyncio.wait_for(waiting, 10)).entry.segment == left
        consumer.resume()
        assert consumer.paused == []


async def test_a_pause_outlives_the_segment_s_stay_with_another_consumer(client: txnclient.Client) -> None:
    """▲ And does not keep the segment from it."""
    await client.create_topic(TOPIC, segments=2)
    async with client.consumer(TOPIC, "s", name="a") as consumer, client.producer(TOPIC) as producer:
        await producer.send_many([(f"k{number}", b"v") for number in range(100)])
        await until(lambda: len(consumer.segments) == 2)
        consumer.pause()
        async with client.consumer(TOPIC, "s", name="b") as other:
            await until(lambda: len(consumer.segments) == 1 and len(other.segments) == 1)
            assert await other.receive_many(1000, timeout=10)
        await until(lambda: len(consumer.segments) == 2)
        assert consumer.paused == consumer.segments
        assert await consumer.receive_many(1000, timeout=0.05) == []
        consumer.resume()
        received = 0
        while received < 100:
            received += len(await consumer.receive_many(1000, timeout=10))


async def test_a_paused_consumer_stays_paused_over_a_lost_connection(client: txnclient.Client) -> None:
    await client.create_topic(TOPIC)
    async with client.consumer(TOPIC, "s") as consumer, client.producer(TOPIC) as producer:
        await until(lambda: bool(consumer.segments))
        consumer.pause()
        await producer.send(b"v")
        consumer.rewind()  # as after a lost connection: it attaches again, and everything comes again
        assert await consumer.receive_many(10, timeout=0.1) == []
        consumer.resume()
        assert (await consumer.receive(timeout=10)).value == b"v"


async def test_the_children_of_a_paused_segment_wait_for_it_and_are_paused(client: txnclient.Client) -> None:
    await client.create_topic(TOPIC)
    async with client.consumer(TOPIC, "s") as consumer, client.producer(TOPIC) as producer:
        await producer.send(b"before", key="k")
        message = await consumer.receive(timeout=10)
        (parent,) = consumer.segments
        consumer.pause([parent])
        await client.split(parent)
        await producer.send_many([(f"k{number}", b"after") for number in range(50)])
        await consumer.ack(message)  # what was handed out before can be acked, and with it the parent is drained
        await until(lambda: len(consumer.segments) == 2)
        assert consumer.paused == consumer.segments
        assert await consumer.receive_many(10, timeout=0.1) == []
        consumer.resume(consumer.segments)
        assert (await consumer.receive(timeout=10)).value == b"after"
