"""What the controller is told of a client's producers: before they send, over changes of it, to the last one."""

from __future__ import annotations

import asyncio

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.reading.changing_layouts import OTHER, TwoTopics
from tests.txnclient.reading.changing_layouts import connected as two_topics
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, connected
from tests.waiting import until
from txnwire.errors import Overloaded, TopicNotFound


@virtual_time
async def test_producers_of_a_client_share_a_registration_which_ends_with_the_last() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        producers = [await client.producer(TOPIC) for _ in range(3)]
        assert len(server.registered) == 1, "before anything was sent"
        assert server.seen["register_producer"] == 1
        for producer in producers:
            assert len(server.registered) == 1
            await producer.close()
        await until(lambda: not server.registered)
        async with client.producer(TOPIC):
            assert len(server.registered) == 1


@virtual_time
async def test_a_registration_follows_the_controller_and_its_connection() -> None:
    async with connected("broker:1", "broker:2") as (cluster, client):
        first, second = cluster.servers["broker:1"], cluster.servers["broker:2"]
        async with client.producer(TOPIC):
            cluster.controller = "broker:2"
            cluster.announce()
            await until(lambda: len(second.registered) == 1)
            await until(lambda: not first.registered)
            for peer, *_ in list(second.registered):
                peer.disconnect(txnclient.ConnectionLost("cut by the test"))
            await until(lambda: second.seen["register_producer"] == 2)
            cluster.controller = "broker:1"
            cluster.announce()
            await until(lambda: len(first.registered) == 1)


@virtual_time
async def test_behind_a_lost_connection_producers_of_every_topic_are_registered_again() -> None:
    """▲ A topic that none is known of may be deleted under them."""
    async with two_topics(TwoTopics()) as (cluster, server, client):
        cluster.become(cluster.segments)
        async with client.producer(TOPIC), client.producer(OTHER):
            await until(lambda: len(server.registered) == 2)
            await server.cut()
            await until(lambda: server.seen["register_producer"] > 2)
            await until(lambda: sorted(topic for _, topic, _ in server.registered) == sorted([TOPIC, OTHER]))


@virtual_time
async def test_registrations_that_come_and_go_leave_nothing_behind() -> None:
    """A client may open a producer for each message."""
    async with connected() as (cluster, client):
        server, link = cluster.servers["broker:1"], client._directory.home()
        assert link is not None
        listeners = []
        for _ in range(5):
            async with client.producer(TOPIC):
                await until(lambda: server.registered)
            await until(lambda: not server.registered)
            listeners.append((len(client._directory._listeners), len(link._lost_listeners)))
        assert listeners[1:] == listeners[:1] * 4


@virtual_time
async def test_a_producer_opens_and_sends_while_nobody_leads() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        cluster.controller = ""
        cluster.announce()
        await until(lambda: not client._directory.controller_address)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"x")
            assert not server.registered
            cluster.controller = "broker:1"
            cluster.announce()
            await until(lambda: len(server.registered) == 1)


