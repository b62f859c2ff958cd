"""A broker: owns segments, which share its one decision watch and its one clean-up (DESIGN §6, §7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count

import structlog

from segments.broker.broker_statistics import BrokerStatistics
from segments.broker.owned_segments import OwnedSegments
from segments.broker.ownership import BrokerSession
from segments.layout.directory import Directory, DirectoryChange
from segments.ledger.data_folder import expect_shared_folder
from segments.ledger.ledger import LedgerStore
from segments.log.erasing import SegmentGone
from segments.log.housekeeping import Housekeeper
from segments.log.measures import Measures
from segments.log.room import FreeSpace
from segments.log.sends.sending import Budget
from segments.log.settings import BrokerSettings
from segments.owner.broker_wide import BrokerContext
from segments.owner.lag_samples import LagSampler
from segments.owner.load_samples import LoadReporter
from segments.owner.segment import Segment
from segments.owner.segment_statistics import PINNING_SHOWN, SegmentStatistics
from segments.subscription.lag import LagBudget
from segments.subscription.shares import CacheShares, DeliveryShares
from txnstore.access.paging import in_parts
from txnstore.former_selves import FormerSelves
from txnstore.store import MetadataStore
from txnwire.errors import InvalidArgument, NotOwner, TopicNotFound, TxnError
from txnwire.names import SegmentName
from txnwire.ports import Clock, Random
from txnwire.snapshot import OF_ANOTHER_STORE
from txnwire.tasks import cancel_all, errand, vital
from watchers.clean_up import CleanUp
from watchers.decisions import DecisionWatch

__all__ = ["Broker", "BrokerSettings", "BrokerStatistics"]

GATHERED_AT_ONCE = 500
"""Segments whose statistics are read in one turn of the loop: 25 us each, and more with subscriptions."""

LAG_READS = 4
"""Reads at once for questions how far subscriptions are behind: an operator's one asks hundreds of segments at once."""

log = structlog.get_logger(__name__)


