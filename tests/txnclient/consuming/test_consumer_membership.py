"""How a consumer joins, joins again and leaves, and which assignments it takes."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.consuming.attached import LEFT, RIGHT, attached
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.waiting import until
from txnclient.consuming.consumer import consumer_impl
from txnwire.errors import to_wire
from txnwire.proto import txn_pb2 as pb


@virtual_time
async def test_a_holder_that_is_fenced_attaches_again_only_as_long_as_it_is_assigned() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        fenced = txnclient.NotAllowed("another holder has attached")
        server.refuse["subscribe"] = [txnclient.NotAllowed("stale") for _ in range(3)]
        closed = pb.ConsumerClosed(consumer_id=server.consumer_of(LEFT), error=to_wire(fenced))
        server.push_to_consumer(LEFT, pb.Command(consumer_closed=closed))
        await until(lambda: not server.refuse["subscribe"])
        await until(lambda: server.seen["subscribe"] == 6)  # two at first, three refused, one that was let in
        server.deliver(LEFT, 0, b"x")
        assert (await consumer.receive()).value == b"x"


@pytest.mark.parametrize("refusal", [txnclient.NotAllowed, txnclient.NotOwner])
@virtual_time
async def test_an_ack_raises_why_the_consumer_cannot_join_again(refusal: type[txnclient.TxnError]) -> None:
    """▲ Its subscription was deleted: a `Timeout` would say that the same ack may succeed."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"x")
        message = await consumer.receive()
        server.refuse["join_subscription"] = [txnclient.SubscriptionNotFound("it was deleted")]
        server.refuse["subscribe"] = [refusal("not assigned at epoch 1") for _ in range(1000)]
        await server.cut()
        began_s = cluster.clock.monotonic()
        with pytest.raises(txnclient.SubscriptionNotFound, match="it was deleted") as found:
            await consumer.ack(message)
        assert found.value.fatal
        assert cluster.clock.monotonic() - began_s < 10.0, "within a few tries to attach"
        asked = server.seen["subscribe"]
        await asyncio.sleep(60.0)
        assert server.seen["subscribe"] == asked, "nothing goes on asking"


@virtual_time
async def test_what_a_consumer_has_attached_stays_when_it_cannot_join_again() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.deliver(LEFT, 0, b"x")
        message = await consumer.receive()
        refused = cluster.servers["broker:2"].refuse["join_subscription"] = [txnclient.NotAllowed("it has another one")]
        cluster.controller = "broker:2"
        cluster.announce()
        await until(lambda: not refused)
        with pytest.raises(txnclient.NotAllowed, match="it has another one"):
            await consumer.receive()
        await consumer.ack(message)
        assert server.seen["ack"] == 1
        assert server.seen["subscribe"] == len(SEGMENTS)


@virtual_time
async def test_a_consumer_joins_again_when_another_controller_is_elected() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        server, consumer = await attached(cluster, client)
        second = cluster.servers["broker:2"]
        second.assignment = pb.Assignment(topic=TOPIC, epoch=2, segments=[LEFT])
        cluster.controller = "broker:2"
        cluster.announce()
        await until(lambda: second.seen["join_subscription"])
        await until(lambda: consumer.segments == [LEFT])
        assert server.seen["leave_subscription"] == 0


@virtual_time
async def test_a_consumer_hears_of_a_controller_that_leads_again_though_another_could_not_be_joined() -> None:
    """▲ Over the connection that it has had all along."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        server, consumer = await attached(cluster, client)
        await cluster.servers["broker:2"].stop()
        cluster.controller = "broker:2"
        cluster.announce()
        await asyncio.sleep(3)
        cluster.controller = "broker:1"
        cluster.announce()
        await asyncio.sleep(3)
        server.assign(LEFT)
        await until(lambda: consumer.segments == [LEFT])


@virtual_time
async def test_a_consumer_closed_while_it_joins_again_leaves_once_it_has_joined() -> None:
    """Its connection lives on with the client: a join that nobody takes back would keep its segments for ever."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.hold["join_subscription"] = asyncio.Event()
        await server.cut()
        await until(lambda: server.seen["join_subscription"] == 2)
        await consumer.close()
        server.hold["join_subscription"].set()
        await until(lambda: server.seen["leave_subscription"] == 1)
        kinds = [command.WhichOneof("body") for command in server.commands]
        assert kinds.index("leave_subscription") > len(kinds) - 1 - kinds[::-1].index("join_subscription")


