"""Collection of decided transactions: outcome bitmaps, the GC horizon, and leftovers of segments without an owner.

Pure. Source: DESIGN §5, "collection" and "Collection never guesses"; PIP-471 "Garbage collection". Its forced deletion
of leftovers is replaced: an aborted transaction's data would then read as committed.

Ids count up, so transactions collected together are mostly a run of neighbours. A run costs one compare over its
headers, one over its op keys and one range delete, and all runs of a batch share one put of the outcome block: a
collected transaction costs etcd little more than the deletion of its header.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from txnstore import keys, records
from txnstore.records import COMMITTED, NO_WRITER, AbortedRecord, GcHorizon, Op, OutcomeBlock, TxnName
from txnstore.store import (
    MAX_COMMIT_OPS,
    Commit,
    CommitVerdict,
    Compare,
    Delete,
    KeyValue,
    Put,
    Read,
    Relation,
    Target,
    absent,
    created_at,
    range_is_empty,
    unchanged_since,
)
from txnstore.writes.op_transitions import Rewrite, aborted_rewrite
from txnstore.writes.transitions import RecordedDecision
from txnstore.writes.writer_lists import pack
from txnwire.errors import DataCorrupt, NotOwner
from txnwire.ids import TxnId

_BITMAP_BYTES: Final = keys.OUTCOMES_PER_BLOCK // 8
MAX_RUNS: Final = 40
"""Two compares a run, three for the records, and room for a few names, within `store.MAX_COMMIT_OPS`."""
LOSERS_AT_ONCE: Final = MAX_COMMIT_OPS - 3
"""Losers of one leftover: each takes a compare and a put, besides three conditions and two deletes of its writes."""
ACKS_AT_ONCE: Final = LOSERS_AT_ONCE // 2
"""Subscriptions of one leftover: two deletes each."""
MAX_COLLECTED: Final = 512
"""Headers deleted by one commit: bounds how long etcd is busy with it."""


class Collectable(NamedTuple):
    """A decided transaction to be collected: its counter, whether it committed, the revision of its decision."""

    counter: int
    committed: bool
    revision: int


class OutcomeBitmap(NamedTuple):
    """`/txn-outcome/<tcid>/<block>` as last read or written; bit i is counter `block * 4096 + i`."""

    tcid: int
    block: int
    decided: int = 0
    committed: int = 0
    touched_ms: int = 0
    mod_revision: int = 0

    @property
    def key(self) -> bytes:
        return keys.outcome_block(TxnId(self.tcid, self.block * keys.OUTCOMES_PER_BLOCK))

    def state_of(self, counter: int) -> str | None:
        """COMMITTED or ABORTED; None if the id is not known as collected."""
        bit = 1 << (counter % keys.OUTCOMES_PER_BLOCK)
        if not self.decided & bit:
            return None
        return COMMITTED if self.committed & bit else records.ABORTED

    def with_finals(self, finals: Iterable[Collectable], touched_ms: int) -> OutcomeBitmap:
        decided, committed = self.decided, self.committed
        for final in finals:
            bit = 1 << (final.counter % keys.OUTCOMES_PER_BLOCK)
            decided |= bit
            committed |= bit if final.committed else 0
        return self._replace(decided=decided, committed=committed, touched_ms=max(touched_ms, self.touched_ms))

    def record(self) -> OutcomeBlock:
        return OutcomeBlock(
            decided=_to_text(self.decided), committed=_to_text(self.committed), touched_ms=self.touched_ms
        )


def block_of(counter: int) -> int:
    return counter // keys.OUTCOMES_PER_BLOCK


def read_outcomes(tcid: int, block: int, record: KeyValue | None) -> OutcomeBitmap:
    """Raises `DataCorrupt` if the record does not hold two bitmaps of 4 096 bits."""
    if record is None:
        return OutcomeBitmap(tcid, block)
    value = records.decode(OutcomeBlock, record.value, key=record.key)
    decided, committed = _from_text(value.decided, record.key), _from_text(value.committed, record.key)
    return OutcomeBitmap(tcid, block, decided, committed, value.touched_ms, record.mod_revision)


def _to_text(bitmap: int) -> str:
    return base64.b64encode(bitmap.to_bytes(_BITMAP_BYTES, "little")).decode()


def _from_text(text: str, key: bytes) -> int:
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise DataCorrupt(f"{key.decode()}: its bitmap is not base64: {error}") from error
    if len(raw) != _BITMAP_BYTES:
        raise DataCorrupt(f"{key.decode()}: a bitmap of {len(raw)} bytes, expected {_BITMAP_BYTES}")
    return int.from_bytes(raw, "little")


class Horizon(NamedTuple):
    """`/gc-horizon` as last read or written: no header decided above `revision` has been collected."""

    revision: int = 0
    mod_revision: int = 0


def read_horizon(record: KeyValue | None) -> Horizon:
    if record is None:
        return Horizon()
    return Horizon(records.decode(GcHorizon, record.value, key=record.key).revision, record.mod_revision)


# ---- collection -----------------------------------------------------------------------------------------------------


def runs_of(counters: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending counters as inclusive runs of neighbours."""
    runs: list[tuple[int, int]] = []
    for counter in counters:
        if runs and counter == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], counter)
        else:
            runs.append((counter, counter))
    return runs