class Broker:
    """Registers on a lease, claims segments, serves them until the lease or the ownership of one is lost.

    `start` returns once the broker is registered and follows decisions; segments are claimed in the background as the
    directory shows them unowned. `close` hands every segment over gracefully (bounded by `settings.hand_over_s`).
    """

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerStore,
        clock: Clock,
        random: Random,
        settings: BrokerSettings | None = None,
        *,
        broker_id: str,
        address: str,
        directory: Directory,
        on_failed: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        """Calls `on_failed` when a defect has ended it: the process should then exit."""
        self.settings = settings or BrokerSettings()
        self.broker_id = broker_id
        self.address = address
        self._store = store
        self._ledgers = ledgers
        self._clock = clock
        self._random = random
        self._directory = directory
        self._on_failed = on_failed
        self._housekeeper = Housekeeper(directory, self.settings, lambda: self._owned.serving)
        self._load = LoadReporter(
            store, clock, lambda: self._owned.serving.values(), every_s=self.settings.load_sample_s
        )
        self._lag_reads = asyncio.Semaphore(LAG_READS)
        self._lags = LagSampler(clock, lambda: self._owned.serving.values(), every_s=self.settings.lag_sample_s)
        self._shared = self._new_context()
        self._owned = OwnedSegments(self._shared, ledgers, directory, broker_id=broker_id)
        self._former_selves = FormerSelves()
        self.namesake: str | None = None
        """The address of another process that holds this broker's name; this one waits for it."""
        self._main: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._closed = False

    def _new_context(self) -> BrokerContext:
        # ▲ One counter for the process, never restarted: it is part of every op key.
        counter: Iterator[int] = count(1)
        settings, budget = self.settings, Budget(self.settings.broker_inflight_bytes)
        return BrokerContext(
            store=self._store,
            clock=self._clock,
            settings=settings,
            decisions=DecisionWatch(self._store, self._clock, on_failed=self._broken),
            clean_up=CleanUp(self._store, self._clock),
            budget=budget,
            room=FreeSpace(self._ledgers, min_free_bytes=settings.min_free_bytes, in_flight=lambda: budget.bytes),
            shares=DeliveryShares(settings),
            caches=CacheShares(settings),
            measures=Measures(),
            op_counter=counter.__next__,
            topology=lambda topic_path: self._directory.topics().get(topic_path),
            wake_housekeeping=self._housekeeper.wake,
        )

    @property
    def segments(self) -> dict[str, Segment]:
        """The served segments, by path."""
        return dict(self._owned.serving)

    # ---- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises `StoreUnavailable`; `NotAllowed` if the cluster keeps its ledgers elsewhere. It then leaves nothing
        behind."""
        try:
            await self._start()
        except BaseException:
            await self.close(graceful=False)
            raise

    async def _start(self) -> None:
        await expect_shared_folder(self._store, self._ledgers, self._random, broker_id=self.broker_id)
        self._owned.incarnation = await self._store.incarnation()
        await self._shared.room.start()
        await self._shared.decisions.start()
        await self._shared.clean_up.start()
        self._owned.registration = await self._register()
        self._unsubscribe = self._directory.add_listener(self._directory_changed)
        self._main = vital(self._run(), name="broker", of=self.broker_id)
        self._main.add_done_callback(self._main_ended)
        self._housekeeper.start()
        self._load.start()
        self._lags.start()

    async def close(self, *, graceful: bool = True) -> None:
        """Idempotent, bounded. Ungraceful: leave everything as a crash would, but end tasks and watches."""
        if self._closed:
            return
        self._closed = True
        self._owned.close_soon()
        if self._unsubscribe is not None:
            self._unsubscribe()
        await self._load.close()
        await self._lags.close()
        await self._shared.room.close()
        await self._housekeeper.close(timeout_s=self.settings.hand_over_s if graceful else 0.0)
        await cancel_all([self._main] if self._main is not None else [])
        await self._owned.cancel_taking()
        if graceful:
            if self._owned.registration is not None:
                await self._owned.registration.leave()  # others claim each segment as soon as it is released
            await self._owned.hand_over_all()
        else:
            self._owned.stop_all(NotOwner(f"broker {self.broker_id} is going down, look up the owner again"))
        self._owned.waiters.fail_all(NotOwner(f"broker {self.broker_id} is shutting down, look up the owner again"))
        await self._owned.wait_ended()
        if graceful and self._owned.registration is not None:
            await self._owned.registration.close()
        await self._shared.clean_up.close()
        await self._shared.decisions.close()

    def _broken(self, error: BaseException) -> None:
        """The broker cannot go on, e.g. it follows no decisions: end its lease, so that others take its segments."""
        log.critical("broker_gives_up", broker=self.broker_id, error=repr(error))
        if not self._closed:
            self._owned.own(self._give_up())
            self._on_failed(error)

    def _main_ended(self, task: asyncio.Task[None]) -> None:
        """A defect ended the main task: without it the broker claims nothing, while its lease keeps others away."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(error)

    async def _give_up(self) -> None:
        registration = self._owned.registration
        if self._main is not None:
            await cancel_all([self._main])
        await self._owned.drop_all(NotOwner(f"broker {self.broker_id} follows no decisions, look up the owner again"))
        if registration is not None:
            await registration.close()

    async def _register(self) -> BrokerSession:
        return await BrokerSession.register(
            self._store,
            broker_id=self.broker_id,
            address=self.address,
            lease_ttl_s=self.settings.lease_ttl_s,
            former_selves=self._former_selves,
            namesake=self._found_namesake,
        )

    def _found_namesake(self, address: str | None) -> None:
        self.namesake = address

    async def _run(self) -> None:
        """Claim while the lease holds; when it is lost, drop everything at once and register again."""
        while True:
            registration = self._owned.registration
            if registration is None:
                try:
                    registration = self._owned.registration = await self._register()
                except TxnError as error:
                    log.warning("registration_failed", broker=self.broker_id, error=str(error))
                    await asyncio.sleep(self.settings.claim_retry_s)
                    continue
            lost = errand(registration.wait_lost(), name="broker's lease", of=self.broker_id)
            try:
                while not lost.done():
                    self._owned.changed.clear()
                    await self._wait_change(lost, self._owned.claim_all(registration))
            finally:
                lost.cancel()
                await asyncio.gather(lost, return_exceptions=True)
            log.warning("lease_lost", broker=self.broker_id, segments=len(self._owned.serving))
            self._owned.registration = None
            await self._owned.drop_all(NotOwner(f"broker {self.broker_id} lost its lease, look up the owner again"))

    async def _wait_change(self, lost: asyncio.Task[None], timeout_s: float) -> None:
        changed = asyncio.create_task(self._owned.changed.wait(), name="broker change")
        try:
            await asyncio.wait([lost, changed], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all([changed])

    def _directory_changed(self, change: DirectoryChange) -> None:
        for name in change.topics:
            self._topic_changed(name)
        for path in change.owners:
            self._owned.owner_changed(path)
        for name in change.assignments:
            self._assignment_changed(name)
        self._owned.changed.set()

    def _topic_changed(self, name: str) -> None:
        topology = self._directory.topics().get(name)
        if topology is None:
            self._owned.holdings.forget_topic(name)
            return
        self._owned.holdings.forget_pruned(name, topology.paths.values())
        self._owned.topic_changed(topology)

    def _assignment_changed(self, name: str) -> None:
        topic_path, _, subscription = name.rpartition("/")
        topology = self._directory.topics().get(topic_path)
        record = self._directory.assignment(topic_path, subscription)
        for path in () if topology is None else topology.paths.values():
            segment = self._owned.serving.get(path)
            if segment is not None:
                segment.subscriptions.assignment_changed(subscription, record)

    # ---- look-ups ---------------------------------------------------------------------------------------------------

    def check_store(self, identity: str) -> None:
        """Raises `InvalidArgument` if a snapshot is of another store, or older than a repair: ▲ its revision
        means nothing in this store."""
        if identity and identity != self._owned.incarnation:
            raise InvalidArgument(OF_ANOTHER_STORE)

    async def segment(self, path: str) -> Segment:
        """The segment, waiting while it is being taken over (at most `recover_wait_s`).

        Raises `NotOwner`; `TopicNotFound`, also if the topic exists without this segment; `DataCorrupt` if its recovery
        raised one."""
        if (found := self._owned.serving.get(path)) is not None:
            return found
        self._owned.holdings.check(path)
        topic = SegmentName.from_path(path).topic
        topology = await self._directory.fetch_topic(topic.path)
        if (found := self._owned.serving.get(path)) is not None:
            return found  # taken over meanwhile: no later event would wake a waiter
        if topology is None or topology.deleting:
            raise TopicNotFound(f"{topic} does not exist")
        segment_id = SegmentName.from_path(path).segment_id
        if topology.paths.get(segment_id) != path or topology.is_going(segment_id):
            # The caller may know an older layout or a newer one: it looks it up again.
            raise SegmentGone(f"{topic} has no segment {path} at layout epoch {topology.epoch}")
        if self._closed or not self._owned.may_claim(path):
            raise NotOwner(f"{path} is not owned by {self.broker_id}: look up the owner again")
        waiter = self._owned.waiters.join(path)
        self._owned.changed.set()
        try:
            async with asyncio.timeout(self.settings.recover_wait_s):
                return await asyncio.shield(waiter)
        except TimeoutError as error:
            raise NotOwner(f"{path} is not served yet by {self.broker_id}: look up the owner again") from error

    def serving(self, path: str) -> Segment:
        """As `segment`, without waiting. Raises `NotOwner`, `DataCorrupt`."""
        found = self._owned.serving.get(path)
        if found is None:
            self._owned.holdings.check(path)
            raise NotOwner(f"{path} is not owned by {self.broker_id}, look up its owner again")
        return found

    def lag_budget(self) -> LagBudget:
        """The limit on reads that answer one question about subscriptions in one segment."""
        return LagBudget(self._clock, turns=self._lag_reads)

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    @property
    def registered(self) -> bool:
        """Whether its lease certainly holds."""
        return self._owned.registration is not None and self._owned.registration.valid()

    def full_disk(self) -> str | None:
        """Why sends get `StoreFull`; None if they do not."""
        return self._shared.room.why_full() if self._shared.room.full else None

    def statistics(self, *, pins: int = PINNING_SHOWN) -> BrokerStatistics:
        """`pins`: the most transactions per segment to list in `pinning`."""
        return self._statistics(tuple(one.statistics(pins=pins) for _, one in sorted(self._owned.serving.items())))

    async def gather_statistics(self, *, pins: int = PINNING_SHOWN) -> BrokerStatistics:
        """`statistics`, gathered in turns of the event loop: a broker may serve tens of thousands of segments."""
        gathered: list[tuple[Segment, SegmentStatistics]] = []
        for part in in_parts(sorted(self._owned.serving.items()), GATHERED_AT_ONCE):
            gathered += [(one, one.statistics(pins=pins)) for path, one in part if self._serves(path, one)]
            await asyncio.sleep(0)
        # ▲ A segment that left meanwhile has added its counts to the broker's: do not count it twice.
        return self._statistics(tuple(told for one, told in gathered if self._serves(told.path, one)))

    def _serves(self, path: str, segment: Segment) -> bool:
        return self._owned.serving.get(path) is segment

    @property
    def taking(self) -> tuple[str, ...]:
        """Paths of the segments that are being taken over."""
        return tuple(self._owned.taking)

    @property
    def failed(self) -> dict[str, str]:
        """The error of each segment given up, by path."""
        return {path: str(error) for path, error in self._owned.holdings.failed.items()}

    def _statistics(self, segments: tuple[SegmentStatistics, ...]) -> BrokerStatistics:
        return BrokerStatistics(
            broker_id=self.broker_id,
            registered=self.registered,
            segments=segments,
            taking=self.taking,
            failed=self.failed,
            decisions=self._shared.decisions.statistics(),
            clean_up=self._shared.clean_up.statistics(),
            inflight_bytes=self._shared.budget.bytes,
            disk_free_bytes=self._shared.room.free_bytes,
            disk_full=self.full_disk(),
            measures=self._shared.measures.snapshot(),
        )
