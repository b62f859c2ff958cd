"""Claims, takes over, serves and gives up the segments of one broker (DESIGN §7, "Ownership")."""

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
from txnwire.tasks import cancel_all, defect, errand

log = structlog.get_logger(__name__)

RECORD_AGAIN_S = 0.2
CLAIM_TRIES = 10
"""Immediate tries for a segment whose topic's record changes meanwhile; after these it waits its turn."""


class OwnedSegments:
    """Runs the life of each segment that this broker owns or should own.

    `serving`: the served segments, by path; `registration`: the lease under which segments are owned, None without one;
    `changed`: set when `claim_all` may find new moves.
    """

    def __init__(self, shared: BrokerContext, ledgers: LedgerStore, directory: Directory, *, broker_id: str) -> None:
        self.broker_id = broker_id
        self.incarnation = ""
        """The store's incarnation; set before the first claim."""
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
        """Time limits of the waits for etcd to accept the end of a ledger."""

    # ---- claims -----------------------------------------------------------------------------------------------------

    def claim_all(self, registration: BrokerSession) -> float:
        """Start the moves that are due; returns the time after which to call again even if nothing changes."""
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
        """Pass layouts to all segments: some were taken over after their layout changed, or a try has failed."""
        for path, segment in self.serving.items():
            if (topology := self._directory.topics().get(topic_path_of(path))) is not None:
                segment.sealing.follow(topology)

    def _taken(self, path: str, task: asyncio.Task[None]) -> None:
        if self.taking.get(path) is task:
            del self.taking[path]
            # Looking for more costs O(segments), so not after each take-over.
            if len(self.taking) <= MAX_TAKING // 2:
                self.changed.set()

    def may_claim(self, path: str) -> bool:
        """Whether no broker owns it, or this one does and failed to take it over."""
        owner = self._directory.owner(path)
        return owner is None or owner.broker == self.broker_id

    async def _claim(self, path: str, registration: BrokerSession) -> tuple[TopicFound, int]:
        """The topic, and the ownership epoch. A claim fails while the topic's record changes, as when many of its
        segments are split at once; producers wait for this segment, so it retries at once.

        Raises `NotOwner` if another broker owns it, `TopicNotFound` if nothing of it is left, `StoreUnavailable`.
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
            segment = await self._take_over(path, epoch, registration)
        except asyncio.CancelledError:
            if epoch is not None:
                self.holdings.to_release[path] = epoch
            self.waiters.fail(path, NotOwner(f"{path} is being given up by {self.broker_id}, look up the owner again"))
            raise
        except TopicNotFound as error:
            self._claims.failed(path, self._clock.monotonic())  # the directory may not know it yet
            gone = isinstance(error, SegmentGone)  # waiters then look up the layout again
            self.waiters.fail(path, NotOwner(str(error)) if gone else error)
        except DataCorrupt as error:
            log.error("segment_corrupt", segment=path, error=str(error))
            self.holdings.failed[path] = error
            self.waiters.fail(path, error)
        except TxnError as error:
            log.warning("take_over_failed", segment=path, error=str(error))
            self._not_taken(path, epoch, error)
        except Exception as error:  # a defect, in one segment: the others go on
            log.error("take_over_broken", segment=path, exc_info=error)
            self._not_taken(path, epoch, error)
        else:
            self._claims.succeeded(path, self._clock.monotonic())
            if (topology := self._going(path)) is not None:  # marked during the take-over
                self.waiters.fail(path, why_gone(path, topology))
                self._handing_over[path] = None
                self.own(self._give_up_going(segment, topology))
                return
            self.serving[path] = segment
            self._shared.wake_housekeeping(path)  # finish a predecessor's housekeeping
            self.waiters.serve(segment)
            owner = self._directory.owner(path)
            if owner is None or owner.epoch != segment.epoch:
                self._segment_in_doubt(segment)  # ▲ an owner change during the take-over reached no segment

    async def _take_over(self, path: str, epoch: int, registration: BrokerSession) -> Segment:
        """Raises `DataCorrupt` only for a segment that this broker still owns."""
        try:
            return await take_over_segment(
                path,
                epoch,
                self._shared,
                self._ledgers,
                incarnation=self.incarnation,
                may_ack=registration.valid,
                on_lost=self._segment_lost,
                on_doubt=self._segment_in_doubt,
            )
        except DataCorrupt:
            # ▲ A broker that slept past its lease reads on while a later owner trims or erases the segment: files that
            # are missing then are no damage, and must not keep the segment from being served.
            await registration.check(path, epoch)
            raise

    def _not_taken(self, path: str, epoch: int | None, error: Exception) -> None:
        self._claims.failed(path, self._clock.monotonic())
        if epoch is not None:
            # ▲ Try again under a new epoch: late writes of this try must fail.
            self.holdings.to_release[path] = epoch
        self.waiters.fail(path, NotOwner(f"{path} could not be taken over ({error!r}): look up the owner again"))

    def _segment_lost(self, segment: Segment, error: TxnError) -> None:
        if self.serving.get(segment.path) is segment:
            del self.serving[segment.path]
        if isinstance(error, NotOwner):
            self.own(segment.wait_stopped())
        elif segment.path not in self._handing_over:  # ▲ otherwise the hand-over gives the epoch back, once
            self._handing_over[segment.path] = None  # from now on: this broker still owns the epoch
            self.own(self._give_up_lost(segment))
        self.changed.set()

    async def _give_up_lost(self, segment: Segment) -> None:
        """▲ Serve it again only under a new epoch: ops of the old one still in flight are then refused."""
        try:
            await self._record_end(segment)
            await segment.wait_stopped()
        finally:
            self.holdings.to_release[segment.path] = segment.epoch
            del self._handing_over[segment.path]
            self.changed.set()

    async def _record_end(self, segment: Segment) -> None:
        """▲ After a failed sync whose ledger's end the disk cannot record: write it to etcd before giving the epoch
        back, because only this process's ledger store knows the end.

        Waits as long as etcd is down, as then no broker can claim the segment either."""
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
        """Raises `TimeoutError` `hand_over_s` after `close_soon`, `NotOwner`."""
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
        """From here on every ending takes at most `hand_over_s`."""
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
        """Hand each segment over within `hand_over_s`; also give back the owned segments that are not served."""
        segments = self._no_more_served()
        self._handing_over.update((segment.path, None) for segment in segments)
        await asyncio.gather(*map(self._hand_over, segments), *map(self._release_unserved, self.holdings.to_release))

    async def cancel_taking(self) -> None:
        await cancel_all(list(self.taking.values()))

    async def drop_all(self, error: NotOwner) -> None:
        """Drop all segments at once: the lease is gone, and their keys with it."""
        await self.cancel_taking()
        self.stop_all(error)
        self.holdings.to_release.clear()  # their keys went with the lease
        self.holdings.failed.clear()  # these too: try them again under the next lease

    def stop_all(self, error: NotOwner) -> None:
        for segment in self._no_more_served():
            segment.stop(error)
            self.own(segment.wait_stopped())

    def _no_more_served(self) -> Sequence[Segment]:
        segments, self.serving = list(self.serving.values()), {}
        return segments

    async def wait_ended(self) -> None:
        """Wait until all endings begun so far are complete."""
        await asyncio.gather(*self._endings, return_exceptions=True)

    def topic_changed(self, topology: Topology) -> None:
        """Give up the segments to be erased; the others follow the layout."""
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
            self._segment_in_doubt(segment)  # perhaps an older change: check the store
        if segment is None and owner is not None and owner.broker != self.broker_id:
            self.waiters.fail(path, NotOwner(f"{path} is owned by {owner.broker} by now, look up the owner again"))

    async def _hand_over(self, segment: Segment) -> None:
        """▲ The caller puts the segment into `_handing_over` when it leaves `serving`: a claim here meanwhile would
        serve it twice under one epoch, unaware of the first one's operations in flight. If it is lost from then on,
        only this method gives it up."""
        try:
            await segment.hand_over(timeout_s=self._settings.hand_over_s)
            await self._record_end(segment)
            if self.registration is not None:
                await self.registration.release(segment.path, segment.epoch)
                self.holdings.ended(segment.path, segment.epoch)
        except TxnError as error:
            log.warning("owner_key_left", segment=segment.path, error=str(error))
            self.holdings.to_release[segment.path] = segment.epoch
        except Exception as error:  # noqa: BLE001  (reported; a closing broker still hands over the others)
            defect("hand-over", segment.path, error)
            self.holdings.to_release[segment.path] = segment.epoch
        finally:
            del self._handing_over[segment.path]
            self.changed.set()

    async def _release_unserved(self, path: str) -> None:
        """Release a segment that is in no known layout; on closing, every unserved one."""
        try:
            if self.registration is not None:
                await self.holdings.release(self.registration, path)
        except TxnError as error:
            log.warning("owner_key_left", segment=path, error=str(error))
        finally:
            self._handing_over.pop(path, None)

    def _going(self, path: str) -> Topology | None:
        """The layout if it has the segment marked to be erased."""
        topology = self._directory.topics().get(topic_path_of(path))
        going = topology is not None and topology.is_going(SegmentName.from_path(path).segment_id)
        return topology if going else None

    async def _give_up_going(self, segment: Segment, topology: Topology) -> None:
        """Stop a segment that is to be erased; called like `_hand_over`. ▲ Writes in flight under its epoch may still
        land, so it is erased under the next epoch, and only after everything here has ended."""
        try:
            segment.stop(why_gone(segment.path, topology))
            await segment.wait_stopped()
            await segment.wait_kept()  # ▲ no epoch fences a sidecar written after the erasing
        finally:
            self.holdings.to_release[segment.path] = segment.epoch
            del self._handing_over[segment.path]
            self.changed.set()

    def own(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` in the background; `wait_ended` waits for it."""
        task = errand(work, name="ending", of=self.broker_id)
        self._endings[task] = None
        task.add_done_callback(self._endings.pop)
