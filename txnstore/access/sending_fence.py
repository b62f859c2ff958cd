"""The fence that every request of group commit is sent under: no earlier sending of a write lands after a later one.

etcd may apply an unanswered request at any time: after it was sent again and answered, even after its record has been
deleted since. If it compares "absent", or only an epoch, the record would come back: the cursor of a subscription
deleted and made again, acks from before a seek, the op of a collected transaction. So each request compares one key of
its process, and ▲ before a request is repeated that key is put again: etcd then refuses every request sent under the
former value.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from txnstore import keys
from txnstore.access.backend import Backend, Reason, Refused, RequestFence, Unanswered
from txnwire.ports import Clock, Random

TTL_S: Final = 3600
"""TTL of the key's lease: a process that has ended leaves nothing."""
RENEW_S: Final = 900
"""▲ A sending process keeps its lease: at its quota etcd grants no lease and takes no put, but renews, so the fence
holds while commits, aborts and clean-up drain."""
RENEW_AGAIN_S: Final = 30
PAUSE_S: Final = 0.05

log = structlog.get_logger(__name__)


class SendingFence:
    """`/sender/<random id>`: requests compare its mod revision. One per store client."""

    def __init__(self, backend: Backend, clock: Clock, random: Random) -> None:
        self._backend = backend
        self._clock = clock
        self._renew_at = 0.0
        self._key = keys.SENDER + f"{random.getrandbits(64):016x}".encode()
        self._revision = 0
        self._lease = 0
        self._raising = asyncio.Lock()

    async def under(self, *, dead: int = 0) -> RequestFence:
        """The fence for the next sending. ▲ Once this returns, etcd applies no further request sent under the revision
        `dead`. Raises `Refused`."""
        if self._lease and self._clock.monotonic() >= self._renew_at:
            await self._renew()
        while self._revision in (0, dead):
            await self._raise(self._revision)
        return RequestFence(self._key, self._revision)

    def found_down(self, fence: RequestFence) -> None:
        """A request under it was refused: another sender has raised it since, or the key went with its lease."""
        if self._revision == fence.revision:
            self._revision = 0

    async def _renew(self) -> None:
        """One sender renews, rarely; the others continue meanwhile."""
        self._renew_at = self._clock.monotonic() + RENEW_AGAIN_S
        try:
            if await self._backend.keep_alive(self._lease) > 0:
                self._renew_at += RENEW_S - RENEW_AGAIN_S
        except (Unanswered, Refused) as error:
            log.debug("lease of the sending fence not renewed", error=str(error))

    async def _raise(self, past: int) -> None:
        """Only we write the key. If its revision differs, an earlier try has landed (no request was sent under that
        revision), or the lease is over."""
        async with self._raising:
            while self._revision == past:
                await self._backend.wait_ready()
                try:
                    if not self._lease:
                        self._lease, _ = await self._backend.grant(TTL_S)
                        self._renew_at = self._clock.monotonic() + RENEW_S
                    self._revision = await self._backend.raise_fence(RequestFence(self._key, past), self._lease)
                except Unanswered:
                    await asyncio.sleep(PAUSE_S)
                except Refused as refusal:
                    if refusal.reason is not Reason.LEASE_GONE:
                        raise
                    self._lease = 0
