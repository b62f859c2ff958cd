"""The transactions of one owned TCID, as a coordinator keeps them in memory. Pure: time comes in, nothing goes out.

Transactions are in id order: `young` until they have their deadline key (most end before they need one), `aged`
afterwards. Source: DESIGN §5 (late index, deadlines) and §9.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from txnstore.records import Header
from txnstore.writes.collection_transitions import Collectable
from txnstore.writes.transitions import RecordedDecision, TcSeq
from txnwire.errors import TxnError
from txnwire.ids import TxnId

if TYPE_CHECKING:
    from coordinator_v5.sessions import ClientSession

SHORT_TIMEOUT_S = 2.0
"""Shorter timeouts are watched from the begin on, longer ones from when their transaction is aged."""


class Phase(Enum):
    BEGINNING = "beginning"
    """Its begin is in flight; no client knows the id."""
    OPEN = "open"
    ENDED = "ended"
    """Decided, refused, or no longer ours."""


class EndRequest:
    """A request that waits for a decision. `reply` is called exactly once."""

    __slots__ = ("note", "reason", "reply", "started_at", "state", "txn", "writers")

    def __init__(
        self,
        txn: OwnedTransaction,
        state: str,
        reason: str | None,
        writers: Sequence[str] | None,
        note: str | None,
        reply: EndReply,
        started_at: float,
    ) -> None:
        self.txn = txn
        self.state = state
        self.reason = reason
        self.writers = writers
        self.note = note
        self.reply = reply
        self.started_at = started_at


class OwnedTransaction:
    """One undecided transaction of an owned TCID. `due`: its deadline on the monotonic clock, converted once."""

    __slots__ = (
        "begin",
        "begun_at",
        "claim_by",
        "connection",
        "deadline_key",
        "due",
        "ending",
        "header",
        "indexing",
        "on_heap",
        "phase",
        "session",
        "tc",
        "txn_id",
        "waiters",
    )

    def __init__(
        self, tc: OwnedTcid, txn_id: TxnId, header: Header, *, phase: Phase, begun_at: float, due: float
    ) -> None:
        self.tc = tc
        self.txn_id = txn_id
        self.header = header
        self.phase = phase
        self.begun_at = begun_at
        self.due = due
        self.begin: BeginRequest | None = None
        self.session: ClientSession | None = None
        self.connection: object = None
        self.claim_by: float | None = None
        self.ending: Header | None = None
        self.waiters: list[EndRequest] = []
        self.deadline_key = False
        """Whether a deadline key may exist; then the end deletes it."""
        self.indexing = False
        self.on_heap = False

    def __lt__(self, other: OwnedTransaction) -> bool:
        return self.txn_id < other.txn_id


class BeginRequest:
    """A client's begin, over all ids tried for it. `replies` are each called exactly once, when `closed` turns true."""

    __slots__ = (
        "attempt",
        "closed",
        "connection",
        "in_flight",
        "owner",
        "queued",
        "replies",
        "session",
        "started_at",
        "tc",
        "timeout_ms",
        "tried_at",
        "txn",
    )

    def __init__(
        self,
        tc: OwnedTcid,
        *,
        timeout_ms: int,
        attempt: str,
        owner: str,
        session: ClientSession | None,
        connection: object,
        reply: BeginReply,
        now: float,
    ) -> None:
        self.tc = tc
        self.timeout_ms = timeout_ms
        self.attempt = attempt
        self.owner = owner
        self.session = session
        self.connection = connection
        self.replies = [reply]
        self.started_at = self.tried_at = now
        self.txn: OwnedTransaction | None = None
        self.in_flight = 0
        self.queued = False
        self.closed = False


BeginReply = Callable[[OwnedTransaction | TxnError], None]
EndReply = Callable[[RecordedDecision | TxnError], None]


