"""Drives splits and merges of segments at the elected controller (DESIGN §8; scenarios S3, S6, S10).

A change is accepted once its intent is in the topic's record. It is then driven until it is done or given up, even if
its caller leaves or the controller changes: a new term takes up every intent it finds.
`segments.layout.layout_transitions` has the steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from segments.controller.term_work import TermWork, end_of
from segments.layout.layout_transitions import (
    MERGE,
    SPLIT,
    LayoutChanged,
    Seal,
    Wanted,
    find_change,
    find_done,
    find_joined,
    find_result,
    normalize,
    plan_give_up,
    plan_intent,
    plan_layout,
    read_sealed,
    read_topology,
)
from segments.layout.topology import Topology
from txnstore import keys
from txnstore.access.paging import in_pages
from txnstore.election import Leadership
from txnstore.records import LayoutChange
from txnstore.store import KeyValue, MetadataStore
from txnwire.errors import (
    DataCorrupt,
    NameNotFound,
    NotAllowed,
    Timeout,
    TopicNotFound,
    TxnError,
)
from txnwire.names import SegmentName
from txnwire.ports import Clock, Random
from txnwire.tasks import errand

log = structlog.get_logger(__name__)

RETRY_S: Final = (0.02, 0.1)
LONGEST_RETRY_S: Final = 1.0
ID_BITS: Final = 64
TOPICS_AT_ONCE: Final = 32
"""A page of records, each of which may hold thousands of segments."""


class SealCalls(Protocol):
    """The controller's calls to a parent's owner."""

    async def seal(self, segment: str, change_id: str) -> Seal:
        """Have `segment` sealed for a change in its topic's record; a repeated call is harmless.

        Raises `NotOwner` if no broker owns it now, `InvalidArgument` if no such change is under way, `Timeout` while
        operations in flight there do not end."""


@dataclass(frozen=True, slots=True)
class LayoutStatistics:
    """Counts since the term began; `under_way`: now."""

    under_way: int = 0
    splits: int = 0
    merges: int = 0
    given_up: int = 0


class LayoutChanges:
    """Drives the layout changes of one term. `patience_s`: how long a parent may delay a change before it is given up,
    as its producers wait meanwhile. `on_deposed`: called when a write shows that another process leads."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        random: Random,
        owners: SealCalls,
        *,
        leadership: Leadership,
        patience_s: float,
        on_deposed: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._random = random
        self._owners = owners
        self._leadership = leadership
        self._patience_s = patience_s
        self._work = TermWork("layout_change", store, random, leadership, on_deposed)
        self._driven: dict[str, asyncio.Task[LayoutChanged]] = {}
        self._splits = self._merges = self._given_up = 0

    # ---- life -------------------------------------------------------------------------------------------------------

    async def take_up(self) -> None:
        """Go on with the changes that earlier terms began. Raises `StoreUnavailable`; a repeated call is harmless."""
        end = keys.prefix_end(keys.TOPIC)
        async for page in in_pages(self._store, keys.TOPIC, end, at_once=TOPICS_AT_ONCE):
            for record in page:
                self._take_up(record)
            await asyncio.sleep(0)

    def _take_up(self, record: KeyValue) -> None:
        try:
            topology = read_topology(record)
        except DataCorrupt as error:  # an unreadable record must not stop a controller from leading
            log.error("record_unreadable", error=str(error))
            return
        for change in topology.record.changes:
            self._drive(record.key, change)

    def follow(self, topology: Topology) -> None:
        """Take up intents of a new layout that are not driven: a request may have timed out before it learned that its
        intent was stored, and its caller may never ask again."""
        if not topology.deleting:
            for change in topology.record.changes:
                self._drive(keys.topic(topology.topic.path), change)

    async def close(self) -> None:
        """The term is over: the next one takes the changes up."""
        tasks = list(self._driven.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def statistics(self) -> LayoutStatistics:
        return LayoutStatistics(len(self._driven), self._splits, self._merges, self._given_up)

    # ---- asking -----------------------------------------------------------------------------------------------------

    async def split(self, segment: SegmentName, at: int | None) -> LayoutChanged:
        """Returns once the new layout is stored; a repeated call joins the running split, or finds it done.

        Raises `TopicNotFound`, `InvalidArgument` if the layout does not allow it, `NotAllowed` while another change of
        the segment is under way, `Timeout` if it was given up, `NotOwner`, `StoreUnavailable`."""
        return await self._change((segment,), lambda ids: Wanted(SPLIT, ids, at))

    async def merge(self, segment_a: SegmentName, segment_b: SegmentName) -> LayoutChanged:
        """As `split`, for two segments of one topic with adjacent ranges."""
        return await self._change((segment_a, segment_b), lambda ids: Wanted(MERGE, ids))

    async def _change(
        self, segments: tuple[SegmentName, ...], want: Callable[[tuple[int, ...]], Wanted]
    ) -> LayoutChanged:
        key = keys.topic(segments[0].topic.path)
        while True:
            record, topology = await self._read(key)
            wanted = normalize(topology, want(tuple(_id_of(topology, segment) for segment in segments)))
            if (done := find_done(topology, wanted)) is not None:
                return done
            if (joined := find_joined(topology, wanted)) is not None:
                return await _end_of(self._drive(key, joined))
            change, commit = plan_intent(
                record,
                wanted,
                change_id=f"{self._random.getrandbits(ID_BITS):016x}",
                still_held=self._leadership.still_held(),
                now_ms=self._clock.wall_ms(),
            )
            if await self._work.step(commit):
                log.info("layout_change_begun", topic=str(topology.topic), kind=change.kind, parents=change.parents)
                return await _end_of(self._drive(key, change))

    # ---- driving ----------------------------------------------------------------------------------------------------

    def _drive(self, key: bytes, change: LayoutChange) -> asyncio.Task[LayoutChanged]:
        if (task := self._driven.get(change.id)) is None:
            work = self._until_done(key, change)
            task = self._driven[change.id] = errand(work, name=change.kind, of=change.id, expected=_GivenUp)
            task.add_done_callback(lambda _: self._driven.pop(change.id, None))
            task.add_done_callback(self._work.report_end)
        return task

    async def _until_done(self, key: bytes, change: LayoutChange) -> LayoutChanged:
        give_up_s = self._clock.monotonic() + self._patience_s
        pauses = self._work.pauses(RETRY_S, LONGEST_RETRY_S)
        why: TxnError | None = None
        while True:
            try:
                if why is not None and self._clock.monotonic() >= give_up_s:
                    await self._give_up(key, change, why)
                if (done := await self._attempt(key, change)) is not None:
                    return done
                continue  # the record has changed: try again at once
            except TopicNotFound:
                raise  # ▲ S8: the topic's deletion also erases the intent and the sealed segments
            except DataCorrupt:
                raise  # does not pass; a later term finds the intent
            except TxnError as error:
                why = error
                self._work.waits(error, change=change.id)
            await pauses.pause()

    async def _attempt(self, key: bytes, change: LayoutChange) -> LayoutChanged | None:
        """Try all remaining steps once. None: try again."""
        record, topology = await self._read(key)
        if find_change(topology, change.id) is None:
            if any(parent not in topology.segments for parent in change.parents):
                raise _GivenUp(f"the {change.kind} was made so long ago that its parents are forgotten by now")
            if (done := find_result(topology, change)) is not None:
                return done
            raise _GivenUp(f"the {change.kind} of {self._paths(topology, change)} was given up")
        seals = await self._seals(topology, change)
        if not await self._work.step(plan_layout(record, change, seals, still_held=self._leadership.still_held())):
            return None
        if change.kind == SPLIT:
            self._splits += 1
        else:
            self._merges += 1
        log.info("layout_changed", topic=str(topology.topic), kind=change.kind, change=change.id)
        return None  # the next attempt reads the new layout and returns it

    async def _seals(self, topology: Topology, change: LayoutChange) -> dict[int, int]:
        """Each parent's id → the revision of its `/ledger` record with the seal. Does not ask for a seal that exists
        already: the owner may have died since."""
        paths = {parent: topology.paths[parent] for parent in change.parents}
        _, found = await self._store.get_many([keys.ledger(path) for path in paths.values()])
        seals: dict[int, int] = {}
        asked: dict[int, str] = {}
        for (parent, path), record in zip(paths.items(), found, strict=True):
            if (revision := read_sealed(record, change.id)) is not None:
                seals[parent] = revision
            else:
                asked[parent] = path
        answers = await asyncio.gather(
            *(self._owners.seal(path, change.id) for path in asked.values()), return_exceptions=True
        )
        for parent, answer in zip(asked, answers, strict=True):
            if isinstance(answer, DataCorrupt):  # the segment cannot be sealed: give the change up
                raise NotAllowed(f"{asked[parent]} cannot be sealed: {answer}") from answer
            if isinstance(answer, BaseException):
                raise answer
            seals[parent] = answer.ledger_revision
        return seals

    async def _give_up(self, key: bytes, change: LayoutChange, why: TxnError) -> None:
        """▲ Delete the intent; the owners of parents sealed for it follow the record, or read it on recovery, and open
        them again. Raises `_GivenUp` once it is deleted; returns if the record has changed: try again."""
        record, topology = await self._read(key)
        if find_change(topology, change.id) is None:
            return
        if await self._work.step(plan_give_up(record, change.id, still_held=self._leadership.still_held())):
            self._given_up += 1
            log.warning("layout_change_given_up", change=change.id, kind=change.kind, error=str(why))
            raise _GivenUp(
                f"the {change.kind} of {self._paths(topology, change)} was given up after {self._patience_s} s: {why}"
            )

    @staticmethod
    def _paths(topology: Topology, change: LayoutChange) -> str:
        return " and ".join(topology.paths.get(parent, str(parent)) for parent in change.parents)

    async def _read(self, key: bytes) -> tuple[KeyValue, Topology]:
        """Raises `TopicNotFound`, `DataCorrupt`."""
        record = await self._store.get(key)
        if record is None or (topology := read_topology(record)).deleting:
            raise TopicNotFound(f"topic://{key[len(keys.TOPIC) :].decode()} does not exist")
        return record, topology


class _GivenUp(Exception):
    """The change was given up; its callers receive `Timeout`."""


def _id_of(topology: Topology, segment: SegmentName) -> int:
    """Raises `NameNotFound` if the topic has no such segment."""
    if segment.topic != topology.topic or topology.paths.get(segment.segment_id) != segment.path:
        raise NameNotFound(
            f"{topology.topic} has no segment {segment.path.rpartition('/')[2]} at layout epoch {topology.epoch}; "
            "`txnctl topics describe` shows those it has"
        )
    return segment.segment_id


async def _end_of(task: asyncio.Task[LayoutChanged]) -> LayoutChanged:
    """As `end_of`. Raises `Timeout` if the change was given up."""
    try:
        return await end_of(task)
    except _GivenUp as error:
        raise Timeout(str(error)) from error
