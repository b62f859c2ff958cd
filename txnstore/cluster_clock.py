"""The cluster's clock, which sets and judges deadlines, whatever the clocks of single machines show.

One coordinator stamps `/clock` every few seconds. Every other process keeps the offset between its own monotonic clock
and the stamps, so there is one cluster clock, and it never jumps: the next stamper continues from the stamps it has
seen, by its own monotonic clock, and moves towards its own wall clock by half a millisecond a second at most.

A process that has seen no live stamp cannot tell how old the last one is: the cluster may have stood still for a day,
or its own clock may be a day ahead. It sets the cluster clock forward to its own and records by how much: times
recorded before such a leap are judged by the clock without it (`ClusterTime.left_ms`). If the two are only seconds
apart, as after a restart, it trusts its own clock.

A stamp arrives some time after it was made, never before: of the latest stamps the one with the least delay counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

import structlog

from txnstore import keys
from txnstore.records import ClockStamp, decode
from txnstore.store import EventKind, KeyValue, MetadataStore
from txnwire.errors import DataCorrupt, TxnError
from txnwire.ports import Clock

SAMPLES: Final = 20
FRESH_S: Final = 60.0
"""A process that saw a stamp this recently, by both of its clocks, continues from it."""
TRUSTED_S: Final = 15.0
"""A wall clock is trusted if it is at most this far ahead of a stamp of unknown age: a restart takes about as long."""
SLEWED: Final = 0.0005
"""Share of the time passed: as much as any clock drifts, and two seconds in an hour."""
LEAST_LEAP_MS: Final = 1000
MOST_LEAPS: Final = 16
WARN_AGAIN_S: Final = 600.0
_RETRY_S: Final = 0.5

log = structlog.get_logger(__name__)


class _Before(NamedTuple):
    samples: tuple[float, ...]
    leaps: tuple[tuple[int, int], ...]
    guessed: bool
    stamped_ms: int


class ClusterTime:
    """Computes the cluster's time. Pure. `now_s` is the monotonic clock of this process, `wall_ms` its wall clock."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        """Stamps minus this process's monotonic clock when they were seen, in milliseconds."""
        self._leaps: tuple[tuple[int, int], ...] = ()
        self._seen: tuple[float, int] | None = None
        """This process's clocks when it last saw a live stamp."""
        self._guessed = False
        """Whether the age of the last stamp was taken from this process's wall clock."""
        self._newest_ms = -1
        self._stamped_ms = -1
        self._stamped_at = 0.0
        self._before: _Before | None = None
        """The state before this term, kept until one of its stamps is known to be in the store."""

    @property
    def known(self) -> bool:
        """Whether there is a stamp at all. Before that every process uses its own clock."""
        return bool(self._samples)

    def now_ms(self, now_s: float, wall_ms: int) -> int:
        return int(now_s * 1000 + max(self._samples)) if self._samples else wall_ms

    def left_ms(self, deadline_ms: int, since_ms: int, now_s: float, wall_ms: int) -> int:
        """Time left until a deadline that was recorded when the clock was at `since_ms`.

        ▲ On the clock that recorded it. By a clock set forward in between, every transaction would be past its
        deadline, and aborted while its client works."""
        leapt_ms = sum(by_ms for at_ms, by_ms in self._leaps if since_ms < at_ms)
        return deadline_ms - (self.now_ms(now_s, wall_ms) - leapt_ms)

    def learn(self, stamp: ClockStamp, now_s: float, wall_ms: int, *, live: bool) -> None:
        """A stamp was read, or (`live`) has just been written."""
        if stamp.ms <= self._stamped_ms:
            return  # one of its own
        if live:
            self._seen = now_s, wall_ms
            if self._guessed:
                self._guessed = False
                self._samples.clear()
        elif not self._samples and 0 < wall_ms - stamp.ms <= TRUSTED_S * 1000:
            self._guessed = True
            self._samples.append(wall_ms - now_s * 1000)
        self._samples.append(stamp.ms - now_s * 1000)
        if stamp.ms >= self._newest_ms:  # ▲ a read may be older than what the watch has delivered since
            self._newest_ms, self._leaps = stamp.ms, stamp.leaps

    def lead(self, now_s: float, wall_ms: int) -> None:
        """This process stamps from now on; it has read the last stamp before."""
        if self._before is None:
            self._before = _Before(tuple(self._samples), self._leaps, self._guessed, self._stamped_ms)
        self._stamped_at = now_s
        cluster_ms = self.now_ms(now_s, wall_ms)
        if not self._samples:
            self._set(wall_ms, now_s)
        elif not self._is_fresh(now_s, wall_ms) and wall_ms - cluster_ms >= LEAST_LEAP_MS:
            self._leaps = _bounded((*self._leaps, (wall_ms, wall_ms - cluster_ms)))
            self._set(wall_ms, now_s)

    def stamp(self, now_s: float, wall_ms: int) -> ClockStamp:
        """The leader's next stamp."""
        cluster_ms = now_s * 1000 + max(self._samples)
        most_ms = max(0.0, now_s - self._stamped_at) * 1000 * SLEWED
        self._set(cluster_ms + max(-most_ms, min(most_ms, wall_ms - cluster_ms)), now_s)
        self._stamped_at = now_s
        self._stamped_ms = self.now_ms(now_s, wall_ms)
        return ClockStamp(ms=self._stamped_ms, leaps=self._leaps)

    def stamped(self, now_s: float, wall_ms: int) -> None:
        """The latest stamp of this process is stored."""
        self._seen = now_s, wall_ms
        self._before = None

    def deposed(self) -> None:
        """This process stamps no more.

        ▲ Drop a clock setting that was never stored: with a clock that leapt for this process alone it would take every
        stamp of its successor for one of its own, and expire names too early by the leap.
        """
        if (before := self._before) is not None:
            self._before = None
            self._samples = deque(before.samples, maxlen=SAMPLES)
            self._leaps, self._guessed, self._stamped_ms = before.leaps, before.guessed, before.stamped_ms

    def _set(self, cluster_ms: float, now_s: float) -> None:
        self._guessed = False
        self._samples.clear()
        self._samples.append(cluster_ms - now_s * 1000)

    def _is_fresh(self, now_s: float, wall_ms: int) -> bool:
        if self._seen is None:
            return False
        return now_s - self._seen[0] <= FRESH_S and abs(wall_ms - self._seen[1]) <= FRESH_S * 1000