class Seen(NamedTuple):
    """A decided transaction in its retention. `name`: of a named one. `writers`: how many its commit lists, which its
    name record takes over."""

    seen_at: float
    final: Collectable
    name: str | None
    writers: int = 0


class IdBlocks:
    """The unused ids of one TCID: a current block and a spare one, requested ahead of time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._next = self._end = 0
        self._spare: tuple[int, int] | None = None
        self.asked = False

    @property
    def lowest(self) -> int | None:
        """The next id to be given out, None if there is none."""
        if self._next < self._end:
            return self._next
        return self._spare[0] if self._spare else None

    @property
    def wants_more(self) -> bool:
        """Whether to request a block now, so that no begin has to wait for one."""
        return not self.asked and self._spare is None and self._end - self._next <= self._size // 2

    def grant(self, first: int, end: int) -> None:
        """[first, end) is surely ours: its CAS succeeded (▲ never called for one whose reply was lost)."""
        if self._next >= self._end:
            self._next, self._end = first, end
        else:
            self._spare = (first, end)

    def take(self) -> int | None:
        if self._next >= self._end:
            if self._spare is None:
                return None
            (self._next, self._end), self._spare = self._spare, None
        self._next += 1
        return self._next - 1


class OwnedTcid:
    """One TCID under our lease; `epoch` is the create revision of its key. `lost`: it is no longer ours."""

    def __init__(self, tcid: int, epoch: int, seq: TcSeq, *, id_block: int) -> None:
        self.tcid = tcid
        self.epoch = epoch
        self.seq = seq
        self.ids = IdBlocks(id_block)
        self.writing_seq = False
        self.marked_at = float("-inf")
        self.young: dict[int, OwnedTransaction] = {}
        self.aged: dict[int, OwnedTransaction] = {}
        self.finals: dict[int, Seen] = {}
        """Decided transactions by counter, in the order seen: collected when their retention is over."""
        self.again: dict[int, Seen] = {}
        """Those whose retention is over and that could not be collected. ▲ In a line of their own: in `finals` each try
        would wait until the retention of all others is over."""
        self.waiting: deque[BeginRequest] = deque()
        self.lost = False
        self._deadlines: list[tuple[float, OwnedTransaction]] = []

    # -- transactions --

    def add(self, txn: OwnedTransaction, *, indexed: bool = False) -> None:
        (self.aged if indexed else self.young)[txn.txn_id.counter] = txn
        txn.deadline_key = indexed
        if indexed or txn.due - txn.begun_at < SHORT_TIMEOUT_S:
            self.watch_deadline(txn, txn.due)

    def find(self, counter: int) -> OwnedTransaction | None:
        return self.young.get(counter) or self.aged.get(counter)

    def remove(self, txn: OwnedTransaction) -> None:
        txn.phase = Phase.ENDED
        if self.young.pop(txn.txn_id.counter, None) is None:
            self.aged.pop(txn.txn_id.counter, None)

    def undecided(self) -> list[OwnedTransaction]:
        """In no order: sorting a few ten thousand would stop the loop."""
        return [*self.aged.values(), *self.young.values()]

    @property
    def open_count(self) -> int:
        return len(self.young) + len(self.aged)

    @property
    def oldest_created_ms(self) -> int | None:
        """When the oldest open transaction began, epoch ms; None without any. O(1): both are in the order of begins."""
        first = next(iter(self.aged.values()), None) or next(iter(self.young.values()), None)
        return None if first is None else first.header.created_ms

    def never_given_out(self, counter: int) -> bool:
        """Whether an id was surely never given out: it is still unused, or in no block taken so far."""
        lowest = self.ids.lowest
        return counter >= self.seq.record.next or (lowest is not None and counter >= lowest)

    # -- deadlines --

    def watch_deadline(self, txn: OwnedTransaction, at: float) -> None:
        txn.on_heap = True
        heapq.heappush(self._deadlines, (at, txn))
        if len(self._deadlines) > 4 * self.open_count + 1000:
            self._deadlines = [item for item in self._deadlines if item[1].phase is not Phase.ENDED]
            heapq.heapify(self._deadlines)

    def overdue(self, now: float, most: int) -> int:
        """Number of passed deadlines on the heap, up to `most`; takes none. O(that number)."""
        found, look = 0, [0]
        while look and found < most:
            at = look.pop()
            if at < len(self._deadlines) and self._deadlines[at][0] <= now:
                found += self._deadlines[at][1].phase is not Phase.ENDED
                look += (2 * at + 1, 2 * at + 2)
        return found

    def due(self, now: float, limit: int) -> list[OwnedTransaction]:
        """At most `limit` transactions whose deadline has passed and that are not being ended, the most overdue first.
        Each is returned once: if its abort gets no verdict, the caller hands it to `watch_deadline` again."""
        found: list[OwnedTransaction] = []
        while len(found) < limit and self._deadlines and self._deadlines[0][0] <= now:
            txn = heapq.heappop(self._deadlines)[1]
            if txn.phase is Phase.OPEN and txn.ending is None:
                found.append(txn)
            elif txn.phase is not Phase.ENDED:
                # Its begin or its end is in flight: look again soon.
                heapq.heappush(self._deadlines, (now + 0.5, txn))
        return found

    # -- the late index --

    def to_index(self, now: float, after_s: float, limit: int) -> list[OwnedTransaction]:
        """Open transactions older than `after_s` without a deadline key, in id order, at most `limit` of them.

        A transaction being ended is left out: its end was sent without the deletion of a deadline key."""
        found: list[OwnedTransaction] = []
        for txn in self.young.values():
            if now - txn.begun_at < after_s:
                break
            if not txn.on_heap:
                self.watch_deadline(txn, txn.due)
            if len(found) < limit and txn.phase is Phase.OPEN and txn.ending is None and not txn.indexing:
                found.append(txn)
        return found

    def indexed(self, txn: OwnedTransaction) -> None:
        """Its deadline key is confirmed."""
        txn.indexing = False
        if self.young.pop(txn.txn_id.counter, None) is not None:
            self.aged[txn.txn_id.counter] = txn

    def mark(self) -> int:
        """Every open transaction below this counter has its deadline key.

        ▲ It never passes an id whose begin or end is still unanswered: the header may yet appear, or stay OPEN.
        """
        first = next(iter(self.young), None)
        if first is not None:
            return first
        lowest = self.ids.lowest
        return self.seq.record.next if lowest is None else lowest

    # -- retention --

    def saw_final(
        self, counter: int, committed: bool, revision: int, *, now: float, name: str | None, writers: int = 0
    ) -> None:
        """Start its retention, unless it has started before."""
        if not self.retains(counter):
            self.finals[counter] = Seen(now, Collectable(counter, committed, revision), name, writers)

    def retains(self, counter: int) -> bool:
        """Whether it waits for its collection here."""
        return counter in self.finals or counter in self.again

    @property
    def retained(self) -> int:
        return len(self.finals) + len(self.again)

    def collectable(self, now: float, retention_s: float, limit: int) -> list[Seen]:
        """Remove and return transactions whose retention is over, in id order: at most `limit` that are tried for the
        first time, and as many of those handed to `collect_again`."""
        found = list(islice(self.again.values(), limit))
        for seen in found:
            del self.again[seen.final.counter]
        first = len(found)
        for seen in islice(self.finals.values(), limit):
            if now - seen.seen_at < retention_s:
                break
            found.append(seen)
        for seen in found[first:]:
            del self.finals[seen.final.counter]
        found.sort(key=lambda seen: seen.final.counter)
        return found

    def collect_again(self, seen: Seen) -> None:
        """One that `collectable` has returned could not be collected: it is returned again."""
        if seen.final.counter not in self.finals:
            self.again[seen.final.counter] = seen
