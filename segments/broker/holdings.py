"""Keeps the ownership epochs that a broker must give back or gave back, and the segments it cannot serve."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import structlog

from segments.broker.ownership import BrokerSession
from segments.layout.directory import OwnerInfo, topic_path_of
from txnwire.errors import DataCorrupt

log = structlog.get_logger(__name__)


class Holdings:
    """Tracks the segments that a broker owns and does not serve. `to_release`: segment → owned epoch under which it can
    no longer serve; `failed`: recovery found corrupt data; `erased`: topics are being deleted, nothing is left."""

    def __init__(self) -> None:
        self.to_release: dict[str, int] = {}
        self.failed: dict[str, DataCorrupt] = {}
        self.erased: dict[str, None] = {}
        self._released: dict[str, int] = {}
        """By segment: the last epoch given back."""

    def check(self, path: str) -> None:
        """Raises the error of a segment whose recovery found corrupt data."""
        if (error := self.failed.get(path)) is not None:
            # ▲ Drop the traceback: the frames of every earlier caller would stay in memory, more with each call.
            raise error.with_traceback(None)

    async def release(self, registration: BrokerSession, path: str) -> None:
        """Give the segment back if it is in `to_release`. Raises `StoreUnavailable`, `OutcomeUnknown`."""
        if (stale := self.to_release.get(path)) is not None:
            await registration.release(path, stale)
            self.ended(path, stale)
            self.to_release.pop(path, None)

    def ended(self, path: str, epoch: int) -> None:
        self._released[path] = max(epoch, self._released.get(path, 0))

    def find_forgotten(self, owners: Mapping[str, OwnerInfo], lease: int, known: Callable[[str], bool]) -> None:
        """▲ Release segments owned under this broker's `lease` that are neither `known` nor given back: no other broker
        can claim them. Example: a claim that timed out has landed after all."""
        for path, owner in owners.items():
            if owner.lease != lease or owner.epoch <= self._released.get(path, 0) or known(path):
                continue
            if path not in self.to_release and path not in self.failed:
                log.warning("ownership_forgotten", segment=path, epoch=owner.epoch)
                self.to_release[path] = owner.epoch

    def unfit(self, deleting: Callable[[str], bool]) -> Collection[str]:
        """Segments that no broker can serve, or with nothing left to erase."""
        return dict.fromkeys((*self.erased, *(path for path in self.failed if not deleting(path))))

    def forget_topic(self, name: str) -> None:
        self.forget_pruned(name, ())

    def forget_pruned(self, name: str, left: Collection[str]) -> None:
        """Forget a topic's segments except those `left` in its layout."""
        known: tuple[dict[str, int] | dict[str, None] | dict[str, DataCorrupt], ...] = (
            self.erased,
            self.failed,
            self._released,
        )
        for table in known:
            for path in [path for path in table if topic_path_of(path) == name and path not in left]:
                del table[path]
