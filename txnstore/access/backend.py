"""The port below a store: etcd's requests one by one, each answered, refused or left unanswered.

`StoreClient` (group commit, watches that resume, leases, pins) is written against it once. The real etcd stands behind
it in `txnstore.etcd.backend`, the simulation's in `txnstore.memory.memory_store`. Keys carry no prefix here either: a
backend adds and removes it. No method repeats a request: that is decided above, where it is known what may be repeated.
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
"""A group is closed when its serialized members pass this; etcd refuses requests over 1.5 MiB."""


class Unanswered(Exception):
    """No answer came: the fate of a write is unknown (▲ DESIGN §4), a read may be sent again."""


class Reason(Enum):
    """Why a request was refused; in every case it was definitely not applied, now or later."""

    MALFORMED = "malformed"  # the request itself is at fault, so one of its members is
    DENIED = "denied"  # this user may not touch one of its keys
    LEASE_GONE = "lease gone"
    FULL = "full"  # etcd's quota is exhausted
    BUSY = "busy"  # etcd asks to come again later


class Refused(Exception):
    """The store answered that it did not and will not apply this request."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(f"{reason.value}: {message}")
        self.reason = reason


class Fenced(Exception):
    """The request found its sending fence raised or gone: it was not applied, and never will be."""


class RequestFence(NamedTuple):
    """What a request is sent under (`txnstore.access.sending_fence`): a key and the mod revision that it must still
    have."""

    key: bytes
    revision: int


class RangePage(msgspec.Struct, frozen=True, gc=False):
    """Part of a range at `revision`; `more` where the limit cut it off."""

    revision: int
    records: tuple[KeyValue, ...]
    more: bool


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Of the one store process that answered. `quota_bytes` is 0 where it does not tell (etcd before 3.6)."""

    version: str
    revision: int
    db_bytes: int
    db_bytes_in_use: int
    quota_bytes: int
    no_space: bool


class WatchStream(Protocol):
    async def receive(self) -> tuple[Event, ...]:
        """The next events, whole revisions in order; never empty. Raises `Unanswered` once the stream is lost and
        `Compacted` when its start has been compacted away; either way it is over."""

    async def close(self) -> None: ...


class Backend(Protocol):
    """Every method raises `Unanswered` or `Refused` besides what it names itself, and takes a bounded time."""

    @property
    def max_txn_ops(self) -> int:
        """etcd's `--max-txn-ops` as found, or as much of it as is of use."""

    @property
    def pages_divided_by(self) -> int:
        """1; more in a simulation, where pages are to be crossed with little data."""

    async def wait_ready(self) -> None:
        """Return once some endpoint is connected, at once if one is. What is not sent has a definite fate. Raises
        `StoreUnfit` for good once the store is found to be another one, or set back (`txnstore.access.lineage`)."""

    async def wait_unfit(self) -> TxnError:
        """Return with the reason once the store is unfit."""

    def known_as(self, incarnation: str) -> None:
        """This is the store's identity, as its client has read or made it: another one later on is another store."""

    async def raft_lead(self) -> int | None:
        """By how much the store's log is ahead of its revision, at least; None where it has no log."""

    def encode(self, commit: Commit) -> bytes:
        """The commit as this backend sends it inside a group; its length counts towards the request limit."""

    async def commit(
        self, members: Sequence[GroupMember], *, repeated: bool, fence: RequestFence | None = None
    ) -> list[CommitVerdict]:
        """One request: all compares of all members, then the writes of those that hold. Verdicts in order. Raises
        `Fenced` where `fence` does not stand as it is told."""

    async def raise_fence(self, fence: RequestFence, lease: int) -> int:
        """Put the fence's key anew, on `lease`, if it still has that mod revision; the one it has now, 0 for none."""

    async def read_many(self, keys: Sequence[bytes], revision: int) -> tuple[int, list[KeyValue | None]]:
        """At most `max_txn_ops` keys in one request. Raises `Compacted`."""

    async def read_page(self, start: bytes, end: bytes, *, revision: int, limit: int, keys_only: bool) -> RangePage:
        """Linearizable, in key order. Raises `Compacted`."""

    async def read_pages(self, ranges: Sequence[tuple[bytes, bytes]], *, revision: int, limit: int) -> list[RangePage]:
        """At most `max_txn_ops` ranges in one request, at most `limit` records of each. Raises `Compacted`."""

    async def count(self, start: bytes, end: bytes) -> int:
        """How many keys there are in [start, end), without reading them."""

    async def open_watch(self, start: bytes, end: bytes, from_revision: int) -> WatchStream: ...

    async def grant(self, ttl_s: int) -> tuple[int, float]:
        """(lease id, TTL in seconds as granted)."""

    async def keep_alive(self, lease_id: int) -> float:
        """The renewed TTL in seconds; 0 where the lease is gone. ▲ To be called without `wait_ready`: sent wherever a
        connection stands, also where nothing else is answered. Raises what `wait_ready` raises."""

    async def revoke(self, lease_id: int) -> None:
        """End a lease; one that is gone already is fine."""

    async def status(self) -> StoreStatus: ...

    async def compact(self, revision: int) -> None:
        """Forget superseded records below `revision`. One that is compacted already is fine."""

    async def defragment(self) -> None:
        """Give free pages back, one store process after another. Each is deaf meanwhile."""

    async def disarm(self) -> None:
        """Take back the alarm that a full quota raised."""

    async def close(self) -> None: ...
