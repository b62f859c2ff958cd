"""Taking snapshot cuts: the questions of `segments.controller.cut`, asked of the owners and the store until nothing has
moved."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

import structlog

from segments.controller.cut import (
    Cut,
    Layouts,
    Resolved,
    StartOver,
    Tail,
    never_owned,
    read_layouts,
    settled_in,
    topic_keys,
)
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
from txnwire.turns import taking_turns

log = structlog.get_logger(__name__)

T = TypeVar("T")

_PAUSE_S: Final = (0.02, 0.2)
"""Before a cut is begun again: the directory has to hear of what has moved."""

_WAITED_OUT: Final = (ServiceError, InvalidArgument, TopicNotFound)
"""What an owner replies and may pass: also what a broker says that knows another layout."""

_FIRST_PAUSE_S: Final = (0.005, 0.015)
"""Before a segment that did not answer is asked again: one that was just made is owned a moment later."""

_SETTLED_AT_MOST: Final = 100_000
"""Segments remembered as settled; beyond it all are forgotten, and asked once more."""


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
        self._settled: dict[str, Position] = {}

    def statistics(self) -> SnapshotStatistics:
        return SnapshotStatistics(self._taken, self._started_over, self._failed, self._taken_s)

    async def take(self, topics: Sequence[TopicName], *, at_least: int = 0, timeout_s: float) -> Snapshot:
        """A cut over all segments of `topics`, at a revision read meanwhile: whatever was committed before the call is
        in it. `at_least`: it is taken once the store has come to this revision.

        Raises `TopicNotFound`, `DataCorrupt`, `Overloaded` where more transactions are under way than fit an answer,
        and `Timeout` that says what kept it from ending: a segment without an owner, say.
        """
        store = await self._store.incarnation()
        begun_s = self._clock.monotonic()
        waits = deque(["it was not answered"], maxlen=1)
        try:
            async with asyncio.timeout(timeout_s):
                while isinstance(outcome := await self._attempt(topics, at_least, waits), StartOver):
                    waits.append(outcome.reason)
                    self._started_over += 1
                    log.info("snapshot_started_over", reason=outcome.reason)
                    await asyncio.sleep(self._random.uniform(*_PAUSE_S))
        except TimeoutError as error:
            self._failed += 1
            raise Timeout(f"no snapshot could be taken within {timeout_s} s: {waits[-1]}") from error
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
        if len(self._settled) > _SETTLED_AT_MOST:
            self._settled.clear()
        self._settled.update(settled_in(outcome))
        return replace(outcome, store=store)

    async def _attempt(self, topics: Sequence[TopicName], at_least: int, waits: deque[str]) -> Snapshot | StartOver:
        """`waits`: is told what it waits for."""
        try:
            revision, layouts = await self._layouts(topics)
            # ▲ Told of a commit by another client, the asker would miss its messages in a cut from before it.
            while revision < at_least:
                waits.append(
                    f"the metadata store is at revision {revision} and at_least asks for {at_least}: is that one of "
                    "another cluster, or from before etcd was put back from a backup?"
                )
                await asyncio.sleep(self._random.uniform(*_PAUSE_S))
                revision, layouts = await self._layouts(topics)
        except StoreUnavailable as error:
            return StartOver(str(error))
        try:
            return await self._cut(topics, layouts, waits)
        except DataCorrupt:
            raise
        except _WAITED_OUT as error:
            # Also what a broker says that does not know the newest layout yet. What stays so ends by the time limit.
            return StartOver(str(error))

    async def _layouts(self, topics: Sequence[TopicName]) -> tuple[int, Layouts]:
        """As they are now, and the revision of that."""
        revision, found = await self._store.get_many(topic_keys(topics))
        return revision, read_layouts(topics, found).knowing(self._settled)

    async def _cut(self, topics: Sequence[TopicName], layouts: Layouts, waits: deque[str]) -> Snapshot | StartOver:
        resolved: dict[str, Resolved] = {}
        pause_s = self._random.uniform(*_FIRST_PAUSE_S)
        while True:
            why = await self._ask_first(layouts.unanswered(resolved), resolved)
            # ▲ R is read only behind every first answer, with the layouts at R: what was decided before one of the
            # answers was decided before R, and what was committed by R is in segments that stood at R.
            revision, layouts = await self._layouts(topics)
            if missing := layouts.unanswered(resolved):
                _, ledgers = await self._store.get_many([keys.ledger(path) for path in missing], revision=revision)
                layouts = layouts.knowing(never_owned(missing, ledgers))
            if not layouts.unanswered(resolved):
                break
            if why is not None:
                # What has answered need not do so again: a layout that goes on changing would never be answered whole.
                waits.append(why)
                await asyncio.sleep(pause_s)
                pause_s = min(_PAUSE_S[1], pause_s * 1.5)
        segments = layouts.segments
        asked = (self._questions.tail(path, revision, resolved[path].position) for path in segments)
        cut = Cut(layouts, resolved, revision, dict(zip(segments, await _all(asked), strict=True)))
        _, found = await self._store.get_many(await taking_turns(cut.final_keys()))
        return await taking_turns(cut.conclude(found))

    async def _ask_first(self, segments: Sequence[str], resolved: dict[str, Resolved]) -> str | None:
        """Put the answers there are into `resolved`. Why there are not more of them, if there are not."""
        answers = await asyncio.gather(*map(self._questions.resolved, segments), return_exceptions=True)
        why: str | None = None
        for path, answer in zip(segments, answers, strict=True):
            if isinstance(answer, Resolved):
                resolved[path] = answer
            elif isinstance(answer, _WAITED_OUT) and not isinstance(answer, DataCorrupt):
                why = str(answer)
            else:
                raise answer
        return why


async def _all(questions: Iterable[Awaitable[T]]) -> list[T]:
    """Every answer, in order. All are waited for: none is left asking when another has failed."""
    answers = await asyncio.gather(*questions, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]
