"""Connections of one client, shared by all that talk to a server."""

from __future__ import annotations

from random import Random

import pytest

from tests.segments.virtual_time import LoopClock, run, virtual_time
from tests.txnclient.scripted_server import connected
from txnclient.connection.deadlines import Deadline
from txnclient.connection.links import Link, Links
from txnclient.connection.tasks import OwnedTasks
from txnwire.errors import ConnectionLost, Timeout
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import PROTOCOL_VERSION


class Unconcerned:
    """Who follows nothing."""

    def on_news(self, link: Link, command: pb.Command) -> None: ...

    def on_not_owner(self, link: Link, segment: str) -> None: ...


def test_a_connection_that_is_closed_as_it_opens_is_a_failed_attempt(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever waits for it is told so, the next attempt is held back a little, and nothing is logged as a defect."""

    async def scenario() -> None:
        async with connected() as (cluster, _):
            opened: list[Link] = []

            def announce(link: Link) -> None:
                opened.append(link)
                if len(opened) == 1:
                    raise ConnectionLost("the other end has closed it")

            clock, tasks = LoopClock(), OwnedTasks()
            links = Links(
                transport=cluster.transport,
                clock=clock,
                random=Random(1),
                hello=pb.Hello(protocol_version=PROTOCOL_VERSION, client_name="one", session_id=bytes(16)),
                tasks=tasks,
                on_opened=announce,
            )
            links.tell(Unconcerned())
            with pytest.raises(ConnectionLost, match="the other end has closed it"):
                await links.get("broker:1", Deadline(clock, 10.0))
            assert links.ready("broker:1") is None
            assert await links.get("broker:1", Deadline(clock, 10.0)) is opened[1]
            await links.close()
            await tasks.close()

    run(scenario())
    assert not caplog.records


@virtual_time
async def test_a_connection_that_was_made_takes_the_failures_before_it_along() -> None:
    """▲ The next pause would be as long as if the server were still away, and its error would be told of another
    trouble."""
    async with connected("broker:1", "broker:2") as (cluster, client):
        home = client._directory.home()
        assert home is not None
        (address,) = cluster.servers.keys() - {home.address}
        clock, links, server = cluster.clock, client._session.links, cluster.servers[address]
        await server.stop()
        for _ in range(6):
            with pytest.raises(ConnectionLost, match="nobody listens"):
                await links.get(address, Deadline(clock, 10.0))
        await server.start()
        await (await links.get(address, Deadline(clock, 10.0))).caller.close()
        before_s = clock.monotonic()
        await (await links.get(address, Deadline(clock, 10.0))).caller.close()
        assert clock.monotonic() - before_s < 0.01
        cluster.transport.mute = True
        with pytest.raises(Timeout) as told:
            await links.get(address, Deadline(clock, 1.0))
        assert str(told.value) == f"connecting to {address}: not done within 1 s"
