"""Watches the disk: below a watermark of free bytes a broker admits no entries, but does everything else.

    admitted ──free < watermark, or that much was admitted──► full: sends get `StoreFull`; reading, acks, commits,
        ▲                                                       take-overs, retention and deletion go on
        └──────────── a quarter of the watermark more is free ◄─────────┘

The space below the watermark, and a reserve file that is given up on a full disk, serve closing, fencing, opening and
trimming (`segments.ledger.ledger_reserve`). Each broker of a folder checks the disk itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from segments.ledger.ledger import LedgerFailed, LedgerStore
from txnwire.errors import StoreFull
from txnwire.tasks import restarted

log = structlog.get_logger(__name__)

LOOK_S: Final = 1.0
CLOSE_LOOK_S: Final = 0.1
EXHAUSTED_BYTES: Final = 256 * 1024
LEAST_SHARE: Final = 20
"""The watermark is at most 1 / `LEAST_SHARE` of the whole disk, so that small disks are usable too."""


def watermark_of(min_free_bytes: int, total_bytes: int) -> int:
    return min(min_free_bytes, total_bytes // LEAST_SHARE)


class FreeSpace:
    """Refuses a broker's entries once a check finds the disk full. `in_flight`: bytes admitted but not yet written."""

    def __init__(self, ledgers: LedgerStore, *, min_free_bytes: int, in_flight: Callable[[], int]) -> None:
        self._ledgers = ledgers
        self._min_free_bytes = min_free_bytes
        self._in_flight = in_flight
        self._left: int | None = None
        """Bytes that may be admitted before the next check; None if the store has no bound."""
        self._full = False
        self._look_now = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.free_bytes: int | None = None
        self.watermark = 0

    @property
    def full(self) -> bool:
        return self._full

    @property
    def exhausted(self) -> bool:
        """Whether there is no room even to roll a ledger: a broker that tries loses the open one."""
        return self.free_bytes is not None and self.free_bytes < EXHAUSTED_BYTES

    def why_full(self) -> str:
        return (
            f"the disk of the ledgers has {self.free_bytes} bytes free, less than {self.watermark} (min_free_bytes), "
            "so the broker refuses writes: make room, or shorten a retention; reading and deleting still work"
        )

    def check(self) -> None:
        """Raises `StoreFull`. ▲ Call it before recording anything of an entry: then it was definitely not stored."""
        if self._full:
            raise StoreFull(self.why_full())

    def take(self, size: int) -> None:
        """Count an admitted entry of `size` bytes."""
        if self._left is not None:
            self._left -= size
            if self._left < 0 and not self._full:
                self._full = True
                self._look_now.set()

    def look(self) -> None:
        """Check the disk soon, because a write has failed."""
        self._look_now.set()

    async def start(self) -> None:
        await self._sample()
        self._task = restarted(self._run, name="room on the disk")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._look_now.wait()
            except TimeoutError:
                pass  # the regular check
            self._look_now.clear()
            await self._sample()
            await asyncio.sleep(CLOSE_LOOK_S)  # however many writes fail

    def _pause_s(self) -> float:
        close = self.free_bytes is not None and self.free_bytes < 2 * self.watermark
        return CLOSE_LOOK_S if close else LOOK_S

    async def _sample(self) -> None:
        try:
            room = await self._ledgers.room()
        except LedgerFailed as error:
            log.warning("disk_not_looked_at", error=str(error))
            return
        if room is None:
            return
        self.free_bytes, self.watermark = room.free_bytes, watermark_of(self._min_free_bytes, room.total_bytes)
        self._left = room.free_bytes - self.watermark - self._in_flight()
        # A quarter more: with a single bound the state would change with every deleted ledger.
        bound = self.watermark + (self.watermark // 4 if self._full else 0)
        full = room.free_bytes < bound or self._left < 0
        if full != self._full:
            log.warning("disk_full" if full else "disk_has_room", free=room.free_bytes, watermark=self.watermark)
        self._full = full
        if not full:
            await self._keep_reserve()

    async def _keep_reserve(self) -> None:
        try:
            await self._ledgers.keep_reserve(self.watermark // 4)
        except LedgerFailed as error:
            log.warning("reserve_not_kept", error=str(error))
