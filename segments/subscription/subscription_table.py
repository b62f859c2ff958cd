"""The subscriptions of one segment: loads them, attaches consumers (a stream's under an assignment), seeks, deletes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import structlog

from segments.layout.subscription_records import QUEUE, STREAM, other_type
from segments.log.erasing import erase_subscription
from segments.subscription.cursors.cursor import MARK, Cursor
from segments.subscription.definitions import read_definitions
from segments.subscription.dispatch import DeliverySink, DispatchConsumer, Isolation
from segments.subscription.drained import DrainedMark
from segments.subscription.lag import SegmentLags
from segments.subscription.queue_subscription import AttachedConsumer, QueueSubscription
from segments.subscription.starts import Start, StartPoint, placed, resolve_start
from segments.subscription.stream_subscription import StreamSubscription
from segments.subscription.subscriptions import SegmentContext, Subscription, SubscriptionStatistics
from txnstore import keys, records
from txnstore.records import AssignmentRecord, SubscriptionRecord
from txnstore.store import KeyValue
from txnwire.errors import DataCorrupt, InvalidArgument, NotAllowed, NotOwner, SubscriptionNotFound
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.named_locks import NamedLocks
from txnwire.names import SegmentName
from txnwire.tasks import errand
from watchers.acks import WHOLE, AckPosition
from watchers.clean_up import AckCleanUp, CleanUp
from watchers.outcomes import Decision
from watchers.pending_acks import PendingAcks

log = structlog.get_logger(__name__)

_TYPES: Final[Mapping[str, type[Subscription]]] = {STREAM: StreamSubscription, QUEUE: QueueSubscription}


class SubscriptionTable:
    """Holds the subscriptions of one segment. `surroundings.events` is the segment; its `lost` also ends clean-up."""

    def __init__(self, surroundings: SegmentContext, clean_up: CleanUp) -> None:
        self._surroundings = surroundings
        self._store = surroundings.store
        self._clean_up = clean_up
        self._settings = surroundings.settings
        self._segment = surroundings.segment
        self._topic = SegmentName.from_path(surroundings.segment).topic
        self._topic_path = self._topic.path
        self._epoch = surroundings.epoch
        self._ledgers = surroundings.ledgers
        self._dispatcher = surroundings.dispatcher
        self._events = surroundings.events
        self._subscriptions: dict[str, Subscription] = {}
        self._targets: dict[str, AckCleanUp] = {}
        self._created: dict[str, int] = {}
        """Create revision of each subscription's record, as last read."""
        self._drained: dict[str, DrainedMark] = {}
        self._sought: dict[str, int] = {}
        """Number of seeks begun."""
        self._loading = NamedLocks()
        self._seeking = NamedLocks()
        """Held during a seek: no consumer attaches meanwhile."""
        self._dropping: dict[str, asyncio.Task[None]] = {}
        self.cursors_held = asyncio.Lock()
        """Held while a cursor moves back, and while entries that all subscriptions have consumed are trimmed."""
        self.lags = SegmentLags(surroundings, self)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._subscriptions.values())

    @property
    def targets(self) -> tuple[AckCleanUp, ...]:
        """The clean-up targets of these subscriptions."""
        return tuple(self._targets.values())

    def loaded(self, name: str) -> Subscription | None:
        """The subscription if it has a cursor in memory: a consumer has attached here, or recovery has found one."""
        return self._subscriptions.get(name)

    # ---- attaching --------------------------------------------------------------------------------------------------

    async def attach(
        self,
        sink: DeliverySink,
        *,
        subscription: str,
        holder: str,
        assignment_epoch: int,
        min_revision: int,
        isolation: Isolation = Isolation.READ_COMMITTED,
        after_abort: bool = False,
    ) -> tuple[StreamSubscription, DispatchConsumer]:
        """Attach `holder` (`name@incarnation`) to a stream subscription, if the assignment names it and the segments
        before this one are drained.

        Raises `NotAllowed`, `SubscriptionNotFound`, `InvalidArgument` (a queue), `DataCorrupt`, `NotOwner`,
        `StoreUnavailable`.
        """
        found, sought = None, -1
        while found is None or sought != self._sought.get(subscription, 0):
            sought = self._sought.get(subscription, 0)
            await self._check_assignment(subscription, holder, assignment_epoch)
            await self._check_ancestors(subscription)
            found = await self._load_to_attach(subscription)
        self._events.check()
        if not isinstance(found, StreamSubscription):
            raise self._other_type(found, STREAM)
        consumer = DispatchConsumer(
            sink,
            next_read=Position(0, 0),
            acks=found,
            min_revision=min_revision,
            isolation=isolation,
            holder=holder,
        )
        found.attach(consumer, assignment_epoch, after_abort=after_abort)
        return found, consumer

    async def attach_to_queue(
        self,
        sink: DeliverySink,
        *,
        subscription: str,
        holder: str,
        min_revision: int,
        isolation: Isolation = Isolation.READ_COMMITTED,
        may_share: bool = False,
    ) -> tuple[QueueSubscription, AttachedConsumer]:
        """Attach one more consumer to a queue subscription. `may_share`: see `AttachedConsumer`.

        Raises `SubscriptionNotFound`, `InvalidArgument` (a stream, or another isolation than the others'),
        `DataCorrupt`, `NotOwner`, `StoreUnavailable`.
        """
        while (found := await self._load_to_attach(subscription)) is None:
            continue
        self._events.check()
        if not isinstance(found, QueueSubscription):
            raise self._other_type(found, QUEUE)
        consumer = AttachedConsumer(sink, holder, min_revision, may_share=may_share)
        found.attach(consumer, isolation)
        return found, consumer

    async def _load_to_attach(self, name: str) -> Subscription | None:
        """None if it had to wait for a seek: the caller repeats its checks."""
        found = await self.load(name)
        if self._seeking.locked(name):
            async with self._seeking.held(name):
                return None
        found.check()
        return found

    def _other_type(self, found: Subscription, asked: str) -> InvalidArgument:
        return other_type((self._topic_path, found.name), found.type, asked)

    async def _check_assignment(self, subscription: str, holder: str, epoch: int) -> None:
        """▲ Reads the store, not a copy that may lag: writing the assignment fences the former holder."""
        key = keys.assignment(self._topic_path, subscription)
        found = await self._store.get(key)
        record = None if found is None else records.decode(AssignmentRecord, found.value, key=key)
        if record is None or not _may_read(record, holder, self._segment, epoch):
            raise NotAllowed(
                f"{holder} is not assigned {self._segment} of subscription {subscription} at epoch {epoch} (the record "
                f"is at epoch {record.epoch if record else 'none'}): wait for your next assignment"
            )

    async def _check_ancestors(self, subscription: str) -> None:
        """▲ S7: reads the store as well. The controller's copy may lag behind a seek or a recreated subscription, which
        must read the ancestors again first. A later seek reaches this segment too, and closes its consumer."""
        ancestors = self._surroundings.ancestors()
        if not ancestors:
            return
        prefix = keys.drained_by_subscription(self._topic_path, subscription)
        found = await self._store.range(prefix, keys.prefix_end(prefix), keys_only=True)
        drained = {record.key[len(prefix) :]: None for record in found.records}
        missing = [ancestor for ancestor in ancestors if str(ancestor).encode() not in drained]
        if missing:
            raise NotAllowed(
                f"{self._segment} is not read yet: subscription {subscription} has to consume segment {missing[0]} of "
                f"{self._topic} first, its parent: wait for your next assignment"
            )

    def assignment_changed(self, subscription: str, record: AssignmentRecord | None) -> None:
        """Close the holder if the segment was assigned to another consumer."""
        found = self._subscriptions.get(subscription)
        if not isinstance(found, StreamSubscription) or found.consumer is None or found.holder is None:
            return
        if record is not None and record.epoch < found.assignment_epoch:
            return  # older than what the holder attached under
        if record is None or not _may_read(record, found.holder, self._segment, found.assignment_epoch):
            found.close(NotAllowed(f"{self._segment} of {subscription} is no longer assigned to {found.holder}"))

    # ---- loading ----------------------------------------------------------------------------------------------------

    async def load(self, name: str) -> Subscription:
        """Raises `SubscriptionNotFound`, `DataCorrupt`, `StoreUnavailable`."""
        found = self._subscriptions.get(name)
        if found is None:
            async with self._loading.held(name):
                found = self._subscriptions.get(name) or await self._create(name)
        return found

    async def _create(self, name: str) -> Subscription:
        definition = await self.definition(name)
        point = await self.start_of(definition)
        self._events.check()
        cursor = self.cursor(definition, point.after)
        skipped = await self._first_messages(point)
        if skipped is not None:
            cursor.ack(skipped)
        found = self.add(name, definition.type, cursor, PendingAcks(self._segment, name, cursor))
        self._clean_up.add(self._targets[name])
        self._clean_up.wake(self._targets[name])
        return found

    async def _first_messages(self, point: StartPoint) -> AckPosition | None:
        """The first messages of the entry at the start that must not be delivered, if any."""
        at = self._ledgers.next_after(point.after)
        if not point.left_out or not self._ledgers.contains(at):
            return None
        entry = await self._dispatcher.read_entry(at)
        left_out = min(point.left_out, entry.messages)
        return AckPosition(at, entry.messages, WHOLE if left_out == entry.messages else (1 << left_out) - 1)

    async def definition(self, name: str) -> SubscriptionRecord:
        """Raises `SubscriptionNotFound`, `DataCorrupt`, `StoreUnavailable`."""
        key = keys.subscription(self._topic_path, name)
        found = await self._store.get(key)
        record = None if found is None else records.decode(SubscriptionRecord, found.value, key=key)
        if found is None or record is None or record.deleting_ms:
            self._created.pop(name, None)
            raise SubscriptionNotFound(f"topic://{self._topic_path} has no subscription {name}: join it first")
        self._created[name] = found.create_revision
        return record

    async def start_of(self, definition: SubscriptionRecord) -> StartPoint:
        """The subscription's start here if it has no cursor yet."""
        start = Start.from_record(definition, self._segment)
        return await resolve_start(start, self._segment, self._ledgers, self._events.max_read_position)

    def cursor(self, definition: SubscriptionRecord | None, start: Position, stored: Sequence[KeyValue] = ()) -> Cursor:
        """Load a cursor. A queue's has more room: it may run far ahead of an open transaction. Raises `DataCorrupt`."""
        load = partial(Cursor.load, self._ledgers, start, stored, partial_bytes=self._settings.partial_acks_bytes)
        if definition is not None and definition.type == QUEUE:
            settings = self._settings
            return load(max_blocks=settings.queue_cursor_blocks + 1, max_partial=settings.queue_unacked_entries)
        return load()

    async def stored_cursor(self, definition: SubscriptionRecord, stored: Sequence[KeyValue]) -> Cursor:
        """Load a cursor from its stored records. Only without a mark it calls `start_of`, with the same errors: once
        there is a mark, the start no longer matters, and it may be unreadable or slow to find."""
        has_mark = any(keys.cursor_parts(record.key)[2] == MARK for record in stored)
        return self.cursor(definition, EARLIEST if has_mark else (await self.start_of(definition)).after, stored)

    def add(self, name: str, type: str, cursor: Cursor, pending: PendingAcks) -> Subscription:
        """Add a subscription that was loaded or found by recovery. The caller has called `definition` before. Raises
        `DataCorrupt` for an unknown type."""
        if (make := _TYPES.get(type)) is None:
            raise DataCorrupt(
                f"subscription {name} of topic://{self._topic_path} has type {type!r}: expected {STREAM} or {QUEUE}"
            )
        self._follow_trim(cursor)
        subscription = make(self._surroundings, name, cursor, pending)
        self._subscriptions[name] = subscription
        if (created := self._created.get(name)) is not None:  # otherwise it was deleted
            subscription.created = created
            self._drained[name] = DrainedMark(
                self._segment,
                name,
                owner_epoch=self._epoch,
                subscription_created=created,
                consumption=subscription,
                end=lambda: self._ledgers.end,
            )
        self._targets[name] = AckCleanUp(
            self._segment,
            name,
            self._epoch,
            pending,
            on_lost=self._events.lost,
            flush_interval_s=self._settings.cursor_flush_s,
            behind_cursor=self._drained.get(name),
        )
        return subscription

    # ---- seek -------------------------------------------------------------------------------------------------------

    async def seek(self, name: str, start: Start) -> None:
        """Move the cursor to `start` and forget all acks. Stored when this returns. A failed seek may have taken
        effect: repeat it. In a layout, seek parents before their children.

        Raises `InvalidArgument` (the topic does not have the message's segment: nothing has moved),
        `SubscriptionNotFound`, `Timeout` (an open transaction holds acks, named), `NotOwner`, `DataCorrupt`,
        `StoreUnavailable`, `OutcomeUnknown`.
        """
        # ▲ Before any consumer is closed or any cursor moves: a message of another topic would mean "earliest".
        start = await placed(start, self._segment, self._store)
        found = await self.load(name)
        self._sought[name] = self._sought.get(name, 0) + 1
        async with self._seeking.held(name):
            # ▲ Close the attached consumers first; they attach again under a new consumer id. From here on no ack of a
            # message received before the seek is accepted.
            found.check()
            found.close(NotOwner(f"subscription {name} on {self._segment} is being sought: attach again"))
            await found.wait_nothing_pending(timeout_s=self._settings.seek_wait_s)
            try:
                with self._mark(name).held():
                    # ▲ No committed ack op may be left in the store: a successor would apply it to the new cursor. No
                    # write of the drained mark may be in flight either.
                    await self._write_all(found)
                    async with self.cursors_held:
                        await self._move(found, start)
            finally:
                # ▲ If the mark was deleted and the cursor did not move, nothing else would write the mark again.
                if (target := self._targets.get(name)) is not None:
                    self._clean_up.wake(target)
            # ▲ Store the moved cursor before the seek is answered.
            await self._write_all(found)

    async def _move(self, found: Subscription, start: Start) -> None:
        point = await resolve_start(start, self._segment, self._ledgers, self._events.max_read_position)
        skipped = await self._first_messages(point)
        sealed = self._ledgers.record.sealed
        found.check()  # the drained mark is found by name: it may belong to a recreated subscription by now
        if sealed is not None and (skipped is not None or point.after < Position(*sealed)):
            await self._take_drained_back(found.name)
        self._events.check()
        found.check()
        found.cursor.seek(point.after)
        self._follow_trim(found.cursor)
        if skipped is not None:
            found.cursor.ack(skipped)
        found.cursor.advance()
        found.restart()

    async def _take_drained_back(self, name: str) -> None:
        """▲ Delete the drained mark before the cursor moves back, even a predecessor's: otherwise consumers of the
        child segments continue while this one is read again. It is put again once the subscription is at the end."""
        mark = self._mark(name)
        mark.taken_back(await self._store.commit(mark.take_back()))

    def _mark(self, name: str) -> DrainedMark:
        mark = self._drained.get(name)
        if mark is None:
            raise SubscriptionNotFound(f"subscription {name} of topic://{self._topic_path} is deleted")
        return mark

    async def _write_all(self, subscription: Subscription) -> None:
        """Raises `Timeout`, `NotOwner`, `StoreUnavailable`, or the error that ended the subscription."""
        target = self._targets.get(subscription.name)
        if target is not None:
            await self._clean_up.drain(target, timeout_s=self._settings.seek_wait_s)
        self._events.check()
        subscription.check()

    # ---- trimming ---------------------------------------------------------------------------------------------------

    async def drained(self) -> Position | None:
        """The last position here that every subscription of the topic has consumed; None without subscriptions. One
        without a consumer so far has consumed what lies before its start. Raises `StoreUnavailable`, `DataCorrupt`."""
        lowest: Position | None = None
        # ▲ Read all of them before any cursor: a seek back between two pages must count.
        for name, definition in (await read_definitions(self._store, self._topic_path)).items():
            loaded = self._subscriptions.get(name)
            if loaded is not None:
                done = loaded.cursor.mark_delete
            else:  # ▲ one that cannot be read may have consumed nothing
                done = EARLIEST if definition is None else (await self.start_of(definition)).after
            lowest = done if lowest is None else min(lowest, done)
        return lowest

    def follow_trim(self) -> None:
        """Count trimmed entries as consumed by every subscription."""
        for subscription in self._subscriptions.values():
            if self._follow_trim(subscription.cursor):
                self.wake_clean_up(subscription)

    def _follow_trim(self, cursor: Cursor) -> bool:
        below = self._ledgers.trimmed_below
        before = None if below is None else Position(below.ledger_id, below.entry_id - 1)
        return before is not None and before > cursor.mark_delete and cursor.ack_cumulative(AckPosition(before, 0))

    # ---- deleting ---------------------------------------------------------------------------------------------------

    async def drop(self, name: str) -> None:
        """Stop a subscription that has a deletion mark, and erase its records in the segment (P9).

        ▲ After this returns, this owner writes nothing more for it: a load finds the mark, and all its writes in flight
        have been answered. Acks pending in open transactions are dropped. Idempotent. Raises `NotAllowed` if it has no
        mark, `NotOwner`, `StoreUnavailable`.
        """
        # ▲ Runs on if the caller is cancelled: a next controller that asks again must not hear "done" while these
        # writes or deletions may still land, on a new subscription of the same name for example.
        task = self._dropping.get(name)
        if task is None:
            task = self._dropping[name] = errand(self._drop(name), name="dropping a subscription", of=name)
            task.add_done_callback(partial(self._dropped, name))
        await asyncio.shield(task)

    def _dropped(self, name: str, task: asyncio.Task[None]) -> None:
        del self._dropping[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("subscription_not_dropped", segment=self._segment, subscription=name, error=str(error))

    async def _drop(self, name: str) -> None:
        key = keys.subscription(self._topic_path, name)
        async with self._loading.held(name):
            # ▲ Read only under the lock, after a running load: with an older read, a late request would mistake a new
            # subscription of the same name for the deleted one.
            record = await self._store.get(key)
            if record is not None and not records.decode(SubscriptionRecord, record.value, key=key).deleting_ms:
                raise NotAllowed(f"subscription {name} of topic://{self._topic_path} is not being deleted")
            if (found := self._subscriptions.get(name)) is not None:
                found.stop(SubscriptionNotFound(f"subscription {name} of topic://{self._topic_path} was deleted"))
                await found.wait_all_answered()
                await self._clean_up.retire(self._targets[name])
                del self._subscriptions[name], self._targets[name]
                for known in (self._drained, self._created, self._sought):
                    known.pop(name, None)
                for txn_id in found.pending.open_transactions():
                    self._events.let_go(txn_id)
            self._events.check()
            await erase_subscription(self._store, self._segment, self._epoch, name)

    # ---- all subscriptions ------------------------------------------------------------------------------------------

    def decided(self, decision: Decision) -> None:
        for subscription in self._subscriptions.values():
            subscription.decided(decision)

    def visible(self, decision: Decision) -> None:
        """The transaction's entries here are visible now, or never will be."""
        for subscription in self._subscriptions.values():
            subscription.visible(decision)

    def holds(self, txn_id: TxnId) -> bool:
        return any(subscription.pending.holds(txn_id) for subscription in self._subscriptions.values())

    def wake_clean_up(self, subscription: Subscription) -> None:
        self._clean_up.wake(self._targets[subscription.name])

    def rolled(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.rolled()

    def statistics(self) -> tuple[SubscriptionStatistics, ...]:
        return tuple(subscription.statistics() for subscription in self._subscriptions.values())


def _may_read(record: AssignmentRecord, holder: str, segment: str, epoch: int) -> bool:
    """Whether the assignment gives `segment` to `holder`, which learned of it at `epoch`."""
    return epoch <= record.epoch and segment in record.consumers.get(holder, ())
