"""A topic that the controller has created and the client's home has not heard of yet."""

from __future__ import annotations

import asyncio
import json

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.reading.changing_layouts import ROOT, connected, settle
from tests.txnclient.scripted_server import TOPIC
from txnclient.connection.topic_changes import UNCHANGED, policies_json


@pytest.mark.parametrize("told", [False, True])
@virtual_time
async def test_who_creates_a_topic_waits_until_it_can_be_used(told: bool) -> None:
    """▲ Else the next call may not find it. `told`: the home tells its followers, and is not only asked again."""
    async with connected() as (cluster, server, client):
        cluster.exists = False
        creating = asyncio.ensure_future(client.create_topic(TOPIC))
        await settle()
        assert server.seen["create_topic"] == 1
        assert not creating.done()
        cluster.exists = True
        if told:
            cluster.announce()
        assert [segment.path for segment in (await creating).active] == [ROOT]


@virtual_time
async def test_who_creates_a_topic_that_stays_unknown_is_told_when_the_time_is_up() -> None:
    async with connected() as (cluster, server, client):
        cluster.exists = False
        began_s = cluster.clock.monotonic()
        with pytest.raises(txnclient.TopicNotFound):
            await client.create_topic(TOPIC)
        assert 20.0 < cluster.clock.monotonic() - began_s < 40.0
        assert server.seen["create_topic"] == 1


def test_of_several_policies_those_that_are_named_are_changed() -> None:
    changed = policies_json(retention_s=UNCHANGED, autoscale="off", retention_bytes=None, other=UNCHANGED)
    assert json.loads(changed) == {"autoscale": "off", "retention_bytes": None}
    with pytest.raises(txnclient.InvalidArgument, match="no policy to change"):
        policies_json(retention_s=UNCHANGED, autoscale=UNCHANGED)
