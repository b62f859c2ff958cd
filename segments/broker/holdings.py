"""Which ownership epochs a broker has to give back, and has given back; which segments it cannot serve at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import structlog

from segments.broker.ownership import BrokerSession
from segments.layout.directory import OwnerInfo, topic_path_of
from txnwire.errors import DataCorrupt

log = structlog.get_logger(__name__)


class Holdings:
    """`to_release`: segments → epochs under which this broker owns what it cannot serve under them any more; `failed`:
    segments whose recovery ended in corrupt data; `erased`: those of topics that are being deleted, with nothing left.
    """

    def __init__(self) -> None:
        self.to_release: dict[str, int] = {}
        self.failed: dict[str, DataCorrupt] = {}
        self.erased: dict[str, None] = {}
        self._released: dict[str, int] = {}
        """The last epoch of each segment that was given back."""

    async def release(self, registration: BrokerSession, path: str) -> None:
        """Give a segment of `to_release` back, if it is one. Raises `StoreUnavailable`, `OutcomeUnknown`."""
        if (stale := self.to_release.get(path)) is not None:
            await registration.release(path, stale)
            self.ended(path, stale)
            self.to_release.pop(path, None)

    def ended(self, path: str, epoch: int) -> None:
        self._released[path] = max(epoch, self._released.get(path, 0))

    def find_forgotten(self, owners: Mapping[str, OwnerInfo], lease: int, known: Callable[[str], bool]) -> None:
        """▲ What stands under this broker's `lease` is its own, and nobody else can serve it: a claim whose time ran
        out has landed after all, say. What is neither `known` nor given back is released, and may be claimed anew."""
        for path, owner in owners.items():
            if owner.lease != lease or owner.epoch <= self._released.get(path, 0) or known(path):
                continue
            if path not in self.to_release and path not in self.failed:
                log.warning("ownership_forgotten", segment=path, epoch=owner.epoch)
                self.to_release[path] = owner.epoch

    def unfit(self, deleting: Callable[[str], bool]) -> Collection[str]:
        """What nobody can serve, or has nothing left that could be erased."""
        return dict.fromkeys((*self.erased, *(path for path in self.failed if not deleting(path))))

    def forget_topic(self, name: str) -> None:
        self.forget_pruned(name, ())

    def forget_pruned(self, name: str, left: Collection[str]) -> None:
        """Of a topic's segments, all but those that are left in its layout."""
        known: tuple[dict[str, int] | dict[str, None] | dict[str, DataCorrupt], ...] = (
            self.erased,
            self.failed,
            self._released,
        )
        for table in known:
            for path in [path for path in table if topic_path_of(path) == name and path not in left]:
                del table[path]
