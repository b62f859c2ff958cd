"""Decides which conditional writes may share one etcd request, and which must wait for one in flight. Pure.

Rules (DESIGN §4, "Group commit"):

- ▲ etcd evaluates all compares of a request before any of its writes, so no request holds a compare on a key that
  another of its members puts or deletes; ranges count. Inside one member that order is intended.
- No key is written twice in a request, and puts on a lease travel alone (a lease that is gone fails the whole request).
- ▲ A process has at most one unanswered write of a key in flight: a group holds its keys from when it is taken until it
  is finished, and members that write one of them are parked. Members that only compare them are not.
- A request stays within `--max-txn-ops` (a nested budget is the limit minus the outer one's use) and the byte limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from txnstore.access.spans import Spans
from txnstore.store import MAX_COMMIT_BYTES, MAX_COMMIT_OPS, Commit
from txnwire.errors import InvalidArgument

MAX_MEMBERS: Final = 500
UNDIVIDED: Final = 64
_LOOK_AHEAD: Final = 500  # members passed over before a group is closed


class GroupMember:
    """One commit with the keys that it touches. `wire`: its serialized form, made once."""

    __slots__ = (
        "alone",
        "commit",
        "compared",
        "compared_ranges",
        "ops",
        "ranged",
        "size",
        "wire",
        "withdrawn",
        "written",
        "written_ranges",
    )

    def __init__(self, commit: Commit, wire: bytes) -> None:
        """Raises `InvalidArgument` for a commit that any etcd would refuse."""
        self.commit = commit
        self.wire = wire
        self.size = len(wire)
        self.withdrawn = False
        self.alone = False
        self.compared: list[bytes] = []
        self.compared_ranges: tuple[tuple[bytes, bytes], ...] = ()
        self.written: list[bytes] = []
        self.written_ranges: tuple[tuple[bytes, bytes], ...] = ()
        for compare in commit.compares:
            if compare.range_end is None:
                self.compared.append(compare.key)
            else:
                self.compared_ranges += (_checked_range(compare.key, compare.range_end),)
        for put in commit.puts:
            self.written.append(put.key)
            if put.lease:
                self.alone = True
        for delete in commit.deletes:
            if delete.range_end is None:
                self.written.append(delete.key)
            else:
                self.written_ranges += (_checked_range(delete.key, delete.range_end),)
        self.ranged = bool(self.compared_ranges or self.written_ranges)
        self.ops = ops_of(commit)
        if self.ops > MAX_COMMIT_OPS or self.size > MAX_COMMIT_BYTES:
            raise InvalidArgument(
                f"a commit of {self.ops} operations and {self.size} bytes: at most {MAX_COMMIT_OPS} operations and "
                f"{MAX_COMMIT_BYTES} bytes fit every etcd, cut it into several"
            )
        if len(self.written) > 1 or self.written_ranges:
            self._refuse_duplicates()

    def _refuse_duplicates(self) -> None:
        if len(set(self.written)) < len(self.written):
            twice = sorted(key for key in self.written if self.written.count(key) > 1)[0]
            raise InvalidArgument(f"a commit writes {twice!r} twice")
        if self.written_ranges:
            deleted = Spans()
            for start, end in self.written_ranges:
                deleted.add_range(start, end)
            for key in self.written:
                if deleted.meets_key(key):
                    raise InvalidArgument(f"a commit writes {key!r} and deletes a range that holds it")


def ops_of(commit: Commit) -> int:
    """The number of operations that etcd counts towards `--max-txn-ops`."""
    return max(len(commit.compares), len(commit.puts) + len(commit.deletes), len(commit.else_reads))


MemberT = TypeVar("MemberT", bound=GroupMember)


def _checked_range(start: bytes, end: bytes) -> tuple[bytes, bytes]:
    if start >= end:
        raise InvalidArgument(f"range [{start!r}, {end!r}) is empty: its end must be above its start")
    return start, end


class Group(Generic[MemberT]):
    """Members that travel in one request, in order."""

    __slots__ = ("_compared", "_most_ops", "_ranged", "_size", "members", "parked", "written")

    def __init__(self) -> None:
        self.members: list[MemberT] = []
        self.parked: list[MemberT] = []
        self.written = Spans()
        self._compared = Spans()
        self._ranged = False
        self._size = 0
        self._most_ops = 0

    def try_add(self, member: MemberT, *, max_txn_ops: int, max_bytes: int) -> bool:
        """Add `member` if no rule forbids it; returns whether it did."""
        members = self.members
        if members:
            most_ops = max(self._most_ops, member.ops)
            if len(members) + 1 + most_ops > max_txn_ops or self._size + member.size > max_bytes:
                return False
            if member.alone or members[0].alone or self._conflicts(member):
                return False
            self._most_ops = most_ops
        else:
            self._most_ops = member.ops
        self._size += member.size
        members.append(member)
        self._add_footprint(member)
        return True

    def _conflicts(self, member: GroupMember) -> bool:
        # ▲ no compare of one member on a key that another writes, no key written twice
        written = self.written.keys
        if not (
            written.isdisjoint(member.compared)
            and written.isdisjoint(member.written)
            and self._compared.keys.isdisjoint(member.written)
        ):
            return True
        return (self._ranged or member.ranged) and self._ranges_conflict(member)

    def _ranges_conflict(self, member: GroupMember) -> bool:
        """▲ As `_conflicts`, for ranges."""
        written, compared = self.written, self._compared
        if written.meets_any(member.compared) or written.meets_any(member.written):
            return True
        if compared.meets_any(member.written):
            return True
        if any(written.meets_range(start, end) for start, end in member.compared_ranges):
            return True
        return any(
            written.meets_range(start, end) or compared.meets_range(start, end) for start, end in member.written_ranges
        )

    def _add_footprint(self, member: GroupMember) -> None:
        self.written.add_keys(member.written)
        self._compared.add_keys(member.compared)
        if member.ranged:
            self._ranged = True
            for start, end in member.written_ranges:
                self.written.add_range(start, end)
            for start, end in member.compared_ranges:
                self._compared.add_range(start, end)


class GroupPlanner(Generic[MemberT]):
    """The queue of commits, the groups in flight and the keys they hold."""

    def __init__(self, *, max_txn_ops: int, max_bytes: int, max_members: int = MAX_MEMBERS) -> None:
        self.max_txn_ops = max_txn_ops
        self._max_bytes = max_bytes
        self._max_members = max_members
        self._queue: deque[MemberT] = deque()
        self._in_flight: dict[Group[MemberT], None] = {}
        self._held: dict[bytes, Group[MemberT]] = {}
        self._groups_with_ranges = 0

    def offer(self, member: MemberT) -> None:
        self._queue.append(member)

    @property
    def has_queued(self) -> bool:
        """Whether `take` may find something; members parked behind a group in flight do not count."""
        return bool(self._queue)

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """Requests that are not settled."""
        return len(self._in_flight)

    def groups_in_flight(self) -> list[Group[MemberT]]:
        return list(self._in_flight)

    def waiting(self) -> Iterator[MemberT]:
        """Every member that has not been taken."""
        yield from self._queue
        for group in self._in_flight:
            yield from group.parked

    def take(self) -> Group[MemberT] | None:
        """The next request, oldest members first; members that may not travel in it keep their places in the queue."""
        group: Group[MemberT] = Group()
        queue = self._queue
        passed: list[MemberT] = []
        most = self._most_members()
        while queue and len(group.members) < most and len(passed) < _LOOK_AHEAD:
            member = queue.popleft()
            if member.withdrawn:
                continue
            holder = self._holder(member)
            if holder is not None:
                holder.parked.append(member)
            elif not group.try_add(member, max_txn_ops=self.max_txn_ops, max_bytes=self._max_bytes):
                passed.append(member)
        queue.extendleft(reversed(passed))
        if not group.members:
            return None
        self._hold(group)
        return group

    def finish(self, group: Group[MemberT]) -> None:
        """Every member's verdict is definite: release its keys; members parked behind them come first."""
        del self._in_flight[group]
        self._groups_with_ranges -= group.written.has_ranges
        for member in group.members:
            for key in member.written:
                del self._held[key]
        self._queue.extendleft(reversed(group.parked))

    def _most_members(self) -> int:
        """If many are outstanding, only half travel together: etcd applies one half while this process handles the
        other. With few, the extra request would cost more than it gains."""
        outstanding = len(self._queue) + sum(len(group.members) for group in self._in_flight)
        return min(self._max_members, max(UNDIVIDED, (outstanding + 1) // 2))

    def _hold(self, group: Group[MemberT]) -> None:
        self._in_flight[group] = None
        self._groups_with_ranges += group.written.has_ranges
        for member in group.members:
            for key in member.written:
                self._held[key] = group

    def _holder(self, member: MemberT) -> Group[MemberT] | None:
        """▲ The group in flight with an unanswered write of one of this member's keys."""
        held = self._held
        for key in member.written:
            if key in held:
                return held[key]
        if self._groups_with_ranges or member.written_ranges:
            for group in self._in_flight:
                if _writes_meet(group.written, member):
                    return group
        return None


def _writes_meet(written: Spans, member: GroupMember) -> bool:
    return written.meets_any(member.written) or any(written.meets_range(*span) for span in member.written_ranges)


def halves(members: list[MemberT]) -> tuple[list[MemberT], list[MemberT]]:
    """Splits a group that was refused as a whole: repeated, it isolates the faulty member."""
    middle = len(members) // 2
    return members[:middle], members[middle:]
