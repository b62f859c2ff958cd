"""A broker: the segments this process owns, the one decision watch and the one clean-up they share (DESIGN §6, §7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import structlog

from segments.claims import Claims
from segments.directory import Directory, DirectoryChange, topic_path_of
from segments.erasing import anything_left, erase_segment, find_topic
from segments.housekeeping import Housekeeper
from segments.ledger import LedgerStore
from segments.measures import Measures, MeasuresSnapshot
from segments.ownership import Registration
from segments.segment import PINNING_SHOWN, Segment, SegmentStatistics, Shared
from segments.sending import Budget
from segments.settings import BrokerSettings
from segments.shares import CacheShares, DeliveryShares
from segments.take_over import take_over_segment
from txnstore.store import MetadataStore
from txnwire.errors import DataCorrupt, InvalidArgument, NotOwner, TopicNotFound, TxnError
from txnwire.names import SegmentName
from txnwire.ports import Clock, Random
from watchers.clean_up import CleanUp, CleanUpStatistics
from watchers.decisions import DecisionStatistics, DecisionWatch

__all__ = ["Broker", "BrokerSettings", "BrokerStatistics"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatistics:
    """Of this moment. `failed`: segments whose recovery ended in corrupt data, with the error's text."""

    broker_id: str
    registered: bool
    segments: tuple[SegmentStatistics, ...]
    taking: tuple[str, ...]
    failed: dict[str, str]
    decisions: DecisionStatistics
    clean_up: CleanUpStatistics
    inflight_bytes: int
    measures: MeasuresSnapshot


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
        """`on_failed` is called when a defect has ended it: the process is of no use then and should end."""
        self.settings = settings or BrokerSettings()
        self.broker_id = broker_id
        self.address = address
        self._store = store
        self._ledgers = ledgers
        self._clock = clock
        self._random = random
        self._directory = directory
        self._on_failed = on_failed
        # ▲ One counter for the process, never restarted: it is part of every op key.
        counter: Iterator[int] = count(1)
        self._housekeeper = Housekeeper(directory, self.settings, lambda: self._segments)
        self._shared = Shared(
            store=store,
            clock=clock,
            settings=self.settings,
            decisions=DecisionWatch(store, clock, on_failed=self._broken),
            clean_up=CleanUp(store, clock),
            budget=Budget(self.settings.broker_inflight_bytes),
            shares=DeliveryShares(self.settings),
            caches=CacheShares(self.settings),
            measures=Measures(),
            op_counter=counter.__next__,
            wake_housekeeping=self._housekeeper.wake,
        )
        self._claims = Claims(broker_id, settle_s=self.settings.settle_s)
        self._incarnation = ""
        self._registration: Registration | None = None
        self._segments: dict[str, Segment] = {}
        self._taking: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, DataCorrupt] = {}
        self._to_release: dict[str, int] = {}
        """Epochs under which this broker owns segments that it cannot serve under them any more."""
        self._handing_over: dict[str, None] = {}
        self._erased: dict[str, None] = {}
        """Segments of topics that are being deleted, with nothing left that this broker could erase."""
        self._waiters: dict[str, asyncio.Future[Segment]] = {}
        self._endings: dict[asyncio.Task[None], None] = {}
        self._changed = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._closed = False

    @property
    def segments(self) -> dict[str, Segment]:
        """Those being served, by path."""
        return dict(self._segments)

    # ---- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises `StoreUnavailable`."""
        self._incarnation = await self._store.incarnation()
        await self._shared.decisions.start()
        await self._shared.clean_up.start()
        self._registration = await self._register()
        self._unsubscribe = self._directory.add_listener(self._directory_changed)
        self._main = asyncio.create_task(self._run(), name=f"broker {self.broker_id}")
        self._main.add_done_callback(self._main_ended)
        self._housekeeper.start(self._main_ended)

    async def close(self, *, graceful: bool = True) -> None:
        """Idempotent, bounded. Ungraceful: leave everything as a crash would, but end tasks and watches."""
        if self._closed:
            return
        self._closed = True
        if self._unsubscribe is not None:
            self._unsubscribe()
        await self._housekeeper.close(timeout_s=self.settings.hand_over_s if graceful else 0.0)
        await _cancel(([self._main] if self._main is not None else []) + list(self._taking.values()))
        segments, self._segments = list(self._segments.values()), {}
        if graceful:
            await asyncio.gather(*(self._hand_over(segment) for segment in segments))
        else:
            self._stop_all(segments, NotOwner(f"broker {self.broker_id} is going down, look up the owner again"))
        self._fail_waiters(NotOwner(f"broker {self.broker_id} is shutting down, look up the owner again"))
        await asyncio.gather(*self._endings, return_exceptions=True)
        if graceful and self._registration is not None:
            await self._registration.close()
        await self._shared.clean_up.close()
        await self._shared.decisions.close()

    def _broken(self, error: BaseException) -> None:
        """Of no use any more, as it hears of no decision, say: its lease goes, and others take its segments."""
        log.critical("broker_gives_up", broker=self.broker_id, error=repr(error))
        if not self._closed:
            self._own(self._give_up())
            self._on_failed(error)

    def _main_ended(self, task: asyncio.Task[None]) -> None:
        """By a defect: without it nothing is claimed any more, and the lease would keep others from it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(error)

    async def _give_up(self) -> None:
        registration = self._registration
        if self._main is not None:
            await _cancel([self._main])
        await self._drop_all(NotOwner(f"broker {self.broker_id} follows no decisions, look up the owner again"))
        if registration is not None:
            await registration.close()

    async def _hand_over(self, segment: Segment) -> None:
        # ▲ Not claimed here meanwhile, whoever joins or leaves: it would be served a second time under one epoch, and
        # would know nothing of what is still in flight under it.
        self._handing_over[segment.path] = None
        try:
            await segment.hand_over(timeout_s=self.settings.hand_over_s)
            if self._registration is not None:
                await self._registration.release(segment.path, segment.epoch)
        except TxnError as error:
            log.warning("owner_key_left", segment=segment.path, error=str(error))
            self._to_release[segment.path] = segment.epoch
        finally:
            del self._handing_over[segment.path]
            self._changed.set()

    async def _register(self) -> Registration:
        return await Registration.register(
            self._store, broker_id=self.broker_id, address=self.address, lease_ttl_s=self.settings.lease_ttl_s
        )

    async def _run(self) -> None:
        """Claim while the lease holds; when it is lost, drop everything at once and register anew."""
        while True:
            registration = self._registration
            if registration is None:
                try:
                    registration = self._registration = await self._register()
                except TxnError as error:
                    log.warning("registration_failed", broker=self.broker_id, error=str(error))
                    await asyncio.sleep(self.settings.claim_retry_s)
                    continue
            lost = asyncio.create_task(registration.wait_lost(), name=f"lease of {self.broker_id}")
            try:
                while not lost.done():
                    self._changed.clear()
                    self._claim_all(registration)
                    await self._wait_change(lost)
            finally:
                lost.cancel()
                await asyncio.gather(lost, return_exceptions=True)
            log.warning("lease_lost", broker=self.broker_id, segments=len(self._segments))
            self._registration = None
            await self._drop_all(NotOwner(f"broker {self.broker_id} lost its lease, look up the owner again"))

    async def _wait_change(self, lost: asyncio.Task[None]) -> None:
        changed = asyncio.create_task(self._changed.wait(), name="broker change")
        await asyncio.wait([lost, changed], timeout=self.settings.claim_retry_s, return_when=asyncio.FIRST_COMPLETED)
        await _cancel([changed])

    async def _drop_all(self, error: NotOwner) -> None:
        await _cancel(list(self._taking.values()))
        segments, self._segments = list(self._segments.values()), {}
        self._stop_all(segments, error)
        self._to_release.clear()  # their keys went with the lease

    def _stop_all(self, segments: Sequence[Segment], error: NotOwner) -> None:
        for segment in segments:
            segment.stop(error)
            self._own(segment.wait_stopped())

    # ---- claims -----------------------------------------------------------------------------------------------------

    def _claim_all(self, registration: Registration) -> None:
        now_s = self._clock.monotonic()
        brokers = list(self._directory.brokers())
        owners = {path: owner.broker for path, owner in self._directory.owners().items()}
        busy = [*self._taking, *self._handing_over]
        for path in self._claims.to_take(self._unserved(), owners, brokers, busy, now_s, stale=self._to_release):
            task = asyncio.create_task(self._take(path, registration), name=f"take over {path}")
            self._taking[path] = task
            task.add_done_callback(partial(self._taken, path))
        for path in self._claims.to_yield(list(self._segments), brokers, now_s):
            log.info("segment_yielded", segment=path, broker=self.broker_id)
            self._own(self._hand_over(self._segments.pop(path)))

    def _taken(self, path: str, task: asyncio.Task[None]) -> None:
        if self._taking.get(path) is task:
            del self._taking[path]
            self._changed.set()

    def _unserved(self) -> list[str]:
        return [
            path
            for topology in self._directory.topics().values()
            for path in topology.paths.values()
            if path not in self._segments and path not in (self._erased if topology.deleting else self._failed)
        ]

    def _may_claim(self, path: str) -> bool:
        """Nobody owns it; or this broker does, and failed to take it over."""
        owner = self._directory.owner(path)
        return owner is None or owner.broker == self.broker_id

    async def _take(self, path: str, registration: Registration) -> None:
        epoch: int | None = None
        try:
            topic = await find_topic(self._store, path)
            if (stale := self._to_release.get(path)) is not None:
                await registration.release(path, stale)
                self._to_release.pop(path, None)
            if topic.deleting and not await anything_left(self._store, path):
                self._erased[path] = None
                raise topic.gone()
            epoch = await registration.claim(path, topic=topic.record)
            if epoch is None:
                raise NotOwner(f"{path} is owned by another broker, or has changed: look up the owner again")
            if topic.deleting:
                await erase_segment(self._store, self._ledgers, path, epoch)
                self._erased[path] = None
                raise topic.gone()
            segment = await take_over_segment(
                path,
                epoch,
                self._shared,
                self._ledgers,
                incarnation=self._incarnation,
                may_ack=registration.valid,
                on_lost=self._segment_lost,
                on_doubt=self._segment_in_doubt,
            )
        except asyncio.CancelledError:
            self._fail_waiter(path, NotOwner(f"{path} is being given up by {self.broker_id}, look up the owner again"))
            raise
        except TopicNotFound as error:
            self._claims.failed(path, self._clock.monotonic())  # the directory may not have heard of it yet
            self._fail_waiter(path, error)
        except DataCorrupt as error:
            log.error("segment_corrupt", segment=path, error=str(error))
            self._failed[path] = error
            self._fail_waiter(path, error)
        except TxnError as error:
            log.warning("take_over_failed", segment=path, error=str(error))
            self._claims.failed(path, self._clock.monotonic())
            if epoch is not None:
                self._to_release[path] = epoch  # ▲ tried again under a new epoch: late writes of this try must fail
            self._fail_waiter(path, NotOwner(f"{path} could not be taken over ({error}): look up the owner again"))
        except Exception as error:  # a defect of ours, in one segment: the others go on
            log.error("take_over_broken", segment=path, exc_info=error)
            self._claims.failed(path, self._clock.monotonic())
            if epoch is not None:
                self._to_release[path] = epoch
            self._fail_waiter(path, NotOwner(f"{path} could not be taken over ({error!r}): look up the owner again"))
        else:
            self._claims.succeeded(path)
            if self._is_deleting(path):  # it was marked while it was being taken over
                self._fail_waiter(path, topic.gone())
                self._own(self._give_up_deleted(segment))
                return
            self._segments[path] = segment
            self._housekeeper.wake(path)  # what a predecessor has left half done
            waiter = self._waiters.pop(path, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(segment)

    def _segment_lost(self, segment: Segment, error: TxnError) -> None:
        if self._segments.get(segment.path) is segment:
            del self._segments[segment.path]
        if not isinstance(error, NotOwner):
            # ▲ Served again only under a new epoch: ops of this one that are still on their way are then refused.
            self._to_release[segment.path] = segment.epoch
        self._own(segment.wait_stopped())
        self._changed.set()

    def _segment_in_doubt(self, segment: Segment) -> None:
        self._own(self._check(segment))

    async def _check(self, segment: Segment) -> None:
        registration = self._registration
        if registration is not None and self._segments.get(segment.path) is segment:
            try:
                await registration.check(segment.path, segment.epoch)
            except NotOwner as error:
                segment.lost(error)
            except TxnError as error:
                log.warning("ownership_not_checked", segment=segment.path, error=str(error))

    def _own(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name=f"ending of broker {self.broker_id}")
        self._endings[task] = None
        task.add_done_callback(self._endings.pop)

    def _directory_changed(self, change: DirectoryChange) -> None:
        for name in change.topics:
            self._topic_changed(name)
        for path in change.owners:
            owner, segment = self._directory.owner(path), self._segments.get(path)
            if segment is not None and (owner is None or owner.epoch != segment.epoch):
                self._segment_in_doubt(segment)  # perhaps only an older change: the store is asked
            if segment is None and owner is not None and owner.broker != self.broker_id:
                self._fail_waiter(path, NotOwner(f"{path} is owned by {owner.broker} by now, look up the owner again"))
        for name in change.assignments:
            self._assignment_changed(name)
        self._changed.set()

    def _topic_changed(self, name: str) -> None:
        topology = self._directory.topics().get(name)
        if topology is None:
            for known in (self._erased, self._failed):
                for path in [path for path in known if topic_path_of(path) == name]:
                    del known[path]
        elif topology.deleting:
            for path in topology.paths.values():
                if (segment := self._segments.pop(path, None)) is not None:
                    self._own(self._give_up_deleted(segment))
        else:
            for path in topology.paths.values():  # its policies may have changed
                self._housekeeper.wake(path)

    def _is_deleting(self, path: str) -> bool:
        topology = self._directory.topics().get(topic_path_of(path))
        return topology is not None and topology.deleting

    async def _give_up_deleted(self, segment: Segment) -> None:
        """Stop a segment that is to be erased. ▲ What is in flight under its epoch may still land: it is erased under
        the next one, and not before everything here has ended."""
        self._handing_over[segment.path] = None
        try:
            segment.stop(TopicNotFound(f"{SegmentName.from_path(segment.path).topic} is being deleted"))
            await segment.wait_stopped()
        finally:
            self._to_release[segment.path] = segment.epoch
            del self._handing_over[segment.path]
            self._changed.set()

    def _assignment_changed(self, name: str) -> None:
        topic_path, _, subscription = name.rpartition("/")
        topology = self._directory.topics().get(topic_path)
        record = self._directory.assignment(topic_path, subscription)
        for path in () if topology is None else topology.paths.values():
            segment = self._segments.get(path)
            if segment is not None:
                segment.subscriptions.assignment_changed(subscription, record)

    # ---- look-ups ---------------------------------------------------------------------------------------------------

    async def segment(self, path: str) -> Segment:
        """The segment, waiting while it is being taken over (at most `recover_wait_s`).

        Raises `NotOwner`; `TopicNotFound`, `InvalidArgument`; `DataCorrupt` where its recovery ended in one."""
        if (found := self._segments.get(path)) is not None:
            return found
        if path in self._failed:
            raise self._failed[path]
        topic = SegmentName.from_path(path).topic
        topology = await self._directory.fetch_topic(topic.path)
        if (found := self._segments.get(path)) is not None:
            return found  # taken over meanwhile: nobody would wake a waiter any more
        if topology is None or topology.deleting:
            raise TopicNotFound(f"{topic} does not exist")
        if path not in topology.paths.values():
            raise InvalidArgument(f"{topic} has no segment {path} at layout epoch {topology.epoch}")
        if self._closed or not self._may_claim(path):
            raise NotOwner(f"{path} is not owned by {self.broker_id}: look up the owner again")
        waiter = self._waiters.get(path)
        if waiter is None:
            waiter = self._waiters[path] = asyncio.get_running_loop().create_future()
            waiter.add_done_callback(_retrieve)
        self._changed.set()
        try:
            async with asyncio.timeout(self.settings.recover_wait_s):
                return await asyncio.shield(waiter)
        except TimeoutError as error:
            raise NotOwner(f"{path} is not served yet by {self.broker_id}: look up the owner again") from error

    def serving(self, path: str) -> Segment:
        """As `segment`, without waiting. Raises `NotOwner`, `DataCorrupt`."""
        found = self._segments.get(path)
        if found is None:
            raise self._failed.get(path) or NotOwner(
                f"{path} is not owned by {self.broker_id}, look up its owner again"
            )
        return found

    def _fail_waiter(self, path: str, error: TxnError) -> None:
        waiter = self._waiters.pop(path, None)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _fail_waiters(self, error: NotOwner) -> None:
        for path in list(self._waiters):
            self._fail_waiter(path, error)

    @property
    def registered(self) -> bool:
        """Whether its lease surely holds."""
        return self._registration is not None and self._registration.valid()

    def statistics(self, *, pins: int = PINNING_SHOWN) -> BrokerStatistics:
        """`pins`: of each segment, how many transactions that hold readers back are told at most."""
        return BrokerStatistics(
            broker_id=self.broker_id,
            registered=self.registered,
            segments=tuple(segment.statistics(pins=pins) for _, segment in sorted(self._segments.items())),
            taking=tuple(self._taking),
            failed={path: str(error) for path, error in self._failed.items()},
            decisions=self._shared.decisions.statistics(),
            clean_up=self._shared.clean_up.statistics(),
            inflight_bytes=self._shared.budget.bytes,
            measures=self._shared.measures.snapshot(),
        )


def _retrieve(future: asyncio.Future[Segment]) -> None:
    """A failure nobody waits for any more is not an error of the event loop."""
    if not future.cancelled():
        future.exception()


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
