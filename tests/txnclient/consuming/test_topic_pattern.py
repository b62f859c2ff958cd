"""A consumer of all topics that match a pattern: those that come are joined, those that go are left quietly."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.segments.virtual_time import virtual_time
from tests.txnclient.lossy_transport import LossyTransport
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.waiting import idle, until
from txnclient.connection.deadlines import Deadline
from txnclient.consuming import topic_pattern
from txnclient.consuming.consumer import consumer_impl
from txnclient.consuming.topic_pattern import FollowedTopics, TopicPattern
from txnwire.clock import SystemClock
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.grpc_transport import GrpcTransport

NAMES = "topic://public/default/orders-"
PATTERN = NAMES + ".*"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_pattern, "LOOK_S", 0.05)


async def sent(client: txnclient.Client, topic: str, value: bytes) -> None:
    async with client.producer(topic) as producer:
        await producer.send(value)


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        (PATTERN, "public/default/"),
        ("public/default/orders-.*", "public/default/"),
        (re.compile(PATTERN), "public/default/"),
        (re.compile(PATTERN, re.IGNORECASE), ""),
        (PATTERN + "|topic://other/default/.*", ""),
        ("(?i)" + PATTERN, ""),
        (".*", ""),
        ("public/default/?.*/orders", ""),
        ("topic://public/.*/orders", ""),
        ("topic://pub.c/default/orders", ""),
    ],
)
def test_only_topics_that_may_match_are_listed(pattern: str | re.Pattern[str], prefix: str) -> None:
    assert TopicPattern(pattern, left_out=lambda _: False).prefix == prefix


def test_the_whole_name_matches_with_the_scheme_or_without() -> None:
    for pattern in (PATTERN, "public/default/orders-.*"):
        matches = TopicPattern(pattern, left_out=lambda topic: topic.endswith("-DLQ")).matches
        found = [one for one in ("a", "b-s-DLQ") if matches(NAMES + one)]
        assert found == ["a"]
        assert not matches("topic://public/default/other-orders-a")
    assert not TopicPattern("orders-a", left_out=lambda _: False).matches(NAMES + "a")


async def test_topics_that_appear_are_joined_and_deleted_ones_are_left(client: txnclient.Client) -> None:
    """From their earliest message on, whatever the start of the first ones; one that comes again is another one."""
    await client.create_topic(NAMES + "a")
    await client.create_topic("topic://public/default/others")
    await sent(client, NAMES + "a", b"old")
    async with client.consumer(topics_pattern=re.compile(PATTERN), subscription="s", start="latest") as consumer:
        assert consumer.topics == [NAMES + "a"]
        await client.create_topic(NAMES + "b")
        await sent(client, NAMES + "b", b"new")
        message = await consumer.receive(timeout=20)
        assert (message.topic, message.value) == (NAMES + "b", b"new")
        await consumer.ack(message)
        for _ in range(2):
            await client.delete_topic(NAMES + "a", force=True)
            await until(lambda: consumer.topics == [NAMES + "b"], within_s=20)
            await client.create_topic(NAMES + "a")
            await sent(client, NAMES + "a", b"again")
            message = await consumer.receive(timeout=20)
            assert (message.topic, message.value) == (NAMES + "a", b"again")
        assert sorted(consumer.topics) == [NAMES + "a", NAMES + "b"]
        assert (await consumer.lag()).messages == 1
        await consumer.unsubscribe()
    for topic in (NAMES + "a", NAMES + "b"):
        assert (await client.admin("subscriptions.list", topic=topic))["subscriptions"] == []


async def test_a_topic_that_appears_is_read_from_its_beginning(
    client: txnclient.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ What was sent before it was found is newer than the consumer, whose others begin at the latest."""
    monkeypatch.setattr(topic_pattern, "LOOK_S", 1.0)
    async with client.consumer(topics_pattern=PATTERN, subscription="s", start="latest") as consumer:
        await client.create_topic(NAMES + "a")
        await sent(client, NAMES + "a", b"first")
        assert (await consumer.receive(timeout=20)).value == b"first"


async def test_a_consumer_may_wait_for_the_first_topic(client: txnclient.Client) -> None:
    async with client.consumer(topics_pattern=PATTERN, subscription="s", type="queue") as consumer:
        assert consumer.topics == []
        await client.create_topic(NAMES + "a")
        await sent(client, NAMES + "a", b"v")
        assert (await consumer.receive(timeout=20)).value == b"v"


