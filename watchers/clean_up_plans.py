"""Plans the durable clean-up behind decisions: what each participant writes next (DESIGN §5, §6). Pure.

A plan puts aborted records, cursor blocks and watermarks, and deletes op records and index keys, batched over
transactions into commits within `store.MAX_COMMIT_OPS`. `watchers.clean_up` writes the plans, ▲ one unanswered at a
time per participant. In steady state a one-write transaction costs two deletions here, and nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from txnstore import keys, records
from txnstore.records import Watermark
from txnstore.store import MAX_COMMIT_BYTES, MAX_COMMIT_OPS, Commit, CommitVerdict, KeyValue
from txnstore.writes.op_transitions import (
    Rewrite,
    aborted_rewrite,
    clean_up_revisions,
    plan_clean_up,
    read_clean_up_verdict,
    watermark_rewrite,
)
from txnwire.errors import TxnError
from txnwire.ids import Position
from watchers.pending_acks import AppliedAcks, BlockWrite, PendingAcks
from watchers.visibility import AbortedKey, Applied, TransactionBuffer

_ROOM = MAX_COMMIT_OPS - 1
"""Operations in one commit besides the owner's compare."""

_ROOM_BYTES = MAX_COMMIT_BYTES * 6 // 10
"""Bytes of cursor records in one commit; deletions and keys, which occur three times each, take the rest."""

_KEY_BYTES = 3 * 700
"""Bytes of a record's key in its compare, its put and its read, with all names at their longest."""

_ROUND_ACKS = 500
"""Most transactions cleaned with a round of several commits."""


class CleanUpPlan(NamedTuple):
    """`writes`, `acks`: the transactions cleaned once `commit` succeeds. `recorded`: aborted records it puts."""

    commit: Commit
    writes: Sequence[Applied] = ()
    acks: Sequence[AppliedAcks] = ()
    recorded: Sequence[AbortedKey] = ()
    watermark: Position | None = None
    blocks: Sequence[BlockWrite] = ()
    behind_cursor: bool = False


class CleanUpTarget(Protocol):
    """The durable side of one participant. Pure: the caller passes the time (monotonic seconds), no I/O."""

    @property
    def name(self) -> str: ...

    @property
    def backlog(self) -> int:
        """Number of applied decisions whose clean-up is not durable."""

    def plan(self, now_s: float, *, everything: bool = False) -> CleanUpPlan | None:
        """The next commit, None if nothing is due. `everything`: do not wait for the flush interval."""

    def settle(self, plan: CleanUpPlan, result: CommitVerdict, now_s: float) -> bool:
        """Apply the verdict. False: a compare was lost and the stored records were loaded; plan again. Raises
        `NotOwner`, `DataCorrupt`."""

    def next_flush_s(self) -> float | None:
        """When a write without clean-up to travel with is due, None if there is none."""

    def lost(self, error: TxnError) -> None:
        """Stop: the owner epoch is lost, or a record is corrupt. Called once."""


