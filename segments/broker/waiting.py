"""Requests that wait for a segment while its broker takes it over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from segments.owner.segment import Segment
from txnwire.errors import NotOwner, TxnError


class Waiters(Mapping[str, "asyncio.Future[Segment]"]):
    """Holds one future per segment path, shared by all requests that wait for it."""

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[Segment]] = {}

    def __getitem__(self, path: str) -> asyncio.Future[Segment]:
        return self._futures[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._futures)

    def __len__(self) -> int:
        return len(self._futures)

    def join(self, path: str) -> asyncio.Future[Segment]:
        """The segment's future. The caller must shield it when awaiting: others share it."""
        waiter = self._futures.get(path)
        if waiter is None:
            waiter = self._futures[path] = asyncio.get_running_loop().create_future()
            waiter.add_done_callback(_retrieve)
        return waiter

    def serve(self, segment: Segment) -> None:
        waiter = self._futures.pop(segment.path, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(segment)

    def fail(self, path: str, error: TxnError) -> None:
        waiter = self._futures.pop(path, None)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def fail_all(self, error: NotOwner) -> None:
        for path in list(self._futures):
            self.fail(path, error)


def _retrieve(future: asyncio.Future[Segment]) -> None:
    """Retrieve a failure, so that the event loop does not report one without a waiter."""
    if not future.cancelled():
        future.exception()
