"""The transaction buffer: decides which entries of one segment a READ_COMMITTED reader may see, as a pure core (DESIGN
§6). All methods are O(1) unless they say otherwise.

Theory of operation:

1. Every transactional entry is registered here before it can be read, because a send is op record → append → ack:

       op_started ──► (op recorded) ──► appended ──► op_finished      acked, or failed after the op was recorded
            └───────► op_refused                                      the op is definitely not recorded

2. A transaction is open here from its first `op_started` until its decision is applied. It *pins* at the position of
   its first entry: `max_read_position` is the entry before the earliest pin, or the last confirmed entry if there is
   no pin.
3. `decided` applies a decision at once, ▲ unless an operation of the transaction is in flight. Then the last of them
   applies it: otherwise an entry could come behind its own decision, and no reader would know of it.
4. A commit only removes the pin. An abort first adds (transaction, writer) to the aborted set. A named transaction
   counts some writers; the others are aborted like a transaction of their own.
5. So at any moment

       visible(entry)  ⇔  its position ≤ max_read_position  and  not is_aborted(its transaction, its writer)

   and what is visible stays visible.
6. The durable part follows behind: an aborted record, then the deletion of the op records, then the watermark. ▲ An
   aborted record is durable before, or with, the deletion of its ops, and the watermark never passes an aborted entry
   without one. A new owner rebuilds the buffer from these and from the entries behind the watermark.
7. Once a closed ledger is decided as a whole, its aborted records move from etcd into a sidecar file beside it.

Source: PIP-471 `MetadataTransactionBuffer`; the watermark and the aborted set take the place of PIP-31's snapshots.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from txnwire.errors import InternalError
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.turns import Steps, in_steps
from watchers.noted_decisions import NotedDecisions
from watchers.outcomes import Decision, refusal

CUT_AT_ONCE: Final = 5000
"""Transactions that a cut examines without a pause."""

AbortedKey = tuple[TxnId, int | None]
"""A transaction aborted whole (None), or one of its writers that did not count."""


class Applied(NamedTuple):
    """A decision that has been applied to the pure state; its durable clean-up is queued in the buffer.

    `aborted`: the records to write, each with the highest position of its entries here.
    """

    decision: Decision
    aborted: tuple[tuple[int | None, Position], ...]


@dataclass(frozen=True, slots=True)
class BufferStatistics:
    """`open`: registered transactions. `pinning`: those of them with entries here. `deferred`: decided, but waiting for
    operations in flight. `cleaning`: applied, clean-up not durable yet. `aborted`: size of the aborted set."""

    open: int
    pinning: int
    deferred: int
    cleaning: int
    aborted: int
    max_read_position: Position
    watermark: Position
    earliest_open: TxnId | None
    earliest_position: Position | None


class BufferCut(NamedTuple):
    """One buffer's part of a cut at R. `undecided`: transactions with entries in (resolved, end] not known to be
    decided at or before R; open ones in order of their first entries. `aborted`: decided by then."""

    end: Position
    undecided: tuple[TxnId, ...]
    aborted: tuple[AbortedKey, ...]


class _RegisteredTxn:
    """One registered transaction. `last_by_writer`: the position of each writer's last entry, None if it has none."""

    __slots__ = ("decision", "first", "in_flight", "last_by_writer", "recorded")

    def __init__(self) -> None:
        self.in_flight = 0
        self.recorded = False
        self.first: Position | None = None
        self.last_by_writer: dict[int, Position | None] = {}
        self.decision: Decision | None = None


def _before(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id - 1)