class WriteCleanUp:
    """`CleanUpTarget` of a segment's writes: op and index deletes, aborted records, the watermark.

    `watermark`: its record as recovery found it. `on_lost`: called when the segment cannot go on."""

    def __init__(
        self,
        segment: str,
        owner_epoch: int,
        buffer: TransactionBuffer,
        *,
        watermark: KeyValue | None,
        on_lost: Callable[[TxnError], None],
        flush_interval_s: float = 1.0,
    ) -> None:
        self.name = f"writes of {segment}"
        self._segment = segment
        self._owner_epoch = owner_epoch
        self._buffer = buffer
        self._on_lost = on_lost
        self._flush_interval_s = flush_interval_s
        self._flushed_s = float("-inf")
        self._watermark_key = keys.watermark(segment)
        self._written: Position | None = None
        self._mod_revision = 0
        self._take_watermark(watermark)
        self._recorded: dict[AbortedKey, None] = {}
        """Aborted records in etcd whose transaction still has op records there."""

    @property
    def backlog(self) -> int:
        return self._buffer.clean_up_backlog

    def plan(self, now_s: float, *, everything: bool = False) -> CleanUpPlan | None:
        rewrites: list[Rewrite] = []
        watermark = self._due_watermark(now_s, everything=everything)
        if watermark is not None:
            rewrites.append(watermark_rewrite(self._segment, watermark, self._mod_revision))
        writes: list[Applied] = []
        recorded: list[AbortedKey] = []
        room = _ROOM - len(rewrites)
        for applied in self._buffer.clean_up_batch(room // 2):
            due = [one for one in applied.aborted if (applied.decision.txn_id, one[0]) not in self._recorded]
            # ▲ An aborted record is durable before or with the deletion of its op: if they do not all fit, this commit
            # takes the records and the next one the deletion.
            complete = len(due) + 2 <= room
            if not complete and writes:
                break
            for writer, position in due[: room if not complete else None]:
                rewrites.append(aborted_rewrite(self._segment, applied.decision.txn_id, writer, position))
                recorded.append((applied.decision.txn_id, writer))
            if not complete:
                break
            writes.append(applied)
            room -= len(due) + 2
        if not writes and not rewrites:
            return None
        commit = plan_clean_up(
            self._segment,
            self._owner_epoch,
            writes=[applied.decision.txn_id for applied in writes],
            rewrites=rewrites,
        )
        return CleanUpPlan(commit, writes=writes, recorded=recorded, watermark=watermark)

    def settle(self, plan: CleanUpPlan, result: CommitVerdict, now_s: float) -> bool:
        found = read_clean_up_verdict(plan.commit, result)
        if found is not None:
            self._reload(plan, found)
            return False
        if plan.watermark is not None:
            self._written = plan.watermark
            self._mod_revision = clean_up_revisions(plan.commit, result)[self._watermark_key]
            self._flushed_s = now_s
        self._recorded.update((key, None) for key in plan.recorded)
        for applied in plan.writes:
            for writer, _ in applied.aborted:
                self._recorded.pop((applied.decision.txn_id, writer), None)
        self._buffer.cleaned(plan.writes)
        return True

    def next_flush_s(self) -> float | None:
        return None if self._lag() is None else self._flushed_s + self._flush_interval_s

    def lost(self, error: TxnError) -> None:
        self._on_lost(error)

    def _lag(self) -> Position | None:
        """The watermark to write, None if it has not moved."""
        watermark = self._buffer.watermark
        if watermark.ledger_id <= 0 or (self._written is not None and watermark <= self._written):
            return None
        return watermark

    def _due_watermark(self, now_s: float, *, everything: bool) -> Position | None:
        if not everything and now_s < self._flushed_s + self._flush_interval_s:
            return None
        return self._lag()

    def _take_watermark(self, record: KeyValue | None) -> None:
        self._mod_revision = 0 if record is None else record.mod_revision
        if record is not None:
            self._written = Position(*records.decode(Watermark, record.value, key=record.key).position)

    def _reload(self, plan: CleanUpPlan, found: dict[bytes, KeyValue | None]) -> None:
        if plan.watermark is not None:
            self._take_watermark(found[self._watermark_key])
        for txn_id, writer in plan.recorded:
            if found[keys.aborted(self._segment, txn_id, writer)] is not None:
                self._recorded[txn_id, writer] = None


class BehindCursor(Protocol):
    """One more record about the cursor, written by the cursor's writer."""

    @property
    def due(self) -> bool:
        """Whether to write it as soon as the in-memory cursor is stored; the cursor is then stored without delay."""

    def commit(self) -> Commit: ...

    def settle(self, result: CommitVerdict) -> None:
        """Raises `NotOwner`."""


class _CursorRound(NamedTuple):
    """A copy of the cursor at one moment, written to the store in several commits if it is large.

    ▲ The copy holds all of `acks`, so they are cleaned once it is stored, even if the cursor has moved on: waiting for
    a clean cursor would keep ops for as long as others ack. `seeks`: the cursor's count of seeks at that moment."""

    seeks: int = 0
    blocks: tuple[BlockWrite, ...] = ()
    acks: tuple[AppliedAcks, ...] = ()

    @property
    def over(self) -> bool:
        return not self.blocks and not self.acks

    def without(self, plan: CleanUpPlan) -> _CursorRound:
        return self._replace(blocks=self.blocks[len(plan.blocks) :], acks=self.acks[len(plan.acks) :])


def _that_fit(blocks: Sequence[BlockWrite]) -> Sequence[BlockWrite]:
    """The first blocks that fit one commit, by number and by bytes."""
    size = 0
    for count, block in enumerate(blocks):
        # ▲ By bytes too: the store would always refuse a commit that is too large.
        size += len(block.value or b"") + _KEY_BYTES
        if count and (count == _ROOM or size > _ROOM_BYTES):
            return blocks[:count]
    return blocks


class AckCleanUp:
    """`CleanUpTarget` of one (segment, subscription): deletes ack ops and indexes together with writing the cursor
    records that hold their acks. It also writes the cursor's plain acks, so a cursor has one writer (▲ P11), and the
    record that must follow the cursor."""

    def __init__(
        self,
        segment: str,
        subscription: str,
        owner_epoch: int,
        pending: PendingAcks,
        *,
        on_lost: Callable[[TxnError], None],
        flush_interval_s: float = 1.0,
        behind_cursor: BehindCursor | None = None,
    ) -> None:
        self.name = f"acks of {subscription} on {segment}"
        self._segment = segment
        self._subscription = subscription
        self._owner_epoch = owner_epoch
        self._pending = pending
        self._cursor = pending.cursor
        self._on_lost = on_lost
        self._flush_interval_s = flush_interval_s
        self._flushed_s = float("-inf")
        self._behind_cursor = behind_cursor
        self._round = _CursorRound()

    @property
    def backlog(self) -> int:
        behind = self._behind_cursor is not None and self._behind_cursor.due
        return self._pending.clean_up_backlog + behind + bool(self._round.blocks)

    def plan(self, now_s: float, *, everything: bool = False) -> CleanUpPlan | None:
        left = self._left_to_store(now_s, everything=everything)
        blocks = _that_fit(left)
        # ▲ An ack op is deleted only with, or after, all cursor records that hold its ack, so that a crash loses no
        # part of a commit. If they do not all fit, deletions wait for the next commit.
        room = (_ROOM - len(blocks)) // 2 if len(blocks) == len(left) else 0
        acks = self._pending.clean_up_batch(room) if self._round.over else self._round.acks[:room]
        if not blocks and not acks:
            return self._plan_behind_cursor()
        commit = plan_clean_up(
            self._segment,
            self._owner_epoch,
            acks=[(self._subscription, applied.decision.txn_id) for applied in acks],
            rewrites=[
                Rewrite(self._key(one.block), one.value, one.mod_revision) for one in blocks if one.value is not None
            ],
            forget=[self._key(one.block) for one in blocks if one.value is None],
        )
        return CleanUpPlan(commit, acks=acks, blocks=blocks)

    def _left_to_store(self, now_s: float, *, everything: bool) -> Sequence[BlockWrite]:
        """Blocks left of the current round, or of the current cursor; begins a round if they take several commits."""
        if not self._round.over and self._round.seeks == self._cursor.seeks:
            return self._round.blocks
        # ▲ Blocks planned before a seek are not written after it.
        self._round = _CursorRound()
        due = self.backlog > 0 or everything or now_s >= self._flushed_s + self._flush_interval_s
        left = self._cursor.block_writes() if due and self._cursor.dirty else ()
        if len(_that_fit(left)) < len(left):
            self._round = _CursorRound(
                self._cursor.seeks, tuple(left), tuple(self._pending.clean_up_batch(_ROUND_ACKS))
            )
        return left

    def _plan_behind_cursor(self) -> CleanUpPlan | None:
        """▲ Only once the whole cursor is stored: a reader that acts on this record must find that cursor."""
        behind = self._behind_cursor
        if behind is None or not behind.due:
            return None
        return CleanUpPlan(behind.commit(), behind_cursor=True)

    def settle(self, plan: CleanUpPlan, result: CommitVerdict, now_s: float) -> bool:
        if plan.behind_cursor:
            assert self._behind_cursor is not None
            self._behind_cursor.settle(result)
            return True
        found = read_clean_up_verdict(plan.commit, result)
        if found is not None:
            self._round = _CursorRound(self._cursor.seeks)
            for key, record in found.items():
                value, mod_revision = (None, 0) if record is None else (record.value, record.mod_revision)
                self._cursor.reload(key.rpartition(b"/")[2].decode(), value, mod_revision)
            return False
        revisions = clean_up_revisions(plan.commit, result)
        self._cursor.written(
            plan.blocks, {key.rpartition(b"/")[2].decode(): revision for key, revision in revisions.items()}
        )
        self._pending.cleaned(plan.acks)
        self._round = self._round.without(plan)
        self._flushed_s = now_s
        return True

    def next_flush_s(self) -> float | None:
        return self._flushed_s + self._flush_interval_s if self._cursor.dirty else None

    def lost(self, error: TxnError) -> None:
        self._on_lost(error)

    def _key(self, block: str) -> bytes:
        return keys.cursor_block(self._segment, self._subscription, block)