async def test_dead_letters_do_not_come_back(client: txnclient.Client) -> None:
    """▲ Though their topic matches."""
    await client.create_topic(NAMES + "a")
    await sent(client, NAMES + "a", b"bad")
    async with client.consumer(
        topics_pattern=PATTERN, subscription="s", type="queue", max_redeliveries=0, redelivery_delay=0.0
    ) as consumer:
        await consumer.nack(await consumer.receive(timeout=20))
        waiting = client.reader(NAMES + "a-s-DLQ")
        await until_listed(client, NAMES + "a-s-DLQ", consumer)
        async with waiting as reader:
            consumer_gets = await consumer.receive_many(1, timeout=0.2)
            assert (await reader.receive(timeout=20)).value == b"bad"
            assert consumer_gets == []
        assert consumer.topics == [NAMES + "a"]


async def until_listed(client: txnclient.Client, topic: str, consumer: txnclient.Consumer[bytes]) -> None:
    while topic not in await client.list_topics():
        await consumer.receive_many(1, timeout=0.05)


async def test_a_subscription_that_is_deleted_alone_fails_the_consumer(client: txnclient.Client) -> None:
    """As it fails one that names its topics: somebody has meant that."""
    await client.create_topic(NAMES + "a")
    async with client.consumer(topics_pattern=PATTERN, subscription="s") as consumer:
        await client.delete_subscription(NAMES + "a", "s", force=True)
        with pytest.raises(txnclient.SubscriptionNotFound):
            await consumer.receive(timeout=20)


