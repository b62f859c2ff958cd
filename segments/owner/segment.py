"""One segment owned by this broker: its pipeline, transaction buffer, subscriptions, readers, and how it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from segments.ledger.ledger import LedgerFailed
from segments.log.housekeeping import Housekeeping
from segments.log.ledgers.retention import Retention, kept_ledgers
from segments.log.sends.dedup_turns import forget_in_turns, snapshot_in_turns
from segments.log.sends.pipeline import Pipeline
from segments.log.tail_cache import TailCache
from segments.owner.broker_wide import BrokerContext
from segments.owner.load_samples import Stored
from segments.owner.producers import ConnectedProducers, OnClosed, Opened
from segments.owner.recovered_state import RecoveredState
from segments.owner.sealing import Sealing
from segments.owner.segment_cuts import PATIENCE_S, READER_PATIENCE_S, SegmentCuts
from segments.owner.segment_statistics import PINNING_SHOWN, SegmentStatistics, entries_behind
from segments.subscription.dispatch import DeliverySink, DispatchConsumer, Dispatcher, Isolation, trimmed_from_snapshot
from segments.subscription.starts import Start, of_this_life, resolve_start
from segments.subscription.subscription_table import SubscriptionTable
from segments.subscription.subscriptions import SegmentContext, Subscription
from txnwire.errors import InvalidArgument, NotOwner, SegmentSealed, Timeout, TxnError
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.names import SegmentName
from watchers.clean_up import CleanUpTarget, WriteCleanUp
from watchers.outcomes import Decision
from watchers.visibility import Applied

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOwnership:
    """The calls between a segment and its owning broker about the ownership.

    `may_ack`: whether the broker's lease certainly holds. `on_lost`: called once, when the segment cannot go on here;
    the broker then drops it. `on_doubt`: called when the broker should check that it still owns the segment."""

    may_ack: Callable[[], bool]
    on_lost: Callable[[Segment, TxnError], None]
    on_doubt: Callable[[Segment], None]


class Segment:
    """Serves one owned segment. Made by `take_over.take_over_segment`."""

    def __init__(
        self, path: str, epoch: int, shared: BrokerContext, recovered: RecoveredState, ownership: SegmentOwnership
    ) -> None:
        settings, clock = shared.settings, shared.clock
        self.path = path
        self.epoch = epoch
        self.recovery_s = 0.0
        self.ledgers = recovered.ledgers
        self.buffer = recovered.buffer
        self._shared = shared
        self._dedup = recovered.dedup
        self._membership = recovered.membership
        self._ownership = ownership
        self._over: TxnError | None = None
        self._one_round = asyncio.Lock()
        self._cache = TailCache(settings.tail_cache_bytes)
        self.sealing = Sealing(shared.store, self, wait_s=settings.seal_wait_s)
        self.pipeline = self._new_pipeline()
        self.producers = ConnectedProducers(self.pipeline, self._dedup, clock)
        self.dispatcher = self._new_dispatcher()
        self.subscriptions = SubscriptionTable(self._context_for_subscriptions(), shared.clean_up)
        self.cursors_held = self.subscriptions.cursors_held
        self.cuts = self._new_cuts()
        self._writes = WriteCleanUp(
            path,
            epoch,
            self.buffer,
            watermark=recovered.watermark,
            on_lost=self.lost,
            flush_interval_s=settings.cursor_flush_s,
        )
        self._keeping = Housekeeping(shared.store, clock, settings, self)

    def _new_pipeline(self) -> Pipeline:
        shared = self._shared
        return Pipeline(
            shared.store,
            shared.clock,
            shared.settings,
            segment=self.path,
            epoch=self.epoch,
            ledgers=self.ledgers,
            buffer=self.buffer,
            dedup=self._dedup,
            cache=self._cache,
            budget=shared.budget,
            room=shared.room,
            measures=shared.measures,
            op_counter=shared.op_counter,
            events=self,
        )

    def _new_dispatcher(self) -> Dispatcher:
        decisions = self._shared.decisions
        return Dispatcher(
            self.ledgers,
            self.buffer,
            self._cache,
            self._shared.shares,
            followed_revision=lambda: decisions.followed_revision,
            wait_followed=self.wait_followed,
        )

    def _context_for_subscriptions(self) -> SegmentContext:
        shared = self._shared
        return SegmentContext(
            store=shared.store,
            settings=shared.settings,
            clock=shared.clock,
            segment=self.path,
            epoch=self.epoch,
            ledgers=self.ledgers,
            dispatcher=self.dispatcher,
            outcomes=self.buffer,
            op_counter=shared.op_counter,
            events=self,
            ancestors=self._ancestors,
        )

    def _new_cuts(self) -> SegmentCuts:
        return SegmentCuts(
            self.path,
            self.buffer,
            self._shared.clock,
            check=self.check,
            wait_followed=lambda revision: self.wait_followed(revision, patience_s=PATIENCE_S),
            wait_s=self._shared.settings.follow_wait_s,
        )

    # ---- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve. Recovery is complete."""
        self._shared.caches.join(self._cache)
        for target in self._targets:
            self._shared.clean_up.add(target)
            self._shared.clean_up.wake(target)
        self.pipeline.start()

    @property
    def _targets(self) -> tuple[CleanUpTarget, ...]:
        return (self._writes, *self.subscriptions.targets)

    def check(self) -> None:
        """Raises the error that ended the segment, or `NotOwner` if its broker's lease may have expired: after a long
        pause the broker must not answer from old state (L3)."""
        if self._over is not None:
            raise self._over
        if not self._ownership.may_ack():
            raise NotOwner(f"{self.path}: its broker's lease may have expired, look up the owner again")

    def lost(self, error: TxnError) -> None:
        """▲ Ownership or the ledger is lost: fail all that wait now, and write and ack nothing more (R4)."""
        if self._over is None:
            log.warning("segment_lost", segment=self.path, epoch=self.epoch, error=str(error))
            if isinstance(error, LedgerFailed):
                self._shared.room.look()
            self.stop(_for_clients(error, self.path))
            self._ownership.on_lost(self, error)

    def stop(self, error: TxnError) -> None:
        """Release everything at once, and close producers and consumers with `error`. Idempotent."""
        if self._over is not None:
            return
        self._over = error
        self._shared.measures.left(self._keeping.statistics())
        self._membership.leave()
        self._shared.caches.leave(self._cache)
        self.pipeline.stop(error)
        self.sealing.stop()
        self.ledgers.abandon()
        self.producers.stop(error)
        self.dispatcher.close(error)
        for target in self._targets:
            self._shared.clean_up.remove(target)
        self.cuts.woken()

    async def wait_stopped(self) -> None:
        await self.sealing.wait_stopped()
        await self.pipeline.wait_stopped()
        await self.dispatcher.wait_closed()

    async def wait_kept(self) -> None:
        """Wait for a round of housekeeping that ran when the segment was stopped. No other one begins."""
        async with self._one_round:
            return

    async def hand_over(self, *, timeout_s: float) -> None:
        """Finish operations in flight, write everything, close the ledger; then stop. A successor recovers nothing.

        The successor recovers what does not end within `timeout_s`, as after a crash.
        """
        error = NotOwner(f"{self.path}: its broker is shutting down, look up the owner again")
        self.pipeline.refuse(error)
        try:
            async with asyncio.timeout(timeout_s):
                await self.pipeline.wait_idle()
                await self._write_all(timeout_s)
                if self.ledgers.writer is not None and self._over is None:
                    await self.ledgers.close(self.pipeline.footer)
                # ▲ Acks were answered meanwhile. From here on none is, and these are written too.
                self.dispatcher.close(error)
                await self._write_all(timeout_s)
        except (TimeoutError, TxnError) as failure:
            why = str(failure) or f"it took longer than {timeout_s:g} s"
            log.warning("hand_over_incomplete", segment=self.path, error=why)
        finally:
            self.stop(error)
            await self.wait_stopped()

    async def _write_all(self, timeout_s: float) -> None:
        for target in self._targets:
            await self._shared.clean_up.drain(target, timeout_s=timeout_s)

    # ---- producing and reading --------------------------------------------------------------------------------------

    def open_producer(self, name: str, incarnation: int, on_closed: OnClosed, name_epoch: int = 0) -> Opened:
        """See `ConnectedProducers.open`. Raises `SegmentSealed`: see `last_sequence_id`."""
        self.check()
        if self.ledgers.sealed:
            raise self._is_sealed()
        return self.producers.open(name, incarnation, on_closed, name_epoch)

    def last_sequence_id(self, name: str, incarnation: int) -> int:
        """The last sequence id stored for this producer, -1 for none; final once the segment is sealed, ▲ under any
        owner (dedup is in the footer)."""
        self.check()
        return self._dedup.last_sequence_id(name, incarnation)

    def end_producers(self) -> None:
        """The seal is stored: see `ConnectedProducers.sealed`."""
        self.producers.sealed(self._is_sealed())

    def _is_sealed(self) -> SegmentSealed:
        return SegmentSealed(f"{self.path} is sealed: look up the layout again")

    def seal_is_final(self) -> None:
        """The layout lists the segment as sealed: tell readers and consumers its end."""
        for subscription in self.subscriptions:
            self.subscriptions.wake_clean_up(subscription)
        self.dispatcher.wake()

    async def attach_reader(
        self,
        sink: DeliverySink,
        *,
        start: Start,
        end: Position | None,
        min_revision: int,
        isolation: Isolation = Isolation.READ_COMMITTED,
        of_snapshot: bool = False,
        whole: bool | None = None,
        permits_are_kib: bool = False,
    ) -> DispatchConsumer:
        """`of_snapshot`: it reads from a snapshot on, or up to one. `whole`: True: it fails if an entry it had to read
        is trimmed; False: it skips that; None: derived from its start. Raises `DataCorrupt`, `NotOwner`, `Timeout`,
        `DataTrimmed`; `InvalidArgument` for a snapshot of another cluster."""
        if min_revision:
            await self.wait_followed(min_revision, patience_s=READER_PATIENCE_S)
        self.check()  # ▲ after a long pause `last_confirmed` is too old to judge the snapshot
        if isolation is Isolation.SNAPSHOT and end is not None and end > self.last_confirmed:
            # Confirmed entries survive every change of owner, so the reader would wait for ever.
            raise InvalidArgument(
                f"the snapshot ends at {end} in {self.path}, which reaches to {self.last_confirmed}: it belongs to "
                "another cluster, or to a topic that was deleted since"
            )
        start = await of_this_life(start, self.path, self._shared.store)
        latest = self.max_read_position if isolation is Isolation.READ_COMMITTED else self.last_confirmed
        point = await resolve_start(start, self.path, self.ledgers, latest)
        self.check()
        # ▲ A named position is the end of an older snapshot, also the very beginning; "earliest" is not.
        named = start.segment == self.path or point.after > EARLIEST
        if whole is None:
            whole = isolation is Isolation.SNAPSHOT or (of_snapshot and named)
        if whole and named and point.after < self.ledgers.trimmed_through:
            raise trimmed_from_snapshot(self.ledgers.trimmed_through)
        consumer = DispatchConsumer(
            sink,
            next_read=self.ledgers.next_after(point.after),
            end=end,
            left_out=point.left_out,
            min_revision=min_revision,
            isolation=isolation,
            whole=whole,
            permits_are_kib=permits_are_kib,
        )
        self.dispatcher.attach(consumer)
        return consumer

    def _ancestors(self) -> Sequence[int]:
        name = SegmentName.from_path(self.path)
        topology = self._shared.topology(name.topic.path)
        if topology is None or name.segment_id not in topology.segments:
            return ()
        return topology.ancestors(name.segment_id)

    @property
    def shown_revision(self) -> int:
        """Every visible transaction here was decided at or before this revision."""
        return self._shared.decisions.shown_revision

    async def wait_followed(self, revision: int, *, patience_s: float | None = None) -> None:
        """Wait until decisions are followed to `revision`; `patience_s` as in `DecisionWatch`. Raises `Timeout`."""
        wait_s = self._shared.settings.follow_wait_s
        await self._shared.decisions.wait_followed(revision, timeout_s=wait_s, patience_s=patience_s)

    # ---- watchers.outcomes.Participant ------------------------------------------------------------------------------

    def decide(self, decision: Decision) -> None:
        applied = self.buffer.decided(decision)
        if applied is not None:
            self.applied(applied)
        self.subscriptions.decided(decision)

    def header_absent(self, txn_id: TxnId) -> None:
        """▲ Keep it pinned, and check ownership: another owner may have completed the transaction."""
        log.warning("header_absent", segment=self.path, transaction=str(txn_id))
        self._ownership.on_doubt(self)

    # ---- sending.PipelineEvents, subscriptions.SubscriptionEvents ---------------------------------------------------

    def hold(self, txn_id: TxnId) -> None:
        self._membership.add(txn_id)

    def let_go(self, txn_id: TxnId) -> None:
        """Drop the transaction unless it is held here. Also after its decision was delivered: while that waited for an
        op in flight, another op, refused later, may have added it again."""
        if not self.buffer.holds(txn_id) and not self.subscriptions.holds(txn_id):
            self._membership.drop(txn_id)
        self.cuts.woken()

    def applied(self, applied: Applied) -> None:
        self.pipeline.gate.forget(applied.decision.txn_id)
        self.subscriptions.visible(applied.decision)
        if applied.decision.decided_ms:
            lag_ms = self._shared.clock.wall_ms() - applied.decision.decided_ms
            self._shared.measures.visibility_lag.observe(max(0, lag_ms) / 1000)
        self.let_go(applied.decision.txn_id)
        self._shared.clean_up.wake(self._writes)
        self.dispatcher.wake()

    def confirmed(self) -> None:
        self._shared.clean_up.wake(self._writes)
        self.dispatcher.wake()

    def op_recorded(self) -> None:
        self._shared.measures.ops_written += 1

    def rolled(self) -> None:
        self.subscriptions.rolled()
        self._shared.wake_housekeeping(self.path)

    def acked(self, subscription: Subscription) -> None:
        self.subscriptions.wake_clean_up(subscription)
        if self.ledgers.ended:
            self.dispatcher.wake()

    def may_ack(self) -> bool:
        return self._ownership.may_ack()

    @property
    def max_read_position(self) -> Position:
        return self.buffer.max_read_position

    @property
    def last_confirmed(self) -> Position:
        return self.buffer.last_confirmed

    # ---- housekeeping.KeptSegment -----------------------------------------------------------------------------------

    async def keep(self, retention: Retention) -> None:
        """One round of housekeeping. Raises `NotOwner`, `StoreUnavailable`, `LedgerFailed`, `OutcomeUnknown`."""
        async with self._one_round:
            self.check()
            await forget_in_turns(self._dedup, self._shared.clock)
            await self._keeping.keep(retention)

    @property
    def may_roll(self) -> bool:
        return not self._shared.room.exhausted

    async def roll(self) -> None:
        await self.pipeline.roll()

    async def checkpoint(self) -> None:
        if self.ledgers.ended:
            await self.ledgers.keep_footer(await snapshot_in_turns(self._dedup, self._shared.clock.monotonic()))
        elif not self.ledgers.sealed:  # also without a writer: the log may be rolling to a new ledger
            await self.pipeline.checkpoint()

    @property
    def open_bytes(self) -> int:
        """Bytes of entries in the open ledger."""
        return 0 if self.ledgers.writer is None else self.ledgers.writer.appended_bytes

    async def forgotten(self) -> bool:
        """Whether the segment holds nothing more: sealed for good, every entry trimmed (or none written), no
        transaction, no aborted record, its producers forgotten. Once true it stays true.

        Raises `NotOwner`, `StoreUnavailable`."""
        self.check()
        return self.ledgers.ended and await self._keeping.forgotten(self._dedup.statistics().remembered)

    async def drained(self) -> Position | None:
        return await self.subscriptions.drained()

    def unread_below(self, below: Position) -> int:
        last = Position(below.ledger_id, below.entry_id - 1)
        return sum(
            self.ledgers.entries_between(Position(at.ledger_id, at.entry_id - 1), last)
            for consumer in self.dispatcher.consumers
            if (at := consumer.next_read) < below
        )

    def follow_trim(self) -> None:
        self.subscriptions.follow_trim()
        self.dispatcher.wake()

    # ---- load_samples.MeasuredSegment -------------------------------------------------------------------------------

    @property
    def takes_writes(self) -> bool:
        return self._over is None and not self.ledgers.sealed

    @property
    def taken_in(self) -> Stored:
        return Stored(self.pipeline.stored_messages, self.pipeline.stored_bytes)

    # ---- statistics -------------------------------------------------------------------------------------------------

    def users(self, subscription: str | None) -> tuple[int, int]:
        """Numbers of connected producers, and of consumers and readers; with `subscription`, only its consumers."""
        consumers = [
            len(one.consumers)
            for one in self.subscriptions.statistics()
            if subscription is None or one.name == subscription
        ]
        if subscription is not None:
            return 0, sum(consumers)
        readers = sum(1 for consumer in self.dispatcher.consumers if consumer.acks is None)
        return len(self.producers), readers + sum(consumers)

    def statistics(self, *, pins: int = PINNING_SHOWN) -> SegmentStatistics:
        """`pins`: the most transactions to list in `pinning`."""
        pinning = tuple(self.buffer.pinning(pins))
        return SegmentStatistics(
            path=self.path,
            epoch=self.epoch,
            sealed=self.ledgers.sealed,
            ledgers=len(self.ledgers.record.ledgers),
            entries=self.ledgers.entries,
            last_confirmed=self.buffer.last_confirmed,
            max_read_position=self.buffer.max_read_position,
            buffer=self.buffer.statistics(),
            pinning=pinning,
            entries_behind=entries_behind(self.ledgers, pinning, self.buffer.last_confirmed),
            inflight=self.pipeline.inflight,
            inflight_bytes=self.pipeline.inflight_bytes,
            cached_bytes=self._cache.bytes,
            producers=self._dedup.statistics().producers,
            readers=sum(1 for consumer in self.dispatcher.consumers if consumer.acks is None),
            clean_up_backlog=sum(target.backlog for target in self._targets),
            stored_entries=self.pipeline.stored,
            subscriptions=self.subscriptions.statistics(),
            recovery_s=self.recovery_s,
            trimmed_below=self.ledgers.trimmed_below,
            kept_bytes=self.open_bytes + sum(info.bytes for info in kept_ledgers(self.ledgers.record)),
            aborted_in_store=self.buffer.records_in_store,
            keeping=self._keeping.statistics(),
            open_transactions=self.buffer.statistics().open,
            lags=self.subscriptions.lags.sampled(),
        )


def _for_clients(error: TxnError, path: str) -> TxnError:
    """The error for producers and consumers: one that makes them look up the next owner."""
    if isinstance(error, NotOwner | Timeout):
        return error
    return NotOwner(f"{path} is being taken over again ({error}): look up the owner again")