def batches_of(finals: Sequence[Collectable]) -> list[list[Collectable]]:
    """Cut ascending finals into batches for one commit: one outcome block, `MAX_RUNS` runs, `MAX_COLLECTED` ids."""
    batches: list[list[Collectable]] = []
    runs = 0
    for final in finals:
        last = batches[-1][-1] if batches else None
        new_run = last is None or final.counter != last.counter + 1
        if (
            last is None
            or block_of(final.counter) != block_of(last.counter)
            or len(batches[-1]) >= MAX_COLLECTED
            or (new_run and runs >= MAX_RUNS)
        ):
            batches.append([])
            runs, new_run = 0, True
        runs += new_run
        batches[-1].append(final)
    return batches


def plan_collect(
    tc_epoch: int,
    outcomes: OutcomeBitmap,
    finals: Sequence[Collectable],
    horizon: Horizon,
    *,
    raise_to: int,
    touched_ms: int,
    names: Sequence[Rewrite] = (),
) -> Commit:
    """Delete the headers of `finals` (one batch of `batches_of`, all in the block of `outcomes`) and set their bits.

    Each id between a run's ends is one of `finals`, so its range holds nothing else; ▲ a header that is not final, or
    an op key left in a run (scenario E5), refuses the whole batch. ▲ Final is any version above 1: a repair that drops
    a committed transaction puts its header a third time. `raise_to`: at least the highest decision revision
    among them; one put of the horizon may cover later batches. `names`: name records from `name_rewrite`.
    """
    changed = outcomes.with_finals(finals, touched_ms)
    compares = [created_at(keys.tc(outcomes.tcid), tc_epoch), unchanged_since(outcomes.key, outcomes.mod_revision)]
    puts = [Put(outcomes.key, records.encode(changed.record()))]
    if raise_to > horizon.revision:
        compares.append(unchanged_since(keys.GC_HORIZON, horizon.mod_revision))
        puts.append(Put(keys.GC_HORIZON, records.encode(GcHorizon(revision=raise_to))))
    compares += (unchanged_since(name.key, name.mod_revision) for name in names)
    puts += (Put(name.key, name.value) for name in names)
    deletes = []
    for first, last in runs_of(final.counter for final in finals):
        start, end = keys.txn(TxnId(outcomes.tcid, first)), keys.txn(TxnId(outcomes.tcid, last)) + b"\0"
        compares.append(Compare(start, Target.VERSION, Relation.GREATER, 1, end))
        ops_end = keys.prefix_end(keys.txn_ops(TxnId(outcomes.tcid, last)))
        compares.append(range_is_empty(keys.txn_ops(TxnId(outcomes.tcid, first)), ops_end))
        deletes.append(Delete(start, end))
    return Commit(
        compares=tuple(compares),
        puts=tuple(puts),
        deletes=tuple(deletes),
        else_reads=(Read(keys.tc(outcomes.tcid)), Read(outcomes.key), Read(keys.GC_HORIZON)),
    )


