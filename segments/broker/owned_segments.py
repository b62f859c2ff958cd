"""The segments of one broker: claimed, taken over, served and given up (DESIGN §7, "Ownership")."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial

import structlog

from segments.broker.claims import MAX_TAKING, Claims, ClusterView
from segments.broker.holdings import Holdings
from segments.broker.ownership import BrokerSession
from segments.broker.waiting import Waiters
from segments.layout.directory import Directory, topic_path_of
from segments.layout.topology import Topology
from segments.ledger.ledger import LedgerStore
from segments.log.erasing import SegmentGone, TopicFound, anything_left, erase_segment, find_topic, why_gone
from segments.owner.broker_wide import BrokerContext
from segments.owner.segment import Segment
from segments.owner.take_over import take_over_segment
from txnstore import keys
from txnwire.errors import (
    DataCorrupt,
    NotOwner,
    OutcomeUnknown,
    StoreFull,
    StoreUnavailable,
    Timeout,
    TopicNotFound,
    TxnError,
)
from txnwire.names import SegmentName
from txnwire.tasks import cancel_all, errand

log = structlog.get_logger(__name__)

RECORD_AGAIN_S = 0.2
CLAIM_TRIES = 10
"""Of one segment whose topic's record was changed just then; behind these it waits its turn."""


