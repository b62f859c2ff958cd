"""Takes each entry into a segment: admit, op record, append, sync, ack (DESIGN §7, "The order of a send").

    send ──admit──► [op record] ──in the producer's order──► append ──sync, fence check──► ack, readers wake
                                                             └────── segments.log.sends.appender ──────┘

Producers do not wait for each other, except that one sync serves all gathered entries. No task, timer or await per
entry: op verdicts come back as callbacks, and one loop per segment syncs. `segments.log.sends.send_order` lists
what must be durable before each step ▲, so every transactional entry in a ledger had its op first (DESIGN §6).

Entries of one producer and transaction that arrive in one turn of the loop (in one frame), or while an op of it is in
flight, share the next op: an op record says that the transaction has written here, not what it wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from segments.log.ledgers.segment_log import SegmentLog
from segments.log.measures import Measures
from segments.log.room import FreeSpace
from segments.log.sends.appender import Appender
from segments.log.sends.dedup import Dedup, DedupVerdict
from segments.log.sends.op_gate import OpGate, Turn
from segments.log.sends.send_order import OP
from segments.log.sends.sending import Budget, IncomingEntry, Item, PipelineEvents, ProducerLine, SendReply
from segments.log.settings import BrokerSettings
from segments.log.tail_cache import TailCache
from txnstore.records import Op
from txnstore.store import Commit, CommitVerdict, KeyValue, MetadataStore
from txnstore.writes.op_transitions import plan_write_op, read_op_verdict
from txnwire.errors import (
    ExpiredTransaction,
    NotOwner,
    OutcomeUnknown,
    Overloaded,
    SegmentSealed,
    SequenceGap,
    TxnConflict,
    TxnError,
)
from txnwire.ids import TxnId
from txnwire.ports import Clock
from watchers.visibility import TransactionBuffer


class _HeldBack(NamedTuple):
    """A send that arrived while the segment was being sealed."""

    line: ProducerLine
    token: int
    entry: IncomingEntry
    reply: SendReply


Claim = list[Item]
"""Entries of one producer, writer and transaction that share an op record."""


class Pipeline:
    """Moves the sends of one segment from admission to ack. `op_counter` gives the next number for op keys. ▲ Use one
    per broker process, never restarted: a number used twice under one epoch would be an op key used twice."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        settings: BrokerSettings,
        *,
        segment: str,
        epoch: int,
        ledgers: SegmentLog,
        buffer: TransactionBuffer,
        dedup: Dedup[SendReply],
        cache: TailCache,
        budget: Budget,
        room: FreeSpace,
        measures: Measures,
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
        self._budget = budget
        self._room = room
        self._measures = measures
        self._op_counter = op_counter
        self._events = events
        self._appender = Appender(
            clock,
            settings,
            segment=segment,
            ledgers=ledgers,
            buffer=buffer,
            dedup=dedup,
            cache=cache,
            measures=measures,
            events=events,
            settled=self._settled,
        )
        self.gate: OpGate[Claim] = OpGate()
        self._gathering: dict[TxnId, Claim] = {}
        """Entries that have no op yet: the next op claims all that arrive before the end of this turn of the loop, or
        before the answer to the op in flight."""
        self._leaving: list[TxnId] = []
        """Transactions whose next op is sent at the end of this turn."""
        self._ops_out: dict[TxnId, int] = {}
        self._lines: dict[tuple[str, int], ProducerLine] = {}
        self._inflight = 0
        self._bytes = 0
        self._refusal: TxnError | None = None
        self._held: list[_HeldBack] | None = None
        """Sends that arrived while the segment is being sealed; None at other times."""
        self._stopped = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def inflight(self) -> int:
        """Number of entries admitted but neither acked nor failed."""
        return self._inflight

    @property
    def inflight_bytes(self) -> int:
        return self._bytes

    @property
    def stored(self) -> int:
        """Entries stored since this broker owns the segment."""
        return self._appender.stored

    @property
    def stored_messages(self) -> int:
        return self._appender.stored_messages

    @property
    def stored_bytes(self) -> int:
        """Bytes of those entries."""
        return self._appender.stored_bytes

    # ---- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._appender.start()

    def refuse(self, error: TxnError) -> None:
        """Refuse new entries with `error`; entries in flight continue."""
        self._refusal = error

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def hold_back(self) -> None:
        """Admit nothing more, but answer nothing yet: keeps new sends, within the bounds for entries in flight, until
        `admit_again`, `refuse_held` or `stop`."""
        if self._held is None:
            self._held = []

    def admit_again(self) -> None:
        """Admit the held sends, in order."""
        held, self._held = self._held, None
        for one in held or ():
            size = len(one.entry.data)
            self._bytes -= size
            self._budget.bytes -= size
            try:
                self.send(one.line, one.token, one.entry, one.reply)
            except TxnError as error:
                one.reply.failed(error)

    def refuse_held(self, error: TxnError) -> None:
        """Fail the held sends. ▲ Only once the seal is written: after an earlier answer a producer would continue in
        the children, while this segment may yet continue here."""
        held, self._held = self._held, None
        for one in held or ():
            size = len(one.entry.data)
            self._bytes -= size
            self._budget.bytes -= size
            one.reply.failed(error)

    async def seal(self, change_id: str, look: Callable[[], Awaitable[KeyValue | None]]) -> None:
        """See `Appender.seal`; the pipeline must hold back and be idle."""
        await self._appender.seal(change_id, look)

    async def unseal(self, topic: KeyValue) -> None:
        """See `Appender.unseal`."""
        await self._appender.unseal(topic)

    def footer(self) -> bytes:
        """See `Appender.footer`; the pipeline must be idle."""
        return self._appender.footer()

    async def roll(self) -> None:
        """See `Appender.roll`."""
        await self._appender.roll()

    async def checkpoint(self, *, settle: bool = False) -> None:
        """See `Appender.checkpoint`."""
        await self._appender.checkpoint(settle=settle)

    def stop(self, error: TxnError) -> None:
        """Fail everything in flight with `error`, now. Nothing is appended or acked afterwards."""
        if self._stopped:
            return
        self._stopped = True
        self._refusal = error
        self.refuse_held(error)
        waiting = self._appender.stop() + [item for line in self._lines.values() for item in line.items]
        self._lines.clear()
        self._count(-self._inflight, -self._bytes)
        for item in waiting:
            for waiter in item.admitted.waiters:
                waiter.failed(error)

    async def wait_stopped(self) -> None:
        await self._appender.wait_stopped()

    # ---- admit ------------------------------------------------------------------------------------------------------

    def line(self, producer: str, incarnation: int) -> ProducerLine:
        """The line for a new connection of the producer, which must return it by `retire`."""
        key = (producer, incarnation)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = ProducerLine(key)
        line.users += 1
        return line

    def retire(self, line: ProducerLine) -> None:
        """The connection has closed; its entries in flight continue."""
        line.users -= 1
        self._drop_if_unused(line)

    def _drop_if_unused(self, line: ProducerLine) -> None:
        if line.users == 0 and not line.items and self._lines.get(line.key) is line:
            del self._lines[line.key]

    def send(self, line: ProducerLine, token: int, entry: IncomingEntry, reply: SendReply) -> None:
        """Admit one entry; `reply` gets its outcome. Raises the refusal instead, and then never calls `reply`."""
        if self._refusal is not None:
            raise self._refusal
        size = len(entry.data)
        self._check_bounds(size)
        if self._held is not None:
            self._held.append(_HeldBack(line, token, entry, reply))
            self._bytes += size
            self._budget.bytes += size
            return
        if not self._dedup.knows(token, entry.sequence_id):
            # ▲ A repeat must get its outcome: if refused, it would be sent as a new entry, and stored twice.
            self._room.check()
        admission = self._dedup.admit(token, entry.sequence_id, entry.messages, entry.previous, reply)
        if admission.verdict is DedupVerdict.STORED:
            reply.stored(admission.position, duplicate=True)
            return
        if admission.verdict is DedupVerdict.ATTACHED or admission.entry is None:
            return  # ▲ L9: it shares the outcome of the first send
        item = Item(entry, admission.entry, line, self._clock.monotonic())
        line.items.append(item)
        self._count(1, size)
        self._room.take(size)
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

    def _settled(self, item: Item) -> None:
        self._count(-1, -len(item.entry.data))

    def _advance(self, line: ProducerLine) -> None:
        self._appender.advance(line)
        self._drop_if_unused(line)

    # ---- op records -------------------------------------------------------------------------------------------------

    def _start_op(self, item: Item, txn_id: TxnId) -> None:
        try:
            # ▲ Register before sending the op: a decision that overtakes the op's answer is remembered, not dropped.
            self._buffer.op_started(txn_id, item.entry.writer)
        except TxnError as error:
            self._fail(item, error)
            return
        self._events.hold(txn_id)
        gathering = self._gathering.get(txn_id)
        if gathering is not None:
            gathering.append(item)
            return
        self._gathering[txn_id] = [item]
        if txn_id not in self._ops_out:
            if not self._leaving:
                asyncio.get_running_loop().call_soon(self._leave)
            self._leaving.append(txn_id)

    def _leave(self) -> None:
        leaving, self._leaving = self._leaving, []
        if not self._stopped:
            for txn_id in leaving:
                self._send_ops(txn_id)

    def _send_ops(self, txn_id: TxnId) -> None:
        """Send one op for the gathered entries of each producer and writer."""
        claims: dict[tuple[tuple[str, int], int], Claim] = {}
        for item in self._without_failed(self._gathering.pop(txn_id), txn_id):
            claims.setdefault((item.line.key, item.entry.writer), []).append(item)
        for claim in claims.values():
            turn = self.gate.enter(txn_id, claim)
            if turn is not Turn.WAIT:
                self._send_op(claim, txn_id, first=turn is Turn.FIRST)

    def _without_failed(self, items: Claim, txn_id: TxnId) -> Claim:
        """The entries of an unsent claim that may still be appended."""
        live = [item for item in items if not item.admitted.failed]
        for _ in range(len(items) - len(live)):
            self._op_settled(txn_id, recorded=False)
        return live

    def _send_op(self, items: Claim, txn_id: TxnId, *, first: bool) -> None:
        entry = items[0].entry
        op = Op(
            v=1,
            kind="write",
            segment=self._segment,
            producer=entry.producer,
            sequence_id=entry.sequence_id,
            writer=f"{entry.writer:016x}" if entry.writer else None,
            messages=sum([item.entry.messages for item in items]),
            bytes=sum([len(item.entry.data) for item in items]),
        )
        commit = plan_write_op(txn_id, self._segment, self._epoch, self._op_counter(), op, first_in_segment=first)
        self._ops_out[txn_id] = self._ops_out.get(txn_id, 0) + 1
        future = self._store.commit_nowait(commit)
        future.add_done_callback(partial(self._op_done, items, txn_id, commit, first))

    def _op_done(
        self, items: Claim, txn_id: TxnId, commit: Commit, first: bool, future: asyncio.Future[CommitVerdict]
    ) -> None:
        if future.cancelled():
            return
        if self._stopped and not isinstance(future.exception(), OutcomeUnknown):
            return
        self._op_answered(txn_id)
        try:
            read_op_verdict(commit, future.result(), txn_id)
        except OutcomeUnknown as unknown:
            self._events.lost(unknown)  # the store is closing; a successor reads the outcome
        except TxnError as refusal:
            self._op_refused(items, txn_id, refusal, first=first)
        else:
            self._op_recorded(items, txn_id, first=first)
        if not self._stopped and txn_id not in self._ops_out and txn_id in self._gathering:
            self._send_ops(txn_id)

    def _op_answered(self, txn_id: TxnId) -> None:
        left = self._ops_out[txn_id] - 1
        if left:
            self._ops_out[txn_id] = left
        else:
            del self._ops_out[txn_id]

    def _op_recorded(self, items: Claim, txn_id: TxnId, *, first: bool) -> None:
        self._measures.ops_written += 1
        if first:
            self._index_confirmed(txn_id)
        for item in items:
            item.durable = OP
            if item.admitted.failed:
                self._op_settled(txn_id, recorded=True)  # an op without an entry: deleted when the transaction ends
        self._advance(items[0].line)

    def _index_confirmed(self, txn_id: TxnId) -> None:
        for claim in self.gate.first_confirmed(txn_id):
            if live := self._without_failed(claim, txn_id):
                self._send_op(live, txn_id, first=False)

    def _op_refused(self, items: Claim, txn_id: TxnId, error: TxnError, *, first: bool) -> None:
        refused = list(items)
        while first and (waiting := self.gate.first_refused(txn_id)) is not None:
            if not isinstance(error, TxnConflict | ExpiredTransaction):
                if live := self._without_failed(waiting, txn_id):
                    self._send_op(live, txn_id, first=True)
                    break
            else:
                refused += waiting  # a decided transaction accepts none of them
        for one in refused:
            self._op_settled(txn_id, recorded=False)
            if not one.admitted.failed:
                self._fail(one, error)
        if isinstance(error, NotOwner):
            self._events.lost(error)

    def _op_settled(self, txn_id: TxnId, *, recorded: bool) -> None:
        """One op of the transaction is no longer in flight, and has no entry."""
        applied = self._buffer.op_finished(txn_id) if recorded else self._buffer.op_refused(txn_id)
        if applied is not None:
            self._events.applied(applied)
        elif not recorded:
            self._events.let_go(txn_id)

    def _fail(self, item: Item, error: TxnError) -> None:
        """▲ Fails the entry and all later ones of its producer: a resend starts again from the first (L8)."""
        for failed in self._dedup.failed(item.admitted):
            why = error
            if failed is not item.admitted:
                why = SequenceGap(f"the entry before sequence id {failed.first} of its producer failed: {error}")
            for waiter in failed.waiters:
                waiter.failed(why)
        items = item.line.items
        while items:
            last = items.pop()
            self._settled(last)
            if last is item:
                break
            if last.durable >= OP and last.entry.txn_id is not None:
                self._op_settled(last.entry.txn_id, recorded=True)
        self._drop_if_unused(item.line)
