"""Connections of one client, shared by all that talk to a server."""

from __future__ import annotations

from random import Random

import pytest

from tests.segments.virtual_time import LoopClock, run
from tests.txnclient.scripted_server import connected
from txnclient.connection.deadlines import Deadline
from txnclient.connection.links import Link, Links
from txnclient.connection.tasks import OwnedTasks
from txnwire.errors import ConnectionLost
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