class OwnedSegments:
    """What becomes of each segment that this broker owns, or should.

    `serving`: those being served, by path; `registration`: the lease under which segments are owned, None while there
    is none; `changed`: set when it is worth to look for segments to claim.
    """

    def __init__(self, shared: BrokerContext, ledgers: LedgerStore, directory: Directory, *, broker_id: str) -> None:
        self.broker_id = broker_id
        self.incarnation = ""
        """Of the store; set before anything is claimed."""
        self.registration: BrokerSession | None = None
        self.serving: dict[str, Segment] = {}
        self.taking: dict[str, asyncio.Task[None]] = {}
        self.holdings = Holdings()
        self.waiters = Waiters()
        self.changed = asyncio.Event()
        self._shared = shared
        self._store = shared.store
        self._clock = shared.clock
        self._settings = shared.settings
        self._ledgers = ledgers
        self._directory = directory
        self._claims = Claims(broker_id, settle_s=shared.settings.settle_s)
        self._handing_over: dict[str, None] = {}
        self._endings: dict[asyncio.Task[None], None] = {}
        self._closing = False
        self._recording: dict[asyncio.Timeout, None] = {}
        """Who waits for etcd to take the end of a ledger."""

    # ---- claims -----------------------------------------------------------------------------------------------------

    def claim_all(self, registration: BrokerSession) -> float:
        """Begin what is to be done now; returns after how long to look again, whether or not anything changes."""
        self.holdings.find_forgotten(
            self._directory.owners(),
            registration.lease_id,
            lambda path: path in self.serving or path in self.taking or path in self._handing_over,
        )
        self._follow_seals()
        brokers = [member.id for member in self._directory.brokers().values() if not member.leaving]
        owners = {path: owner.broker for path, owner in self._directory.owners().items()}
        moves = self._claims.next_moves(
            ClusterView.of(self._directory.topics().values(), owners, brokers),
            self._clock.monotonic(),
            served=self.serving,
            taking=self.taking,
            handing_over=self._handing_over,
            unfit=self.holdings.unfit(lambda path: self._going(path) is not None),
            stale=self.holdings.to_release,
            wanted=self.waiters,
        )
        for path in moves.take:
            task = errand(self._take(path, registration), name="take-over", of=path)
            self.taking[path] = task
            task.add_done_callback(partial(self._taken, path))
        for path in moves.give_up:
            log.info("segment_yielded", segment=path, broker=self.broker_id)
            self._handing_over[path] = None
            self.own(self._hand_over(self.serving.pop(path)))
        for path in moves.release:
            self._handing_over[path] = None
            self.own(self._release_unserved(path))
        retry_s = self._settings.claim_retry_s
        return retry_s if moves.again_s is None else min(retry_s, moves.again_s)

    def _follow_seals(self) -> None:
        """Also of segments that were taken over since their layout changed, and once more where a try has failed."""
        for path, segment in self.serving.items():
            if (topology := self._directory.topics().get(topic_path_of(path))) is not None:
                segment.sealing.follow(topology)

    def _taken(self, path: str, task: asyncio.Task[None]) -> None:
        if self.taking.get(path) is task:
            del self.taking[path]
            # To look for more costs as much as there are segments, so not behind each of them.
            if len(self.taking) <= MAX_TAKING // 2:
                self.changed.set()

    def may_claim(self, path: str) -> bool:
        """Nobody owns it; or this broker does, and failed to take it over."""
        owner = self._directory.owner(path)
        return owner is None or owner.broker == self.broker_id

    async def _claim(self, path: str, registration: BrokerSession) -> tuple[TopicFound, int]:
        """The topic, and the ownership epoch. Where many of a topic's segments change at once its record changes all
        the time; that keeps nobody from the others, whose producers wait: tried again at once.

        Raises `NotOwner` where somebody else owns it, `TopicNotFound` where nothing of it is left, `StoreUnavailable`.
        """
        for _ in range(CLAIM_TRIES):
            topic = await find_topic(self._store, path)
            if topic.going and not await anything_left(self._store, path):
                self.holdings.erased[path] = None
                raise topic.gone()
            epoch = await registration.claim(path, topic=topic.record)
            if epoch is not None:
                return topic, epoch
            if await self._store.get(keys.owner(path)) is not None:
                break
        raise NotOwner(f"{path} is owned by another broker, or changes all the time: look up the owner again")

    async def _take(self, path: str, registration: BrokerSession) -> None:
        epoch: int | None = None
        try:
            await self.holdings.release(registration, path)
            topic, epoch = await self._claim(path, registration)
            if topic.going:
                await erase_segment(self._store, self._ledgers, path, epoch)
                self.holdings.ended(path, epoch)
                self.holdings.erased[path] = None
                raise topic.gone()
            segment = await take_over_segment(
                path,
                epoch,
                self._shared,
                self._ledgers,
                incarnation=self.incarnation,
                may_ack=registration.valid,
                on_lost=self._segment_lost,
                on_doubt=self._segment_in_doubt,
            )
        except asyncio.CancelledError:
            if epoch is not None:
                self.holdings.to_release[path] = epoch
            self.waiters.fail(path, NotOwner(f"{path} is being given up by {self.broker_id}, look up the owner again"))
            raise
        except TopicNotFound as error:
            self._claims.failed(path, self._clock.monotonic())  # the directory may not have heard of it yet
            gone = isinstance(error, SegmentGone)  # whoever waits looks again, and finds the layout without it
            self.waiters.fail(path, NotOwner(str(error)) if gone else error)
        except DataCorrupt as error:
            log.error("segment_corrupt", segment=path, error=str(error))
            self.holdings.failed[path] = error
            self.waiters.fail(path, error)
        except TxnError as error:
            log.warning("take_over_failed", segment=path, error=str(error))
            self._not_taken(path, epoch, error)
        except Exception as error:  # a defect of ours, in one segment: the others go on
            log.error("take_over_broken", segment=path, exc_info=error)
            self._not_taken(path, epoch, error)
        else:
            self._claims.succeeded(path, self._clock.monotonic())
            if (topology := self._going(path)) is not None:  # it was marked while it was being taken over
                self.waiters.fail(path, why_gone(path, topology))
                self._handing_over[path] = None
                self.own(self._give_up_going(segment, topology))
                return
            self.serving[path] = segment
            self._shared.wake_housekeeping(path)  # what a predecessor has left half done
            self.waiters.serve(segment)
            owner = self._directory.owner(path)
            if owner is None or owner.epoch != segment.epoch:
                self._segment_in_doubt(segment)  # ▲ what was told while it was taken over has found nobody to tell

    def _not_taken(self, path: str, epoch: int | None, error: Exception) -> None:
        self._claims.failed(path, self._clock.monotonic())
        if epoch is not None:
            # ▲ Tried again under a new epoch: late writes of this try must fail.
            self.holdings.to_release[path] = epoch
        self.waiters.fail(path, NotOwner(f"{path} could not be taken over ({error!r}): look up the owner again"))

    def _segment_lost(self, segment: Segment, error: TxnError) -> None:
        if self.serving.get(segment.path) is segment:
            del self.serving[segment.path]
        if isinstance(error, NotOwner):
            self.own(segment.wait_stopped())
        elif segment.path not in self._handing_over:  # ▲ else who hands it over gives the epoch back, once
            self._handing_over[segment.path] = None  # from now on: its epoch is still ours
            self.own(self._give_up_lost(segment))
        self.changed.set()

    async def _give_up_lost(self, segment: Segment) -> None:
        """▲ Served again only under a new epoch: ops of this one that are still on their way are then refused."""
        try:
            await self._record_end(segment)
            await segment.wait_stopped()
        finally:
            self.holdings.to_release[segment.path] = segment.epoch
            del self._handing_over[segment.path]
            self.changed.set()

    async def _record_end(self, segment: Segment) -> None:
        """▲ Of a ledger whose sync has failed, on a disk that takes no note of it: its length goes to etcd before the
        epoch is given back, however long etcd takes nothing: as long it gives the segment to nobody else either. Where
        the disk does not answer, or the broker closes, the ledger store of this process alone still knows it."""
        try:
            async with asyncio.timeout(self._settings.hand_over_s):
                if await segment.ledgers.unrecorded_end() is None:
                    return
            await self._record_until_closing(segment)
        except NotOwner:
            return
        except TimeoutError:
            waited = f"neither its disk nor etcd has answered within {self._settings.hand_over_s} s"
            log.warning("ledger_end_left_to_the_next_owner", segment=segment.path, error=waited)
        except TxnError as error:
            log.error("ledger_end_not_recorded", segment=segment.path, error=str(error))

    async def _record_until_closing(self, segment: Segment) -> None:
        """Raises `TimeoutError` a while behind `close_soon`, `NotOwner`."""
        limit = asyncio.timeout(self._settings.hand_over_s if self._closing else None)
        self._recording[limit] = None
        try:
            async with limit:
                while True:
                    try:
                        return await segment.ledgers.record_end()
                    except (StoreUnavailable, StoreFull, Timeout, OutcomeUnknown) as error:
                        log.warning("ledger_end_not_recorded_yet", segment=segment.path, error=str(error))
                        await asyncio.sleep(RECORD_AGAIN_S)
        finally:
            del self._recording[limit]

    def close_soon(self) -> None:
        """From here on whatever ends does so within `hand_over_s`."""
        self._closing = True
        for limit in self._recording:
            limit.reschedule(asyncio.get_running_loop().time() + self._settings.hand_over_s)

    def _segment_in_doubt(self, segment: Segment) -> None:
        self.own(self._check(segment))

    async def _check(self, segment: Segment) -> None:
        registration = self.registration
        if registration is not None and self.serving.get(segment.path) is segment:
            try:
                await registration.check(segment.path, segment.epoch)
            except NotOwner as error:
                segment.lost(error)
            except TxnError as error:
                log.warning("ownership_not_checked", segment=segment.path, error=str(error))

    # ---- given up ---------------------------------------------------------------------------------------------------

    async def hand_over_all(self) -> None:
        """Gracefully, each within `hand_over_s`; what is owned and not served is given back as well."""
        segments = self._no_more_served()
        self._handing_over.update((segment.path, None) for segment in segments)
        await asyncio.gather(*map(self._hand_over, segments), *map(self._release_unserved, self.holdings.to_release))

    async def cancel_taking(self) -> None:
        await cancel_all(list(self.taking.values()))

    async def drop_all(self, error: NotOwner) -> None:
        """At once: the lease is gone, and their keys with it."""
        await self.cancel_taking()
        self.stop_all(error)
        self.holdings.to_release.clear()  # their keys went with the lease
        self.holdings.failed.clear()  # so did these: under the next one they are tried again

    def stop_all(self, error: NotOwner) -> None:
        for segment in self._no_more_served():
            segment.stop(error)
            self.own(segment.wait_stopped())

    def _no_more_served(self) -> Sequence[Segment]:
        segments, self.serving = list(self.serving.values()), {}
        return segments

    async def wait_ended(self) -> None:
        """Until whatever has been given up so far has ended."""
        await asyncio.gather(*self._endings, return_exceptions=True)

    def topic_changed(self, topology: Topology) -> None:
        """What is to be erased is given up; the rest follows the layout."""
        for segment_id, path in topology.paths.items():
            if topology.is_going(segment_id):
                if (segment := self.serving.pop(path, None)) is not None:
                    self._handing_over[path] = None
                    self.own(self._give_up_going(segment, topology))
            else:
                self._shared.wake_housekeeping(path)  # its policies may have changed
                if (segment := self.serving.get(path)) is not None:
                    segment.sealing.follow(topology)

    def owner_changed(self, path: str) -> None:
        owner, segment = self._directory.owner(path), self.serving.get(path)
        if segment is not None and (owner is None or owner.epoch != segment.epoch):
            self._segment_in_doubt(segment)  # perhaps only an older change: the store is asked
        if segment is None and owner is not None and owner.broker != self.broker_id:
            self.waiters.fail(path, NotOwner(f"{path} is owned by {owner.broker} by now, look up the owner again"))

    async def _hand_over(self, segment: Segment) -> None:
        """▲ Called with the segment among those that are handed over, from the moment it is no more served: not claimed
        here meanwhile, whoever joins or leaves. It would be served a second time under one epoch, and would know
        nothing of what is still in flight under it. One that is lost from then on is given up here, and only here."""
        try:
            await segment.hand_over(timeout_s=self._settings.hand_over_s)
            await self._record_end(segment)
            if self.registration is not None:
                await self.registration.release(segment.path, segment.epoch)
                self.holdings.ended(segment.path, segment.epoch)
        except TxnError as error:
            log.warning("owner_key_left", segment=segment.path, error=str(error))
            self.holdings.to_release[segment.path] = segment.epoch
        finally:
            del self._handing_over[segment.path]
            self.changed.set()

    async def _release_unserved(self, path: str) -> None:
        """A segment that is no more, or of which this broker has not heard yet; any of them when it closes."""
        try:
            if self.registration is not None:
                await self.holdings.release(self.registration, path)
        except TxnError as error:
            log.warning("owner_key_left", segment=path, error=str(error))
        finally:
            self._handing_over.pop(path, None)

    def _going(self, path: str) -> Topology | None:
        """The layout, if it says that the segment is to be erased."""
        topology = self._directory.topics().get(topic_path_of(path))
        going = topology is not None and topology.is_going(SegmentName.from_path(path).segment_id)
        return topology if going else None

    async def _give_up_going(self, segment: Segment, topology: Topology) -> None:
        """Stop a segment that is to be erased; called as `_hand_over`. ▲ What is in flight under its epoch may still
        land: it is erased under the next one, and not before everything here has ended."""
        try:
            segment.stop(why_gone(segment.path, topology))
            await segment.wait_stopped()
            await segment.wait_kept()  # ▲ no epoch keeps it from writing a sidecar where all has been erased
        finally:
            self.holdings.to_release[segment.path] = segment.epoch
            del self._handing_over[segment.path]
            self.changed.set()

    def own(self, work: Coroutine[None, None, None]) -> None:
        """Do it beside everything else; `wait_ended` waits for it."""
        task = errand(work, name="ending", of=self.broker_id)
        self._endings[task] = None
        task.add_done_callback(self._endings.pop)
