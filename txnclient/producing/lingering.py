"""Closes gathering batches: at the end of the loop's turn, or after lingering."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from txnclient.connection.session import Session
from txnclient.producing.batches import GatheringBatch


class Closer(Protocol):
    """A channel: closes a batch unless it is closed already."""

    def close_batch(self, batch: GatheringBatch) -> None: ...


class Lingering:
    """Closes batches of all channels of a producer with one timer and one callback a turn. `gathers`: whether a batch
    is still open."""

    def __init__(self, session: Session, linger_s: float, gathers: Callable[[GatheringBatch], bool]) -> None:
        self._session = session
        self._linger_s = linger_s
        self._gathers = gathers
        self._this_turn: list[tuple[Closer, GatheringBatch]] = []
        self._later: deque[tuple[Closer, GatheringBatch]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def leave_this_turn(self, channel: Closer, batch: GatheringBatch) -> None:
        """Close `batch` once everything ready to run now has run."""
        if not self._this_turn:
            self._session.loop.call_soon(self._turn_over)
        self._this_turn.append((channel, batch))

    def leave_later(self, channel: Closer, batch: GatheringBatch) -> None:
        """Close `batch` when lingering is over."""
        batch.due = self._session.clock.monotonic() + self._linger_s
        self._later.append((channel, batch))
        if self._timer is None:
            self._timer = self._session.loop.call_later(self._linger_s, self._over)

    def _turn_over(self) -> None:
        leaving, self._this_turn = self._this_turn, []
        for channel, batch in leaving:
            channel.close_batch(batch)

    def _over(self) -> None:
        self._timer = None
        now = self._session.clock.monotonic()
        while self._later and self._later[0][1].due <= now:
            channel, batch = self._later.popleft()
            channel.close_batch(batch)
        while self._later and not self._gathers(self._later[0][1]):
            self._later.popleft()
        if self._later:
            self._timer = self._session.loop.call_later(max(0.0, self._later[0][1].due - now), self._over)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