def _bounded(leaps: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Joins the oldest two leaps, which gives times recorded between them too much time rather than too little."""
    if len(leaps) <= MOST_LEAPS:
        return leaps
    (_, first_ms), (at_ms, second_ms), *rest = leaps
    return ((at_ms, first_ms + second_ms), *rest)


class ClusterClock:
    """`Clock`, with the cluster's time as its wall clock, once `run` or `refresh` has seen a stamp."""

    def __init__(self, store: MetadataStore, clock: Clock, *, warn_s: float = 5.0) -> None:
        self._store = store
        self._clock = clock
        self._warn_s = warn_s
        self._warned_at = float("-inf")
        self._time = ClusterTime()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wall_ms(self) -> int:
        return self._time.now_ms(self._clock.monotonic(), self._clock.wall_ms())

    def left_ms(self, deadline_ms: int, since_ms: int) -> int:
        """See `ClusterTime.left_ms`."""
        return self._time.left_ms(deadline_ms, since_ms, self._clock.monotonic(), self._clock.wall_ms())

    @property
    def ahead_s(self) -> float:
        """This process's wall clock minus the cluster's; 0 without a stamp."""
        return (self._clock.wall_ms() - self.wall_ms()) / 1000

    async def run(self) -> None:
        """Follow the stamps, until the store is closed."""
        while True:
            try:
                if await self._follow():
                    return
            except TxnError as error:
                log.warning("clock_not_followed", error=str(error))
            await asyncio.sleep(_RETRY_S)

    async def _follow(self) -> bool:
        revision = await self.refresh()
        watch = self._store.watch(keys.CLOCK, keys.CLOCK + b"\0", from_revision=revision + 1)
        try:
            async for batch in watch:
                for event in batch.events:
                    if event.kind is EventKind.PUT:
                        self._learn(event.record, live=not batch.resync)
        finally:
            await watch.close()
        return True

    async def refresh(self) -> int:
        """Read the last stamp; returns the revision of the read. Raises `StoreUnavailable`."""
        revision, (record,) = await self._store.get_many([keys.CLOCK])
        if record is not None:
            self._learn(record, live=False)
        return revision

    def _learn(self, record: KeyValue, *, live: bool) -> None:
        try:
            stamp = decode(ClockStamp, record.value, key=record.key)
        except DataCorrupt as error:
            log.error("clock_unreadable", error=str(error))
            return
        self._time.learn(stamp, self._clock.monotonic(), self._clock.wall_ms(), live=live)
        self._warn()

    def _warn(self) -> None:
        now = self._clock.monotonic()
        if abs(self.ahead_s) > self._warn_s and now - self._warned_at >= WARN_AGAIN_S:
            self._warned_at = now
            log.warning("clock_differs_from_the_cluster", ahead_s=round(self.ahead_s, 1), clock_warn_s=self._warn_s)

    # ---- for the stamper --------------------------------------------------------------------------------------------

    async def lead(self) -> None:
        """Call it before the first stamp of a term. Raises `StoreUnavailable`."""
        await self.refresh()
        self._time.lead(self._clock.monotonic(), self._clock.wall_ms())

    def stamp(self) -> ClockStamp:
        self._warn()
        return self._time.stamp(self._clock.monotonic(), self._clock.wall_ms())

    def stamped(self) -> None:
        self._time.stamped(self._clock.monotonic(), self._clock.wall_ms())

    async def deposed(self) -> None:
        """Another coordinator stamps. Raises `StoreUnavailable`."""
        self._time.deposed()
        await self.refresh()
