"""One watch on `/txn/` per process delivers each decision to the segments that hold its transaction (DESIGN §6).

A header put with version 1 is a begin and is skipped unread; version 2 is the decision, its mod revision orders it. A
decision is dropped unread if no segment here holds its transaction. Source: PIP-471, "Notification mechanism", with one
range-watch in place of a point-watch per header.

Besides the watch, the process reads headers of held transactions again: those held long, now and then, in pages and
rate-capped; those that a resync did not show; and all, if a caller waits for a revision that brings no event. ▲ An
absent header of a held transaction decides nothing: the transaction stays held, and its participant checks that it is
still the owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import structlog

from txnstore import keys, records
from txnstore.access.paging import in_parts
from txnstore.records import Header
from txnstore.store import Event, KeyValue, MetadataStore, StoreWatch, WatchBatch
from txnwire.errors import DataCorrupt, InternalError, StoreUnavailable, Timeout, TxnError
from txnwire.histogram import Histogram, HistogramSnapshot
from txnwire.ids import TxnId
from txnwire.ports import Clock
from txnwire.tasks import vital
from txnwire.turns import in_turns, turn_size
from watchers.early_decisions import EarlyDecisions
from watchers.outcomes import Decision, Participant

__all__ = ["Decision", "DecisionMembership", "DecisionSettings", "DecisionStatistics", "DecisionWatch", "Participant"]

log = structlog.get_logger(__name__)

EVENTS_AT_ONCE: Final = 250
"""Events of a batch taken without a pause: a decision with acks takes some 40 µs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSettings:
    """`reconcile_interval_s`: pause between passes over transactions held open longer than `held_long_s`; a pass reads
    `reconcile_page` headers at a time, with `reconcile_pause_s` between pages. `nudge_s`: how long `wait_followed`
    waits for the watch before it reads the headers of held transactions. `wide_pause_s`: pause before a decision goes
    to `wide` participants or more, at most once in `wide_interval_s`."""

    reconcile_interval_s: float = 10.0
    held_long_s: float = 30.0
    reconcile_page: int = 500
    reconcile_pause_s: float = 0.2
    nudge_s: float = 1.0
    wide: int = 16
    wide_pause_s: float = 0.002
    wide_interval_s: float = 0.02


@dataclass(frozen=True, slots=True)
class DecisionStatistics:
    """`held`: transactions whose decision a participant here awaits. `events`, `decisions` (delivered), `resyncs`,
    `reread` (headers) and `absent` (of those) count since the start."""

    followed_revision: int
    held: int
    events: int
    decisions: int
    resyncs: int
    reread: int
    absent: int
    lag: HistogramSnapshot
    """Seconds from a decision (coordinator's wall clock) to its delivery (local wall clock), for held transactions."""


class DecisionMembership:
    """One participant's interest. From `DecisionWatch.join` until `loaded` the watch keeps decisions for it, from
    `expect` on only those of its transactions; afterwards it delivers those of transactions the participant added."""

    __slots__ = ("_watch", "held", "loading", "participant")

    def __init__(self, watch: DecisionWatch, participant: Participant) -> None:
        self._watch = watch
        self.participant = participant
        self.loading = True
        self.held: dict[_AwaitedTxn, None] = {}
        """Set by the watch: transactions whose decision the participant awaits."""

    def add(self, txn_id: TxnId) -> None:
        """▲ Call it before the transaction's first op is sent from here. Idempotent."""
        self._watch.hold(self, txn_id)

    def drop(self, txn_id: TxnId) -> None:
        """The participant no longer holds the transaction, without a decision: its only op was refused."""
        self._watch.let_go(self, txn_id)

    async def expect(self, held: Sequence[TxnId]) -> None:
        """The participant has read its state and found these transactions open: keep no other decision for it.
        Idempotent."""
        if not self._watch.early.is_reading(self):
            return
        wanted: dict[bytes, None] = {}
        async for part in in_turns(held):
            wanted |= dict.fromkeys(map(keys.txn, part))
        self._watch.early.expect(self, wanted)

    async def loaded(self, held: Sequence[TxnId]) -> None:
        """Recovery is over: `held` are the transactions found open, the same as for `expect` if that was called.
        Delivers within this call the decisions on them that came since `join`.

        ▲ Other tasks run meanwhile, and further decisions come. They are kept too, so the participant gets all of them
        in revision order; the last few are delivered in one step with the end of its loading."""
        await self.expect(held)
        async for part in in_turns(held):
            for txn_id in part:
                if self._watch.early.awaits(self, keys.txn(txn_id)):
                    self._watch.hold(self, txn_id)
        while len(early := self._watch.early.take(self)) > turn_size(EVENTS_AT_ONCE):
            async for taken in in_turns(early, EVENTS_AT_ONCE):
                self._deliver(taken)
        self.loading = False
        self._watch.early.leave(self)
        self._deliver(early)

    def _deliver(self, early: Sequence[KeyValue]) -> None:
        for record in early:
            self._watch.deliver(keys.txn_of(record.key), record, (self,))

    def leave(self) -> None:
        """Stop calls to the participant. Idempotent. O(transactions it holds)."""
        self._watch.leave(self)