class CollectVerdict(NamedTuple):
    """Not `applied`: some header is not final, is deleted or keeps an op, or a record had changed. The caller then
    reads headers and op keys, and continues with the current `outcomes` and `horizon`."""

    applied: bool
    outcomes: OutcomeBitmap
    horizon: Horizon


def read_collect_verdict(
    commit: Commit, result: CommitVerdict, outcomes: OutcomeBitmap, horizon: Horizon
) -> CollectVerdict:
    """Raises `NotOwner` when the TCID has another owner."""
    if result.succeeded:
        record = KeyValue(commit.puts[0].key, commit.puts[0].value, 1, 0, result.revision)
        raised = [put for put in commit.puts if put.key == keys.GC_HORIZON]
        if raised:
            horizon = Horizon(records.decode(GcHorizon, raised[0].value, key=raised[0].key).revision, result.revision)
        return CollectVerdict(True, read_outcomes(outcomes.tcid, outcomes.block, record), horizon)
    owner, block, gc = (found[0] if found else None for found in result.reads)
    if owner is None or owner.create_revision != commit.compares[0].value:
        raise NotOwner(f"coordinator id {outcomes.tcid} has another owner by now: collection is its business")
    # Only the TCID's owner writes the block: if a repeat finds it as put, an earlier sending had landed.
    landed = result.repeated and block is not None and block.value == commit.puts[0].value
    return CollectVerdict(landed, read_outcomes(outcomes.tcid, outcomes.block, block), read_horizon(gc))


def name_rewrite(
    record: KeyValue | None, txn_id: TxnId, decision: RecordedDecision, collected_ms: int
) -> Rewrite | None:
    """▲ The name record takes over outcome, writers and note at collection *if* it still names this transaction."""
    if record is None:
        return None
    named = records.decode(TxnName, record.value, key=record.key)
    if named.txn_id != str(txn_id):
        return None
    writers = None if decision.writers is None else pack(decision.writers)
    taken = replace(named, outcome=decision.state, writers=writers, note=decision.note, collected_ms=collected_ms)
    return Rewrite(record.key, records.encode(taken), record.mod_revision)


def plan_expire_outcomes(outcomes: OutcomeBitmap) -> Commit:
    """Forget a block of outcomes untouched for the 7 days they are kept."""
    return Commit(compares=(unchanged_since(outcomes.key, outcomes.mod_revision),), deletes=(Delete(outcomes.key),))


# ---- leftovers ------------------------------------------------------------------------------------------------------


class Leftover(NamedTuple):
    """The ops that a decided transaction left in one segment, and those to clear while the segment has no owner.

    `aborted`: writers to be recorded as aborted (None: the whole transaction). `held_acks`: subscriptions whose
    committed acks stay, with the header, until an owner applies them."""

    segment: str
    writes: bool
    aborted: tuple[int | None, ...]
    acks: tuple[str, ...]
    held_acks: tuple[str, ...]


class Leftovers:
    """Sorts the op records of one decided transaction by segment, in any number: fed in key order, page by page. ▲ It
    yields a segment only once all of it was read: clearing deletes all of its ops, and a loser missing from the result
    would be visible to the next owner."""

    def __init__(self, decision: RecordedDecision) -> None:
        self._committed = decision.state == COMMITTED
        self._counting = (
            None if decision.writers is None else frozenset(_writer(text, b"the decision") for text in decision.writers)
        )
        self._segment: str | None = None
        self._losers: dict[int | None, None] = {}
        self._subscriptions: dict[str, None] = {}
        self._writes = False

    def add(self, ops: Iterable[KeyValue]) -> Iterator[Leftover]:
        """Yields the leftover of each segment that `ops` go beyond. Raises `DataCorrupt`, `InvalidArgument`."""
        for record in ops:
            _, segment, subscription = keys.op_parts(record.key)
            if segment != self._segment:
                yield from self.rest()
                self._segment = segment
            if subscription is not None:
                self._subscriptions[subscription] = None
            else:
                self._writes = True
                self._lose(record)

    def _lose(self, record: KeyValue) -> None:
        if not self._committed:
            self._losers[None] = None
        elif self._counting is not None:
            text = records.decode(Op, record.value, key=record.key).writer
            # ▲ A write without a writer belongs to writer 0, as its entry does: a record of the whole transaction would
            # hide the entries of counting writers, in this segment, for good.
            writer = NO_WRITER if text is None else _writer(text, record.key)
            if writer not in self._counting:
                self._losers[writer] = None

    def rest(self) -> Iterator[Leftover]:
        """Yields the leftover of the last segment."""
        if self._segment is None:
            return
        subscriptions = tuple(self._subscriptions)
        acks, held_acks = ((), subscriptions) if self._committed else (subscriptions, ())
        yield Leftover(self._segment, self._writes, tuple(self._losers), acks, held_acks)
        self._segment, self._losers, self._subscriptions, self._writes = None, {}, {}, False


