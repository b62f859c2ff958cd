"""Appends to a segment's log: in order, one sync for all gathered entries, a fence check, and only then the acks.

One loop per segment; one sync serves all entries appended during the previous sync. `segments.log.sends.send_order`
lists the steps and what each needs; here is how each is done. The loop also rolls a full ledger, and renews the dedup
snapshot beside the open one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from segments.ledger.ledger import LedgerFailed, LedgerWriter
from segments.log.ledgers.segment_log import SegmentLog
from segments.log.measures import Measures
from segments.log.sends.dedup import Dedup
from segments.log.sends.dedup_turns import snapshot_in_turns
from segments.log.sends.send_order import AFTER_SYNC, APPEND, SyncedEntries
from segments.log.sends.sending import Item, PipelineEvents, ProducerLine, SendReply
from segments.log.settings import BrokerSettings
from segments.log.tail_cache import LogEntry, TailCache
from txnstore.store import KeyValue
from txnwire.errors import InternalError, NotOwner, SegmentSealed, TxnError
from txnwire.ids import Position
from txnwire.ports import Clock
from txnwire.tasks import errand
from watchers.visibility import TransactionBuffer

log = structlog.get_logger(__name__)


class Appender:
    """Appends, syncs and acks one segment's entries; `settled` stops counting a stored entry's bytes as in flight."""

    def __init__(
        self,
        clock: Clock,
        settings: BrokerSettings,
        *,
        segment: str,
        ledgers: SegmentLog,
        buffer: TransactionBuffer,
        dedup: Dedup[SendReply],
        cache: TailCache,
        measures: Measures,
        events: PipelineEvents,
        settled: Callable[[Item], None],
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._segment = segment
        self._ledgers = ledgers
        self._buffer = buffer
        self._dedup = dedup
        self._tail = cache
        self._measures = measures
        self._events = events
        self._settled = settled
        self._after_sync = [(step, getattr(self, f"_{step.name}")) for step in AFTER_SYNC]
        """The steps of `send_order`, each with the method that carries it out."""
        self._unsynced: list[Item] = []
        self._stalled: dict[ProducerLine, None] = {}
        self._rolling = False
        self._stopped = False
        self._checkpoint_due = settings.checkpoint_entries
        self._asked: list[tuple[Callable[[], Awaitable[None]], asyncio.Future[None]]] = []
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.stored = 0
        """Entries stored since this broker owns the segment."""
        self.stored_messages = self.stored_bytes = 0
        """The same, in messages and bytes."""

    # ---- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = errand(self._run(), name="appender", of=self._segment)
        self._task.add_done_callback(self._ended)

    def stop(self) -> list[Item]:
        """Ack nothing more; returns the entries that were appended but not acked, so that the caller answers them."""
        self._stopped = True
        asked, self._asked = self._asked, []
        for _, done in asked:
            self._refuse(done)
        unsynced, self._unsynced = self._unsynced, []
        if self._task is not None:
            self._task.cancel()
        return unsynced

    async def wait_stopped(self) -> None:
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.lost(InternalError(f"the appender of {self._segment} ended: {error!r}"))

    # ---- append -----------------------------------------------------------------------------------------------------

    def advance(self, line: ProducerLine) -> None:
        """Append the ready entries at the head of a producer's line."""
        items, stage = line.items, APPEND.needs
        while items and items[0].durable >= stage:
            if self._rolling:
                self._stalled[line] = None
                return
            item = items.popleft()
            self._unsynced.append(item)
            try:
                self._append(item)
            except TxnError as error:
                self._events.lost(error)
                return

    def _append(self, item: Item) -> None:
        writer = self._ledgers.writer
        if writer is None:
            raise NotOwner(f"{self._segment} has no open ledger here any more")
        item.position = Position(writer.ledger_id, writer.append(item.entry.data))
        self._ledgers.times.appended(item.position, item.entry.publish_time_ms)
        self._ledgers.counts.appended(item.position, item.entry.messages)
        if item.entry.txn_id is not None:
            self._buffer.appended(item.entry.txn_id, item.entry.writer, item.position)
        self._work.set()

    # ---- sync, ack --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                while self._unsynced or self._asked:
                    if self._unsynced:
                        await self._sync()
                        await self._care_for_ledger()
                    await self._do_asked()
        except TxnError as error:
            self._events.lost(error)

    async def _sync(self) -> None:
        writer = self._ledgers.writer
        if writer is None:
            raise NotOwner(f"{self._segment} has no open ledger here any more")
        count = len(self._unsynced)
        batch = SyncedEntries(self._unsynced[:count])
        asked_s = self._clock.monotonic()
        reached = await writer.sync()
        self._measures.ledger_sync.observe(self._clock.monotonic() - asked_s)
        batch.synced(writer.ledger_id, reached)
        if self._stopped or not self._events.may_ack():
            raise NotOwner(f"{self._segment}: its broker's lease may have expired, look up the owner again")
        batch.owned()
        del self._unsynced[:count]
        for step, carry_out in self._after_sync:
            batch.expect(step)
            carry_out(batch.items)

    # ---- the steps of `send_order.AFTER_SYNC` -----------------------------------------------------------------------

    def _confirm(self, items: Sequence[Item]) -> None:
        self._buffer.confirmed(items[-1].position)

    def _cache(self, items: Sequence[Item]) -> None:
        add = self._tail.add
        for item in items:
            entry = item.entry
            add(
                LogEntry(
                    item.position,
                    entry.data,
                    entry.messages,
                    entry.txn_id,
                    entry.writer,
                    entry.large_value,
                    entry.deliver_at_ms,
                )
            )

    def _ack(self, items: Sequence[Item]) -> None:
        now_s, measures = self._clock.monotonic(), self._measures
        messages_before, bytes_before = measures.messages_stored, measures.bytes_stored
        for item in items:
            entry, position = item.entry, item.position
            if entry.numbers is not None:
                # ▲ Before the answer: otherwise the next holder of the name could send an acked message again.
                self._dedup.numbered.stored(entry.producer, item.line.key[1], entry.numbers, now_s)
            for waiter in self._dedup.stored(item.admitted, position, now_s):
                waiter.stored(position, duplicate=False)
            self._settled(item)
            measures.publish.observe(now_s - item.admitted_s)
            measures.messages_stored += entry.messages
            measures.bytes_stored += len(entry.data)
        self.stored += len(items)
        self.stored_messages += measures.messages_stored - messages_before
        self.stored_bytes += measures.bytes_stored - bytes_before
        measures.entries_stored += len(items)
        self._checkpoint_due -= len(items)

    def _apply(self, items: Sequence[Item]) -> None:
        for item in items:
            txn_id = item.entry.txn_id
            if txn_id is not None and (applied := self._buffer.op_finished(txn_id)) is not None:
                self._events.applied(applied)

    def _wake(self, items: Sequence[Item]) -> None:
        self._events.confirmed()

    # ---- requests of housekeeping -----------------------------------------------------------------------------------

    async def roll(self) -> None:
        """Close the open ledger unless it is empty, and open the next. Raises `NotOwner` if the segment stops first."""
        await self._ask(self._roll_if_filled)

    async def checkpoint(self, *, settle: bool = False) -> None:
        """Renew the dedup snapshot beside the open ledger. `settle`: once everything appended before is stored. Raises
        `NotOwner` if the segment stops first, with `settle` also if it has another owner by now; `LedgerFailed` if the
        write fails: the previous snapshot remains, and nothing else has changed."""
        failures: list[LedgerFailed] = []

        async def work() -> None:
            if settle and self._unsynced:
                await self._sync()
            try:
                await self._checkpoint()
            except LedgerFailed as error:
                failures.append(error)
            else:
                if settle:
                    await self._expect_not_replaced()

        await self._ask(work)
        if failures:
            raise failures[0]

    async def _expect_not_replaced(self) -> None:
        """▲ An owner that slept and was replaced has written beside a ledger that its successor has closed and read:
        that one does not know of it. So look for the fence after the write."""
        writer = self._ledgers.writer
        if writer is not None and not self._unsynced:
            await writer.sync()
        if self._unsynced:  # ▲ also what came meanwhile: the next snapshot would cover it, and not hold it
            await self._sync()

    async def _ask(self, work: Callable[[], Awaitable[None]]) -> None:
        """Let the loop run `work` between two syncs, and wait for it."""
        if self._stopped:
            raise self._over()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append((work, done))
        self._work.set()
        await done

    async def _do_asked(self) -> None:
        while self._asked:  # ▲ one by one: if one fails, `stop` answers the rest
            work, done = self._asked.pop(0)
            try:
                await work()
            except BaseException:
                self._refuse(done)
                raise
            if not done.done():
                done.set_result(None)

    def _refuse(self, done: asyncio.Future[None]) -> None:
        if not done.done():
            done.set_exception(self._over())
            done.exception()  # the waiting caller may be gone

    def _over(self) -> NotOwner:
        return NotOwner(f"{self._segment} is over here, look up the owner again")

    async def _roll_if_filled(self) -> None:
        if self._ledgers.writer is not None and self._ledgers.writer.last_confirmed >= 0:
            await self._roll()

    async def seal(self, change_id: str, look: Callable[[], Awaitable[KeyValue | None]]) -> None:
        """See `SegmentLog.seal`; the caller reads there whether it was sealed: a segment being handed over is not.
        Nothing may be in flight or arrive meanwhile."""

        async def work() -> None:
            if self._ledgers.writer is None:
                return
            await self._ledgers.seal(await self._footer_in_turns(), change_id, look)
            self._events.rolled()

        await self._ask(work)

    async def unseal(self, topic: KeyValue) -> None:
        """See `SegmentLog.unseal`."""

        async def work() -> None:
            await self._ledgers.unseal(topic)

        await self._ask(work)

    async def _checkpoint(self) -> None:
        writer = self._ledgers.writer
        if self._ledgers.sealed:
            return  # sealed meanwhile; its footer holds all that a checkpoint could
        if writer is None:
            raise self._over()
        self._checkpoint_due = self._settings.checkpoint_entries
        snapshot = await snapshot_in_turns(self._dedup, self._clock.monotonic())
        await self._ledgers.checkpoint(snapshot, writer.last_confirmed + 1)

    # ---- the ledger -------------------------------------------------------------------------------------------------

    async def _care_for_ledger(self) -> None:
        writer = self._ledgers.writer
        if writer is None:
            return
        if writer.appended_bytes >= self._settings.ledger_roll_bytes:
            await self._roll()
        elif self._checkpoint_due <= 0:
            try:
                await self._checkpoint()
            except LedgerFailed as error:  # the previous one stands: a successor scans a little more
                log.warning("checkpoint_failed", segment=self._segment, error=str(error))

    async def _roll(self) -> None:
        self._rolling = True
        while self._unsynced:
            await self._sync()
        await self._ledgers.roll(await self._footer_in_turns())
        self._checkpoint_due = self._settings.checkpoint_entries
        self._rolling = False
        self._events.rolled()
        stalled, self._stalled = self._stalled, {}
        for line in stalled:
            self.advance(line)

    def footer(self) -> bytes:
        """The footer of the open ledger, covering all stored entries. Nothing may be between append and ack."""
        writer = self._writer()
        snapshot = self._dedup.snapshot(self._clock.monotonic())
        return self._ledgers.footer(writer.ledger_id, writer.last_confirmed + 1, snapshot)

    async def _footer_in_turns(self) -> bytes:
        """As `footer`, with yields; only the loop calls it, so nothing is stored meanwhile."""
        writer = self._writer()
        snapshot = await snapshot_in_turns(self._dedup, self._clock.monotonic())
        return self._ledgers.footer(writer.ledger_id, writer.last_confirmed + 1, snapshot)

    def _writer(self) -> LedgerWriter:
        if self._ledgers.writer is None:
            raise SegmentSealed(f"{self._segment} has no open ledger")
        return self._ledgers.writer
