"""Batches that wait for company: what it costs to wait for many of them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.producing.batches import GatheringBatch
from txnclient.producing.lingering import Lingering


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
    lingering = Lingering(session, 20.0, channel.batches.__contains__)

    def begin() -> GatheringBatch:
        batch = GatheringBatch(None, Deadline(loop, 100.0))
        channel.batches[batch] = None
        lingering.leave_later(channel, batch)
        return batch

    first = begin()
    for _ in range(10):
        loop.now_s += 1.0
        del channel.batches[begin()]  # it was full
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
