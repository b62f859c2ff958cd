"""A background task that fails by a defect: whoever waits for what it should have done is told, and does not wait for
ever (C6)."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import TOPIC, connected
from tests.waiting import until
from txnclient.connection.directory import ClientDirectory
from txnclient.consuming.feeds.feed import Feed
from txnclient.consuming.membership import ConsumerMembership
from txnclient.producing.channels.channel import Channel
from txnwire.errors import InternalError


async def broken(*_: object) -> NoReturn:
    raise ZeroDivisionError("a defect")


@pytest.mark.parametrize("kind", ["consumer", "reader"])
@virtual_time
async def test_whoever_receives_is_told_of_a_feed_that_fails(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(Feed, "_attach", broken)
    async with connected() as (_, client):
        opening = client.consumer(TOPIC, "sub") if kind == "consumer" else client.reader(TOPIC)
        async with opening as receiving:
            with pytest.raises(InternalError, match=r"feed of .* failed by ZeroDivisionError: a defect") as told:
                await receiving.receive(timeout=3600)
            assert told.value.fatal
            assert not told.value.retriable


@virtual_time
async def test_whoever_receives_is_told_of_a_membership_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (cluster, client), client.consumer(TOPIC, "sub") as consumer:
        monkeypatch.setattr(ConsumerMembership, "_join", broken)
        await cluster.servers["broker:1"].cut()
        with pytest.raises(InternalError, match=r"membership in .* failed"):
            await consumer.receive(timeout=3600)


@virtual_time
async def test_whoever_sends_is_told_of_an_opening_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channel, "_open_once", broken)
    async with connected() as (_, client):
        producer = await client.producer(TOPIC)
        with pytest.raises(InternalError, match=r"open producer on .* failed"):
            await producer.send(b"a")
        await producer.close()


@virtual_time
async def test_servers_and_layouts_are_followed_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    follow, failures = ClientDirectory._follow, []

    async def fails_once(self: ClientDirectory) -> None:
        if not failures:
            failures.append(1)
            await broken()
        await follow(self)

    monkeypatch.setattr(ClientDirectory, "_follow", fails_once)
    async with connected() as (cluster, client):
        assert failures
        producer = await client.producer(TOPIC)
        await producer.send(b"a")
        assert (await client.describe_topic(TOPIC)).active
        await until(lambda: cluster.servers["broker:1"].seen["send"])


@virtual_time
async def test_what_is_closed_is_told_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken_at_its_end(_: Feed) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await broken()

    monkeypatch.setattr(Feed, "_attach", broken_at_its_end)
    async with connected() as (_, client):
        consumer = await client.consumer(TOPIC, "sub")
        await consumer.close()
        with pytest.raises(txnclient.InvalidArgument, match="closed"):
            await consumer.receive(timeout=1)