@pytest.mark.parametrize("how", ["silent", "refuses"])
@virtual_time
async def test_a_controller_that_does_not_answer_keeps_no_producer_from_opening(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        if how == "silent":
            server.hold["register_producer"] = asyncio.Event()
        else:
            server.refuse["register_producer"] = [Overloaded("later") for _ in range(3)]
        began_s = cluster.clock.monotonic()
        async with client.producer(TOPIC) as producer:
            assert cluster.clock.monotonic() - began_s < 5.0
            await producer.send(b"x")
            if how == "silent":
                server.hold["register_producer"].set()
            await until(lambda: len(server.registered) == 1)
    assert not [record for record in caplog.records if record.levelname == "ERROR"], "it is nobody's defect"


@virtual_time
async def test_an_older_controller_is_not_asked_again_and_again() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.refuse["register_producer"] = [txnclient.InvalidArgument("not served here") for _ in range(9)]
        async with client.producer(TOPIC) as producer:
            await producer.send(b"x")
            await asyncio.sleep(60.0)
            assert server.seen["register_producer"] == 1


@virtual_time
async def test_nothing_turns_while_the_connection_has_ended_and_nobody_leads() -> None:
    """Virtual time does not pass while something turns."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        second = cluster.servers["broker:2"]
        cluster.controller = "broker:2"
        cluster.announce()
        await until(lambda: client._directory.controller_address == "broker:2")
        producer = await client.producer(TOPIC)
        cluster.controller = ""
        cluster.announce()
        await until(lambda: not client._directory.controller_address)
        await second.stop()
        await asyncio.sleep(60.0)
        await producer.close()
        await asyncio.sleep(60.0)
        assert second.seen["register_producer"] == 1, "nobody is asked who does not lead"


@virtual_time
async def test_a_producer_that_is_opened_while_the_next_topic_is_not_known_yet_is_of_the_next() -> None:
    async with connected() as (cluster, client):
        cluster.life = 7
        await (await client.producer(TOPIC)).close()
        cluster.make_again()  # and nobody has told the client
        opening = asyncio.ensure_future(client.producer(TOPIC).__aenter__())
        await asyncio.sleep(0.1)
        assert not opening.done()
        cluster.announce()
        producer = await opening
        await producer.send(b"new")
        assert not any(cluster.stored[path] for path in SEGMENTS)
        await producer.close()


@virtual_time
async def test_a_topic_that_the_controller_does_not_know_is_not_found() -> None:
    async with connected() as (cluster, client):
        cluster.servers["broker:1"].refuse["register_producer"] = [TopicNotFound("it is being deleted")]
        with pytest.raises(TopicNotFound):
            await client.producer(TOPIC)


@virtual_time
async def test_an_opening_that_is_cancelled_leaves_no_registration() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        server.hold["register_producer"] = asyncio.Event()
        opening = asyncio.ensure_future(client.producer(TOPIC).__aenter__())
        await until(lambda: server.seen["register_producer"])
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        del server.hold["register_producer"]
        async with client.producer(TOPIC):
            await until(lambda: server.registered)
        await until(lambda: not server.registered)


@virtual_time
async def test_an_opening_is_cancelled_at_whatever_turn_its_registration_is_answered() -> None:
    """▲ One that went on left its caller waiting for a task that it had cancelled."""
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        for turns in range(100):
            held = server.hold["register_producer"] = asyncio.Event()
            asked = server.seen["register_producer"]
            opening = asyncio.ensure_future(client.producer(TOPIC).__aenter__())
            await until(lambda asked=asked: server.seen["register_producer"] > asked)  # type: ignore[misc]
            held.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            if opening.done():
                await (await opening).close()
                break
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            await until(lambda: not server.registered)
        assert opening.done()
        assert turns > 3


@virtual_time
async def test_a_registration_follows_a_connection_of_its_own_that_nothing_else_is_told_over() -> None:
    """▲ The cluster is followed at another server: no news of it tells that the controller's connection has ended."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        home = client._directory.home()
        assert home is not None
        (away,) = cluster.servers.keys() - {home.address}
        cluster.controller = away
        cluster.owners = dict.fromkeys(SEGMENTS, home.address)
        cluster.announce()
        await until(lambda: client._directory.controller_address == away)
        controller = cluster.servers[away]
        async with client.producer(TOPIC):
            await until(lambda: len(controller.registered) == 1)
            await controller.cut()
            await until(lambda: controller.seen["register_producer"] == 2, within_s=10.0)
            await until(lambda: len(controller.registered) == 1)


@virtual_time
async def test_a_producer_opened_behind_a_refused_registration_is_not_refused_for_that() -> None:
    """▲ A controller that has just been elected may lag, and the producers that are open already are kept open."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        second = cluster.servers["broker:2"]
        async with client.producer(TOPIC):
            second.refuse["register_producer"] = [TopicNotFound("not heard of here yet")]
            cluster.controller = "broker:2"
            cluster.announce()
            await until(lambda: second.seen["register_producer"] == 1)
            async with client.producer(TOPIC):
                await until(lambda: len(second.registered) == 1)
