"""▲ The soft limit below etcd's quota: above it new work is refused, so that open work can be ended (DESIGN §4)."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from txnstore.access.backend import Backend, Refused, StoreStatus, Unanswered
from txnwire.tasks import restarted

SOFT_LIMIT_SHARE: Final = 0.75
FILE_LIMIT_SHARE: Final = 0.9
POLL_S: Final = 1.0
CLOSE_SHARE: Final = 0.5
CLOSE_POLL_S: Final = 0.1

log = structlog.get_logger(__name__)


class SoftLimit:
    """Samples etcd's size from the first call of `exceeded` on."""

    def __init__(self, backend: Backend, quota_bytes: int) -> None:
        self._backend = backend
        self._quota_bytes = quota_bytes
        self._task: asyncio.Task[None] | None = None
        self._status: StoreStatus | None = None
        self._exceeded = False

    def exceeded(self) -> bool:
        """Whether the last sample was above the limit; False before the first."""
        if self._task is None:
            self._task = restarted(self._sample, name="soft limit")
        return self._exceeded

    def message(self) -> str:
        status = self._status
        used = "" if status is None else f"{status.db_bytes_in_use} bytes in use, file {status.db_bytes}, "
        return (
            f"etcd is above {SOFT_LIMIT_SHARE:.0%} of its quota in use, or its file above {FILE_LIMIT_SHARE:.0%} "
            f"({used}quota {self._quota_bytes}): try again later"
        )

    def observe(self, status: StoreStatus) -> None:
        self._status = status
        self._quota_bytes = status.quota_bytes or self._quota_bytes
        exceeded = is_exceeded(status, self._quota_bytes)
        if exceeded != self._exceeded:
            log.warning("etcd soft limit", exceeded=exceeded, in_use=status.db_bytes_in_use, quota=self._quota_bytes)
        self._exceeded = exceeded

    @property
    def quota_bytes(self) -> int:
        return self._quota_bytes

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _sample(self) -> None:
        while True:
            try:
                await self._backend.wait_ready()
                self.observe(await self._backend.status())
            except (Unanswered, Refused) as error:
                log.debug("etcd status not sampled", error=str(error))
            await asyncio.sleep(self._pause_s())

    def _pause_s(self) -> float:
        """▲ Sample more often close to the limit: etcd does not count operations nested in a transaction towards its
        quota (3.4 and 3.5, `costTxn`), so this is the only limit for grouped writes."""
        status = self._status
        close = status is not None and status.db_bytes >= CLOSE_SHARE * self._quota_bytes
        return CLOSE_POLL_S if close else POLL_S


def is_exceeded(status: StoreStatus, quota_bytes: int) -> bool:
    """etcd measures its quota by the file, free pages included: a file that is almost full counts too, even if little
    of it is in use (until it has been defragmented)."""
    in_use, file = status.db_bytes_in_use, status.db_bytes
    return status.no_space or in_use >= SOFT_LIMIT_SHARE * quota_bytes or file >= FILE_LIMIT_SHARE * quota_bytes
