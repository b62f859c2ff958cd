"""An exact copy of etcd's key space in memory: revisions, versions, nested transactions, history, compaction. Pure.

Modelled on etcd 3.4/3.5 `mvcc` and `apply.go`; `tests/txnstore/memory/test_differential.py` compares it with a real
one. No clock: leases are ids that the caller grants and ends.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import msgspec

from txnstore.access.backend import Reason, Refused
from txnstore.access.spans import Spans
from txnstore.store import (
    NO_LEASE,
    Commit,
    CommitVerdict,
    Compacted,
    Compare,
    Event,
    EventKind,
    KeyValue,
    Put,
    Read,
    Relation,
    Target,
)

_NOTHING = KeyValue(b"", b"", 0, 0, 0)
_RECORD_OVERHEAD = 64  # approximate bytes of a record besides key and value


class Change(msgspec.Struct, frozen=True):
    """All events of one revision, in the order in which they were made."""

    revision: int
    events: tuple[Event, ...]


class Mvcc:
    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.bytes_in_use = 0
        self._live: dict[bytes, KeyValue] = {}
        self._sorted: list[bytes] = []
        self._history: dict[bytes, list[KeyValue]] = {}  # a deletion is a record with version 0
        self._changes: list[Change] = []
        self._lease_keys: dict[int, dict[bytes, None]] = {}

    # --- leases ---

    def add_lease(self, lease: int) -> None:
        self._lease_keys[lease] = {}

    def end_lease(self, lease: int) -> None:
        """Forget the lease and delete its keys, all at one revision and in key order."""
        keys = self._lease_keys.pop(lease)
        if keys:
            transaction = _Transaction(self)
            for key in sorted(keys):
                transaction.delete(key)
            transaction.finish()

    # --- reads ---

    def get(self, key: bytes, revision: int = 0) -> KeyValue | None:
        if not revision or revision == self.revision:
            return self._live.get(key)
        self._check_revision(revision)
        return self._at(key, revision)

    def range(self, start: bytes, end: bytes, revision: int = 0, limit: int = 0) -> tuple[list[KeyValue], bool]:
        """Records of [start, end) in key order, at most `limit` if it is not 0, and whether there are more."""
        if not revision or revision == self.revision:
            first, last = bisect_left(self._sorted, start), bisect_left(self._sorted, end)
            more = bool(limit) and last - first > limit
            keys = self._sorted[first : first + limit if more else last]
            return [self._live[key] for key in keys], more
        self._check_revision(revision)
        found = [self._at(key, revision) for key in sorted(key for key in self._history if start <= key < end)]
        records = [record for record in found if record is not None]
        return (records[:limit], True) if limit and len(records) > limit else (records, False)

    def count(self, start: bytes, end: bytes) -> int:
        """The number of keys in [start, end) now."""
        return bisect_left(self._sorted, end) - bisect_left(self._sorted, start)

    def changes_since(self, revision: int, *, at_most: int) -> list[Change]:
        """Changes at or after `revision`. Raises `Compacted`."""
        if revision < self.compacted:
            raise Compacted(f"revision {revision} has been compacted away: the oldest is {self.compacted}")
        first = bisect_left(self._changes, revision, key=lambda change: change.revision)
        return self._changes[first : first + at_most]

    def _at(self, key: bytes, revision: int) -> KeyValue | None:
        for record in reversed(self._history.get(key, ())):
            if record.mod_revision <= revision:
                return record if record.version else None
        return None

    def _check_revision(self, revision: int) -> None:
        if revision > self.revision:
            raise Refused(Reason.MALFORMED, f"revision {revision} is in the future: this is {self.revision}")
        if revision < self.compacted:
            raise Compacted(f"revision {revision} has been compacted away: the oldest is {self.compacted}")

    # --- writes ---

    def commit(self, commits: Sequence[Commit]) -> list[CommitVerdict]:
        """One request: a lone commit as a plain transaction, several as nested ones. Raises `Refused`."""
        _check_intervals(commits)
        # ▲ etcd evaluates all compares of a request before any of its writes (DESIGN §4)
        verdicts = [all(map(self._holds, commit.compares)) for commit in commits]
        for commit, holds in zip(commits, verdicts, strict=True):
            if holds:
                self._check_leases(commit.puts)
        transaction = _Transaction(self)
        reads: list[tuple[tuple[KeyValue, ...], ...]] = []
        for commit, holds in zip(commits, verdicts, strict=True):
            if holds:
                transaction.write(commit)
                reads.append(())
            else:
                reads.append(tuple([self._read(read) for read in commit.else_reads]))
        transaction.finish()
        revision = self.revision
        return [CommitVerdict(holds, revision, found) for holds, found in zip(verdicts, reads, strict=True)]

    def compact(self, revision: int) -> None:
        """Raises `Compacted` if that is done already, `Refused` for a future revision."""
        self._check_revision(revision)
        if revision <= self.compacted:
            raise Compacted(f"revision {revision} has been compacted away already")
        self.compacted = revision
        for key in list(self._history):
            self._compact_key(key, revision)
        first = bisect_left(self._changes, revision, key=lambda change: change.revision)
        del self._changes[:first]

    def _compact_key(self, key: bytes, revision: int) -> None:
        records = self._history[key]
        keep = 0
        for index, record in enumerate(records):
            if record.mod_revision <= revision:
                keep = index if record.version else index + 1
        for record in records[:keep]:
            self.bytes_in_use -= _size(record)
        del records[:keep]
        if not records:
            del self._history[key]

    def failing(self, commit: Commit) -> list[Compare]:
        """The compares that do not hold now. ▲ Nothing that shared a request with it writes to their keys."""
        return [compare for compare in commit.compares if not self._holds(compare)]

    def _holds(self, compare: Compare) -> bool:
        if compare.range_end is None:
            return _relates(self._live.get(compare.key, _NOTHING), compare)
        records, _ = self.range(compare.key, compare.range_end)
        return all(_relates(record, compare) for record in records or (_NOTHING,))

    def _read(self, read: Read) -> tuple[KeyValue, ...]:
        if read.range_end is not None:
            return tuple(self.range(read.key, read.range_end)[0])
        record = self._live.get(read.key)
        return () if record is None else (record,)

    def _check_leases(self, puts: tuple[Put, ...]) -> None:
        for put in puts:
            if put.lease != NO_LEASE and put.lease not in self._lease_keys:
                raise Refused(Reason.LEASE_GONE, f"lease {put.lease:x} of {put.key!r} is not there")


class _Transaction:
    """Writes at the next revision; `finish` makes that revision if anything has changed."""

    def __init__(self, mvcc: Mvcc) -> None:
        self._mvcc = mvcc
        self._revision = mvcc.revision + 1
        self._events: list[Event] = []

    def write(self, commit: Commit) -> None:
        for put in commit.puts:
            self.put(put)
        for delete in commit.deletes:
            if delete.range_end is None:
                self.delete(delete.key)
            else:
                for record in self._mvcc.range(delete.key, delete.range_end)[0]:
                    self.delete(record.key)

    def put(self, put: Put) -> None:
        live, key = self._mvcc._live, put.key
        old = live.get(key)
        if old is None:
            record = KeyValue(key, put.value, 1, self._revision, self._revision, put.lease)
            insort(self._mvcc._sorted, key)
        else:
            record = KeyValue(key, put.value, old.version + 1, old.create_revision, self._revision, put.lease)
        live[key] = record
        self._move_lease(key, NO_LEASE if old is None else old.lease, put.lease)
        self._record(EventKind.PUT, record)

    def delete(self, key: bytes) -> None:
        old = self._mvcc._live.pop(key, None)
        if old is None:
            return
        keys = self._mvcc._sorted
        del keys[bisect_left(keys, key)]
        self._move_lease(key, old.lease, NO_LEASE)
        self._record(EventKind.DELETE, KeyValue(key, b"", 0, 0, self._revision))

    def finish(self) -> None:
        if self._events:
            self._mvcc.revision = self._revision
            self._mvcc._changes.append(Change(self._revision, tuple(self._events)))

    def _move_lease(self, key: bytes, old: int, new: int) -> None:
        leases = self._mvcc._lease_keys
        if old != new:
            if old in leases:
                leases[old].pop(key, None)
            if new in leases:
                leases[new][key] = None

    def _record(self, kind: EventKind, record: KeyValue) -> None:
        self._mvcc._history.setdefault(record.key, []).append(record)
        self._mvcc.bytes_in_use += _size(record)
        self._events.append(Event(kind, record))


def _size(record: KeyValue) -> int:
    return len(record.key) + len(record.value) + _RECORD_OVERHEAD


def _relates(record: KeyValue, compare: Compare) -> bool:
    match compare.target:
        case Target.VERSION:
            found = record.version
        case Target.CREATE:
            found = record.create_revision
        case Target.MOD:
            found = record.mod_revision
        case Target.LEASE:
            found = record.lease
    match compare.relation:
        case Relation.EQUAL:
            return found == compare.value
        case Relation.GREATER:
            return found > compare.value
        case Relation.LESS:
            return found < compare.value
        case Relation.NOT_EQUAL:
            return found != compare.value


def _check_intervals(commits: Sequence[Commit]) -> None:
    """etcd's `checkIntervals`: over all members, whatever their verdict, no key is put twice or put after its deletion.

    A lone commit's deletes count before its puts. Between members order matters: a put of a key that an *earlier*
    member deletes is refused, a delete of a key that an earlier member puts is not."""
    put_keys: set[bytes] = set()
    deleted = Spans()
    for commit in commits:
        own_deleted = _deletes_of(commit)
        own_keys: set[bytes] = set()
        for put in commit.puts:
            if (
                put.key in own_keys
                or own_deleted.meets_key(put.key)
                or put.key in put_keys
                or deleted.meets_key(put.key)
            ):
                raise Refused(Reason.MALFORMED, f"duplicate key {put.key!r} in one request")
            if not put.key:
                raise Refused(Reason.MALFORMED, "a put without a key")
            own_keys.add(put.key)
        put_keys |= own_keys
        for delete in commit.deletes:
            if delete.range_end is None:
                deleted.add_keys((delete.key,))
            else:
                deleted.add_range(delete.key, delete.range_end)


def _deletes_of(commit: Commit) -> Spans:
    deleted = Spans()
    for delete in commit.deletes:
        if delete.range_end is None:
            deleted.add_keys((delete.key,))
        else:
            deleted.add_range(delete.key, delete.range_end)
    return deleted
