"""What a call costs where many feeds have something."""

from __future__ import annotations

from typing import Any

from tests.segments.virtual_time import virtual_time
from tests.txnclient.consuming.attached import attached
from tests.txnclient.scripted_server import connected
from txnclient.consuming.consumer import consumer_impl
from txnclient.consuming.feeds.receiver import Receiver


class Messages:
    """A feed that has so many messages, and gives one at a time."""

    paused = False

    def __init__(self, value: str, count: int) -> None:
        self._value = value
        self.buffered = count

    def take(self, at_most: int) -> list[Any]:
        self.buffered -= 1
        return [self._value]

    def resume(self) -> None:
        pass


class OneMessage:
    """A feed that has one message; counts how often it is asked whether it has one."""

    paused = False
    looks = 0

    def __init__(self) -> None:
        self._left: list[Any] = ["a message"]

    @property
    def buffered(self) -> int:
        self.looks += 1
        return len(self._left)

    def take(self, at_most: int) -> list[Any]:
        taken, self._left = self._left, []
        return taken

    def resume(self) -> None:
        pass


@virtual_time
async def test_a_call_looks_at_no_more_feeds_than_it_may_take_from() -> None:
    """▲ A consumer of thousands of topics, each with a message now and then."""
    async with connected() as (cluster, client):
        _, consumer = await attached(cluster, client)
        receiver = Receiver(consumer_impl(consumer).session, "test")
        feeds = [OneMessage() for _ in range(1000)]
        for feed in feeds:
            receiver.ready(feed)
        assert len(receiver.take(10)) == 10
        assert sum(feed.looks > 0 for feed in feeds) == 10
        assert len(receiver.take(2000)) == 990


@virtual_time
async def test_a_call_goes_on_with_the_next_feed_once_the_one_that_it_took_from_is_empty() -> None:
    """▲ Not with the one that an earlier call took from: it has just had its turn."""
    async with connected() as (cluster, client):
        _, consumer = await attached(cluster, client)
        receiver: Any = Receiver(consumer_impl(consumer).session, "test")
        many, one, other = Messages("many", 3), Messages("one", 1), Messages("other", 1)
        for feed in (many, one, other):
            receiver.ready(feed)
        assert receiver.take(1) == ["many"]
        assert receiver.take(1, of=2) == ["one"]
        assert receiver.take_on(1) == ["other"]
        assert receiver.take(1) == ["many"]
        assert receiver.take_on(1) == ["many"]


@virtual_time
async def test_a_feed_with_just_as_many_as_are_asked_for_passes_no_other_at_its_own_turn() -> None:
    """▲ Else the next call could bring none forward: it would take from two feeds what one has."""
    async with connected() as (cluster, client):
        _, consumer = await attached(cluster, client)
        receiver: Any = Receiver(consumer_impl(consumer).session, "test")
        for feed in (Messages("first", 2), Messages("one", 1), Messages("two", 2)):
            receiver.ready(feed)
        assert receiver.take(2) == ["first", "first"]
        assert receiver.take(2) == ["two", "two"]
        assert receiver.take(2) == ["one"]
