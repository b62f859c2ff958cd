"""Which segments are this broker's: its registration on a lease and its claims (DESIGN §7, "Ownership").

`/owner/<segment>` is taken by create-if-absent on the broker's lease. Its create revision is the ownership epoch, which
every etcd write for the segment compares; the lease only speeds up fail-over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from txnstore import keys, records
from txnstore.former_selves import FormerSelves
from txnstore.records import BrokerRegistration, OwnerRecord
from txnstore.store import (
    Commit,
    CommitVerdict,
    Delete,
    KeyValue,
    Lease,
    MetadataStore,
    Put,
    Read,
    absent,
    created_at,
    unchanged_since,
)
from txnwire.errors import NotOwner, StoreUnavailable, TxnError

log = structlog.get_logger(__name__)

_REGISTER_RETRY_S = 0.2
_LEAVE_TIMEOUT_S = 1.0


class BrokerSession:
    """One broker id on one lease. `register` again with a new object once `wait_lost` has returned."""

    def __init__(self, store: MetadataStore, broker_id: str, address: str, lease: Lease, revision: int) -> None:
        self._store = store
        self._broker_id = broker_id
        self._address = address
        self._lease = lease
        self._value = records.encode(OwnerRecord(broker=broker_id, address=address))
        self.revision = revision

    @staticmethod
    async def register(
        store: MetadataStore,
        *,
        broker_id: str,
        address: str,
        lease_ttl_s: float,
        former_selves: FormerSelves,
        namesake: Callable[[str | None], None] = lambda _: None,
    ) -> BrokerSession:
        """Take `/broker/<id>`. Raises `StoreUnavailable`.

        A predecessor's lease is revoked first, its keys with it: a restarted broker does not wait for its own time to
        live to pass. ▲ A living namesake is waited for and never ousted: `former_selves` tells them apart, one for all
        registrations of a process; `namesake` is told its address, None once it is gone.
        """
        key = keys.broker(broker_id)
        value = records.encode(BrokerRegistration(id=broker_id, address=address))
        while True:
            earlier = await store.get(key)
            former_selves.found([earlier.lease] if earlier is not None and earlier.lease else [])
            if earlier is not None and earlier.lease and not former_selves.may_end(earlier.lease):
                other = records.decode(BrokerRegistration, earlier.value, key=key).address
                namesake(other)
                log.warning("broker_name_is_taken", broker=broker_id, by=other, retry_s=_REGISTER_RETRY_S)
                await asyncio.sleep(_REGISTER_RETRY_S)
                continue
            namesake(None)
            if earlier is not None and earlier.lease:
                log.info("broker_revoking_former_self", broker=broker_id, lease=f"{earlier.lease:x}")
                await store.revoke_lease(earlier.lease)
            lease = await store.grant_lease(lease_ttl_s)
            former_selves.granted(lease.id)
            commit = Commit(compares=(absent(key),), puts=(Put(key, value, lease.id),), else_reads=(Read(key),))
            try:
                revision = _mine(await store.commit(commit), lease)
            except BaseException:
                await lease.revoke()  # the put may still land: then its key goes with the lease
                raise
            if revision is not None:
                return BrokerSession(store, broker_id, address, lease, revision)
            log.warning("broker_id_taken", broker=broker_id, retry_s=_REGISTER_RETRY_S)
            await lease.revoke()
            await asyncio.sleep(_REGISTER_RETRY_S)

    @property
    def lease_id(self) -> int:
        """On which `/owner` records are this broker's, and nobody else's."""
        return self._lease.id

    def valid(self) -> bool:
        """Whether the lease surely has not expired; nothing is acked without it."""
        return self._lease.valid()

    async def wait_lost(self) -> None:
        await self._lease.wait_lost()

    async def claim(self, segment: str, *, topic: KeyValue | None = None) -> int | None:
        """The ownership epoch, or None where somebody else owns it. Raises `StoreUnavailable`, `StoreFull`.

        `topic`: its topic's record. ▲ Compared as unchanged, so that nobody who has not heard of a deletion owns, and
        writes records of, a segment that is erased or gone; None then too.
        """
        key = keys.owner(segment)
        unchanged = () if topic is None else (unchanged_since(topic.key, topic.mod_revision),)
        commit = Commit(
            compares=(absent(key), created_at(keys.broker(self._broker_id), self.revision), *unchanged),
            puts=(Put(key, self._value, self._lease.id),),
            else_reads=(Read(key),),
        )
        return _mine(await self._store.commit(commit), self._lease)

    async def release(self, segment: str, epoch: int) -> None:
        """Give the segment up, so that another may claim it at once. Raises `StoreUnavailable`."""
        key = keys.owner(segment)
        await self._store.commit(Commit(compares=(created_at(key, epoch),), deletes=(Delete(key),)))

    async def leave(self) -> None:
        """Tell the others that they are to claim what is released from now on, and nothing is to come here.

        The record stays, and with it the lease's name: who is started again under this id meanwhile finds it. Gives up
        quietly if the store cannot be reached: then the others wait for the lease to end."""
        key = keys.broker(self._broker_id)
        value = records.encode(BrokerRegistration(id=self._broker_id, address=self._address, leaving=True))
        commit = Commit(compares=(created_at(key, self.revision),), puts=(Put(key, value, self._lease.id),))
        try:
            await self._store.commit(commit, timeout_s=_LEAVE_TIMEOUT_S)
        except TxnError as error:
            log.warning("leaving_not_told", broker=self._broker_id, error=str(error))

    async def check(self, segment: str, epoch: int) -> None:
        """Raises `NotOwner` if the segment is not ours under this epoch any more, `StoreUnavailable`."""
        found = await self._store.get(keys.owner(segment))
        if found is None or found.create_revision != epoch or found.lease != self._lease.id:
            raise NotOwner(f"{segment}: ownership epoch {epoch} is over, look up the owner again")

    async def close(self) -> None:
        """End the lease and every key on it. Gives up quietly if the store cannot be reached."""
        try:
            await self._lease.revoke()
        except StoreUnavailable as error:
            log.warning("lease_not_revoked", broker=self._broker_id, error=str(error))


def _mine(result: CommitVerdict, lease: Lease) -> int | None:
    """▲ A record is mine only if its *lease id* is mine: the broker's name alone may be a predecessor's."""
    if result.succeeded:
        return result.revision
    found: KeyValue | None = result.reads[0][0] if result.reads[0] else None
    return found.create_revision if found is not None and found.lease == lease.id else None