class TransactionBuffer:
    """Applies decisions to one segment's entries. `watermark`: every entry at or below it is decided and every aborted
    record there is durable. `aborted`: the durable aborted records with their highest positions; an unknown one (None)
    counts as `fenced_below`, the place before the first ledger this owner has opened. `last_confirmed`: the last entry
    that may be exposed at all."""

    def __init__(
        self,
        segment: str,
        *,
        watermark: Position = EARLIEST,
        last_confirmed: Position = EARLIEST,
        aborted: Mapping[AbortedKey, Position | None] | None = None,
        fenced_below: Position = EARLIEST,
    ) -> None:
        self.segment = segment
        self._floor = watermark
        self._last_confirmed = last_confirmed
        self._last_appended = EARLIEST
        self._open: dict[TxnId, _RegisteredTxn] = {}
        # Both in order of first positions, which is the order of insertion, with O(1) removal and first element.
        self._pinning: OrderedDict[TxnId, _RegisteredTxn] = OrderedDict()
        self._unsettled: OrderedDict[TxnId, Position] = OrderedDict()
        """Open transactions, and aborted ones whose record is not durable: they hold the watermark back."""
        self._deferred: dict[TxnId, Decision] = {}
        self._cleaning: OrderedDict[TxnId, Applied] = OrderedDict()
        self._aborted: dict[TxnId, Position] = {}
        self._losers: dict[tuple[TxnId, int], Position] = {}
        self._durable: list[tuple[Position, TxnId, int]] = []
        """Heap of aborted records in etcd by highest position; -1 for a whole transaction. Stale ones are removed
        lazily.
        """
        self._sidecars: dict[int, list[AbortedKey]] = {}
        """By ledger: the aborted records in its sidecar."""
        self._highest_applied = 0
        self._noted: NotedDecisions | None = None
        for (txn_id, writer), position in (aborted or {}).items():
            self._mark_aborted(txn_id, writer, fenced_below if position is None else position)
        self._durable = [(position, txn_id, -1) for txn_id, position in self._aborted.items()]
        self._durable += [(position, txn_id, writer) for (txn_id, writer), position in self._losers.items()]
        heapify(self._durable)

    # ---- the life of a write

    def op_started(self, txn_id: TxnId, writer: int) -> None:
        """Register a write before its op is sent; from here on it is in flight.

        Raises `TxnConflict` (or `ExpiredTransaction`), registering nothing, if the decision is known already."""
        found = self._open.get(txn_id)
        if found is None:
            if txn_id in self._cleaning:
                raise refusal(self._cleaning[txn_id].decision)
            found = self._open[txn_id] = _RegisteredTxn()
        elif found.decision is not None:
            raise refusal(found.decision)
        found.in_flight += 1
        # ▲ Registered before the op is sent: this registration makes a writer that the decision does not list a loser,
        # whatever ops of it etcd still holds by then (DESIGN §6).
        if writer not in found.last_by_writer:
            found.last_by_writer[writer] = None

    def appended(self, txn_id: TxnId, writer: int, position: Position) -> None:
        """Record an entry appended at `position`; positions rise. Call it before `confirmed` reaches `position`."""
        found = self._open.get(txn_id)
        if found is None or found.in_flight == 0:
            raise InternalError(f"{self.segment}: an entry of {txn_id} was appended with no operation in flight")
        if position <= self._last_appended or position <= self._last_confirmed:
            raise InternalError(f"{self.segment}: {position} was appended after {self._last_appended}")
        self._entry(txn_id, found, writer, position)

    def op_finished(self, txn_id: TxnId) -> Applied | None:
        """The write is acked, or failed after its op was recorded. Returns the remembered decision that can now be
        applied.
        """
        found = self._open[txn_id]
        found.recorded = True
        found.in_flight -= 1
        if found.decision is None or found.in_flight:
            return None
        return self._apply(txn_id, found, found.decision)

    def op_refused(self, txn_id: TxnId) -> Applied | None:
        """The op is definitely not recorded. A transaction with nothing else here is forgotten (see `holds`)."""
        found = self._open[txn_id]
        found.in_flight -= 1
        if found.in_flight:
            return None
        if not found.recorded:
            del self._open[txn_id]
            self._deferred.pop(txn_id, None)
            return None
        return None if found.decision is None else self._apply(txn_id, found, found.decision)

    def confirmed(self, position: Position) -> None:
        """Everything up to `position` is durable and may be exposed. Never goes back."""
        if position > self._last_confirmed:
            self._last_confirmed = position

    # ---- recovery

    def loaded(self, txn_id: TxnId) -> None:
        """This segment's index names the transaction: its ops, and perhaps entries, come from a former owner."""
        found = self._open.setdefault(txn_id, _RegisteredTxn())
        found.recorded = True

    def scanned(self, txn_id: TxnId, writer: int, position: Position) -> None:
        """An entry found in the ledger tail, in order. A loaded transaction pins at its first entry; any other
        was decided and cleaned up before: it is visible or in the aborted set already."""
        found = self._open.get(txn_id)
        if found is not None:
            self._entry(txn_id, found, writer, position)

    # ---- decisions

    def decided(self, decision: Decision) -> Applied | None:
        """Apply a decision, or remember it while operations of its transaction are in flight, or drop it if unknown."""
        found = self._open.get(decision.txn_id)
        if found is None:
            return None
        if found.in_flight:
            # ▲ In flight = from before the op is sent until ack or failure. An op that landed before the decision may
            # still append: applied now, its entry would miss the aborted record or appear after the commit was read.
            found.decision = self._deferred[decision.txn_id] = decision
            return None
        return self._apply(decision.txn_id, found, decision)

    def unsettled(self, revision: int) -> bool:
        """Whether a transaction decided at or before `revision` still has an operation in flight here. O(deferred)."""
        return any(decision.revision <= revision for decision in self._deferred.values())

    # ---- cuts (DESIGN §10)

    def note_decisions(self) -> None:
        """From now on remember, for `cut`, which transactions with entries here are decided. Idempotent."""
        if self._noted is None:
            self._noted = NotedDecisions(self._highest_applied)

    def forget_decisions(self) -> None:
        """The last cut is over. A later `cut` without new notes returns None."""
        self._noted = None

    def cut(self, revision: int, resolved: Position) -> Steps[BufferCut | None]:
        """Where this segment ends, and which transactions behind `resolved` do not count at `revision`; None if
        decisions were not noted since before that revision.

        ▲ At its first step, decisions must be followed to `revision` and none `unsettled` at it: the cut shows that
        moment, even if more is decided before its last step. O(open and noted), and O(aborted) unless everything is
        resolved; only the copies of these are made without a pause."""
        end, noted = self._last_confirmed, self._noted
        if noted is None or revision < noted.known_above:
            return None
        pinning = list(self._pinning)
        for found in reversed(self._pinning.values()):  # in order of first positions: skip those not confirmed yet
            if found.first is not None and found.first <= end:
                break
            pinning.pop()
        behind = resolved < end
        whole = zip(list(self._aborted), list(self._aborted.values()), strict=True) if behind else ()
        losers = zip(list(self._losers), list(self._losers.values()), strict=True) if behind else ()
        later = noted.copy()
        undecided: dict[TxnId, None] = {}
        for pins in in_steps(pinning, CUT_AT_ONCE):
            undecided |= dict.fromkeys(pins)
            yield
        # ▲ A transaction decided after R is open at R, even if its decision is applied here already.
        for some in in_steps(later, CUT_AT_ONCE):
            undecided |= {txn_id: None for decided, txn_id, first in some if decided > revision and first <= end}
            yield
        aborted: list[AbortedKey] = []
        for txns in in_steps(whole, CUT_AT_ONCE):
            aborted += ((txn_id, None) for txn_id, last in txns if last > resolved and txn_id not in undecided)
            yield
        for lost in in_steps(losers, CUT_AT_ONCE):
            aborted += (key for key, last in lost if last > resolved and key[0] not in undecided)
            yield
        return BufferCut(end, tuple(undecided), tuple(aborted))

    # ---- reading

    @property
    def last_confirmed(self) -> Position:
        return self._last_confirmed

    @property
    def max_read_position(self) -> Position:
        """The entry before the earliest open transaction's first, or the last confirmed one."""
        for found in self._pinning.values():
            return min(_before(found.first or EARLIEST), self._last_confirmed)
        return self._last_confirmed

    def is_aborted(self, txn_id: TxnId, writer: int) -> bool:
        """True from the decision on, whether or not its durable record stands yet (R2)."""
        return txn_id in self._aborted or (txn_id, writer) in self._losers

    def holds(self, txn_id: TxnId) -> bool:
        """Whether the transaction is registered, so that its decision is still awaited here."""
        return txn_id in self._open

    def pins(self, txn_id: TxnId) -> bool:
        """Whether entries of the transaction here await its decision. ▲ An operation of it in flight is not enough: one
        that comes behind the decision is refused, and a queue would wait for ever for what was written before."""
        return txn_id in self._pinning

    def open_transactions(self) -> Sequence[TxnId]:
        """All registered, in order of registration. O(n)."""
        return tuple(self._open)

    def pinning(self, limit: int) -> Sequence[tuple[TxnId, Position]]:
        """The `limit` open transactions that hold readers back first, with the positions of their first entries."""
        earliest = islice(self._pinning.items(), limit)
        return tuple((txn_id, found.first) for txn_id, found in earliest if found.first is not None)

    # ---- durable clean-up (driven by `watchers.clean_up.WriteCleanUp`)

    @property
    def watermark(self) -> Position:
        """The highest position that may now be written as watermark."""
        reached = self._last_confirmed
        # ▲ Never past an entry of an open transaction, nor past an aborted one whose record is not durable: a successor
        # scans from here, and must find every first and highest position that it needs.
        for first in self._unsettled.values():
            reached = min(_before(first), reached)
            break
        return max(reached, self._floor)

    def clean_up_batch(self, limit: int) -> Sequence[Applied]:
        """The oldest `limit` applied decisions whose clean-up is not durable. O(limit)."""
        return tuple(islice(self._cleaning.values(), limit))

    def cleaned(self, batch: Sequence[Applied]) -> None:
        """Their ops are deleted from etcd and their aborted records are stored there."""
        for applied in batch:
            txn_id = applied.decision.txn_id
            if self._cleaning.pop(txn_id, None) is None:
                continue
            self._unsettled.pop(txn_id, None)
            for writer, position in applied.aborted:
                heappush(self._durable, (position, txn_id, -1 if writer is None else writer))

    @property
    def clean_up_backlog(self) -> int:
        return len(self._cleaning)

    # ---- retention

    def aborted_records(self) -> Mapping[AbortedKey, Position]:
        """A copy of the aborted set with highest positions, durable or not (for a sidecar). O(n)."""
        found: dict[AbortedKey, Position] = {(txn_id, None): position for txn_id, position in self._aborted.items()}
        for (txn_id, writer), position in self._losers.items():
            found[txn_id, writer] = position
        return found

    def in_sidecar(self, ledger_id: int, records: Mapping[AbortedKey, Position]) -> None:
        """Recovery: the synced sidecar of a ledger holds these records. Call it before `scanned` and `decided`."""
        for (txn_id, writer), position in records.items():
            if not self.is_aborted(txn_id, -1 if writer is None else writer):
                self._mark_aborted(txn_id, writer, position)
        self._sidecars.setdefault(ledger_id, []).extend(records)

    @property
    def records_in_store(self) -> int:
        """Number of aborted records in etcd, which recovery reads; may count some that were just trimmed."""
        return len(self._durable)

    def records_from(self, first: Position) -> int:
        """Number of aborted records in etcd that stand for entries at or above `first`. O(n)."""
        return sum(record[0] >= first and self._known(record) for record in self._durable)

    def durable(self, up_to: Position) -> Mapping[AbortedKey, Position]:
        """The aborted records in etcd whose entries all lie at or below `up_to`, in no order. O(n)."""
        found: dict[AbortedKey, Position] = {}
        for record in self._durable:
            if record[0] <= up_to and self._known(record):
                found[record[1], None if record[2] < 0 else record[2]] = record[0]
        return found

    def moved(self, ledger_id: int, records: Mapping[AbortedKey, Position]) -> None:
        """▲ The synced and listed sidecar of a ledger holds these records, etcd no longer does: they still count as
        aborted. O(in etcd)."""
        self._durable = [
            record for record in self._durable if (record[1], None if record[2] < 0 else record[2]) not in records
        ]
        heapify(self._durable)
        self._sidecars.setdefault(ledger_id, []).extend(records)

    def trimmed(self, below: Position) -> None:
        """The ledgers before `below` are deleted, with their sidecars: forget the records in them. O(forgotten)."""
        for ledger_id in [ledger_id for ledger_id in self._sidecars if ledger_id < below.ledger_id]:
            self.pruned(self._sidecars.pop(ledger_id))

    def prunable(self, below: Position, limit: int) -> Sequence[AbortedKey]:
        """Up to `limit` durable aborted records whose entries all lie below `below`, lowest first. O(limit·log n)."""
        taken: list[tuple[Position, TxnId, int]] = []
        while self._durable and len(taken) < limit and self._durable[0][0] < below:
            record = heappop(self._durable)
            if self._known(record):
                taken.append(record)
        for record in taken:
            heappush(self._durable, record)
        return tuple((txn_id, None if writer < 0 else writer) for _, txn_id, writer in taken)

    def pruned(self, records: Iterable[AbortedKey]) -> None:
        """Their data is trimmed and their records are deleted from etcd: forget them (R3: not before)."""
        for txn_id, writer in records:
            if writer is None:
                self._aborted.pop(txn_id, None)
            else:
                self._losers.pop((txn_id, writer), None)

    def statistics(self) -> BufferStatistics:
        earliest = self.pinning(1)
        return BufferStatistics(
            open=len(self._open),
            pinning=len(self._pinning),
            deferred=len(self._deferred),
            cleaning=len(self._cleaning),
            aborted=len(self._aborted) + len(self._losers),
            max_read_position=self.max_read_position,
            watermark=self.watermark,
            earliest_open=earliest[0][0] if earliest else None,
            earliest_position=earliest[0][1] if earliest else None,
        )

    # ---- inside

    def _entry(self, txn_id: TxnId, found: _RegisteredTxn, writer: int, position: Position) -> None:
        self._last_appended = position
        found.last_by_writer[writer] = position
        if found.first is None:
            found.first = position
            self._pinning[txn_id] = found
            self._unsettled[txn_id] = position

    def _apply(self, txn_id: TxnId, found: _RegisteredTxn, decision: Decision) -> Applied:
        """Readers see the decision at once; the durable part is queued."""
        del self._open[txn_id]
        self._pinning.pop(txn_id, None)
        if found.decision is not None:
            del self._deferred[txn_id]
        self._highest_applied = max(self._highest_applied, decision.revision)
        if self._noted is not None and found.first is not None:
            self._noted.note(decision.revision, txn_id, found.first)
        aborted = self._aborted_by(txn_id, found, decision)
        for writer, position in aborted:
            self._mark_aborted(txn_id, writer, position)
        if not aborted:
            self._unsettled.pop(txn_id, None)
        applied = self._cleaning[txn_id] = Applied(decision, aborted)
        return applied

    def _aborted_by(
        self, txn_id: TxnId, found: _RegisteredTxn, decision: Decision
    ) -> tuple[tuple[int | None, Position], ...]:
        """The aborted records to write: none if the transaction has no entry here, or is recorded already."""
        if found.first is None or (decision.committed and decision.writers is None):
            return ()
        entries = [(writer, last) for writer, last in found.last_by_writer.items() if last is not None]
        if not decision.committed:
            return () if txn_id in self._aborted else ((None, max(last for _, last in entries)),)
        return tuple(
            (writer, last)
            for writer, last in entries
            if not decision.counts(writer) and (txn_id, writer) not in self._losers
        )

    def _mark_aborted(self, txn_id: TxnId, writer: int | None, position: Position) -> None:
        if writer is None:
            self._aborted[txn_id] = position
        else:
            self._losers[txn_id, writer] = position

    def _known(self, record: tuple[Position, TxnId, int]) -> bool:
        _, txn_id, writer = record
        return txn_id in self._aborted if writer < 0 else (txn_id, writer) in self._losers
