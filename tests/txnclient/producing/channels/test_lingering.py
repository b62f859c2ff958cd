"""Batches that wait for company: what it costs to wait for many of them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import txnclient
from tests.segments.virtual_time import virtual_time
from tests.txnclient.scripted_server import TOPIC, connected
from tests.waiting import until
from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.producing.channels.batches import GatheringBatch
from txnclient.producing.channels.lingering import Lingering


class Loop:
    """Its own clock; timers are kept, and run by the test."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)

    def call_later(self, after_s: float, callback: Callable[[], None]) -> object:
        self.timers.append((self.now_s + after_s, callback))
        return self.timers[-1]


class Gathering:
    """A channel, and the producer that knows which of its batches are there still."""

    def __init__(self) -> None:
        self.batches: dict[GatheringBatch, None] = {}
        self.closed: list[GatheringBatch] = []

    def close_batch(self, batch: GatheringBatch) -> None:
        if batch in self.batches:
            del self.batches[batch]
            self.closed.append(batch)


def test_batches_that_have_left_meanwhile_wake_nobody() -> None:
    """A busy producer's batches are full long before their time: a timer for each would cost more than the sends."""
    loop, channel = Loop(), Gathering()
    session = cast(Session, SimpleNamespace(loop=loop, clock=loop))
    lingering = Lingering(session, 20.0)

    def begin() -> GatheringBatch:
        batch = GatheringBatch(None, Deadline(loop, 100.0))
        channel.batches[batch] = None
        lingering.leave_later(channel, batch)
        return batch

    first = begin()
    for _ in range(10):
        loop.now_s += 1.0
        full = begin()
        del channel.batches[full]
        lingering.over(full)
    loop.now_s += 1.0
    last = begin()
    (timer,) = loop.timers
    loop.now_s, wake = timer
    wake()
    assert channel.closed == [first]
    assert [when for when, _ in loop.timers] == [20.0, 31.0]
    loop.now_s, wake = loop.timers[-1]
    wake()
    assert channel.closed == [first, last]
    assert len(loop.timers) == 2


@virtual_time
async def test_stored_messages_are_not_kept_until_their_batches_would_have_been_due() -> None:
    """▲ A program that lingers for long would hold all that it has sent meanwhile."""
    async with connected() as (cluster, client):
        server, producer = cluster.servers["broker:1"], await client.producer(TOPIC, linger_ms=60_000)
        server.stall_sends = True
        kept: list[weakref.ref[asyncio.Future[txnclient.MessageId]]] = []

        def send() -> None:
            kept.append(weakref.ref(producer.send_nowait(b"x", key="k")))

        send()
        for _ in range(20):
            await until(lambda: server.stalled)
            send()  # it waits for company, until the one before is stored
            server.finish_sends()
        await until(lambda: server.stalled)
        server.finish_sends()
        await producer.flush()
        gc.collect()
        assert [one for one in kept if one() is not None] == []
