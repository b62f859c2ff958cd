"""Notices that a segment is served elsewhere although the connection to its former owner lives.

▲ A server that hangs does not report that its segments have moved, and its connections live on, because gRPC answers
their pings: a client that stayed would get nothing, or only `Timeout`, for as long as that process lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from txnclient.connection.links import Link
from txnclient.connection.session import Session

MOVED_S: Final = 5.0
"""How long a former owner may take to say itself that the segment has moved; half of the usual lease."""


class MovedSegment:
    """Calls `leave` once the layout has named another owner than `link`'s server for `MOVED_S`."""

    def __init__(self, session: Session, path: str, link: Link, leave: Callable[[], None]) -> None:
        self._session = session
        self._path = path
        self._link = link
        self._leave = leave
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._unlisten = session.directory.listen(self._look)

    def stop(self) -> None:
        self._stopped = True
        self._unlisten()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def is_elsewhere(self) -> bool:
        known = self._session.directory.segment(self._path)
        return known is not None and known.owner_address not in ("", self._link.address)

    def _look(self) -> None:
        # ▲ A listener that is removed during a notification of all is still notified.
        if self._timer is None and not self._stopped and self.is_elsewhere:
            self._timer = self._session.loop.call_later(MOVED_S, self._due)

    def _due(self) -> None:
        self._timer = None
        if self.is_elsewhere:
            self._leave()
