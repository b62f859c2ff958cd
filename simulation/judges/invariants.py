"""Checks during a run what must hold at every moment, under all faults (DESIGN §13).

- The records: `txnctl check` finds nothing at any revision. A picture is taken at every `EVERY_REVISIONS`th one and
  at moments drawn from the seed. Rules about time are judged below instead, because wall clocks are stepped here.
- Deadlines: no transaction is open for more than `SWEPT_S` past its deadline. Time in which no coordinator could
  work does not count: until `AFTERMATH_S` after the end of the last fault, and after the last change of the owner of
  its TCID. A new coordinator gives it its grace, and counts the deadline anew if wall clocks differ, never for longer
  than the transaction's own timeout. If the cluster's clock was set forward after a time without stamps, an open
  transaction gets that time back, but at most the time without stamps.
- Clean-up: no op record exists for more than `CLEANED_S` after its transaction's decision, with the same excuse, and
  until its segment's owner has had it for as long.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from txnctl.checking.invariants import broken_invariants
from txnctl.checking.picture import picture_of
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.records import OPEN, ClockStamp, Header, decode
from txnstore.store import Event, EventKind
from txnwire.ids import TxnId

EVERY_REVISIONS = 401
"""Divides no period of rounds."""
AT_RANDOM = 1 / 600
AFTERMATH_S = 9.0
"""▲ Time after a fault: `store_faults` lets writes land 7.5 s late, and a lease of 4 s runs out first."""
SWEPT_S = 4.0
GRACE_S = 5.0
"""Grace of clients, as `simulation.world.servers` sets it."""
CLEANED_S = 5.0
MOST_FINDINGS = 30
NO_TIME = 0
"""Counts as now: nothing is late by it."""


@dataclass(slots=True)
class _Deadline:
    """`due`: its deadline, in virtual time, as its coordinator counts it."""

    due: float
    lasts_s: float


Name = TypeVar("Name", int, str)


class Invariants:
    """Call it with every change and, now and then, the time. `findings`: each only once."""

    def __init__(
        self, etcd: MemoryEtcd, seed: int, *, calm_since: Callable[[], float], clocks_differ: Callable[[], bool]
    ) -> None:
        self._etcd = etcd
        self._random = random.Random(f"{seed}/invariants")
        self._calm_since = calm_since
        self._clocks_differ = clocks_differ
        self._found: dict[str, str] = {}
        """Finding → when it was seen first"""
        self._open: dict[TxnId, _Deadline] = {}
        self._ops: dict[TxnId, dict[tuple[str, str | None], int]] = {}
        """Transaction → (segment, subscription) → number of op records"""
        self._decided: dict[TxnId, float] = {}
        self._coordinated: dict[int, float] = {}
        """TCID → since when it has had its owner"""
        self._owned: dict[str, float] = {}
        self._stamped = 0.0
        self._leaps: tuple[tuple[int, int], ...] = ()
        self._given_back: list[tuple[float, float]] = []
        """When the cluster's clock was set forward, and by how many seconds at most"""
        self._next_revision = EVERY_REVISIONS
        self.pictures = 0

    @property
    def findings(self) -> list[str]:
        return [f"{when}: {text}" for text, when in self._found.items()]

    # ---- what changes -----------------------------------------------------------------------------------------------

    def saw(self, at: float, events: Sequence[Event]) -> None:
        """Everything that changed at one revision."""
        for event in events:
            key = event.record.key
            if key.startswith(keys.TXN):
                self._header(at, event)
            elif key.startswith(keys.TXN_OP):
                self._op(event)
            elif key.startswith(keys.TC):
                _moved(self._coordinated, int(key[len(keys.TC) :], 16), at, event)
            elif key == keys.CLOCK and event.kind is EventKind.PUT:
                self._clock(at, decode(ClockStamp, event.record.value, key=key))
            elif key.startswith(keys.OWNER):
                _moved(self._owned, key[len(keys.OWNER) :].decode(), at, event)
        if self._etcd.mvcc.revision >= self._next_revision or self._random.random() < AT_RANDOM:
            self._next_revision = self._etcd.mvcc.revision + EVERY_REVISIONS
            self.look_at_records(at)

    def _header(self, at: float, event: Event) -> None:
        txn_id = keys.txn_of(event.record.key)
        if event.kind is EventKind.DELETE:
            self._open.pop(txn_id, None)
            self._decided.pop(txn_id, None)
            return
        header = decode(Header, event.record.value, key=event.record.key)
        if header.state == OPEN:
            lasts_s = (header.timeout_ms - header.created_ms) / 1000
            self._open[txn_id] = _Deadline(at + lasts_s, lasts_s)
        elif self._open.pop(txn_id, None) is not None:
            self._decided[txn_id] = at

    def _clock(self, at: float, stamp: ClockStamp) -> None:
        if stamp.leaps != self._leaps:
            self._given_back.append((at, min(stamp.leaps[-1][1] / 1000, at - self._stamped)))
        self._leaps, self._stamped = stamp.leaps, at

    def _op(self, event: Event) -> None:
        txn_id, segment, subscription = keys.op_parts(event.record.key)
        ops = self._ops.setdefault(txn_id, {})
        place = (segment, subscription)
        ops[place] = ops.get(place, 0) + (1 if event.kind is EventKind.PUT else -1)
        if not ops[place]:
            del ops[place]
        if not ops:
            del self._ops[txn_id]

    # ---- what must hold ---------------------------------------------------------------------------------------------

    def look_at_records(self, at: float) -> None:
        self.pictures += 1
        mvcc = self._etcd.mvcc
        picture = picture_of(mvcc.revision, lambda start, end: mvcc.range(start, end)[0])
        for rule, text in broken_invariants(picture, now_ms=NO_TIME):
            self._broken(at, f"{rule}: {text}")

    def look_at_the_time(self, at: float) -> None:
        calm = self._calm_since() + AFTERMATH_S
        if calm >= at:
            return
        for txn_id, txn in self._open.items():
            since = self._coordinated.get(txn_id.tcid)
            if since is None:
                continue
            opened = txn.due - txn.lasts_s
            back_s = sum(by_s for set_forth, by_s in self._given_back if opened < set_forth)
            due = max(txn.due + back_s, calm, since + GRACE_S)  # ▲ a new owner never gives it less than the grace
            if self._clocks_differ() and since > opened:
                due += txn.lasts_s  # ▲ a new owner may have counted all of it from then on
            if at > due + SWEPT_S:
                self._broken(at, f"{txn_id} is open past its deadline at {txn.due:.1f}")
        for txn_id, ops in self._ops.items():
            decided = self._decided.get(txn_id)
            if decided is None:
                continue
            for segment, subscription in ops:
                since = self._owned.get(segment)
                if since is not None and at > max(decided, calm, since) + CLEANED_S:
                    where = f"{segment} {subscription or ''}".rstrip()
                    self._broken(at, f"{txn_id} was decided at {decided:.1f}, and {where} still has op records of it")

    def _broken(self, at: float, text: str) -> None:
        if len(self._found) < MOST_FINDINGS:
            self._found.setdefault(text, f"at {at:.3f}, revision {self._etcd.mvcc.revision}")


def _moved(since: dict[Name, float], name: Name, at: float, event: Event) -> None:
    if event.kind is EventKind.DELETE:
        since.pop(name, None)
    else:
        since[name] = at
