"""Elections on lease keys, `/leader/<what>` (DESIGN §4, §9): one holder at a time, told apart by the epoch.

The epoch is the key's create revision. The lease only speeds up fail-over; ▲ safety is `Leadership.still_held`, which
the holder puts into every write of its role, so that a paused holder with a successor can change nothing.
"""

from __future__ import annotations

import asyncio

import structlog

from txnstore import keys
from txnstore.former_selves import FormerSelves
from txnstore.records import RegistrationRecord, decode, encode
from txnstore.store import Commit, Compare, EventKind, KeyValue, Lease, MetadataStore, Put, Read, absent, created_at
from txnwire.errors import TxnError
from txnwire.ports import Random

log = structlog.get_logger(__name__)

_RETRY_S = (0.1, 0.5)


class Leadership:
    """One term of one holder; it ends with the lease or the key."""

    def __init__(self, store: MetadataStore, key: bytes, epoch: int, lease: Lease) -> None:
        self.key = key
        self.epoch = epoch
        self._store = store
        self._lease = lease

    @property
    def lease_id(self) -> int:
        return self._lease.id

    def still_held(self) -> Compare:
        """▲ The compare that belongs in every write of the role (DESIGN §4: a lease proves nothing, a compare does)."""
        return created_at(self.key, self.epoch)

    def valid(self) -> bool:
        """Whether the lease surely has not expired: enough to answer from memory, never to write."""
        return self._lease.valid()

    async def wait_lost(self) -> None:
        """Return once the lease cannot be relied on any more, or the key has been deleted or replaced."""
        waits = [asyncio.create_task(self._lease.wait_lost()), asyncio.create_task(self._wait_key_changed())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _wait_key_changed(self) -> None:
        watch = self._store.watch(self.key, self.key + b"\0", from_revision=self.epoch + 1)
        try:
            async for batch in watch:
                if not any(e.kind is EventKind.PUT and e.record.create_revision == self.epoch for e in batch.events):
                    return
        finally:
            await watch.close()

    async def resign(self) -> None:
        """Give the key up at once, so that a successor need not wait for the lease to expire. Never raises."""
        await self._lease.revoke()


class Election:
    """One process's candidacy for `/leader/<what>`; call `campaign` again after each term."""

    def __init__(
        self, store: MetadataStore, random: Random, *, what: str, id: str, address: str, lease_ttl_s: float
    ) -> None:
        self._store = store
        self._random = random
        self._key = keys.leader(what)
        self._registration = RegistrationRecord(id=id, address=address)
        self._lease_ttl_s = lease_ttl_s
        self._former_selves = FormerSelves()

    async def campaign(self) -> Leadership:
        """Wait until elected, despite errors of the store. Cancel-safe: a cancelled campaign leaves no key behind."""
        while True:
            try:
                if (leadership := await self._try()) is not None:
                    return leadership
            except TxnError as error:  # a candidate never gives up: any fault of the store may be repaired
                log.warning("election_retry", key=self._key.decode(), error=str(error))
                await asyncio.sleep(self._random.uniform(*_RETRY_S))

    async def _try(self) -> Leadership | None:
        holder = await self._store.get(self._key)
        if holder is None:
            self._former_selves.found([])
            return await self._claim()
        if self._is_former_self(holder):
            log.info("election_revoking_former_self", key=self._key.decode(), lease=holder.lease)
            await self._store.revoke_lease(holder.lease)
        else:
            await self._wait_vacant(holder.mod_revision)
        return None

    def _is_former_self(self, holder: KeyValue) -> bool:
        """Whether this id's previous process left the key, or an earlier term of this process that ended without an
        answer.
        """
        mine = decode(RegistrationRecord, holder.value, key=holder.key).id == self._registration.id
        self._former_selves.found([holder.lease] if mine and holder.lease else [])
        return self._former_selves.may_end(holder.lease)

    async def _claim(self) -> Leadership | None:
        lease = await self._store.grant_lease(self._lease_ttl_s)
        self._former_selves.granted(lease.id)
        put = Put(self._key, encode(self._registration), lease.id)
        try:
            commit = Commit((absent(self._key),), (put,), else_reads=(Read(self._key),))
            result = await self._store.commit(commit)
        except BaseException:
            # The put may still land; etcd refuses it on a revoked lease, so that no key outlives its candidate.
            await lease.revoke()
            raise
        if result.succeeded:
            return Leadership(self._store, self._key, result.revision, lease)
        for holder in result.reads[0]:
            if holder.lease == lease.id:  # an unanswered first sending of this very claim
                return Leadership(self._store, self._key, holder.create_revision, lease)
        await lease.revoke()
        return None

    async def _wait_vacant(self, seen_revision: int) -> None:
        watch = self._store.watch(self._key, self._key + b"\0", from_revision=seen_revision + 1)
        try:
            async for batch in watch:
                if not batch.events or batch.events[-1].kind is EventKind.DELETE:
                    return
        finally:
            await watch.close()
