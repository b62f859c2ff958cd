"""Takes snapshot cuts: asks owners and store the questions of `segments.controller.cut`, and starts over until nothing
has moved meanwhile."""

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
"""Pause before a cut starts over: the directory must learn of the change."""

_WAITED_OUT: Final = (ServiceError, InvalidArgument, TopicNotFound)
"""Replies of an owner that may pass, also those of a broker that knows another layout."""

_FIRST_PAUSE_S: Final = (0.005, 0.015)
"""Pause before a segment is asked again: a new segment gets its owner a moment later."""

_SETTLED_AT_MOST: Final = 100_000
"""Segments remembered as settled; beyond this, all are forgotten and asked again."""


class SegmentQuestions(Protocol):
    """A cut's questions to the owner of a segment, by its path. Raises `NotOwner`, or the error that it replies."""

    async def resolved(self, segment: str) -> Resolved: ...
    async def tail(self, segment: str, revision: int, resolved: Position) -> Tail: ...


@dataclass(frozen=True, slots=True)
class SnapshotStatistics:
    """Counts since the start. `taken_s`: total time of the snapshots taken, in seconds, with starting over."""

    taken: int
    started_over: int
    failed: int
    taken_s: float


class Snapshots:
    """Takes cuts. Any number may run at once."""

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
        """A cut over all segments of `topics`, at a revision read during the call: it holds everything committed before
        the call. `at_least`: wait until the store has reached this revision.

        Raises `TopicNotFound`, `DataCorrupt`, `Overloaded` if more transactions are open than fit an answer, `Timeout`
        naming what it waited for, e.g. a segment without an owner.
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
                f"too many transactions for a snapshot are open, or were aborted after an open one ({error}): `txnctl "
                "transactions hanging` shows those that are open for long"
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
        """`waits`: receives the reason for each wait."""
        try:
            revision, layouts = await self._layouts(topics)
            # ▲ A cut at an older revision would miss a commit that the caller learned of from another client.
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
            # Also the reply of a broker that does not know the newest layout yet. The time limit ends a lasting error.
            return StartOver(str(error))

    async def _layouts(self, topics: Sequence[TopicName]) -> tuple[int, Layouts]:
        """The present layouts, and their revision."""
        revision, found = await self._store.get_many(topic_keys(topics))
        return revision, read_layouts(topics, found).knowing(self._settled)

    async def _cut(self, topics: Sequence[TopicName], layouts: Layouts, waits: deque[str]) -> Snapshot | StartOver:
        resolved: dict[str, Resolved] = {}
        pause_s = self._random.uniform(*_FIRST_PAUSE_S)
        while True:
            why = await self._ask_first(layouts.unanswered(resolved), resolved)
            # ▲ Read R only after every first answer, with the layouts at R: a decision before any answer was then made
            # before R, and everything committed by R is in segments that existed at R.
            revision, layouts = await self._layouts(topics)
            if missing := layouts.unanswered(resolved):
                _, ledgers = await self._store.get_many([keys.ledger(path) for path in missing], revision=revision)
                layouts = layouts.knowing(never_owned(missing, ledgers))
            if not layouts.unanswered(resolved):
                break
            if why is not None:
                # Keep the answers: asking all again would never end while the layout keeps changing.
                waits.append(why)
                await asyncio.sleep(pause_s)
                pause_s = min(_PAUSE_S[1], pause_s * 1.5)
        segments = layouts.segments
        asked = (self._questions.tail(path, revision, resolved[path].position) for path in segments)
        cut = Cut(layouts, resolved, revision, dict(zip(segments, await _all(asked), strict=True)))
        _, found = await self._store.get_many(await taking_turns(cut.final_keys()))
        return await taking_turns(cut.conclude(found))

    async def _ask_first(self, segments: Sequence[str], resolved: dict[str, Resolved]) -> str | None:
        """Put the answers into `resolved`. Returns why one is missing; None if all answered."""
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
    """All answers, in order. Waits for all: no question keeps running after another has failed."""
    answers = await asyncio.gather(*questions, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]
