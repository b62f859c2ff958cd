"""No earlier sending of a write outlives the later one: what every request of group commit is sent under.

A request that went unanswered may be taken up by etcd at any time, also long after it was sent again and answered, and
after what it wrote has been deleted since. Where it compares "absent", or nothing but an epoch, the record would rise
from the dead: the cursor of a subscription deleted and made again, acks from before a seek, the op of a transaction
that is collected. So each request compares one key of its process, and ▲ before anything is sent again that key is put
anew: whatever was sent under the value before is refused from then on.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from txnstore import keys
from txnstore.access.backend import Backend, Reason, Refused, RequestFence, Unanswered
from txnwire.ports import Clock, Random

TTL_S: Final = 3600
"""Of the key's lease: a process that is gone leaves nothing."""
RENEW_S: Final = 900
"""▲ One that sends keeps it: at its quota etcd grants no lease and takes no put, but renews, so the fence stands when
commits, aborts and clean-up have to drain."""
RENEW_AGAIN_S: Final = 30
PAUSE_S: Final = 0.05

log = structlog.get_logger(__name__)


class SendingFence:
    """`/sender/<random id>`: its mod revision is what is compared. One per store client."""

    def __init__(self, backend: Backend, clock: Clock, random: Random) -> None:
        self._backend = backend
        self._clock = clock
        self._renew_at = 0.0
        self._key = keys.SENDER + f"{random.getrandbits(64):016x}".encode()
        self._revision = 0
        self._lease = 0
        self._raising = asyncio.Lock()

    async def under(self, *, dead: int = 0) -> RequestFence:
        """What to send under. ▲ Nothing that was sent under the revision `dead` can be applied any more once this
        returns. Raises `Refused`."""
        if self._lease and self._clock.monotonic() >= self._renew_at:
            await self._renew()
        while self._revision in (0, dead):
            await self._raise(self._revision)
        return RequestFence(self._key, self._revision)

    def found_down(self, fence: RequestFence) -> None:
        """A request under it was refused: raised since by another sender, or the key went with its lease."""
        if self._revision == fence.revision:
            self._revision = 0

    async def _renew(self) -> None:
        """By one of those that send, seldom: the others go on meanwhile."""
        self._renew_at = self._clock.monotonic() + RENEW_AGAIN_S
        try:
            if await self._backend.keep_alive(self._lease) > 0:
                self._renew_at += RENEW_S - RENEW_AGAIN_S
        except (Unanswered, Refused) as error:
            log.debug("lease of the sending fence not renewed", error=str(error))

    async def _raise(self, past: int) -> None:
        """Only we write the key, so if it is not as it was, an earlier try has landed (nothing was ever sent under that
        one), or the lease is over."""
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