class _AwaitedTxn:
    """A transaction whose decision `members` await since `since_s`."""

    __slots__ = ("key", "members", "since_s", "txn_id")

    def __init__(self, key: bytes, txn_id: TxnId, since_s: float) -> None:
        self.key = key
        self.txn_id = txn_id
        self.since_s = since_s
        self.members: list[DecisionMembership] = []


class DecisionWatch:
    """Follows decisions. `on_failed`: called once if the watch ends for good (no right to read `/txn/`, a bug): the
    process cannot serve.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        settings: DecisionSettings | None = None,
        *,
        on_failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings or DecisionSettings()
        self._on_failed = on_failed
        self._held: dict[bytes, _AwaitedTxn] = {}
        """Held transactions by header key, to look up events."""
        self.early = EarlyDecisions()
        """For `DecisionMembership`: decisions that came while its participant loads."""
        self._followed = 0
        self._shown = 0
        self._waiters: dict[asyncio.Future[None], int] = {}
        self._doubtful: dict[bytes, None] = {}
        self._doubts = asyncio.Event()
        self._reading = asyncio.Lock()
        self._watch: StoreWatch | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None
        self._events = self._decisions = self._resyncs = self._reread = self._absent = 0
        self._lag = Histogram()

    async def start(self) -> None:
        """Follow from the store's current revision on. Raises `StoreUnavailable`."""
        self._followed, _ = await self._store.get_many([keys.INCARNATION])
        self._watch = self._store.watch(keys.TXN, keys.prefix_end(keys.TXN), from_revision=self._followed + 1)
        self._tasks = [
            vital(self._follow(self._watch), name="decision watch"),
            vital(self._reconcile(), name="decision reconcile"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Idempotent. Waiters get `StoreUnavailable`."""
        self._fail_waiters(StoreUnavailable("decisions are not followed here any more"))
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if self._watch is not None:
            await self._watch.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def join(self, participant: Participant) -> DecisionMembership:
        """▲ Call it before the participant reads any of its state from the store: it would miss decisions made between
        that read and its end of loading."""
        membership = DecisionMembership(self, participant)
        self.early.begin(membership)
        return membership

    # ---- followed revisions

    @property
    def followed_revision(self) -> int:
        """Every decision at or before this revision has been delivered."""
        return self._followed

    @property
    def shown_revision(self) -> int:
        """Whatever is visible here was decided at or before this revision. It rises before participants get the
        decision, so ▲ it may exceed `followed_revision` in the middle of a large batch, and after a segment was loaded.
        """
        return self._shown

    def loaded_at(self, revision: int) -> None:
        """A participant has read its state at this revision, with every decision made by then."""
        self._shown = max(self._shown, revision)

    async def wait_followed(self, revision: int, *, timeout_s: float, patience_s: float | None = None) -> None:
        """Return once every decision up to `revision` has been delivered. `patience_s`: how long to wait for the watch
        before reading the headers of held transactions; by default the setting `nudge_s`.

        Raises `Timeout`, or `StoreUnavailable` if this process no longer follows decisions."""
        if self._followed >= revision:
            return
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._followed_within(revision, patience_s or self._settings.nudge_s):
                    await self._read_held(revision)
        except TimeoutError:
            raise Timeout(
                f"decisions are followed up to revision {self._followed}, waited {timeout_s} s for {revision}"
            ) from None

    async def _followed_within(self, revision: int, patience_s: float) -> bool:
        if self._failure is not None:
            raise StoreUnavailable(f"decisions are not followed any more: {self._failure}")
        if self._followed >= revision:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = revision
        try:
            await asyncio.wait([waiter], timeout=patience_s)
        finally:
            self._waiters.pop(waiter, None)
        if waiter.done():
            waiter.result()
        return waiter.done()

    async def _read_held(self, revision: int) -> None:
        """Reach `revision` without the watch: no event may be due, or the watch may be cut off.

        The headers of all held transactions show every decision up to R that concerns this process. (▲ A progress
        answer would not: its revision runs ahead of events still to come.) ▲ R is read before the list of held
        transactions: a transaction held only later is decided after R. While a segment loads, its
        transactions are unknown: R does not count as followed, or its readers would miss commits before R."""
        async with self._reading:
            if self._followed >= revision:
                return
            try:
                read_at, _ = await self._store.get_many([keys.INCARNATION])
                held, loading = [*self._held, *self.early.expected()], self.early.reading
                # In pages, each with its own time limit: a process may hold every open transaction of all coordinators.
                for asked in in_parts(held, self._store.page_size(self._settings.reconcile_page)):
                    _, found = await self._store.get_many(asked)
                    self._compare(asked, found)
                    await asyncio.sleep(0)
            except StoreUnavailable as error:
                log.warning("headers_not_read", error=str(error))
                return
            if not loading:
                self._advance(read_at)

    def _advance(self, revision: int) -> None:
        if revision > self._followed:
            self._followed = revision
        for waiter, awaited in list(self._waiters.items()):
            if awaited <= self._followed and not waiter.done():
                waiter.set_result(None)

    def _fail_waiters(self, error: TxnError) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)

    # ---- the watch

    async def _follow(self, watch: StoreWatch) -> None:
        paused_s = -self._settings.wide_interval_s
        async for batch in watch:
            if (
                not batch.resync
                and self._is_wide(batch)
                and self._clock.monotonic() - paused_s >= self._settings.wide_interval_s
            ):
                # etcd tells watchers before it answers the committer. A decision for 64 segments keeps a core busy for
                # half a millisecond, and with few cores the answer to the commit waits for that. The pause lets the
                # answer go first; the batch is taken whole, so `followed_revision` keeps its meaning.
                await asyncio.sleep(self._settings.wide_pause_s)
                paused_s = self._clock.monotonic()
            await self._take(batch)

    def _is_wide(self, batch: WatchBatch) -> bool:
        """Whether the batch brings a decision that many participants here wait for."""
        held, wide = self._held, self._settings.wide
        for event in batch.events:
            record = event.record
            if not event.kind and record.version > 1:
                found = held.get(record.key)
                if found is not None and len(found.members) >= wide:
                    return True
        return False

    async def _take(self, batch: WatchBatch) -> None:
        """▲ Other tasks run between the parts of a large batch. A transaction held only since then has no decision in
        it; and its revision counts as followed only at its end."""
        async for part in in_turns(batch.events, EVENTS_AT_ONCE):
            self._take_part(part)
        if batch.resync:
            await self._resynced(batch)
        self._followed = max(self._followed, batch.revision)
        if self._waiters:
            self._advance(batch.revision)

    def _take_part(self, events: Sequence[Event]) -> None:
        self._events += len(events)
        held, early = self._held, self.early
        for event in events:
            record = event.record
            if event.kind or record.version == 1:
                continue  # a collected header, or a begin
            if record.key in held:
                self._decided(record)
            elif early:
                early.note(record)

    async def _resynced(self, batch: WatchBatch) -> None:
        """▲ If a resync does not show a header, it may have been begun afterwards, or be deleted and our ownership
        lost: neither is a decision."""
        self._resyncs += 1
        present: dict[bytes, None] = {}
        async for part in in_turns(batch.events, EVENTS_AT_ONCE):
            present |= dict.fromkeys(event.record.key for event in part)
        self._doubtful.update((key, None) for key in self._held if key not in present)
        if self._doubtful:
            self._doubts.set()

    def _decided(self, record: KeyValue) -> None:
        held = self._held.pop(record.key)
        for membership in held.members:
            del membership.held[held]
        told: Sequence[DecisionMembership] = held.members
        if self.early:  # ▲ kept for members that are still loading
            self.early.note(record)
            told = [membership for membership in told if not membership.loading]
        if not self.deliver(held.txn_id, record, told):
            held.since_s = self._clock.monotonic()
            self._held[record.key] = held
            for membership in held.members:
                membership.held[held] = None

    def deliver(self, txn_id: TxnId, record: KeyValue, members: Sequence[DecisionMembership]) -> bool:
        """Called by `DecisionMembership`. False if the header cannot be read: it is logged, and the transaction stays
        undecided.
        """
        try:
            header = records.decode(Header, record.value, key=record.key)
            decision = Decision.from_header(txn_id, header, record.mod_revision)
        except DataCorrupt as error:
            log.error("header_unreadable", transaction=str(txn_id), error=str(error))
            return False
        if not members:
            return True
        self._decisions += 1
        self._lag.observe(max(0, self._clock.wall_ms() - decision.decided_ms) / 1000)
        self._shown = max(self._shown, decision.revision)
        for membership in members:
            membership.participant.decide(decision)
        return True

    # ---- interest

    def hold(self, membership: DecisionMembership, txn_id: TxnId) -> None:
        """Called by `DecisionMembership`."""
        key = keys.txn(txn_id)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _AwaitedTxn(key, txn_id, self._clock.monotonic())
        if held not in membership.held:
            membership.held[held] = None
            held.members.append(membership)

    def let_go(self, membership: DecisionMembership, txn_id: TxnId) -> None:
        """Called by `DecisionMembership`."""
        held = self._held.get(keys.txn(txn_id))
        if held is not None and held in membership.held:
            del membership.held[held]
            self._without(membership, held)

    def leave(self, membership: DecisionMembership) -> None:
        """Called by `DecisionMembership`."""
        self.early.leave(membership)
        for held in membership.held:
            self._without(membership, held)
        membership.held.clear()

    def _without(self, membership: DecisionMembership, held: _AwaitedTxn) -> None:
        held.members.remove(membership)
        if not held.members:
            del self._held[held.key]

    # ---- reading headers again

    async def _reconcile(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings.reconcile_interval_s):
                    await self._doubts.wait()
            except TimeoutError:
                pass  # the regular pass
            self._doubts.clear()
            doubtful, self._doubtful = self._doubtful, {}
            await self._reread_pages([*(key for key in doubtful if key in self._held), *self._held_long()])

    def _held_long(self) -> list[bytes]:
        long_ago = self._clock.monotonic() - self._settings.held_long_s
        return [key for key, _ in takewhile(lambda one: one[1].since_s <= long_ago, self._held.items())]

    async def _reread_pages(self, held: list[bytes]) -> None:
        for asked in in_parts(held, self._store.page_size(self._settings.reconcile_page)):
            try:
                _, found = await self._store.get_many(asked)
            except StoreUnavailable as error:
                log.warning("headers_not_read", error=str(error))
                return
            self._compare(asked, found)
            await asyncio.sleep(self._settings.reconcile_pause_s)

    def _compare(self, asked: Sequence[bytes], found: Sequence[KeyValue | None]) -> None:
        """Take the headers read under `asked`; skip transactions no longer held."""
        self._reread += len(asked)
        decided = [record for record in found if record is not None and record.version > 1]
        for record in sorted(decided, key=lambda one: one.mod_revision):
            if record.key in self._held:
                self._decided(record)
            elif self.early:
                self.early.note(record)
        for key, header in zip(asked, found, strict=True):
            if header is None and (held := self._held.get(key)) is not None:
                self._absent += 1
                for membership in tuple(held.members):
                    membership.participant.header_absent(held.txn_id)

    # ---- the end

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task ended: neither may while the store is open."""
        if task.cancelled() or not self._tasks or self._failure is not None:
            return
        self._failure = task.exception() or InternalError(f"{task.get_name()} ended")
        log.error("decisions_not_followed", error=repr(self._failure))
        self._fail_waiters(StoreUnavailable(f"decisions are not followed any more: {self._failure}"))
        if self._on_failed is not None:
            self._on_failed(self._failure)

    def statistics(self) -> DecisionStatistics:
        return DecisionStatistics(
            followed_revision=self._followed,
            held=len(self._held),
            events=self._events,
            decisions=self._decisions,
            resyncs=self._resyncs,
            reread=self._reread,
            absent=self._absent,
            lag=self._lag.snapshot(),
        )
