"""Taking snapshot cuts: the questions of `segments.cut`, asked of the owners and the store until nothing has moved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import structlog

from segments.cut import Cut, Layouts, Resolved, StartOver, Tail, read_layouts, topic_keys
from txnstore import keys
from txnstore.store import MetadataStore
from txnwire.errors import (
    DataCorrupt,
    InvalidArgument,
    MessageTooLarge,
    Overloaded,
    ServiceError,
    StoreUnavailable,
    Timeout,
    TopicNotFound,
    TxnError,
)
from txnwire.ids import Position
from txnwire.names import TopicName
from txnwire.ports import Clock, Random
from txnwire.snapshot import Snapshot

log = structlog.get_logger(__name__)

T = TypeVar("T")

_PAUSE_S: Final = (0.02, 0.2)
"""Before a cut is begun again: the directory has to hear of what has moved."""


class SegmentQuestions(Protocol):
    """What a cut asks the owner of a segment, by its path. Raises `NotOwner` and whatever else the owner replies."""

    async def resolved(self, segment: str) -> Resolved: ...
    async def tail(self, segment: str, revision: int, resolved: Position) -> Tail: ...


@dataclass(frozen=True, slots=True)
class SnapshotStatistics:
    """Counts since the start. `taken_s`: what all that were taken took, in seconds, starting over included."""

    taken: int
    started_over: int
    failed: int
    taken_s: float


class Snapshots:
    """Takes cuts. Any number may be under way at once."""

    def __init__(self, store: MetadataStore, questions: SegmentQuestions, clock: Clock, random: Random) -> None:
        self._store = store
        self._questions = questions
        self._clock = clock
        self._random = random
        self._taken = self._started_over = self._failed = 0
        self._taken_s = 0.0

    def statistics(self) -> SnapshotStatistics:
        return SnapshotStatistics(self._taken, self._started_over, self._failed, self._taken_s)

    async def take(self, topics: Sequence[TopicName], *, timeout_s: float) -> Snapshot:
        """A cut over all segments of `topics`, at a revision read meanwhile: whatever was committed before the call is
        in it.

        Raises `TopicNotFound`, `DataCorrupt`, `Overloaded` where more transactions are under way than fit an answer,
        and `Timeout` that says what kept it from ending: a segment without an owner, say.
        """
        begun_s = self._clock.monotonic()
        why = "it was not answered"
        try:
            async with asyncio.timeout(timeout_s):
                while isinstance(outcome := await self._attempt(topics), StartOver):
                    why = outcome.reason
                    self._started_over += 1
                    log.info("snapshot_started_over", reason=why)
                    await asyncio.sleep(self._random.uniform(*_PAUSE_S))
        except TimeoutError as error:
            self._failed += 1
            raise Timeout(f"no snapshot could be taken within {timeout_s} s: {why}") from error
        except MessageTooLarge as error:
            self._failed += 1
            raise Overloaded(
                f"more transactions are open, or were aborted behind an open one, than a snapshot can name ({error}): "
                "`txnctl transactions hanging` shows which have been open for long"
            ) from error
        except TxnError:
            self._failed += 1
            raise
        self._taken += 1
        self._taken_s += self._clock.monotonic() - begun_s
        return outcome

    async def _attempt(self, topics: Sequence[TopicName]) -> Snapshot | StartOver:
        try:
            _, found = await self._store.get_many(topic_keys(topics))
        except StoreUnavailable as error:
            return StartOver(str(error))
        layouts = read_layouts(topics, found)
        try:
            return await self._cut(layouts)
        except DataCorrupt:
            raise
        except (ServiceError, InvalidArgument, TopicNotFound) as error:
            # Also what a broker says that does not know the newest layout yet. What stays so ends by the time limit.
            return StartOver(str(error))

    async def _cut(self, layouts: Layouts) -> Snapshot | StartOver:
        segments = layouts.segments
        resolved = dict(zip(segments, await _all(map(self._questions.resolved, segments)), strict=True))
        # ▲ Read only behind every first answer: what was decided before one of them was decided before R.
        revision, _ = await self._store.get_many([keys.INCARNATION])
        asked = (self._questions.tail(path, revision, resolved[path].position) for path in segments)
        cut = Cut(layouts, resolved, revision, dict(zip(segments, await _all(asked), strict=True)))
        _, found = await self._store.get_many(cut.final_keys)
        return cut.conclude(found)


async def _all(questions: Iterable[Awaitable[T]]) -> list[T]:
    """Every answer, in order. All are waited for: none is left asking when another has failed."""
    answers = await asyncio.gather(*questions, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]