async def test_all_that_match_are_joined_however_many(
    client: txnclient.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the opening, which would raise what keeps one from being joined."""
    monkeypatch.setattr(topic_pattern, "JOINED_AT_ONCE", 2)
    names = [NAMES + one for one in "abcde"]
    for name in names:
        await client.create_topic(name)
    async with client.consumer(topics_pattern=PATTERN, subscription="s") as consumer:
        assert sorted(consumer.topics) == names


async def test_a_topic_that_cannot_be_joined_fails_the_opening(client: txnclient.Client) -> None:
    """Its messages would be missing, and nobody would know."""
    for name in "ab":
        await client.create_topic(NAMES + name)
    async with client.consumer(NAMES + "b", "jobs", type="queue"):
        pass
    with pytest.raises(txnclient.InvalidArgument, match="queue"):
        await client.consumer(topics_pattern=PATTERN, subscription="jobs")


async def test_a_topic_that_is_gone_is_not_remembered(client: txnclient.Client) -> None:
    """Where topics come and go for years, their consumer would grow."""
    await client.create_topic(NAMES + "a")
    async with client.consumer(topics_pattern=PATTERN, subscription="s") as consumer:
        followed = consumer_impl(consumer)._followed
        assert followed is not None
        await client.delete_topic(NAMES + "a", force=True)
        await until(lambda: not consumer.topics, within_s=20)
        await until(lambda: not followed._gone, within_s=20)


async def test_topics_or_a_pattern(client: txnclient.Client) -> None:
    await client.create_topic(NAMES + "a")
    for wrong in (
        {"topics_pattern": PATTERN, "topics": NAMES + "a"},
        {},
        {"topics_pattern": "("},
        {"topics_pattern": 7},
        {"topics_pattern": re.compile(b"x")},
    ):
        with pytest.raises(txnclient.InvalidArgument):
            await client.consumer(subscription="s", **wrong)  # type: ignore[call-overload]
    with pytest.raises(txnclient.InvalidArgument, match="subscription"):
        await client.consumer(NAMES + "a")


def _leaves_held(transport: LossyTransport) -> int:
    """Of different topics, on one connection: behind a connection that is lost each of them is sent again."""
    different = {(connection, command.leave_subscription.topic) for connection, command in transport.held}
    return max(Counter(connection for connection, _ in different).values(), default=0)


async def test_a_leave_that_lands_late_does_not_end_the_next_membership(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ The join was not answered in time, and the leave behind it waits on its way while the topic is joined again."""
    monkeypatch.setattr(topic_pattern, "LOOK_TIMEOUT_S", 0.5)
    transport = LossyTransport(GrpcTransport(SystemClock()))
    async with (
        cluster.connect() as other,
        cluster.connect(transport=transport) as client,
        client.consumer(topics_pattern=PATTERN, subscription="audit") as consumer,
    ):
        transport.hold.add("leave_subscription")
        transport.lose["assignment"] = 1_000_000
        for topic in ("a", "b"):
            await other.create_topic(NAMES + topic)
        await until(lambda: _leaves_held(transport) == 2)
        transport.lose.clear()
        joins = transport.sent["join_subscription"]
        with suppress(AssertionError):
            await until(lambda: transport.sent["join_subscription"] > joins, within_s=1.0)
        transport.release()
        for topic in ("a", "b"):
            await sent(other, NAMES + topic, topic.encode())
        assert {(await consumer.receive(timeout=30)).value for _ in range(2)} == {b"a", b"b"}


async def test_a_topic_whose_dead_letters_can_have_no_topic_is_told_and_left_out(
    client: txnclient.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """▲ Whoever made it would end the consumers of all others; at the opening that is an error of the caller's."""
    long, other = NAMES + "x" * 100, NAMES + "y" * 100
    options: dict[str, Any] = {"topics_pattern": PATTERN, "type": "queue", "max_redeliveries": 3}
    async with client.consumer(subscription="s" * 30, **options) as consumer:
        for topic in (long, other):
            await client.create_topic(topic)
        await until(lambda: long in caplog.text and other in caplog.text)
        await client.create_topic(NAMES + "a")
        await sent(client, NAMES + "a", b"v")
        assert (await consumer.receive(timeout=20)).value == b"v"
        assert consumer.topics == [NAMES + "a"]
    assert caplog.text.count("is left out") == 2
    with pytest.raises(txnclient.InvalidArgument, match="too long"):
        await client.consumer(subscription="s" * 30, **options)


class SomeJoined:
    """Topics of which those that are called stuck cannot be joined at the moment."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    def check_topic(self, topic: str) -> None: ...

    async def join_topic(self, topic: str, deadline: Deadline, *, later: bool) -> None:
        if "stuck" in topic or deadline.passed:
            await asyncio.sleep(deadline.remaining())
            raise deadline.expired(f"joining {topic}")
        self.topics.append(topic)


@virtual_time
async def test_topics_that_cannot_be_joined_now_keep_no_others_waiting() -> None:
    """However many they are, and wherever they stand in the list."""
    stuck = [f"{NAMES}{number:03}-stuck" for number in range(topic_pattern.JOINED_AT_ONCE)]
    async with connected() as (cluster, client):
        cluster.topics = [*stuck, NAMES + "100", NAMES + "101-stuck"]
        joined = SomeJoined()
        followed = FollowedTopics(client._session, TopicPattern(PATTERN, left_out=lambda _: False), joined)
        following = asyncio.ensure_future(followed.follow())
        await until(lambda: joined.topics == [NAMES + "100"])
        following.cancel()
        await asyncio.wait((following,))


@virtual_time
async def test_a_topic_whose_record_cannot_be_read_keeps_no_other_one_from_being_joined(
    caplog: pytest.LogCaptureFixture,
) -> None:
    damaged = [NAMES + "a", NAMES + "b"]
    async with connected() as (cluster, client):
        server, cluster.topics = cluster.servers["broker:1"], []
        consumer = await client.consumer(topics_pattern=".*", subscription="s")
        server.unreadable = dict.fromkeys(damaged)
        cluster.topics = [*damaged, TOPIC]
        await until(lambda: consumer.topics == [TOPIC])
        await asyncio.sleep(10.0)
        assert await consumer.receive_many(1, timeout=1.0) == []
    for topic in damaged:
        assert caplog.text.count(f"the record of {topic} cannot be read") == 1


@virtual_time
async def test_a_join_that_fails_leaves_nothing_of_what_was_assigned_meanwhile() -> None:
    """▲ By a controller that leads again, for one. A feed that stayed would attach with that assignment's epoch in the
    next membership too, and be refused as often as it asks."""
    async with connected() as (cluster, client):
        server, cluster.topics = cluster.servers["broker:1"], []
        consumer = await client.consumer(topics_pattern=".*", subscription="s")
        server.hold["join_subscription"] = asyncio.Event()
        cluster.topics = [TOPIC]
        await until(lambda: server.seen["join_subscription"])
        (join,) = [command.join_subscription for command in server.commands if command.HasField("join_subscription")]
        (peer,) = server.followers
        early = pb.Assignment(topic=TOPIC, subscription="s", consumer=join.consumer, epoch=1, segments=SEGMENTS)
        peer.push(pb.Command(assignment=early))
        await until(lambda: len(server.consumers) == 2)
        server.refuse["join_subscription"] = [txnclient.Timeout("the store has not confirmed it")]
        server.ignore["join_subscription"] = 1
        server.assignment.epoch = 7
        server.hold.pop("join_subscription").set()
        await until(lambda: server.seen["leave_subscription"])
        await idle()
        assert (consumer.topics, consumer.segments, server.consumers) == ([], [], {})
        await until(lambda: len(server.consumers) == 2)
        assert [request.assignment_epoch for _, request in server.consumers.values()] == [7, 7]


@virtual_time
async def test_a_store_without_room_for_the_subscription_of_a_new_topic_ends_nothing() -> None:
    """▲ The subscription must be written before the topic can be joined; the topics that it has go on meanwhile."""
    async with connected() as (cluster, client):
        server, cluster.topics = cluster.servers["broker:1"], []
        consumer = await client.consumer(topics_pattern=".*", subscription="s")
        server.refuse["join_subscription"] = [txnclient.StoreFull("etcd is above its soft limit")] * 3
        cluster.topics = [TOPIC]
        await until(lambda: len(server.consumers) == 2)
        assert consumer.topics == [TOPIC]
        server.deliver(SEGMENTS[0], 0, b"v")
        assert (await consumer.receive(timeout=5)).value == b"v"


@pytest.mark.parametrize("how", ["damaged", "mute"])
@virtual_time
async def test_a_topic_that_was_left_and_comes_again_keeps_no_other_waiting(how: str) -> None:
    """▲ Whatever keeps it from being looked up: those that come are joined, and the consumer goes on."""
    async with connected() as (cluster, client):
        server, again = cluster.servers["broker:1"], NAMES + "again"
        joined = SomeJoined()
        followed = FollowedTopics(client._session, TopicPattern(".*", left_out=lambda _: False), joined)
        followed.left(again, txnclient.TopicNotFound("it was deleted"))
        if how == "damaged":
            server.unreadable[again] = None
        else:
            server.ignore["watch_layout"] = 1_000
        cluster.topics = [again, TOPIC]
        following = asyncio.ensure_future(followed.follow())
        await until(lambda: following.done() or joined.topics == [TOPIC])
        assert not following.done()
        following.cancel()
        await asyncio.wait((following,))


@virtual_time
async def test_a_topic_that_comes_again_is_joined_though_another_one_before_it_cannot_be_looked_up() -> None:
    """▲ That one takes the whole time of each look, and what is known of the others needs none."""
    async with connected() as (cluster, client):
        server, mute = cluster.servers["broker:1"], NAMES + "mute"
        await client.describe_topic(TOPIC)
        joined = SomeJoined()
        followed = FollowedTopics(client._session, TopicPattern(".*", left_out=lambda _: False), joined)
        for topic in (mute, TOPIC):
            followed.left(topic, txnclient.TopicNotFound("it was deleted"))
        server.ignore["watch_layout"] = 1_000
        cluster.topics = [mute, TOPIC]
        following = asyncio.ensure_future(followed.follow())
        await until(lambda: following.done() or joined.topics == [TOPIC])
        assert not following.done()
        following.cancel()
        await asyncio.wait((following,))


@virtual_time
async def test_of_several_topics_that_were_left_one_whose_subscription_alone_was_deleted_fails_the_consumer() -> None:
    """▲ Joined as if it had just come, its subscription would be made again, and begin where nobody had asked for."""
    async with connected() as (cluster, client):
        server, damaged = cluster.servers["broker:1"], NAMES + "damaged"
        server.unreadable[damaged] = None
        await client.describe_topic(TOPIC)
        joined = SomeJoined()
        followed = FollowedTopics(client._session, TopicPattern(".*", left_out=lambda _: False), joined)
        followed.left(damaged, txnclient.TopicNotFound("it was deleted"))
        followed.left(TOPIC, txnclient.SubscriptionNotFound("it was deleted"))
        cluster.topics = [damaged, TOPIC]
        with pytest.raises(txnclient.SubscriptionNotFound):
            await asyncio.wait_for(followed.follow(), 60.0)
        assert joined.topics == []


@virtual_time
async def test_topics_that_cannot_be_listed_for_a_while_end_nothing() -> None:
    async with connected() as (cluster, client):
        server, cluster.topics = cluster.servers["broker:1"], []
        consumer = await client.consumer(topics_pattern=".*", subscription="s")
        server.ignore["list_topics"] = 1_000
        cluster.topics = [TOPIC]
        await asyncio.sleep(60.0)
        assert await consumer.receive_many(1, timeout=1.0) == []
        server.ignore.clear()
        await until(lambda: consumer.topics == [TOPIC])
