"""Seals a segment for a split or a merge, by its owner (DESIGN §8; scenarios S3, S4, S10).

Theory of operation:

1. The topic's record has an *intent*: the change, with this segment as a parent. The controller asks the owner to seal,
   and `seal` first checks that the record has the change.
2. Hold sends back. They wait without an answer ▲: a refused producer would continue in the children, although this
   segment may still continue here.
3. Wait until everything in flight is stored or has failed. Open transactions are neither asked nor waited for.
4. Close the ledger. ▲ Write the seal into `/ledger/<segment>` only if the topic's record is unchanged since it was
   read, so that a late request of a cancelled change seals nothing. If the change is gone, continue in a new ledger,
   and admit the waiting sends.
5. The seal is stored: end every producer with its last stored sequence id, and fail the waiting sends. Producers
   continue in the children once the layout has them.
6. Tell readers nothing yet ▲: the seal may be taken back. Once a layout has the segment as SEALED, the end is
   final, and readers and consumers learn it.
7. If the change is given up after the seal, `follow` takes the seal back under the same compare, opens a new ledger and
   admits sends again. Owners do so without being asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from segments.layout.layout_transitions import Seal, find_change, read_topology
from segments.layout.topology import ACTIVE, SEALED, Topology
from txnstore import keys
from txnstore.store import KeyValue, MetadataStore
from txnwire.errors import InternalError, InvalidArgument, NotAllowed, Timeout, TxnError
from txnwire.names import SegmentName
from txnwire.tasks import errand

if TYPE_CHECKING:
    from segments.owner.segment import Segment

log = structlog.get_logger(__name__)


class Sealing:
    """Seals one segment, and takes a seal back. Does one of them at a time."""

    def __init__(self, store: MetadataStore, segment: Segment, *, wait_s: float) -> None:
        """`wait_s`: how long operations in flight may take to end."""
        self._store = store
        self._segment = segment
        self._wait_s = wait_s
        self._name = SegmentName.from_path(segment.path)
        self._task: asyncio.Task[None] | None = None
        self._change_id: str | None = None

    @property
    def idle(self) -> bool:
        return self._task is None

    # ---- life -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def wait_stopped(self) -> None:
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    # ---- sealing ----------------------------------------------------------------------------------------------------

    async def seal(self, change_id: str) -> Seal:
        """Seal the segment. A repeated call joins the running one, or finds it done.

        Raises `InvalidArgument` if the topic's record has no such change of this segment, `NotAllowed` while another
        change is handled here, `Timeout` if operations in flight did not end, `NotOwner`, `StoreUnavailable`."""
        segment = self._segment
        segment.check()
        if segment.ledgers.record.sealed_by != change_id:
            if self._task is not None and self._change_id != change_id:
                raise NotAllowed(f"{segment.path} is being sealed, or opened again, for another change: repeat it")
            task = self._task or self._start(self._seal(change_id), change_id)
            await asyncio.wait([task])
            segment.check()
            task.result()
        if segment.ledgers.record.sealed_by != change_id:
            raise NotAllowed(
                f"{segment.path} was not sealed: it is handed over, or the change {change_id} was given up"
            )
        return Seal(segment.ledgers.last_confirmed, segment.ledgers.revision, segment.epoch)

    def _start(self, work: Coroutine[None, None, None], change_id: str | None) -> asyncio.Task[None]:
        self._change_id = change_id
        self._task = errand(work, name="sealing", of=self._segment.path)
        self._task.add_done_callback(self._done)
        return self._task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, TxnError):
                log.info("not_sealed", segment=self._segment.path, change=self._change_id, error=str(error))
            else:
                self._segment.lost(InternalError(f"the sealing of {self._segment.path} ended: {error!r}"))

    async def _seal(self, change_id: str) -> None:
        segment = self._segment
        # ▲ A late request for a change given up since must hold no sends back.
        topic = await self._look(change_id)
        if topic is None:
            raise InvalidArgument(f"{self._name.topic} tells of no change {change_id} of {segment.path}")
        with self._holding_back():
            if segment.ledgers.sealed:  # by a change that was given up: a segment has one change at a time
                await segment.pipeline.unseal(topic)
            await self._wait_idle()
            await segment.pipeline.seal(change_id, _Looks(self, change_id, topic))
        log.info("segment_sealed", segment=segment.path, sealed=segment.ledgers.sealed, change=change_id)

    @contextmanager
    def _holding_back(self) -> Iterator[None]:
        """▲ Admit no send while there may be no open ledger; afterwards fail or admit the waiting sends."""
        segment = self._segment
        segment.pipeline.hold_back()
        try:
            yield
        finally:
            if segment.ledgers.sealed:
                segment.end_producers()
            else:
                segment.pipeline.admit_again()

    async def _wait_idle(self) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                await self._segment.pipeline.wait_idle()
        except TimeoutError as error:
            raise Timeout(
                f"{self._segment.path}: the operations in flight did not end within {self._wait_s} s"
            ) from error

    async def _look(self, change_id: str) -> KeyValue | None:
        """The topic's record as stored now, if it has this change of this segment. Raises `StoreUnavailable`,
        `DataCorrupt`."""
        record = await self._store.get(keys.topic(self._name.topic.path))
        if record is None or (topology := read_topology(record)).deleting:
            return None
        change = find_change(topology, change_id)
        return record if change is not None and self._name.segment_id in change.parents else None

    # ---- after a seal -----------------------------------------------------------------------------------------------

    def follow(self, topology: Topology) -> None:
        """`topology`: a layout of the topic, perhaps an old one. A segment is sealed for good once any layout says so;
        only the store tells whether its change was given up."""
        ledgers = self._segment.ledgers
        if not ledgers.sealed or ledgers.ended or self._task is not None:
            return
        entry = topology.segments.get(self._name.segment_id)
        if entry is None or topology.deleting:
            return
        if entry.state == SEALED:
            self._end()
        elif find_change(topology, ledgers.record.sealed_by or "") is None:
            self._start(self._take_back(), None)

    def _end(self) -> None:
        self._segment.ledgers.ended = True
        self._segment.seal_is_final()

    async def _take_back(self) -> None:
        """▲ The change was given up: open the segment again. Reads the store first, as a directory that lags shows the
        layout from before the change."""
        record = await self._store.get(keys.topic(self._name.topic.path))
        if record is None or (topology := read_topology(record)).deleting:
            return
        entry = topology.segments.get(self._name.segment_id)
        if entry is None or entry.state != ACTIVE:
            if entry is not None:
                self._end()
            return
        if find_change(topology, self._segment.ledgers.record.sealed_by or "") is None:
            with self._holding_back():
                await self._segment.pipeline.unseal(record)
            log.info("seal_taken_back", segment=self._segment.path, still_sealed=self._segment.ledgers.sealed)


class _Looks:
    """Returns the topic's record: first the one read before sends were held back, then a new read each time."""

    def __init__(self, sealing: Sealing, change_id: str, first: KeyValue) -> None:
        self._sealing = sealing
        self._change_id = change_id
        self._first: KeyValue | None = first

    async def __call__(self) -> KeyValue | None:
        first, self._first = self._first, None
        return first if first is not None else await self._sealing._look(self._change_id)
