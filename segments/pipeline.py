"""The way of an entry into a segment: admit, op record, append, sync, ack (DESIGN §7, "Pipeline of one segment").

    send ──admit──► [op record] ──in the producer's order──► append ──sync, fence check──► ack, readers wake

Producers do not wait for each other, except that one sync serves whatever has gathered. No task, timer or await per
entry: op verdicts come back as callbacks, and one loop per segment syncs. Publish order is ▲ op record, then ledger
append, then ack, so every transactional entry in a ledger had its op first (DESIGN §6).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from segments.dedup import Dedup, InFlight, Verdict
from segments.ledgers import SegmentLedgers
from segments.op_gate import OpGate, Turn
from segments.settings import BrokerSettings
from segments.tail_cache import LogEntry, TailCache
from txnstore.op_transitions import plan_write_op, read_op_verdict
from txnstore.records import Op
from txnstore.store import Commit, CommitResult, MetadataStore
from txnwire.errors import (
    ExpiredTransaction,
    InternalError,
    NotOwner,
    OutcomeUnknown,
    Overloaded,
    SegmentSealed,
    SequenceGap,
    TxnConflict,
    TxnError,
)
from txnwire.ids import Position, TxnId
from txnwire.ports import Clock
from watchers.visibility import Applied, TransactionBuffer


class SendReply(Protocol):
    """Whoever waits for the outcome of one send; exactly one of the two is called, once."""

    def stored(self, position: Position | None, *, duplicate: bool) -> None: ...
    def failed(self, error: TxnError) -> None: ...


class Outgoing(NamedTuple):
    """One entry as its producer sent it, already checked against its own metadata. Its messages have the sequence ids
    from `sequence_id` on; `previous` is the last one of this producer's preceding entry here, -1 for none."""

    producer: str
    sequence_id: int
    messages: int
    previous: int
    txn_id: TxnId | None
    writer: int
    data: bytes


class Line:
    """One producer's admitted entries that are not appended yet, in its order. It outlives its connections."""

    __slots__ = ("items", "key", "users")

    def __init__(self, key: tuple[str, int]) -> None:
        self.key = key
        self.items: deque[_Item] = deque()
        self.users = 0


class _Item:
    """An admitted entry until it is acked or failed. `ready`: it may be appended as soon as its turn comes."""

    __slots__ = ("admitted", "entry", "line", "position", "ready")

    def __init__(self, entry: Outgoing, admitted: InFlight[SendReply], line: Line) -> None:
        self.entry = entry
        self.admitted = admitted
        self.line = line
        self.ready = entry.txn_id is None
        self.position = _NOWHERE


_NOWHERE = Position(0, -1)


class Budget:
    """Bytes admitted and not yet stored, over all segments of a broker."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0


class PipelineEvents(Protocol):
    """What the segment has to know of its pipeline."""

    def hold(self, txn_id: TxnId) -> None:
        """▲ Before the first op of a transaction leaves: its decision must not be missed."""

    def let_go(self, txn_id: TxnId) -> None:
        """An op was refused; if nothing else of the transaction is held here, its decision is not awaited any more."""

    def applied(self, applied: Applied) -> None:
        """A decision remembered while ops were in flight has taken effect."""

    def confirmed(self) -> None:
        """New entries are durable: readers may go on."""

    def rolled(self) -> None:
        """A ledger was closed and the next one opened."""

    def may_ack(self) -> bool:
        """Whether the broker's lease surely holds."""

    def lost(self, error: TxnError) -> None:
        """The segment cannot go on here: ownership or the ledger is lost. May be called any number of times."""


