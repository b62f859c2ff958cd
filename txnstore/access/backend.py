"""The port below a store: etcd's requests one by one, each answered, refused or left unanswered.

`StoreClient` (group commit, watches that resume, leases, pins) is written against it once. `txnstore.etcd.backend`
implements it for the real etcd, `txnstore.memory.memory_store` for the simulation. Keys carry no prefix here either: a
backend adds and removes it. No method repeats a request: the caller decides that, because it knows what may be
repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

import msgspec

from txnstore.access.grouping import GroupMember
from txnstore.store import Commit, CommitVerdict, Event, KeyValue
from txnwire.errors import TxnError

GROUP_BYTES: Final = 1_000_000
"""A group is closed when its serialized members exceed this; etcd refuses requests over 1.5 MiB."""


class Unanswered(Exception):
    """No answer came: the fate of a write is unknown (▲ DESIGN §4), a read may be sent again."""


class Reason(Enum):
    """Why a request was refused; in every case it was definitely not applied, now or later."""

    MALFORMED = "malformed"  # one of the request's members is at fault
    DENIED = "denied"  # this user may not touch one of its keys
    LEASE_GONE = "lease gone"
    FULL = "full"  # etcd's quota is exhausted
    BUSY = "busy"  # etcd asks to try again later


class Refused(Exception):
    """The store answered that it did not and will not apply this request."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(f"{reason.value}: {message}")
        self.reason = reason


class Fenced(Exception):
    """The request found its sending fence raised or deleted: it was not applied, and never will be."""


class RequestFence(NamedTuple):
    """The condition of a sent request (`txnstore.access.sending_fence`): a key and the mod revision that it must still
    have."""

    key: bytes
    revision: int


class RangePage(msgspec.Struct, frozen=True, gc=False):
    """Part of a range at `revision`; `more`: the limit cut it off."""

    revision: int
    records: tuple[KeyValue, ...]
    more: bool


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the one store process that answered. `quota_bytes` is 0 if it does not report it (etcd before 3.6)."""

    version: str
    revision: int
    db_bytes: int
    db_bytes_in_use: int
    quota_bytes: int
    no_space: bool


class WatchStream(Protocol):
    async def receive(self) -> tuple[Event, ...]:
        """The next events, whole revisions in order; never empty. Raises `Unanswered` once the stream is lost and
        `Compacted` if its start has been compacted away; after either the stream is over."""

    async def close(self) -> None: ...


class Backend(Protocol):
    """Sends requests to a store. Every method raises `Unanswered` or `Refused` besides its own errors, and takes a
    bounded time.
    """

    @property
    def max_txn_ops(self) -> int:
        """etcd's `--max-txn-ops` as found, up to a useful maximum."""

    @property
    def pages_divided_by(self) -> int:
        """1; more in a simulation, so that little data spans several pages."""

    async def wait_ready(self) -> None:
        """Return once some endpoint is connected, at once if one is. A request not sent has a definite fate. Raises
        `StoreUnfit` for good once the store turns out to be another one, or set back (`txnstore.access.lineage`)."""

    def why_not_ready(self) -> str:
        """What keeps `wait_ready` waiting, as far as it is known: for the text of an error."""

    async def wait_unfit(self) -> TxnError:
        """Return with the reason once the store is unfit."""

    def known_as(self, incarnation: str) -> None:
        """Sets the store's identity, as its client has read or made it: a different one later means another store."""

    async def raft_lead(self) -> int | None:
        """The least number of entries by which the store's log is ahead of its revision; None if it has no log."""

    def encode(self, commit: Commit) -> bytes:
        """The commit as this backend sends it inside a group; its length counts towards the request limit."""

    async def commit(
        self, members: Sequence[GroupMember], *, repeated: bool, fence: RequestFence | None = None
    ) -> list[CommitVerdict]:
        """One request: all compares of all members, then the writes of those that hold. Verdicts in order. Raises
        `Fenced` if `fence` no longer holds."""

    async def raise_fence(self, fence: RequestFence, lease: int) -> int:
        """Put the fence's key again, on `lease`, if it still has that mod revision. Returns its mod revision now, 0 for
        none.
        """

    async def read_many(self, keys: Sequence[bytes], revision: int) -> tuple[int, list[KeyValue | None]]:
        """At most `max_txn_ops` keys in one request. Raises `Compacted`."""

    async def read_page(self, start: bytes, end: bytes, *, revision: int, limit: int, keys_only: bool) -> RangePage:
        """Linearizable, in key order. Raises `Compacted`."""

    async def read_pages(self, ranges: Sequence[tuple[bytes, bytes]], *, revision: int, limit: int) -> list[RangePage]:
        """At most `max_txn_ops` ranges in one request, at most `limit` records of each. Raises `Compacted`."""

    async def count(self, start: bytes, end: bytes) -> int:
        """The number of keys in [start, end), without reading them."""

    async def open_watch(self, start: bytes, end: bytes, from_revision: int) -> WatchStream: ...

    async def grant(self, ttl_s: int) -> tuple[int, float]:
        """(lease id, TTL in seconds as granted)."""

    async def keep_alive(self, lease_id: int) -> float:
        """The renewed TTL in seconds; 0 if the lease is gone. ▲ Call it without `wait_ready`: it goes over any
        connection, even if nothing else is answered. Raises the errors of `wait_ready`."""

    async def revoke(self, lease_id: int) -> None:
        """End a lease; no error if it is gone already."""

    async def status(self) -> StoreStatus: ...

    async def compact(self, revision: int) -> None:
        """Forget superseded records below `revision`. No error if it is compacted already."""

    async def defragment(self) -> None:
        """Return free pages, one store process after another. Each serves nothing meanwhile."""

    async def disarm(self) -> None:
        """Clear the alarm that a full quota raised."""

    async def close(self) -> None: ...
