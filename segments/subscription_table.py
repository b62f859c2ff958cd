"""The stream subscriptions of one segment: loading, attaching under an assignment, and what concerns all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from segments.cursor import Cursor
from segments.dispatch import Consumer, Dispatcher, Isolation, Sink
from segments.ledgers import SegmentLedgers
from segments.settings import BrokerSettings
from segments.starts import Start, StartPoint, resolve_start
from segments.subscriptions import Subscription, SubscriptionEvents, SubscriptionStatistics
from txnstore import keys, records
from txnstore.records import AssignmentRecord, SubscriptionRecord
from txnstore.store import MetadataStore
from txnwire.errors import NotAllowed, SubscriptionNotFound
from txnwire.ids import Position, TxnId
from txnwire.names import SegmentName
from watchers.acks import AckPosition
from watchers.clean_up import AckCleanUp, CleanUp
from watchers.outcomes import Decision
from watchers.pending_acks import PendingAcks


class SubscriptionTable:
    """`events` is the segment, whose `lost` also ends every clean-up."""

    def __init__(
        self,
        store: MetadataStore,
        clean_up: CleanUp,
        settings: BrokerSettings,
        *,
        segment: str,
        epoch: int,
        ledgers: SegmentLedgers,
        dispatcher: Dispatcher,
        op_counter: Callable[[], int],
        events: SubscriptionEvents,
    ) -> None:
        self._store = store
        self._clean_up = clean_up
        self._settings = settings
        self._segment = segment
        self._topic_path = SegmentName.from_path(segment).topic.path
        self._epoch = epoch
        self._ledgers = ledgers
        self._dispatcher = dispatcher
        self._op_counter = op_counter
        self._events = events
        self._subscriptions: dict[str, Subscription] = {}
        self._targets: dict[str, AckCleanUp] = {}
        self._loading: dict[str, asyncio.Lock] = {}

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._subscriptions.values())

    @property
    def targets(self) -> tuple[AckCleanUp, ...]:
        """What clean-up writes of these subscriptions."""
        return tuple(self._targets.values())

    # ---- attaching --------------------------------------------------------------------------------------------------

    async def attach(
        self,
        sink: Sink,
        *,
        subscription: str,
        holder: str,
        assignment_epoch: int,
        min_revision: int,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> tuple[Subscription, Consumer]:
        """Attach `holder` (`name@incarnation`), if the assignment names it.

        Raises `NotAllowed`, `SubscriptionNotFound`, `DataCorrupt`, `NotOwner`, `StoreUnavailable`.
        """
        await self._check_assignment(subscription, holder, assignment_epoch)
        found = await self.load(subscription)
        self._events.check()
        consumer = Consumer(sink, next_read=Position(0, 0), acks=found, min_revision=min_revision, isolation=isolation)
        found.attach(consumer, holder, assignment_epoch)
        return found, consumer

    async def _check_assignment(self, subscription: str, holder: str, epoch: int) -> None:
        """▲ Asked of the store, not of a copy that may lag: the assignment's write is what fences a former holder."""
        key = keys.assignment(self._topic_path, subscription)
        found = await self._store.get(key)
        record = None if found is None else records.decode(AssignmentRecord, found.value, key=key)
        if record is None or not _may_read(record, holder, self._segment, epoch):
            raise NotAllowed(
                f"{holder} is not assigned {self._segment} of subscription {subscription} at epoch {epoch} (the record "
                f"is at epoch {record.epoch if record else 'none'}): wait for your next assignment"
            )

    def assignment_changed(self, subscription: str, record: AssignmentRecord | None) -> None:
        """Close a holder whose segment was given to somebody else."""
        found = self._subscriptions.get(subscription)
        if found is None or found.consumer is None or found.holder is None:
            return
        if record is not None and record.epoch < found.assignment_epoch:
            return  # older than what the holder attached under
        if record is None or not _may_read(record, found.holder, self._segment, found.assignment_epoch):
            found.fence(NotAllowed(f"{self._segment} of {subscription} is no longer assigned to {found.holder}"))

    # ---- loading ----------------------------------------------------------------------------------------------------

    async def load(self, name: str) -> Subscription:
        """Raises `SubscriptionNotFound`, `DataCorrupt`, `StoreUnavailable`."""
        found = self._subscriptions.get(name)
        if found is None:
            async with self._loading.setdefault(name, asyncio.Lock()):
                found = self._subscriptions.get(name) or await self._create(name)
        return found

    async def _create(self, name: str) -> Subscription:
        point = await self.start_of(name)
        self._events.check()
        cursor = Cursor(self._ledgers, point.after)
        at = self._ledgers.next_after(point.after)
        if point.left_out and self._ledgers.contains(at):
            entry = await self._dispatcher.read_entry(at)
            left_out = min(point.left_out, entry.messages)
            cursor.ack(AckPosition(at, entry.messages, (1 << left_out) - 1))
        found = self.add(name, cursor, PendingAcks(self._segment, name, cursor))
        self._clean_up.add(self._targets[name])
        self._clean_up.wake(self._targets[name])
        return found

    async def start_of(self, name: str) -> StartPoint:
        """Where the subscription begins here if it has no cursor yet."""
        key = keys.subscription(self._topic_path, name)
        found = await self._store.get(key)
        if found is None:
            raise SubscriptionNotFound(f"topic://{self._topic_path} has no subscription {name}: join it first")
        start = Start.from_record(records.decode(SubscriptionRecord, found.value, key=key), self._segment)
        return await resolve_start(start, self._segment, self._ledgers, self._events.max_read_position)

    def add(self, name: str, cursor: Cursor, pending: PendingAcks) -> Subscription:
        """One that is loaded, or was found by recovery."""
        subscription = Subscription(
            self._store,
            self._settings,
            name=name,
            segment=self._segment,
            epoch=self._epoch,
            cursor=cursor,
            pending=pending,
            ledgers=self._ledgers,
            dispatcher=self._dispatcher,
            op_counter=self._op_counter,
            events=self._events,
        )
        self._subscriptions[name] = subscription
        self._targets[name] = AckCleanUp(
            self._segment,
            name,
            self._epoch,
            pending,
            on_lost=self._events.lost,
            flush_interval_s=self._settings.cursor_flush_s,
        )
        return subscription

    # ---- what concerns all ------------------------------------------------------------------------------------------

    def decided(self, decision: Decision) -> None:
        for subscription in self._subscriptions.values():
            subscription.decided(decision)

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
    """Whether the assignment gives `segment` to `holder`, who has heard of it under `epoch`."""
    return epoch <= record.epoch and segment in record.consumers.get(holder, ())
