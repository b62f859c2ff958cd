"""Who owns which TCID: keys on a lease, taken whenever they are free. Source: DESIGN §9.

`/tc/<tcid>` is mine only if its *lease id* is mine; its create revision is the TCID epoch that every write for it
compares. Losing the lease therefore only means to stop acting: nothing acted upon later can do harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from coordinator_v5.settings import CoordinatorSettings
from txnstore import keys, records
from txnstore.records import Registration
from txnstore.store import EventKind, Lease, MetadataStore, RangeResult, WatchBatch
from txnstore.transitions import plan_take_tcid, read_take_verdict
from txnwire.errors import TxnError

log = structlog.get_logger()

RETRY_S = 0.5


class TcidOwnership:
    """`on_taken` gets TCID → epoch and is awaited; `on_lost` gets a TCID that is ours no longer."""

    def __init__(
        self,
        store: MetadataStore,
        settings: CoordinatorSettings,
        registration: Registration,
        *,
        on_taken: Callable[[dict[int, int]], Awaitable[None]],
        on_lost: Callable[[int], None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._registration = registration
        self._on_taken = on_taken
        self._on_lost = on_lost
        self._mine: dict[int, int] = {}
        self._lease: Lease | None = None
        self.settled = asyncio.Event()
        """Set once every TCID that was free at the start has been taken, or refused."""

    @property
    def registered(self) -> bool:
        """Whether its lease can be counted on: etcd has answered within its time."""
        return self._lease is not None and self._lease.valid()

    async def run(self) -> None:
        """Hold a lease and every free TCID, for ever; after a loss start anew."""
        while True:
            try:
                self._lease = await self._store.grant_lease(self._settings.lease_ttl_s)
                await self._hold(self._lease)
                log.warning("coordinator lease lost", tcids=len(self._mine))
            except TxnError as error:
                log.warning("coordinator ids not held", error=str(error))
            finally:
                self._drop_all()
            await self._give_up_lease()
            await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Free every TCID now, so that others need not wait for the lease to expire. `run` must have ended."""
        self._drop_all()
        await self._give_up_lease()

    async def _give_up_lease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.revoke()

    async def _hold(self, lease: Lease) -> None:
        """Returns when the lease is lost."""
        end = keys.prefix_end(keys.TC)
        present = await self._store.range(keys.TC, end)
        if await self._revoke_predecessor(present, lease):
            present = await self._store.range(keys.TC, end)
        held = {_tcid_of(record.key) for record in present.records}
        await self._take([tcid for tcid in range(self._settings.tcids) if tcid not in held], lease)
        self.settled.set()
        tasks = [
            asyncio.ensure_future(self._follow(lease, present.revision + 1)),
            asyncio.ensure_future(lease.wait_lost()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _revoke_predecessor(self, present: RangeResult, lease: Lease) -> bool:
        """A coordinator of our own id on another lease is a dead predecessor: do not wait for its lease to expire."""
        old = {
            record.lease: None
            for record in present.records
            if record.lease != lease.id
            and records.decode(Registration, record.value, key=record.key).id == self._registration.id
        }
        for lease_id in old:
            await self._store.revoke_lease(lease_id)
        return bool(old)

    async def _take(self, tcids: list[int], lease: Lease) -> None:
        epochs = await asyncio.gather(*(self._take_one(tcid, lease) for tcid in tcids))
        taken = {tcid: epoch for tcid, epoch in zip(tcids, epochs, strict=True) if epoch is not None}
        if taken:
            log.info("coordinator ids taken", tcids=sorted(taken))
            self._mine.update(taken)
            await self._on_taken(taken)

    async def _take_one(self, tcid: int, lease: Lease) -> int | None:
        result = await self._store.commit(plan_take_tcid(tcid, self._registration, lease.id))
        return read_take_verdict(result, lease.id)

    async def _follow(self, lease: Lease, from_revision: int) -> None:
        """Take what becomes free; notice what is taken from us."""
        watch = self._store.watch(keys.TC, keys.prefix_end(keys.TC), from_revision=from_revision)
        try:
            async for batch in watch:
                free = self._freed(batch)
                await self._take(free, lease)
        finally:
            await watch.close()

    def _freed(self, batch: WatchBatch) -> list[int]:
        """TCIDs that are free now; ours among them, and ours that are somebody else's, are lost first."""
        latest = {_tcid_of(event.record.key): event for event in batch.events}
        free = []
        for tcid in range(self._settings.tcids):
            event = latest.get(tcid)
            if event is None:
                gone = batch.resync
            elif event.kind is EventKind.DELETE:
                gone = event.record.mod_revision > self._mine.get(tcid, 0)
            else:
                gone = False
                if event.record.create_revision > self._mine.get(tcid, event.record.create_revision):
                    self._lose(tcid)
            if gone:
                self._lose(tcid)
                free.append(tcid)
        return free

    def _lose(self, tcid: int) -> None:
        if self._mine.pop(tcid, None) is not None:
            log.warning("coordinator id lost", tcid=tcid)
            self._on_lost(tcid)

    def _drop_all(self) -> None:
        mine, self._mine = self._mine, {}
        for tcid in sorted(mine):
            self._on_lost(tcid)


def _tcid_of(key: bytes) -> int:
    return int(key[len(keys.TC) :], 16)
