"""Publishes the load of a broker's segments for autoscale, which splits and merges by it: `/load/<segment>` (PIP-483).

Cheap: rates over the last minute from existing counters, computed every ten seconds, and written only if they changed
by a quarter since the last write. A segment under steady load writes once; an idle one writes one zero.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

import structlog

from segments.layout.autoscale import SegmentLoad
from txnstore import keys, records
from txnstore.records import LoadSample
from txnstore.store import Commit, MetadataStore, Put, created_at
from txnwire.errors import TxnError
from txnwire.ports import Clock
from txnwire.tasks import restarted

log = structlog.get_logger(__name__)

WINDOW_S: Final = 60.0
CHANGE: Final = 0.25
LEAST: Final = SegmentLoad(messages_per_s=10, bytes_per_s=100_000)
"""A change below this never counts, even if it exceeds `CHANGE`: no sensible threshold depends on it."""


class Stored(NamedTuple):
    """Messages and bytes that a segment has stored since its broker took it over."""

    messages: int
    bytes: int


class LoadMeter:
    """Measures the rates of one segment over the last minute, and decides whether to publish them. Pure."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, Stored]] = deque()
        self._told: SegmentLoad | None = None

    def measure(self, stored: Stored, now_s: float) -> tuple[SegmentLoad, float] | None:
        """The load, and the seconds it was measured over; None at the first call."""
        while len(self._marks) > 1 and now_s - self._marks[1][0] >= WINDOW_S:
            self._marks.popleft()
        self._marks.append((now_s, stored))
        since_s, before = self._marks[0]
        if now_s <= since_s:
            return None
        window_s = now_s - since_s
        messages, size = stored.messages - before.messages, stored.bytes - before.bytes
        return SegmentLoad(messages / window_s, size / window_s), window_s

    def worth_telling(self, load: SegmentLoad) -> bool:
        """Whether it differs enough from the last published load."""
        told = self._told
        return told is None or any(
            abs(now - then) > max(CHANGE * then, least) for now, then, least in zip(load, told, LEAST, strict=True)
        )

    def told(self, load: SegmentLoad) -> None:
        self._told = load


class MeasuredSegment(Protocol):
    """A segment, as the reporter reads it."""

    path: str
    epoch: int

    @property
    def takes_writes(self) -> bool:
        """Whether it is neither sealed nor lost."""

    @property
    def taken_in(self) -> Stored: ...


class LoadReporter:
    """Writes the load samples of one broker. `segments`: those it serves now. `every_s`: between rounds; 0: never."""

    def __init__(
        self, store: MetadataStore, clock: Clock, segments: Callable[[], Iterable[MeasuredSegment]], *, every_s: float
    ) -> None:
        self._store = store
        self._clock = clock
        self._segments = segments
        self._every_s = every_s
        self._meters: dict[tuple[str, int], LoadMeter] = {}
        self._task: asyncio.Task[None] | None = None
        self.written = 0
        """Number of samples written since the start."""

    def start(self) -> None:
        if self._every_s <= 0:
            return
        self._task = restarted(self._run, name="load samples")

    async def close(self) -> None:
        """Idempotent."""
        if (task := self._task) is not None:
            self._task = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(self._every_s)

    async def report(self) -> None:
        """Measure every segment once. A sample whose write fails is due again in the next round."""
        now_s, commits = self._clock.monotonic(), []
        served = {(one.path, one.epoch): one for one in self._segments() if one.takes_writes}
        self._meters = {key: self._meters.get(key) or LoadMeter() for key in served}
        for key, segment in served.items():
            meter = self._meters[key]
            measured = meter.measure(segment.taken_in, now_s)
            if measured is not None and meter.worth_telling(measured[0]):
                commits.append(self._write(segment, meter, *measured))
        await asyncio.gather(*commits)

    async def _write(self, segment: MeasuredSegment, meter: LoadMeter, load: SegmentLoad, window_s: float) -> None:
        sample = LoadSample(
            messages_in_per_s=round(load.messages_per_s, 1),
            bytes_in_per_s=round(load.bytes_per_s, 1),
            window_s=round(window_s, 1),
            taken_ms=self._clock.wall_ms(),
        )
        commit = Commit(
            # ▲ A former owner could overwrite its successor's load, or leave a record after all others are erased.
            compares=(created_at(keys.owner(segment.path), segment.epoch),),
            puts=(Put(keys.load(segment.path), records.encode(sample)),),
        )
        try:
            result = await self._store.commit(commit)
        except TxnError as error:
            log.info("load_sample_not_written", segment=segment.path, error=str(error))
            return
        if result.succeeded:
            self.written += 1
            meter.told(load)
