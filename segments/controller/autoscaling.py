"""Autoscale at the elected controller: reads the load of topics, and requests the due splits and merges (PIP-483).
`segments.layout.autoscale` decides which are due; `segments.controller.layout_changes` drives them.

No state survives a term: a successor treats every layout as new, so its predecessor's changes get their cooldown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from segments.layout.autoscale import Merge, SegmentLoad, Split, Watched, decide, observe, parse_thresholds
from segments.layout.directory import Directory
from segments.layout.topology import Topology
from txnstore import keys, records
from txnstore.access.paging import in_pages
from txnstore.records import LoadSample
from txnstore.store import MetadataStore
from txnwire.errors import DataCorrupt, InvalidArgument, TxnError
from txnwire.names import SegmentName
from txnwire.ports import Clock
from txnwire.tasks import errand, restarted

log = structlog.get_logger(__name__)

AT_ONCE: Final = 8
"""Most changes under way at once, one per topic; the others follow in a later round."""
SAMPLES_AT_ONCE: Final = 1000


class Changer(Protocol):
    """Splits and merges segments, as `segments.controller.layout_changes.LayoutChanges` does."""

    async def split(self, segment: SegmentName, at: int | None) -> object: ...
    async def merge(self, segment_a: SegmentName, segment_b: SegmentName) -> object: ...


@dataclass(frozen=True, slots=True)
class AutoscaleStatistics:
    """Counts of this term: changes requested, and the failed ones among them."""

    splits: int = 0
    merges: int = 0
    failed: int = 0


class Autoscaling:
    """Requests the due splits and merges of one term. `every_s`: seconds between rounds; 0: never."""

    def __init__(
        self, store: MetadataStore, directory: Directory, clock: Clock, changes: Changer, *, every_s: float
    ) -> None:
        self._store = store
        self._directory = directory
        self._clock = clock
        self._changes = changes
        self._every_s = every_s
        self._watched: dict[str, Watched] = {}
        self._acting: dict[str, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._splits = self._merges = self._failed = 0

    def start(self) -> None:
        if self._every_s > 0:
            self._task = restarted(self._run, name="autoscale")

    async def close(self) -> None:
        """The term is over. `LayoutChanges` continues the changes that were begun."""
        tasks = [*self._acting.values(), *([self._task] if self._task is not None else [])]
        self._task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def acting(self) -> int:
        """Changes under way."""
        return len(self._acting)

    def statistics(self) -> AutoscaleStatistics:
        return AutoscaleStatistics(self._splits, self._merges, self._failed)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.look()
            except TxnError as error:
                log.info("autoscale_waits", error=str(error))

    async def look(self) -> None:
        """Check every topic once. Raises `StoreUnavailable`."""
        samples = await self._samples()
        watched, self._watched = self._watched, {}
        for path, topology in self._directory.topics().items():
            try:
                thresholds = parse_thresholds(topology.policies.get("autoscale"))
            except InvalidArgument as error:  # written by an older or newer version
                log.warning("autoscale_policy_unreadable", topic=path, error=str(error))
                continue
            if thresholds is None or path in self._acting:
                continue
            loads = {
                entry.id: load
                for entry in topology.active
                if (load := samples.get(topology.paths[entry.id])) is not None
            }
            now_s = self._clock.monotonic()
            self._watched[path] = observe(watched.get(path), topology, loads, thresholds, now_s)
            decision = decide(self._watched[path], topology, loads, thresholds, now_s)
            if decision is not None and len(self._acting) < AT_ONCE:
                self._act(path, topology, decision)

    async def _samples(self) -> Mapping[str, SegmentLoad]:
        """Segment path → its load sample, if it has one."""
        found: dict[str, SegmentLoad] = {}
        end = keys.prefix_end(keys.LOAD)
        async for page in in_pages(self._store, keys.LOAD, end, at_once=SAMPLES_AT_ONCE):
            for record in page:
                try:
                    sample = records.decode(LoadSample, record.value, key=record.key)
                except DataCorrupt as error:
                    log.error("record_unreadable", error=str(error))
                    continue
                path = record.key[len(keys.LOAD) :].decode()
                found[path] = SegmentLoad(sample.messages_in_per_s, sample.bytes_in_per_s)
            await asyncio.sleep(0)
        return found

    def _act(self, path: str, topology: Topology, decision: Split | Merge) -> None:
        task = errand(self._change(topology, decision), name="autoscaled change", of=path)
        self._acting[path] = task
        task.add_done_callback(lambda _: self._acting.pop(path, None))

    async def _change(self, topology: Topology, decision: Split | Merge) -> None:
        topic = str(topology.topic)
        try:
            if isinstance(decision, Split):
                segment = SegmentName.from_path(topology.paths[decision.segment])
                log.info("autoscale_split", topic=topic, segment=segment.descriptor, why=decision.reason)
                self._splits += 1
                await self._changes.split(segment, None)
            else:
                pair = [SegmentName.from_path(topology.paths[one]) for one in (decision.lower, decision.upper)]
                log.info("autoscale_merge", topic=topic, segments=[one.descriptor for one in pair], why=decision.reason)
                self._merges += 1
                await self._changes.merge(*pair)
        except TxnError as error:
            # The layout changed meanwhile, or a parent cannot be sealed: the next round decides again.
            self._failed += 1
            log.info("autoscale_failed", topic=topic, error=str(error))
