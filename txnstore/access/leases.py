"""Keeps a lease alive, and says how long it may be relied on (DESIGN §4: leases only speed up fail-over)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from txnstore.access.backend import Backend, Refused, Unanswered
from txnwire.errors import TxnError
from txnwire.ports import Clock
from txnwire.tasks import errand

MARGIN_SHARE: Final = 0.2
LONGEST_MARGIN_S: Final = 2.0
REVOKE_TIMEOUT_S: Final = 2.0
_RETRY_S: Final = 0.2

log = structlog.get_logger(__name__)


class KeptLease:
    """`txnstore.store.Lease`. Once it cannot be relied on it is lost for good, even if etcd still has it."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        lease_id: int,
        ttl_s: float,
        sent_at: float,
        *,
        on_end: Callable[[KeptLease], None],
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._id = lease_id
        self._on_end = on_end
        self._lost = asyncio.Event()
        self._ttl_s = ttl_s
        self._sent_at = sent_at
        self._good_until = 0.0
        self._renewed(ttl_s, sent_at)
        self._task = errand(self._keep(), name="lease")

    @property
    def id(self) -> int:
        return self._id

    @property
    def good_until(self) -> float:
        """Monotonic: the lease is lost then, unless it is renewed before."""
        return self._good_until

    def valid(self) -> bool:
        if not self._lost.is_set() and self._clock.monotonic() >= self._good_until:
            self._lose()
        return not self._lost.is_set()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def revoke(self) -> None:
        """See `Lease.revoke`. Never raises."""
        await self.abandon()
        try:
            async with asyncio.timeout(REVOKE_TIMEOUT_S):
                await self._backend.wait_ready()
                await self._backend.revoke(self._id)
        except (TimeoutError, Unanswered, Refused, TxnError) as error:
            log.warning("lease not revoked, it will expire", lease=f"{self._id:x}", error=str(error))

    async def abandon(self) -> None:
        """Stop keeping it alive; it then expires."""
        self._lose()
        self._task.cancel()
        await asyncio.wait([self._task])

    def _lose(self) -> None:
        self._lost.set()
        self._on_end(self)

    def _renewed(self, ttl_s: float, sent_at: float) -> None:
        """▲ Counted from the *sending* of the answered keep-alive: the store began to count later."""
        margin_s = min(ttl_s * MARGIN_SHARE, LONGEST_MARGIN_S)
        self._ttl_s, self._sent_at = ttl_s, sent_at
        self._good_until = sent_at + ttl_s - margin_s

    async def _keep(self) -> None:
        pause_s = self._ttl_s / 3
        try:
            while self.valid():
                await asyncio.sleep(min(pause_s, max(self._good_until - self._clock.monotonic(), 0.0)))
                if not self.valid():
                    return
                pause_s = await self._renew()
        finally:
            self._lose()  # ▲ also after a defect: waiters for its loss would rely on it for ever

    async def _renew(self) -> float:
        """Sends one keep-alive; returns seconds until the next."""
        try:
            async with asyncio.timeout(self._good_until - self._clock.monotonic()):
                # ▲ Not behind `wait_ready`: an etcd that answers no reads for a while still renews leases.
                sent_at = self._clock.monotonic()
                ttl_s = await self._backend.keep_alive(self._id)
        except TxnError as error:  # another store by now: its answer about this lease means nothing
            log.error("lease given up", lease=f"{self._id:x}", error=str(error))
            self._lose()
            return 0.0
        except (TimeoutError, Unanswered, Refused) as error:
            log.warning("lease not renewed, trying again", lease=f"{self._id:x}", error=str(error))
            return _RETRY_S
        if ttl_s <= 0:
            log.warning("lease is gone", lease=f"{self._id:x}")
            self._lose()
        elif self.valid():
            self._renewed(ttl_s, sent_at)
        return self._ttl_s / 3
