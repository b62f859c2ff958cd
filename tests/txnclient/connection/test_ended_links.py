"""Connections that end, or are never made, while somebody waits for something of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

import txnclient
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.txnclient.scripted_server import TOPIC, Cluster, connected
from tests.waiting import until
from txnclient.connection.deadlines import Deadline
from txnclient.connection.directory import ClientDirectory
from txnclient.connection.links import BUSY_BYTES, Link, Links
from txnclient.connection.tasks import OwnedTasks
from txnwire.errors import Timeout
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import PROTOCOL_VERSION


class Unconcerned:
    """Who follows nothing."""

    def on_news(self, link: Link, command: pb.Command) -> None: ...

    def on_not_owner(self, link: Link, segment: str) -> None: ...


def _link_of(client: txnclient.Client, address: str = "broker:1") -> Link:
    link = client._session.links.ready(address)
    assert link is not None
    return link


def _links(cluster: Cluster, tasks: OwnedTasks, on_opened: Callable[[Link], None] = lambda _: None) -> Links:
    return Links(
        transport=cluster.transport,
        clock=LoopClock(),
        random=Random(1),
        hello=pb.Hello(protocol_version=PROTOCOL_VERSION, client_name="one", session_id=bytes(16)),
        tasks=tasks,
        on_opened=on_opened,
    )


@virtual_time
async def test_who_waits_for_room_on_a_connection_goes_on_when_it_ends() -> None:
    """▲ A bulk sender that was not woken would wait for ever, although its segment is served elsewhere."""
    async with connected() as (cluster, client):
        link = _link_of(client)
        (near,) = cluster.transport.connections
        near.other.pause(True)
        link.caller.push(pb.Command(admin_request=pb.AdminRequest(what="x" * (BUSY_BYTES + 1))))
        assert link.busy
        resumed: list[bool] = []
        link.when_drained(lambda: resumed.append(link.closed))
        link.when_drained(lambda: resumed.append(link.closed))
        await asyncio.sleep(1.0)
        assert resumed == []
        await cluster.servers["broker:1"].cut()
        await until(lambda: resumed == [True, True])


@virtual_time
async def test_who_goes_on_and_finds_the_connection_busy_again_is_woken_again() -> None:
    """▲ Of several producers that wait, the first one may use up all the room: one that was not woken a second time
    would wait until its time is up."""
    async with connected() as (cluster, client):
        link = _link_of(client)
        (near,) = cluster.transport.connections
        much = pb.Command(admin_request=pb.AdminRequest(what="x" * (BUSY_BYTES + 1)))
        resumed: list[str] = []

        def first() -> None:
            resumed.append("first")
            link.caller.push(much)

        def second() -> None:
            if link.busy:
                link.when_drained(second)
            else:
                resumed.append("second")

        near.other.pause(True)
        link.caller.push(much)
        link.when_drained(first)
        link.when_drained(second)
        near.other.pause(False)
        await until(lambda: resumed == ["first", "second"])


@virtual_time
async def test_who_listens_for_the_end_of_a_connection_that_has_ended_is_told_unless_it_forgets() -> None:
    async with connected() as (cluster, client):
        link = _link_of(client)
        await cluster.servers["broker:1"].cut()
        await until(lambda: link.closed)
        told: list[str] = []
        link.when_lost(lambda: told.append("listens"))
        link.when_lost(lambda: told.append("forgets"))()
        await asyncio.sleep(1.0)
        assert told == ["listens"]


@virtual_time
async def test_who_gives_up_within_the_pause_behind_a_failed_attempt_is_told_why_it_failed() -> None:
    cluster, tasks = Cluster(), OwnedTasks()
    links = _links(cluster, tasks)
    links.tell(Unconcerned())
    with pytest.raises(txnclient.ConnectionLost, match="nobody listens at broker:1"):
        await links.get("broker:1", Deadline(LoopClock(), 10.0))
    with pytest.raises(Timeout, match=r"the last attempt: ConnectionLost: nobody listens at broker:1"):
        await links.get("broker:1", Deadline(LoopClock(), 0.001))
    await links.close()
    await tasks.close()


@virtual_time
async def test_a_server_that_lags_brings_no_deleted_topic_back() -> None:
    """▲ The layout of a topic that is known not to exist any more is older than that knowledge: a client that took it
    would open producers of segments that are erased."""
    async with connected() as (cluster, client):
        directory, link = client._directory, _link_of(client)
        assert isinstance(directory, ClientDirectory)
        producer = await client.producer(TOPIC)
        await producer.close()

        def told(*, exists: bool, at: int) -> bool:
            layout = cluster.layout(TOPIC) if exists else pb.Layout(topic=TOPIC)
            layout.exists, layout.topic_revision = exists, at
            directory.on_news(link, pb.Command(layout=layout))
            return directory.known_layout(TOPIC) is not None

        assert told(exists=True, at=50)
        assert not told(exists=False, at=100)
        assert not told(exists=True, at=50), "from a server that has not heard of the deletion"
        assert not told(exists=False, at=90)
        assert directory.absent_through(TOPIC) == 100
        assert told(exists=True, at=101), "made again"


@virtual_time
async def test_a_connection_whose_announcement_cannot_be_sent_is_closed() -> None:
    """▲ Nobody knows it, so nobody would ever close it."""
    cluster, tasks = Cluster(), OwnedTasks()
    await cluster.start()

    def announced(_: Link) -> None:
        raise txnclient.MessageTooLarge("more open transactions than a frame can name")

    links = _links(cluster, tasks, announced)
    links.tell(Unconcerned())
    with pytest.raises(txnclient.MessageTooLarge):
        await links.get("broker:1", Deadline(LoopClock(), 10.0))
    (near,) = cluster.transport.connections
    with pytest.raises(txnclient.ConnectionLost):
        near.send_nowait(pb.Command())
    await links.close()
    await tasks.close()
    await cluster.stop()


@virtual_time
async def test_who_needs_a_connection_that_a_closing_client_does_not_begin_is_told_at_once() -> None:
    """▲ The task that would make it is cancelled before its first step."""
    cluster, tasks = Cluster(), OwnedTasks()
    links = _links(cluster, tasks)
    links.tell(Unconcerned())
    await tasks.close()
    async with asyncio.timeout(1.0):
        with pytest.raises(txnclient.ConnectionLost, match="closing"):
            await links.get("broker:1", Deadline(LoopClock(), 10.0))
    await links.close()


@virtual_time
async def test_a_client_whose_known_servers_are_all_gone_turns_to_the_address_of_its_url() -> None:
    """▲ A cluster that has come back under other addresses is found only behind that one, e.g. a load balancer's."""
    async with connected() as (cluster, client):
        given = cluster.servers.pop("broker:1")
        await cluster.start("broker:2")
        cluster.serve_all("broker:2")
        given.push_news()
        await given.stop()
        await given.cut()
        await until(lambda: (home := client._directory.home()) is not None and home.address == "broker:2")
        known = cluster.servers.pop("broker:2")
        await known.stop()
        await known.cut()
        cluster.servers["broker:1"] = given
        cluster.serve_all("broker:1")
        await given.start()
        async with client.producer(TOPIC) as producer:
            await producer.send(b"x")
