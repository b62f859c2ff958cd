"""A broker's registration on a lease, and its claims of segments (DESIGN §7, "Ownership").

A broker takes `/owner/<segment>` by create-if-absent on its lease. The create revision is the ownership epoch, which
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
    """Registers one broker id on one lease, and claims segments. After `wait_lost` returns, call `register` again."""

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

        First revokes a predecessor's lease and so deletes its keys: a restarted broker does not wait for its old lease
        to expire. ▲ Waits for a living namesake and never ousts it: `former_selves`, one per process, tells the two
        apart. Calls `namesake` with the other's address, with None once it is gone.
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
        """The lease of this broker's `/owner` records, and of no other broker's."""
        return self._lease.id

    def valid(self) -> bool:
        """Whether the lease certainly has not expired; otherwise the broker acks nothing."""
        return self._lease.valid()

    async def wait_lost(self) -> None:
        await self._lease.wait_lost()

    async def claim(self, segment: str, *, topic: KeyValue | None = None) -> int | None:
        """The ownership epoch, or None if another broker owns it. Raises `StoreUnavailable`, `StoreFull`.

        `topic`: its topic's record. Returns None if that has changed.
        ▲ The claim compares it: a broker unaware of a deletion would own an erased segment and write records of it.
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
        """Give the segment up, so that another broker may claim it at once. Raises `StoreUnavailable`."""
        key = keys.owner(segment)
        await self._store.commit(Commit(compares=(created_at(key, epoch),), deletes=(Delete(key),)))

    async def leave(self) -> None:
        """Tell the other brokers to claim the segments released from now on, and to leave none to this broker.

        The record and its lease stay, so a process restarted under this id finds them. Gives up quietly if the store
        cannot be reached: the others then wait for the lease to end."""
        key = keys.broker(self._broker_id)
        value = records.encode(BrokerRegistration(id=self._broker_id, address=self._address, leaving=True))
        commit = Commit(compares=(created_at(key, self.revision),), puts=(Put(key, value, self._lease.id),))
        try:
            await self._store.commit(commit, timeout_s=_LEAVE_TIMEOUT_S)
        except TxnError as error:
            log.warning("leaving_not_told", broker=self._broker_id, error=str(error))

    async def check(self, segment: str, epoch: int) -> None:
        """Raises `NotOwner` if this broker no longer owns the segment under this epoch, `StoreUnavailable`."""
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
    """▲ A record is this broker's only if its *lease id* is: the name alone may be a predecessor's."""
    if result.succeeded:
        return result.revision
    found: KeyValue | None = result.reads[0][0] if result.reads[0] else None
    return found.create_revision if found is not None and found.lease == lease.id else None
