"""Closes gathering batches: at the end of the loop's turn, or after lingering."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

from txnclient.connection.session import Session
from txnclient.producing.channels.batches import Batch, GatheringBatch


class Closer(Protocol):
    """A channel: closes a batch unless it is closed already."""

    def close_batch(self, batch: GatheringBatch) -> None: ...


class Lingering:
    """Closes batches of all channels of a producer with one timer and one callback a turn."""

    def __init__(self, session: Session, linger_s: float) -> None:
        self._session = session
        self._linger_s = linger_s
        self._this_turn: list[tuple[Closer, GatheringBatch]] = []
        self._later: OrderedDict[GatheringBatch, Closer] = OrderedDict()
        """In the order in which they are due."""
        self._timer: asyncio.TimerHandle | None = None

    def leave_this_turn(self, channel: Closer, batch: GatheringBatch) -> None:
        """Close `batch` once everything ready to run now has run."""
        if not self._this_turn:
            self._session.loop.call_soon(self._turn_over)
        self._this_turn.append((channel, batch))

    def leave_later(self, channel: Closer, batch: GatheringBatch) -> None:
        """Close `batch` when lingering is over."""
        batch.due = self._session.clock.monotonic() + self._linger_s
        self._later[batch] = channel
        if self._timer is None:
            self._timer = self._session.loop.call_later(self._linger_s, self._over)

    def over(self, batch: Batch) -> None:
        """The batch has ended, perhaps long before its time. ▲ Otherwise it would be kept until then, with its entry,
        and the buffer's bound does not count it."""
        if isinstance(batch, GatheringBatch):
            self._later.pop(batch, None)

    def _turn_over(self) -> None:
        leaving, self._this_turn = self._this_turn, []
        for channel, batch in leaving:
            channel.close_batch(batch)

    def _over(self) -> None:
        self._timer = None
        now = self._session.clock.monotonic()
        while (first := next(iter(self._later), None)) is not None and first.due <= now:
            self._later.pop(first).close_batch(first)
        if first is not None:
            self._timer = self._session.loop.call_later(max(0.0, first.due - now), self._over)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
