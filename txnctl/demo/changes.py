"""Changes the cluster while the demo's job runs: splits a segment, merges two, kills a broker and brings it back.

Each change reports how long it took, and how long it delayed the producers.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import txnclient
from txnctl.commands.shared.asking import Asking
from txnctl.demo.flights import FLIGHTS
from txnctl.demo.waits import Waits
from txnctl.launch.dev import DevCluster

SPLIT, TAKE_OVER, MERGE = "split", "take-over", "merge"
BROKER = "broker-2"
LEASE_TTL_S = 5
"""Half the default, so that the demo ends within a minute: a dead broker's segments wait at most this long."""
POLL_S = 0.1

Say = Callable[[str], None]
Rows = Mapping[str, Mapping[str, Any]]


@dataclass
class JobProgress:
    """Progress of the job. `moved` is set whenever a count has grown; the waiter clears it."""

    total: int
    loaded: int = 0
    done: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def reached(self, share: float, count: Callable[[], int]) -> None:
        while count() < share * self.total:
            self.moved.clear()
            await self.moved.wait()


@dataclass(frozen=True)
class Pause:
    """`longest_s`: the slowest batch of a loader under way meanwhile, None if there was none."""

    what: str
    took_s: float
    longest_s: float | None


class Changes:
    """`pauses`: how long each change delayed the producers, in order."""

    def __init__(self, client: txnclient.Client, cluster: DevCluster, admin: Asking, waits: Waits, say: Say) -> None:
        self._client = client
        self._cluster = cluster
        self._admin = admin
        self._waits = waits
        self._say = say
        self.pauses: list[Pause] = []

    async def split(self, parent: txnclient.SegmentInfo, about: str = "") -> txnclient.SegmentInfo:
        """Returns the upper child."""
        began = time.monotonic()
        layout = await self._client.split(parent.name)
        _, upper = (layout.segments[child] for child in layout.segments[parent.segment_id].children)
        await self._tell(SPLIT, f"of flights {_short(parent)}{about}", began)
        return upper

    async def merge(self, upper: txnclient.SegmentInfo) -> None:
        """Merges the segment with its neighbour, which has parents of its own; with the other child, if the topic began
        as one segment."""
        active = (await self._client.describe_topic(FLIGHTS)).active
        at = next(number for number, one in enumerate(active) if one.segment_id == upper.segment_id)
        pair = active[at : at + 2] if at + 1 < len(active) else active[at - 1 : at + 1]
        began = time.monotonic()
        await self._client.merge(pair[0].name, pair[1].name)
        await self._tell(MERGE, f"of flights {_short(pair[0])} and {_short(pair[1])}", began)

    async def kill_broker(self) -> None:
        """The broker stays dead until the other one has taken over its segments."""
        broker = self._cluster.children[BROKER]
        before = await self._brokers()
        total = sum(row["segments"] for row in before.values())
        owned = f"{before[BROKER]['segments']} of the {total} segments"
        self._say(f"SIGKILL to {BROKER}, which owns {owned}; for now it stays dead")
        began = time.monotonic()
        await broker.stop(signal.SIGKILL)
        await self._until(lambda rows: _others_serve_all(rows, total))
        await self._tell(TAKE_OVER, f"by broker-1, after a lease of {LEASE_TTL_S} s", began)

    @asynccontextmanager
    async def bringing_broker_back(self) -> AsyncIterator[None]:
        """Starts the broker again and continues meanwhile: it gets its share step by step."""
        back = asyncio.create_task(self._bring_back(), name="bring the broker back")
        try:
            yield
            if back.done():
                back.result()
            else:
                row = (await self._brokers()).get(BROKER)
                self._say(f"{BROKER} has {row['segments'] if row else 0} segments by now, and is to get more")
        finally:
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)

    async def kill_broker_and_merge(
        self, progress: JobProgress, upper: txnclient.SegmentInfo, *, kill_at: float, merge_at: float
    ) -> None:
        """The second half of every demo: a broker dies, comes back, and meanwhile the segment `upper` is merged, at
        these shares of the flights loaded. Returns once all flights are done."""
        await progress.reached(kill_at, lambda: progress.loaded)
        await self.kill_broker()
        async with self.bringing_broker_back():
            await progress.reached(merge_at, lambda: progress.loaded)
            await self.merge(upper)
            await progress.reached(1.0, lambda: progress.done)

    async def _bring_back(self) -> None:
        began = time.monotonic()
        self._say(f"{BROKER} is started again")
        await self._cluster.children[BROKER].start()
        rows = await self._until(_has_share)
        took = f"{time.monotonic() - began:.1f} s after its start"
        self._say(f"{BROKER} has its share again, {rows[BROKER]['segments']} segments, {took}")

    async def _tell(self, what: str, about: str, began: float) -> None:
        ended = time.monotonic()
        longest_s = await self._waits.longest_s(began, ended)
        self.pauses.append(Pause(what, ended - began, longest_s))
        waited = "no producer was at work" if longest_s is None else f"producers waited {longest_s:.2f} s at most"
        self._say(f"{what} {about}: {ended - began:.2f} s; {waited}")

    async def _brokers(self) -> Rows:
        return {row["broker"]: row for row in (await self._admin.ask("brokers.list"))["brokers"]}

    async def _until(self, so: Callable[[Rows], bool]) -> Rows:
        """Polls until it is so; the caller has a timeout over everything."""
        rows = await self._brokers()
        while not so(rows):
            await asyncio.sleep(POLL_S)
            rows = await self._brokers()
        return rows


def _others_serve_all(rows: Rows, total: int) -> bool:
    others = [row for name, row in rows.items() if name != BROKER]
    return sum(row["segments"] for row in others) >= total and not any(row.get("taking") for row in others)


def _has_share(rows: Rows) -> bool:
    """Active segments are even to within one, and so are sealed ones; `brokers list` shows their sum."""
    counts = [row["segments"] for row in rows.values()]
    return BROKER in rows and max(counts) - min(counts) <= 2


def _short(segment: txnclient.SegmentInfo) -> str:
    return segment.path.rpartition("/")[2]