@virtual_time
async def test_a_consumer_closed_while_no_controller_answers_leaves_the_next_one() -> None:
    """Which has found it assigned, and would keep its segments for it."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        server, consumer = await attached(cluster, client)
        second = cluster.servers["broker:2"]
        await server.stop()
        await server.cut()
        await consumer.close()
        assert second.seen["leave_subscription"] == 0
        second.refuse["leave_subscription"] = [txnclient.NotOwner("not elected yet")]
        cluster.controller = "broker:2"
        cluster.announce()
        await until(lambda: second.seen["leave_subscription"] == 2)
        await asyncio.sleep(30)
        assert second.seen["leave_subscription"] == 2
        (left, _) = [c.leave_subscription for c in second.commands if c.HasField("leave_subscription")]
        assert (left.consumer, left.incarnation) == (consumer.name, consumer_impl(consumer).incarnation)


@virtual_time
async def test_a_leave_that_no_controller_ever_answers_is_given_up_quietly(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.ignore["leave_subscription"] = 1_000
        await consumer.close()
        await until(lambda: server.seen["leave_subscription"] > 1)
        await asyncio.sleep(60.0)
        left = server.seen["leave_subscription"]
        await asyncio.sleep(60.0)
        assert server.seen["leave_subscription"] == left
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@virtual_time
async def test_a_consumer_whose_join_is_not_answered_leaves_for_the_case_that_it_arrives() -> None:
    """▲ Or the controller would keep segments for a consumer that nobody has, for as long as the client lives."""
    async with connected(timeout=3.0) as (cluster, client):
        server = cluster.servers["broker:1"]
        server.ignore["join_subscription"] = 1_000
        with pytest.raises(txnclient.Timeout):
            await client.consumer(TOPIC, "sub")
        kinds = [command.WhichOneof("body") for command in server.commands]
        assert kinds.index("leave_subscription") > kinds.index("join_subscription")


@virtual_time
async def test_a_leave_that_a_controller_refuses_which_leads_no_more_reaches_the_next_one() -> None:
    """Or that one would keep the segments for it until its grace is over."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.refuse["leave_subscription"] = [txnclient.NotOwner("deposed"), txnclient.NotOwner("not elected yet")]
        await consumer.close()
        await until(lambda: server.seen["leave_subscription"] == 3, within_s=5.0)


@virtual_time
async def test_a_consumer_that_was_replaced_is_told() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.refuse["join_subscription"] = [txnclient.NotAllowed("replaced by another of that name")]
        await server.cut()
        with pytest.raises(txnclient.NotAllowed, match="replaced"):
            await consumer.receive()


@virtual_time
async def test_unknown_topics_are_refused_and_leave_nothing_open() -> None:
    async with connected() as (cluster, client):
        with pytest.raises(txnclient.TopicNotFound):
            await client.consumer([TOPIC, "topic://a/b/unknown"], "sub")
        assert not cluster.servers["broker:1"].members


@pytest.mark.parametrize("epoch", [8, 1], ids=["the same", "made again"])
@virtual_time
async def test_a_consumer_takes_the_first_assignment_of_another_controller_whatever_it_counts(epoch: int) -> None:
    """A subscription that was deleted and made again counts from the beginning."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        server, consumer = await attached(cluster, client)
        for _ in range(6):
            server.assign()
        await until(lambda: consumer.segments == [])
        second = cluster.servers["broker:2"]
        second.assignment = pb.Assignment(topic=TOPIC, epoch=epoch, segments=SEGMENTS)
        cluster.controller = "broker:2"
        cluster.announce()
        await until(lambda: second.seen["join_subscription"])
        await until(lambda: consumer.segments == list(SEGMENTS))


@virtual_time
async def test_a_consumer_gives_up_all_segments_that_one_assignment_takes_from_it() -> None:
    """▲ Nobody else is let in to a segment that it keeps, and it would go on with its messages."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.assign()
        await until(lambda: not server.consumers)
        assert consumer.segments == []