class Pipeline:
    """`op_counter` gives the next number for op keys. ▲ It is one per broker process and never restarts: a number used
    twice under one epoch would be an op key used twice."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        settings: BrokerSettings,
        *,
        segment: str,
        epoch: int,
        ledgers: SegmentLedgers,
        buffer: TransactionBuffer,
        dedup: Dedup[SendReply],
        cache: TailCache,
        budget: Budget,
        op_counter: Callable[[], int],
        events: PipelineEvents,
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._segment = segment
        self._epoch = epoch
        self._ledgers = ledgers
        self._buffer = buffer
        self._dedup = dedup
        self._cache = cache
        self._budget = budget
        self._op_counter = op_counter
        self._events = events
        self.gate: OpGate[_Item] = OpGate()
        self._lines: dict[tuple[str, int], Line] = {}
        self._unsynced: list[_Item] = []
        self._stalled: dict[Line, None] = {}
        self._inflight = 0
        self._bytes = 0
        self.stored = 0
        self._checkpoint_due = settings.checkpoint_entries
        self._rolling = False
        self._refusal: TxnError | None = None
        self._over: TxnError | None = None
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._sync_task: asyncio.Task[None] | None = None

    @property
    def inflight(self) -> int:
        """Entries admitted and neither acked nor failed."""
        return self._inflight

    @property
    def inflight_bytes(self) -> int:
        return self._bytes

    # ---- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._sync_task = asyncio.create_task(self._sync_loop(), name=f"sync {self._segment}")
        self._sync_task.add_done_callback(self._sync_ended)

    def refuse(self, error: TxnError) -> None:
        """Admit nothing more; what is in flight goes on."""
        self._refusal = error

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def stop(self, error: TxnError) -> None:
        """Fail everything in flight with `error`, now. Nothing is appended or acked afterwards."""
        if self._over is not None:
            return
        self._over = self._refusal = error
        waiting = [item for line in self._lines.values() for item in line.items] + self._unsynced
        self._lines.clear()
        self._unsynced = []
        self._budget.bytes -= self._bytes
        self._bytes = self._inflight = 0
        self._idle.set()
        for item in waiting:
            for waiter in item.admitted.waiters:
                waiter.failed(error)
        if self._sync_task is not None:
            self._sync_task.cancel()

    async def wait_stopped(self) -> None:
        if self._sync_task is not None:
            await asyncio.gather(self._sync_task, return_exceptions=True)

    # ---- admit ------------------------------------------------------------------------------------------------------

    def line(self, producer: str, incarnation: int) -> Line:
        """For a connection of the producer, which gives it back by `retire`."""
        key = (producer, incarnation)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(key)
        line.users += 1
        return line

    def retire(self, line: Line) -> None:
        """The connection has gone; what it has in flight goes on."""
        line.users -= 1
        self._drop_if_unused(line)

    def _drop_if_unused(self, line: Line) -> None:
        if not line.items and line.users == 0:
            self._lines.pop(line.key, None)

    def send(self, line: Line, token: int, entry: Outgoing, reply: SendReply) -> None:
        """Admit one entry; `reply` hears of its end. Raises what it is refused with, and then `reply` hears nothing."""
        if self._refusal is not None:
            raise self._refusal
        size = len(entry.data)
        self._check_bounds(size)
        admission = self._dedup.admit(token, entry.sequence_id, entry.messages, entry.previous, reply)
        if admission.verdict is Verdict.STORED:
            reply.stored(admission.position, duplicate=True)
            return
        if admission.verdict is Verdict.ATTACHED or admission.entry is None:
            return  # ▲ L9: it shares the outcome of the first one
        item = _Item(entry, admission.entry, line)
        line.items.append(item)
        self._count(1, size)
        if entry.txn_id is None:
            self._advance(line)
        else:
            self._start_op(item, entry.txn_id)

    def _check_bounds(self, size: int) -> None:
        if self._ledgers.sealed:
            raise SegmentSealed(f"{self._segment} is sealed: look up the layout again")
        bound, budget = self._settings.segment_inflight_bytes, self._budget
        if self._bytes + size > bound or budget.bytes + size > budget.max_bytes:
            raise Overloaded(
                f"{self._segment} has {self._bytes} bytes in flight (bound {bound}), its broker {budget.bytes} (bound "
                f"{budget.max_bytes}): send again a little later"
            )

    def _count(self, entries: int, size: int) -> None:
        self._inflight += entries
        self._bytes += size
        self._budget.bytes += size
        if self._inflight == 0:
            self._idle.set()
        else:
            self._idle.clear()

    # ---- op records -------------------------------------------------------------------------------------------------

    def _start_op(self, item: _Item, txn_id: TxnId) -> None:
        try:
            # ▲ Registered before the op is sent: a decision that overtakes the op's answer is remembered, not dropped.
            self._buffer.op_started(txn_id, item.entry.writer)
        except TxnError as error:
            self._fail(item, error)
            return
        self._events.hold(txn_id)
        turn = self.gate.enter(txn_id, item)
        if turn is not Turn.WAIT:
            self._send_op(item, txn_id, first=turn is Turn.FIRST)

    def _send_op(self, item: _Item, txn_id: TxnId, *, first: bool) -> None:
        entry = item.entry
        op = Op(
            v=1,
            kind="write",
            segment=self._segment,
            producer=entry.producer,
            sequence_id=entry.sequence_id,
            writer=f"{entry.writer:016x}" if entry.writer else None,
            messages=entry.messages,
            bytes=len(entry.data),
        )
        commit = plan_write_op(txn_id, self._segment, self._epoch, self._op_counter(), op, first_in_segment=first)
        future = self._store.commit_nowait(commit)
        future.add_done_callback(partial(self._op_done, item, txn_id, commit, first))

    def _op_done(
        self, item: _Item, txn_id: TxnId, commit: Commit, first: bool, future: asyncio.Future[CommitResult]
    ) -> None:
        if self._over is not None or future.cancelled():
            return
        try:
            read_op_verdict(commit, future.result(), txn_id)
        except OutcomeUnknown as error:
            self._events.lost(error)  # the store is closing; a successor finds out
            return
        except TxnError as error:
            self._op_refused(item, txn_id, error, first=first)
            return
        if first:
            for waiting in self.gate.first_confirmed(txn_id):
                if waiting.admitted.failed:
                    self._op_settled(txn_id, recorded=False)
                else:
                    self._send_op(waiting, txn_id, first=False)
        item.ready = True
        if item.admitted.failed:
            self._op_settled(txn_id, recorded=True)  # an op without an entry: it goes when the transaction ends
        else:
            self._advance(item.line)

    def _op_refused(self, item: _Item, txn_id: TxnId, error: TxnError, *, first: bool) -> None:
        refused = [item]
        while first and (waiting := self.gate.first_refused(txn_id)) is not None:
            if not waiting.admitted.failed and not isinstance(error, TxnConflict | ExpiredTransaction):
                self._send_op(waiting, txn_id, first=True)
                break
            refused.append(waiting)  # a decided transaction takes none of them
        for one in refused:
            self._op_settled(txn_id, recorded=False)
            if not one.admitted.failed:
                self._fail(one, error)
        if isinstance(error, NotOwner):
            self._events.lost(error)

    def _op_settled(self, txn_id: TxnId, *, recorded: bool) -> None:
        """One op of the transaction is not in flight any more, and no entry came of it."""
        applied = self._buffer.op_finished(txn_id) if recorded else self._buffer.op_refused(txn_id)
        if applied is not None:
            self._events.applied(applied)
        elif not recorded:
            self._events.let_go(txn_id)

    def _fail(self, item: _Item, error: TxnError) -> None:
        """▲ An entry fails, and with it all its producer sent behind it: a resend starts again from the first (L8)."""
        for failed in self._dedup.failed(item.admitted):
            why = error
            if failed is not item.admitted:
                why = SequenceGap(f"the entry before sequence id {failed.first} of its producer failed: {error}")
            for waiter in failed.waiters:
                waiter.failed(why)
        items = item.line.items
        while items:
            last = items.pop()
            self._count(-1, -len(last.entry.data))
            if last is item:
                break
            if last.ready and last.entry.txn_id is not None:
                self._op_settled(last.entry.txn_id, recorded=True)

    # ---- append, sync, ack ------------------------------------------------------------------------------------------

    def _advance(self, line: Line) -> None:
        items = line.items
        while items and items[0].ready:
            if self._rolling:
                self._stalled[line] = None
                return
            if not self._append(items.popleft()):
                return
        self._drop_if_unused(line)

    def _append(self, item: _Item) -> bool:
        writer = self._ledgers.writer
        if writer is None:
            self._unsynced.append(item)
            self._events.lost(NotOwner(f"{self._segment} has no open ledger here any more"))
            return False
        try:
            entry_id = writer.append(item.entry.data)
        except TxnError as error:
            self._unsynced.append(item)
            self._events.lost(error)
            return False
        item.position = Position(writer.ledger_id, entry_id)
        if item.entry.txn_id is not None:
            self._buffer.appended(item.entry.txn_id, item.entry.writer, item.position)
        self._unsynced.append(item)
        self._work.set()
        return True

    async def _sync_loop(self) -> None:
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                while self._unsynced:
                    await self._sync()
                await self._care_for_ledger()
        except TxnError as error:
            self._events.lost(error)

    def _sync_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.lost(InternalError(f"the sync loop of {self._segment} ended: {error!r}"))

    async def _sync(self) -> None:
        writer = self._ledgers.writer
        if writer is None:
            raise NotOwner(f"{self._segment} has no open ledger here any more")
        batch, self._unsynced = self._unsynced, []
        try:
            await writer.sync()
        except BaseException:
            self._unsynced = batch + self._unsynced
            raise
        if self._over is not None or not self._events.may_ack():
            self._unsynced = batch + self._unsynced
            raise NotOwner(f"{self._segment}: the broker's lease may have expired, look up the owner again")
        self._confirm(batch)

    def _confirm(self, batch: list[_Item]) -> None:
        """▲ Only here, behind the sync and the fence check, does anybody hear of an entry."""
        now_s = self._clock.monotonic()
        self._buffer.confirmed(batch[-1].position)
        for item in batch:
            entry, position = item.entry, item.position
            self._cache.add(LogEntry(position, entry.data, entry.messages, entry.txn_id, entry.writer))
            for waiter in self._dedup.stored(item.admitted, position, now_s):
                waiter.stored(position, duplicate=False)
            self._count(-1, -len(entry.data))
            if entry.txn_id is not None and (applied := self._buffer.op_finished(entry.txn_id)) is not None:
                self._events.applied(applied)
        self.stored += len(batch)
        self._checkpoint_due -= len(batch)
        self._events.confirmed()

    async def _care_for_ledger(self) -> None:
        writer = self._ledgers.writer
        if writer is None:
            return
        if writer.appended_bytes >= self._settings.ledger_roll_bytes:
            await self._roll()
        elif self._checkpoint_due <= 0:
            self._checkpoint_due = self._settings.checkpoint_entries
            await self._ledgers.checkpoint(self._dedup.snapshot(self._clock.monotonic()), writer.last_confirmed + 1)

    async def _roll(self) -> None:
        self._rolling = True
        while self._unsynced:
            await self._sync()
        await self._ledgers.roll(self.footer())
        self._checkpoint_due = self._settings.checkpoint_entries
        self._rolling = False
        self._events.rolled()
        stalled, self._stalled = self._stalled, {}
        for line in stalled:
            self._advance(line)

    def footer(self) -> bytes:
        """For the open ledger, with everything stored so far. Nothing may be in flight between append and ack."""
        writer = self._ledgers.writer
        if writer is None:
            raise SegmentSealed(f"{self._segment} has no open ledger")
        now_s = self._clock.monotonic()
        self._dedup.expire(now_s)
        return self._ledgers.footer(writer.ledger_id, writer.last_confirmed + 1, self._dedup.snapshot(now_s))
