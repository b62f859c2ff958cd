"""Waits for room on a busy connection, and for the deadlines of what waits there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from txnclient.connection.deadlines import FIRST_PAUSE_S
from txnclient.connection.links import Link


class RoomOnLink:
    """One channel's wait. `resume`: called once the link has room again, or has ended. `give_up`: called at each
    deadline until then; fails what is late, and returns the seconds until the next deadline, None if nothing waits."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, resume: Callable[[], None], give_up: Callable[[], float | None]
    ) -> None:
        self._loop = loop
        self._resume = resume
        self._give_up = give_up
        self._link: Link | None = None
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, link: Link) -> None:
        """Wait for this link instead of an earlier one; no-op if it waits for this one already."""
        if self._link is not link:
            self._link = link
            link.when_drained(partial(self._drained, link))
        if self._timer is None:
            self._look()

    def _drained(self, link: Link) -> None:
        if self._link is link:
            self._link = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._resume()

    def _look(self) -> None:
        """▲ C6: a server that neither reads nor goes away never makes room, and a request that is not written gets no
        answer."""
        self._timer = None
        left_s = self._give_up()
        if left_s is not None and self._timer is None:  # what was given up may have begun another look
            self._timer = self._loop.call_later(max(left_s, FIRST_PAUSE_S), self._look)
