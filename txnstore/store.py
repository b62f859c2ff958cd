"""The metadata store's interface for the rest of the code: three nouns (key, lease, watch) and conditional commits.

It names the three abilities PIP-471 ("A note on metadata-store backends") asks of a metadata store:
*partition keys* (`Commit.partition_key`; on one etcd cluster all partitions coincide), *sequential keys* (op keys
carry `<epoch>-<counter>`, see `txnstore.keys`) and *secondary indexes* (index keys put and deleted in the record's own
commit).

Two backends pass one contract suite: `EtcdStore`, for production, and `MemoryStore`, for the simulation. Keys and
values are bytes; keys are given without the configured prefix, which the store adds and removes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import Final, Protocol

import msgspec

from txnwire.errors import ServiceError, StoreUnavailable

NO_LEASE: Final = 0

MAX_COMMIT_OPS: Final = 100
"""No commit has more than this many compares, more than this many puts and deletes together, or more than this many
else-reads: so it fits every etcd (`--max-txn-ops` is 128 by default). Planners cut longer work into several."""

MAX_COMMIT_BYTES: Final = 1_000_000
"""No commit has more bytes of keys and values (etcd's request limit is 1.5 MiB)."""


class Compacted(ServiceError):
    """The requested revision has been compacted away: read again at a newer one."""

    retriable = True


class LeaseGone(StoreUnavailable):
    """A put named a lease that has expired or was revoked. Not applied, or applied and gone with the lease."""


class KeyValue(msgspec.Struct, frozen=True, gc=False):
    key: bytes
    value: bytes
    version: int
    create_revision: int
    mod_revision: int
    lease: int = NO_LEASE


class Target(IntEnum):
    """The compared number of a key, as in etcd's `CompareTarget`. An absent key has 0 for every number."""

    VERSION = 0
    CREATE = 1
    MOD = 2
    LEASE = 4


class Relation(IntEnum):
    """Numbers are etcd's `CompareResult`."""

    EQUAL = 0
    GREATER = 1
    LESS = 2
    NOT_EQUAL = 3


class Compare(msgspec.Struct, frozen=True, gc=False):
    """`target(key) relation value`. With `range_end` it must hold for every key in [key, range_end); over an empty
    range it is evaluated once with all numbers 0, so `CREATE EQUAL 0` over a range means "the range is empty"."""

    key: bytes
    target: Target
    relation: Relation
    value: int
    range_end: bytes | None = None


def absent(key: bytes) -> Compare:
    return Compare(key, Target.VERSION, Relation.EQUAL, 0)


def version_is(key: bytes, version: int) -> Compare:
    return Compare(key, Target.VERSION, Relation.EQUAL, version)


def created_at(key: bytes, revision: int) -> Compare:
    return Compare(key, Target.CREATE, Relation.EQUAL, revision)


def unchanged_since(key: bytes, mod_revision: int) -> Compare:
    """The record is still the one read at `mod_revision`; 0 means "still absent"."""
    return Compare(key, Target.MOD, Relation.EQUAL, mod_revision)


def range_is_empty(start: bytes, end: bytes) -> Compare:
    return Compare(start, Target.CREATE, Relation.EQUAL, 0, end)


class Put(msgspec.Struct, frozen=True, gc=False):
    key: bytes
    value: bytes
    lease: int = NO_LEASE


class Delete(msgspec.Struct, frozen=True, gc=False):
    """One key, or with `range_end` every key in [key, range_end)."""

    key: bytes
    range_end: bytes | None = None


class Read(msgspec.Struct, frozen=True, gc=False):
    key: bytes
    range_end: bytes | None = None


class Commit(msgspec.Struct, frozen=True, gc=False):
    """One conditional write: if every compare holds, all puts and deletes happen at one revision; else `else_reads`
    are read. No key is written twice. `partition_key` is the transaction id (or empty); `reserve` marks a write that
    ends or cleans up and so may use the space above the soft limit (DESIGN §4)."""

    compares: tuple[Compare, ...] = ()
    puts: tuple[Put, ...] = ()
    deletes: tuple[Delete, ...] = ()
    else_reads: tuple[Read, ...] = ()
    partition_key: bytes = b""
    reserve: bool = True


class CommitVerdict(msgspec.Struct, frozen=True, gc=False):
    """A definite verdict. `revision` is the store's revision of the request that gave it.

    `repeated` is True if an earlier sending of the same commit went unanswered: a refusal may then mean that the
    earlier sending landed. Only the caller's own identity in `reads` (an attempt, a unique key) can tell. `reads` holds
    one tuple of records per else-read, and only if `succeeded` is False.
    """

    succeeded: bool
    revision: int
    reads: tuple[tuple[KeyValue, ...], ...] = ()
    repeated: bool = False


class RangeResult(msgspec.Struct, frozen=True, gc=False):
    """All records of a range in key order, at one `revision`."""

    revision: int
    records: tuple[KeyValue, ...]


class EventKind(IntEnum):
    PUT = 0
    DELETE = 1


class Event(msgspec.Struct, frozen=True, gc=False):
    """A change. For DELETE only `record.key` and `record.mod_revision` (the deletion's) are meaningful."""

    kind: EventKind
    record: KeyValue


class WatchBatch(msgspec.Struct, frozen=True, gc=False):
    """Events in revision order; `revision` is the highest one delivered *whole*, always that of an event.

    With `resync` the watch had been compacted away: `events` are PUTs of everything present at `revision`, and every
    other key that the follower knows was deleted in between. Nothing at or below `revision` follows.
    """

    revision: int
    events: tuple[Event, ...]
    resync: bool = False


class StoreWatch(Protocol):
    """Follows a range for ever, across lost connections and restarts of the store. Cancel-safe; `close()` ends it."""

    def __aiter__(self) -> AsyncIterator[WatchBatch]: ...
    async def close(self) -> None: ...


class Lease(Protocol):
    """A lease kept alive by the store's own task. It only speeds up fail-over; safety is always a compare."""

    @property
    def id(self) -> int: ...

    def valid(self) -> bool:
        """Whether it surely has not expired: TTL minus a margin since the *sending* of the last answered keep-alive."""

    async def wait_lost(self) -> None:
        """Return once the lease is known to be gone, or can no longer be relied on."""

    async def revoke(self) -> None:
        """End it and its keys now. Idempotent; gives up quietly (and logs) if the store cannot be reached in 2 s."""


class MetadataStore(Protocol):
    """Reads and writes records. A read's time limit applies to each of its requests, whose number has no bound."""

    def page_size(self, records: int) -> int:
        """The number of records to read or write at once: `records`, or fewer in a simulation that spans pages with
        less data."""

    async def get(self, key: bytes, *, timeout_s: float = 10.0) -> KeyValue | None:
        """Linearizable read. Raises `StoreUnavailable`."""

    async def get_many(
        self, keys: Sequence[bytes], *, revision: int = 0, timeout_s: float = 10.0
    ) -> tuple[int, list[KeyValue | None]]:
        """Several keys at one revision (`revision`, or the current one; split into pinned requests as needed), and that
        revision. Raises `Compacted` if `revision` is gone."""

    async def range(
        self,
        start: bytes,
        end: bytes,
        *,
        revision: int = 0,
        keys_only: bool = False,
        limit: int = 0,
        timeout_s: float = 30.0,
    ) -> RangeResult:
        """Every record in [start, end), in pages pinned at one revision (`revision`, or the one of the first page).
        `limit` (0: none) bounds the answer, not etcd's work: bound the range by keys. Raises `StoreUnavailable`, and
        `Compacted` if `revision` is gone."""

    async def ranges(
        self, ranges: Sequence[tuple[bytes, bytes]], *, revision: int, timeout_s: float = 30.0
    ) -> list[tuple[KeyValue, ...]]:
        """The records of each [start, end) at `revision`, many small ranges in one request. Raises `Compacted`,
        `StoreUnavailable`."""

    async def commit(self, commit: Commit, *, timeout_s: float = 10.0) -> CommitVerdict:
        """A definite verdict on one conditional write, coalesced with others in flight (group commit).

        Raises `StoreUnavailable`: definitely not applied, now or later. `OutcomeUnknown`: the time ran out while its
        fate was open; the store repeats it until the verdict is definite, and until then sends no other write of its
        keys. `StoreFull`: refused, definitely not applied. `LeaseGone`: a put's lease has ended. `InvalidArgument`:
        malformed (a key written twice, more than `MAX_COMMIT_OPS`), definitely not applied.
        """

    def commit_nowait(self, commit: Commit) -> asyncio.Future[CommitVerdict]:
        """As `commit`, for hot paths: no task and no time limit. The future resolves once the verdict is definite, or
        to `StoreUnavailable` / `StoreFull` (definitely not applied); only closing the store ends it with
        `OutcomeUnknown`. Several commits not awaited may be applied in any order. Cancelling it withdraws nothing.
        Malformed commits raise `InvalidArgument`, from here too."""

    def watch(self, start: bytes, end: bytes, *, from_revision: int) -> StoreWatch:
        """Every change in [start, end) at or after `from_revision`."""

    def pin(self, revision: int) -> AbstractContextManager[None]:
        """Keep `revision` readable until the context ends, for work that spans several reads (`range` pins its own).
        A pin held longer than `pins.REPORT_AFTER_S` is reported to the compacting process by a record."""

    async def incarnation(self, *, timeout_s: float = 10.0) -> str:
        """The store's identity (`/incarnation`), made at its first use; ledgers carry it."""

    async def grant_lease(self, ttl_s: float, *, timeout_s: float = 10.0) -> Lease:
        """A lease kept alive until it is revoked, lost or the store is closed. Raises `StoreUnavailable`."""

    async def revoke_lease(self, lease_id: int, *, timeout_s: float = 10.0) -> None:
        """End another process's lease (a predecessor of the same broker id) with all its keys. No error if the lease is
        gone already. Raises `StoreUnavailable`."""

    async def close(self) -> None:
        """Fail waiting calls with `StoreUnavailable` or `OutcomeUnknown`, close watches and connections. Bounded."""