def _writer(text: str, key: bytes) -> int:
    try:
        return int(text, 16)
    except ValueError as error:
        raise DataCorrupt(f"{key.decode()}: {text!r} is no writer, expected hex digits") from error


def parts_of(leftover: Leftover) -> Iterator[Leftover]:
    """Cuts a leftover too large for one commit into parts, committed in order: ▲ its ops are deleted with the last of
    the records that replace them."""
    at = 0
    while len(leftover.aborted) - at > LOSERS_AT_ONCE:
        yield Leftover(leftover.segment, False, leftover.aborted[at : at + LOSERS_AT_ONCE], (), ())
        at += LOSERS_AT_ONCE
    rest = leftover._replace(aborted=leftover.aborted[at:])
    first = max(0, (LOSERS_AT_ONCE - len(rest.aborted)) // 2 - rest.writes)
    yield rest._replace(acks=rest.acks[:first])
    for at in range(first, len(rest.acks), ACKS_AT_ONCE):
        yield Leftover(leftover.segment, False, (), rest.acks[at : at + ACKS_AT_ONCE], ())


def leftover_records(txn_id: TxnId, part: Leftover) -> list[bytes]:
    """The aborted records that `plan_leftovers` writes, to be read first: a rewrite compares the record as read."""
    return [keys.aborted(part.segment, txn_id, writer) for writer in part.aborted]


def plan_leftovers(txn_id: TxnId, part: Leftover, found: Sequence[KeyValue | None]) -> Commit:
    """Clear one part from `parts_of` of a leftover, *only if* `/owner/<segment>` is absent, compared in the same
    transaction. Commit the next part only after this one has succeeded.

    ▲ An aborted record with `max_position: null` replaces an aborted write's op: the end of its entries is unknown, so
    the record stays until everything older than a later owner's ledger is trimmed. `found` holds the records of
    `leftover_records`. May be empty.
    """
    conditions = [absent(keys.owner(part.segment)), Compare(keys.txn(txn_id), Target.VERSION, Relation.GREATER, 1)]
    rewrites = [
        aborted_rewrite(part.segment, txn_id, writer, None, 0 if record is None else record.mod_revision)
        for writer, record in zip(part.aborted, found, strict=True)
        if record is None or records.decode(AbortedRecord, record.value, key=record.key).max_position is not None
    ]
    deletes: list[Delete] = []
    if part.writes:
        prefix = keys.write_ops(txn_id, part.segment)
        deletes += Delete(prefix, keys.prefix_end(prefix)), Delete(keys.write_index(part.segment, txn_id))
    for subscription in part.acks:
        prefix = keys.ack_ops(txn_id, part.segment, subscription)
        deletes += Delete(prefix, keys.prefix_end(prefix)), Delete(keys.ack_index(part.segment, subscription, txn_id))
    if rewrites:
        # ▲ No record after its op is deleted: the segment may have been owned, and erased with its topic, in between.
        conditions.append(Compare(keys.write_index(part.segment, txn_id), Target.VERSION, Relation.GREATER, 0))
    return Commit(
        compares=(*conditions, *(unchanged_since(item.key, item.mod_revision) for item in rewrites)),
        puts=tuple(Put(item.key, item.value) for item in rewrites),
        deletes=tuple(deletes),
    )
