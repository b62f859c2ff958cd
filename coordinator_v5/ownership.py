"""TCID ownership: keys on a lease, shared out evenly among the coordinators. Source: DESIGN §9.

`/tc/<tcid>` is mine only if its *lease id* is mine; its create revision is the TCID epoch that every write for it
compares. After losing the lease a coordinator only has to stop acting: later writes fail their compare. Giving a TCID
up to another coordinator is the same: it decides nothing, and the clients of its open transactions announce them to the
new owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from coordinator_v5.balance import share
from coordinator_v5.settings import CoordinatorSettings
from txnstore import keys, records
from txnstore.former_selves import FormerSelves
from txnstore.records import RegistrationRecord
from txnstore.store import Event, EventKind, KeyValue, Lease, LeaseGone, MetadataStore, RangeResult, WatchBatch
from txnstore.writes.transitions import plan_give_up_tcid, plan_join, plan_take_tcid, read_take_verdict
from txnwire.errors import DataCorrupt, OutcomeUnknown, StoreFull, StoreUnavailable, TxnError
from txnwire.ids import MAX_TCID
from txnwire.tasks import all_of

log = structlog.get_logger()

RETRY_S = 0.5

_FIRST, _END = keys.TC_MEMBER, keys.prefix_end(keys.TC)
"""One range: the members, and the holders of TCIDs."""


class TcidOwnership:
    """Takes and holds TCIDs. `on_taken` gets TCID → epoch and is awaited; `on_lost` gets each lost TCID."""

    def __init__(
        self,
        store: MetadataStore,
        settings: CoordinatorSettings,
        registration: RegistrationRecord,
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
        self._losing: dict[int, None] = {}
        """Lost, but not yet passed to `on_lost`."""
        self._holders: dict[int, str] = {}
        """The holder of each TCID, as last heard of."""
        self._members: dict[str, None] = {}
        self._lease: Lease | None = None
        self._former_selves = FormerSelves()
        self.namesake: str | None = None
        """The address of another process of this name that holds leases; this process waits for it."""
        self._changed = asyncio.Event()
        """A coordinator has come or gone, or an id has another holder: what others gave up meanwhile changes our share.
        """
        self._taking = asyncio.Lock()
        self._refused = asyncio.Event()
        """An id of our share could not be taken."""
        self.settled = asyncio.Event()
        """Set once this coordinator's share of the TCIDs free at the start has been taken, or refused."""

    @property
    def registered(self) -> bool:
        """Whether its lease is valid: etcd has answered in time."""
        return self._lease is not None and self._lease.valid()

    async def run(self) -> None:
        """Hold a lease and this coordinator's share of the TCIDs, for ever; start again after a loss."""
        while True:
            try:
                await self._wait_name_free()
                self._lease = await self._store.grant_lease(self._settings.lease_ttl_s)
                self._former_selves.granted(self._lease.id)
                await self._hold(self._lease)
                log.warning("coordinator lease lost", tcids=len(self._mine))
            except TxnError as error:
                log.warning("coordinator ids not held", error=str(error))
            finally:
                await self._drop_all()
            await self._give_up_lease()
            await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Free every TCID now, so that others need not wait for the lease to expire. `run` must have ended."""
        await self._drop_all()
        await self._give_up_lease()

    async def _give_up_lease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.revoke()

    async def _hold(self, lease: Lease) -> None:
        """Returns when the lease is lost."""
        present = await self._store.range(_FIRST, _END)
        # Join first: others that see the keys of a predecessor with this id then know it is back, and leave it its
        # share.
        if not await self._join(present, lease):
            return
        if await self._revoke_predecessors(present, lease):
            present = await self._store.range(_FIRST, _END)
        self._learn(present.records)
        await self._take_share(lease)
        self.settled.set()
        tasks = [
            asyncio.ensure_future(self._follow(lease, present.revision + 1)),
            asyncio.ensure_future(self._take_refused(lease)),
            asyncio.ensure_future(self._give_up_excess(lease)),
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

    async def _wait_name_free(self) -> None:
        """▲ Wait while a lease under this name is neither older than this process nor its own: a namesake is waited
        for, never ousted (`txnstore.former_selves`)."""
        while True:
            held = self._under_this_name((await self._store.range(_FIRST, _END)).records)
            self._former_selves.found(held)
            others = [address for lease, address in held.items() if not self._former_selves.may_end(lease)]
            self.namesake = others[0] if others else None
            if not others:
                return
            log.warning("coordinator name is taken", name=self._registration.id, by=others)
            await asyncio.sleep(RETRY_S)

    async def _join(self, present: RangeResult, lease: Lease) -> bool:
        """False if a namesake has come meanwhile."""
        key = keys.tc_member(self._registration.id)
        found = next((record for record in present.records if record.key == key), None)
        if found is not None and found.lease and not self._former_selves.may_end(found.lease):
            return False
        result = await self._store.commit(plan_join(self._registration, lease.id, found))
        return result.succeeded or any(record.lease == lease.id for record in result.reads[0])

    async def _revoke_predecessors(self, present: RangeResult, lease: Lease) -> bool:
        """A coordinator of our own id from before this process is dead: do not wait for its lease to expire."""
        held = self._under_this_name(present.records)
        old = [one for one in held if one != lease.id and self._former_selves.may_end(one)]
        for lease_id in old:
            await self._store.revoke_lease(lease_id)
        return bool(old)

    def _under_this_name(self, present: Iterable[KeyValue]) -> dict[int, str]:
        """Leases that hold keys under this id, with the registered address."""
        registered = ((record.lease, _registered(record)) for record in present if record.lease)
        mine = self._registration.id
        return {lease: one.address for lease, one in registered if one is not None and one.id == mine}

    def _learn(self, present: Iterable[KeyValue]) -> None:
        """Learn all members and holders, at one revision."""
        self._holders.clear()
        self._members = {self._registration.id: None}
        for record in present:
            if not record.key.startswith(keys.TC):
                self._seen(record)
            elif (tcid := _tcid_of(record.key)) is not None:
                self._holders[tcid] = _holder(record)
        self._changed.set()

    def _seen(self, member: KeyValue) -> None:
        if (registered := _registered(member)) is not None:
            self._members[registered.id] = None

    # ---- taking ----

    async def _take_share(self, lease: Lease) -> None:
        """Take the free ids of our share."""
        async with self._taking:
            mine, tcids = self._registration.id, self._settings.tcids
            wanted = share(tcids, list(self._members), self._holders, mine).take
            if wanted:
                await self._take(wanted, lease)

    async def _take_or_wait(self, lease: Lease) -> None:
        """As `_take_share`, but tries again later if etcd is full or silent. ▲ Keep the ids and the lease: a full etcd
        grants no new lease, and this coordinator can still answer how a transaction ended."""
        try:
            await self._take_share(lease)
        except LeaseGone:
            raise
        except (StoreFull, StoreUnavailable, OutcomeUnknown) as error:
            log.warning("free coordinator ids not taken, trying again", error=str(error))
            self._refused.set()

    async def _take_refused(self, lease: Lease) -> None:
        while True:
            await self._refused.wait()
            self._refused.clear()
            await asyncio.sleep(RETRY_S)
            await self._take_or_wait(lease)

    async def _take(self, tcids: list[int], lease: Lease) -> None:
        results = await all_of(self._take_one(tcid, lease) for tcid in tcids)
        taken = {tcid: epoch for tcid, epoch in zip(tcids, results, strict=True) if epoch is not None}
        if taken:
            log.info("coordinator ids taken", tcids=sorted(taken))
            self._mine.update(taken)
            await self._on_taken(taken)

    async def _take_one(self, tcid: int, lease: Lease) -> int | None:
        result = await self._store.commit(plan_take_tcid(tcid, self._registration, lease.id))
        epoch = read_take_verdict(result, lease.id)
        if epoch is not None:
            self._holders[tcid] = self._registration.id
        return epoch

    async def _follow(self, lease: Lease, from_revision: int) -> None:
        """Take TCIDs that become free; notice lost ones, and members that come and go."""
        watch = self._store.watch(_FIRST, _END, from_revision=from_revision)
        try:
            async for batch in watch:
                await self.heard(batch)
                await self._give_back(batch, lease)
                await self._take_or_wait(lease)
        finally:
            await watch.close()

    async def heard(self, batch: WatchBatch) -> None:
        """Returns once `on_lost` has been called for every loss in the batch."""
        self._take_in(batch)
        await self._tell_lost()

    def _take_in(self, batch: WatchBatch) -> None:
        self._changed.set()
        if batch.resync:
            self._learn(event.record for event in batch.events)
            for tcid, taken_at in sorted(self._mine.items()):
                # ▲ Ignore a listing from before our own taking: if we dropped the id, it would stay ours in the store,
                # on a live lease, and no coordinator would serve it.
                if taken_at > batch.revision:
                    self._holders[tcid] = self._registration.id
                elif self._holders.get(tcid) != self._registration.id:
                    self._lose(tcid)
        for event in batch.events:
            if event.record.key.startswith(keys.TC):
                if (named := _tcid_of(event.record.key)) is not None:
                    self._heard_of_tcid(named, event)
            elif event.kind is EventKind.DELETE:
                self._members.pop(event.record.key[len(keys.TC_MEMBER) :].decode(errors="replace"), None)
            else:
                self._seen(event.record)

    def _heard_of_tcid(self, tcid: int, event: Event) -> None:
        """▲ Ignore an event older than our own taking: it describes an earlier holder."""
        taken_at, record = self._mine.get(tcid, 0), event.record
        if event.kind is EventKind.DELETE:
            if record.mod_revision > taken_at:
                self._holders.pop(tcid, None)
                self._lose(tcid)
        elif record.create_revision >= taken_at:
            self._holders[tcid] = _holder(record)
            if taken_at and record.create_revision > taken_at:
                self._lose(tcid)

    # ---- giving up ----

    async def _give_back(self, batch: WatchBatch, lease: Lease) -> None:
        """▲ Free an id that is on our lease but not served here: no other coordinator can take it during the lease."""
        for event in batch.events:
            record = event.record
            if event.kind is EventKind.PUT and record.key.startswith(keys.TC) and record.lease == lease.id:
                tcid = _tcid_of(record.key)
                if tcid is not None and tcid not in self._mine and self._holders.get(tcid) == self._registration.id:
                    await self._taken_or_free(tcid, record.create_revision, lease)

    async def _taken_or_free(self, tcid: int, epoch: int, lease: Lease) -> None:
        """▲ Not while ids are being taken: etcd may tell the watch of a taking before it answers it."""
        async with self._taking:
            if tcid not in self._mine:
                log.warning("coordinator id not served is given up", tcid=tcid)
                await self._free(tcid, epoch, lease)

    async def _give_up_excess(self, lease: Lease) -> None:
        """Once nothing has changed for a while, leave the excess over our share to others."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await asyncio.sleep(self._settings.balance_after_s)
            if not self._changed.is_set():
                await self._give_up_now(lease)

    async def _give_up_now(self, lease: Lease) -> None:
        if not self._excess() or not lease.valid():
            return
        if not await self._others_can_take(lease):
            self._changed.set()
            return
        given = self._excess()
        if not given or not lease.valid():
            return
        log.info("coordinator ids given up", tcids=sorted(given), coordinators=sorted(self._members))
        for tcid in given:
            del self._mine[tcid]
            self._losing[tcid] = None
        # ▲ Stop its begins first; those in flight compare its epoch, and land before it is free or never.
        await self._tell_lost()
        await all_of(self._free(tcid, epoch, lease) for tcid, epoch in given.items())

    async def _free(self, tcid: int, epoch: int, lease: Lease) -> None:
        """▲ Repeats while the lease is valid: raising the error would give up the lease, and all other ids with it."""
        while lease.valid():
            try:
                await self._store.commit(plan_give_up_tcid(tcid, epoch))
            except (StoreFull, StoreUnavailable, OutcomeUnknown) as error:
                log.warning("coordinator id not freed, trying again", tcid=tcid, error=str(error))
                await asyncio.sleep(RETRY_S)
            else:
                return

    def _excess(self) -> dict[int, int]:
        tcids = share(self._settings.tcids, list(self._members), self._holders, self._registration.id).give_up
        return {tcid: self._mine[tcid] for tcid in tcids if tcid in self._mine}

    async def _others_can_take(self, lease: Lease) -> bool:
        """Whether etcd takes a write; rewrites our own record to find out. ▲ A full etcd lets ids be given up, but none
        be taken: they would stay without an owner, and their uncollected records would keep etcd full."""
        try:
            found = await self._store.get(keys.tc_member(self._registration.id))
            if found is None or found.lease != lease.id:
                return False
            await self._store.commit(plan_join(self._registration, lease.id, found))
        except LeaseGone:
            raise
        except (StoreFull, StoreUnavailable, OutcomeUnknown) as error:
            log.warning("coordinator ids not given up, trying again", error=str(error))
            return False
        return True

    def _lose(self, tcid: int) -> None:
        if self._mine.pop(tcid, None) is not None:
            log.warning("coordinator id lost", tcid=tcid)
            self._losing[tcid] = None

    async def _tell_lost(self) -> None:
        """Call `on_lost` for one id after the other, with a yield in between: each may have thousands of open
        transactions.

        ▲ Until then this process still acts for a lost id: that is harmless, as with a loss it does not know yet. All
        calls come before anything is taken, or an id that comes back would be dropped again."""
        while self._losing:
            tcid = next(iter(self._losing))
            del self._losing[tcid]
            self._on_lost(tcid)
            await asyncio.sleep(0)

    async def _drop_all(self) -> None:
        self._losing |= dict.fromkeys(sorted(self._mine))
        self._mine.clear()
        await self._tell_lost()


def _registered(record: KeyValue) -> RegistrationRecord | None:
    """None if the record is not readable as ours: ▲ it must not keep us from holding other ids."""
    try:
        return records.decode(RegistrationRecord, record.value, key=record.key)
    except DataCorrupt as error:
        log.error("unreadable registration left alone", error=str(error))
        return None


def _holder(record: KeyValue) -> str:
    """Empty if unreadable: the id is not free, and its holder is unknown."""
    registered = _registered(record)
    return "" if registered is None else registered.id


def _tcid_of(key: bytes) -> int | None:
    """None for a key that we did not write."""
    text = key[len(keys.TC) :]
    try:
        tcid = int(text, 16)
    except ValueError:
        tcid = -1
    if not 0 <= tcid <= MAX_TCID or keys.tc(tcid) != key:
        log.error("unreadable key of a coordinator id left alone", key=repr(key))
        return None
    return tcid