@virtual_time
async def test_c8_a_consumer_takes_no_assignment_of_another_one_of_its_name() -> None:
    """Of one that it has followed in this client: over one connection, and perhaps of a deleted subscription."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        for peer, request in list(server.members.items()):
            former = pb.Assignment(
                topic=TOPIC,
                subscription=request.subscription,
                consumer=request.consumer,
                incarnation=request.incarnation ^ 1,
                epoch=9,
            )
            peer.push(pb.Command(assignment=former))
        server.assign(LEFT)
        await until(lambda: consumer.segments == [LEFT])


@virtual_time
async def test_c8_of_two_consumers_of_one_name_each_is_told_of_its_own() -> None:
    """Also where the earlier one, which is still leaving, was the last to join over their connection."""
    async with connected() as (cluster, client):
        server, earlier = await attached(cluster, client, name="one")
        later = await client.consumer(TOPIC, "sub", name="one")
        [peer] = server.members

        def assigned(consumer: txnclient.Consumer, epoch: int, *segments: str) -> pb.Command:
            assignment = pb.Assignment(topic=TOPIC, subscription="sub", consumer="one", epoch=epoch)
            assignment.incarnation = consumer_impl(consumer).incarnation
            assignment.segments.extend(segments)
            return pb.Command(assignment=assignment)

        joins = server.seen["join_subscription"]
        peer.push(assigned(earlier, 0))
        await until(lambda: server.seen["join_subscription"] == joins + 1)
        peer.push(assigned(earlier, 5, LEFT))
        peer.push(assigned(later, 6, RIGHT))
        await until(lambda: later.segments == [RIGHT])
        assert earlier.segments == [LEFT]
        await earlier.close()
        peer.push(assigned(later, 7, LEFT))
        await until(lambda: later.segments == [LEFT])


@virtual_time
async def test_c8_of_an_older_controller_all_consumers_of_a_name_take_the_assignment() -> None:
    """It does not say of which of them, and all but one have left or are about to."""
    async with connected() as (cluster, client):
        server, earlier = await attached(cluster, client, name="one")
        later = await client.consumer(TOPIC, "sub", name="one")
        [peer] = server.members
        assignment = pb.Assignment(topic=TOPIC, subscription="sub", consumer="one", epoch=5, segments=[LEFT])
        peer.push(pb.Command(assignment=assignment))
        await until(lambda: earlier.segments == later.segments == [LEFT])


@virtual_time
async def test_a_consumer_that_the_controller_does_not_know_joins_again() -> None:
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        joins = server.seen["join_subscription"]
        for peer, request in list(server.members.items()):
            unknown = pb.Assignment(topic=TOPIC, subscription=request.subscription, consumer=request.consumer)
            peer.push(pb.Command(assignment=unknown))
        await until(lambda: server.seen["join_subscription"] == joins + 1)
        assert consumer.segments == list(SEGMENTS)
        server.assign(LEFT)
        await until(lambda: consumer.segments == [LEFT])


@virtual_time
async def test_a_consumer_that_stays_listens_once_however_often_the_cluster_changes() -> None:
    async with connected() as (cluster, client):
        await attached(cluster, client)
        (link,) = client._session.links._links.values()
        listeners = []
        for _ in range(5):
            cluster.announce()
            await asyncio.sleep(1.0)
            listeners.append(len(link._lost_listeners))
        assert listeners[1:] == listeners[:1] * 4


@virtual_time
async def test_a_closed_consumer_has_left_all_its_topics() -> None:
    """▲ Or who closes it and deletes its subscription would be told that a consumer is there."""
    async with connected() as (cluster, client):
        server, consumer = await attached(cluster, client)
        server.hold["leave_subscription"] = asyncio.Event()
        closing = asyncio.create_task(consumer.close())
        await until(lambda: server.seen["leave_subscription"])
        await asyncio.sleep(1.0)
        assert not closing.done()
        server.hold["leave_subscription"].set()
        await closing


@virtual_time
async def test_a_consumer_that_no_controller_takes_in_again_asks_at_its_leisure() -> None:
    """▲ Very many ask, just after a change of controllers."""
    async with connected() as (cluster, client):
        server, _ = await attached(cluster, client)
        server.refuse["join_subscription"] = [txnclient.NotOwner("not elected") for _ in range(1000)]
        await server.cut()
        before = server.seen["join_subscription"]
        await asyncio.sleep(30.0)
        assert 10 < server.seen["join_subscription"] - before < 80
        server.refuse.clear()
        await until(lambda: len(server.members) == 1)
