"""A client that moves to another server follows all its topics there, also those that it asks for meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.connection.test_stale_home import ADDRESSES, home_of
from tests.txnclient.scripted_server import SEGMENTS, TOPIC, Cluster, ScriptedServer, connected
from tests.waiting import until
from txnclient.connection import directory


def _owning_home(cluster: Cluster) -> ScriptedServer:
    home = home_of(cluster)
    for segment in SEGMENTS:
        cluster.move(segment, home.address)
    return home


async def _hears_of_a_split(cluster: Cluster, client: txnclient.Client, home: ScriptedServer) -> None:
    cluster.split(0, owner=home.address)

    async def heard() -> bool:
        return len((await client.describe_topic(TOPIC)).active) == 3

    await until(heard)


async def _asked_for_without(cluster: Cluster, home: ScriptedServer) -> list[str]:
    """The topics that the client asks the next home for, sorted."""
    for server in cluster.servers.values():
        server.commands.clear()
    await home.cut()
    await asyncio.sleep(1.0)
    asked = [one.watch_layout.topic for server in cluster.servers.values() for one in server.commands]
    return sorted(filter(None, asked))


@virtual_time
async def test_a_topic_that_the_former_home_tells_of_late_is_followed_at_the_next_one() -> None:
    async with connected(*ADDRESSES, timeout=30.0) as (cluster, client):
        home = _owning_home(cluster)
        held = home.hold["watch_layout"] = asyncio.Event()
        describing = asyncio.ensure_future(client.describe_topic(TOPIC))
        await until(lambda: home.seen["watch_layout"] == 1)
        home.cut_off(stale=True)
        await until(lambda: client._directory.home().address != home.address)  # type: ignore[union-attr]
        held.set()
        await describing
        await _hears_of_a_split(cluster, client, home)


@virtual_time
async def test_a_topic_asked_for_while_the_next_home_is_asked_for_others_is_followed_there() -> None:
    async with connected(*ADDRESSES, timeout=30.0) as (cluster, client):
        home = _owning_home(cluster)
        with pytest.raises(txnclient.TopicNotFound):
            await client.describe_topic("topic://public/default/another")
        others = [server for server in cluster.servers.values() if server is not home]
        held = asyncio.Event()
        for server in others:
            server.hold["watch_layout"] = held
        home.cut_off(stale=True)
        await until(lambda: any(server.seen["watch_layout"] for server in others))
        await client.describe_topic(TOPIC)
        held.set()
        await until(lambda: client._directory.home().address != home.address)  # type: ignore[union-attr]
        await _hears_of_a_split(cluster, client, home)


@virtual_time
async def test_all_topics_are_followed_at_the_next_home() -> None:
    async with connected(*ADDRESSES, timeout=10.0) as (cluster, client):
        home = _owning_home(cluster)
        topics = ["topic://public/default/one", TOPIC, "topic://public/default/two"]
        for topic in topics:
            with suppress(txnclient.TopicNotFound):
                await client.describe_topic(topic)
        assert await _asked_for_without(cluster, home) == sorted(topics)
        await _hears_of_a_split(cluster, client, home)


@virtual_time
async def test_of_topics_that_do_not_exist_the_latest_are_followed_and_asked_for_at_the_next_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """▲ Names that never were are without end: a client would ask for all of them before it goes on."""
    monkeypatch.setattr(directory, "MOST_ABSENT", 2)
    async with connected(*ADDRESSES, timeout=10.0) as (cluster, client):
        home = _owning_home(cluster)
        await client.describe_topic(TOPIC)
        absent = [f"topic://public/default/absent-{number}" for number in range(5)]
        for topic in absent:
            with pytest.raises(txnclient.TopicNotFound):
                await client.describe_topic(topic)
        assert await _asked_for_without(cluster, home) == sorted([TOPIC, *absent[-2:]])
        with pytest.raises(txnclient.TopicNotFound):
            await client.describe_topic(absent[0])
        await _hears_of_a_split(cluster, client, home)


@virtual_time
async def test_a_topic_whose_record_cannot_be_read_keeps_no_other_one_from_being_followed() -> None:
    """▲ Its client would have no home at all, wherever it turns."""
    another = "topic://public/default/another"
    async with connected(*ADDRESSES, timeout=10.0) as (cluster, client):
        home = _owning_home(cluster)
        with pytest.raises(txnclient.TopicNotFound):
            await client.describe_topic(another)
        await client.describe_topic(TOPIC)
        for server in cluster.servers.values():
            server.unreadable[another] = None
        await home.cut()
        await asyncio.sleep(1.0)
        await _hears_of_a_split(cluster, client, home)
        with pytest.raises(txnclient.DataCorrupt):
            await client.describe_topic(another)
