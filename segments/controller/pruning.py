"""Prunes empty sealed segments at the elected controller, so that a topic's record stays bounded after many layout
changes (DESIGN §8; scenario S9).

    owner: nothing is left ─► mark in `/topic` ─► its owners erase it, under an epoch of their own ─► out of the graph
        ─► its drained records, once this process has followed that

It prunes from the roots of the graph: a reader that reads parents before children always sees a complete graph.
`segments.layout.layout_transitions` has the steps; `segments.log.erasing` erases a segment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from enum import Enum
from typing import Final, Protocol

import structlog

from segments.layout.directory import Directory
from segments.layout.layout_transitions import (
    DRAINED_AT_ONCE,
    find_candidates,
    find_pruned,
    plan_forget_drained,
    plan_prune,
    plan_pruned,
    read_topology,
)
from segments.layout.topology import Topology
from txnstore import keys
from txnstore.access.paging import in_pages
from txnstore.election import Leadership
from txnstore.records import LedgerRecord, decode
from txnstore.store import Commit, KeyValue, MetadataStore
from txnstore.writes.deletion_transitions import read_step
from txnwire.errors import NotOwner, TxnError
from txnwire.tasks import restarted

log = structlog.get_logger(__name__)

DRAINED_READ_AT_ONCE: Final = 1000
SEGMENTS_AT_ONCE: Final = 16
"""Owners asked at the same time."""
FIRST_PAUSE_S: Final = 0.02
"""Pause while others erase or follow; longer each time."""
PATIENCE_S: Final = 10.0
"""Time for one topic in a round; the next round goes on."""


class _Step(Enum):
    MADE = "look again at once"
    WAIT = "others have to do something first"
    NOTHING = "there is nothing to do"


class PruneCalls(Protocol):
    """The controller's call to a sealed segment's owner."""

    async def forgotten(self, segment: str) -> bool:
        """Whether the segment holds nothing more. Raises `NotOwner` if no broker owns it."""


class Pruning:
    """Prunes in one term: one task checks every topic every `pause_s` seconds. `pruned`: segments since the start."""

    def __init__(
        self,
        store: MetadataStore,
        directory: Directory,
        owners: PruneCalls,
        *,
        leadership: Leadership,
        pause_s: float,
        on_deposed: Callable[[], None],
    ) -> None:
        self._store = store
        self._directory = directory
        self._owners = owners
        self._leadership = leadership
        self._pause_s = pause_s
        self._on_deposed = on_deposed
        self._task: asyncio.Task[None] | None = None
        self.pruned = 0

    def start(self) -> None:
        self._task = restarted(self._run, name="pruning")

    async def close(self) -> None:
        """The term is over: the next one continues."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s)
            await self.round()

    async def round(self) -> None:
        """Check every topic once. The next round continues with the rest."""
        for path, topology in list(self._directory.topics().items()):
            if not topology.deleting and (find_candidates(topology) or topology.record.pruning):
                try:
                    await self._prune(path)
                except TxnError as error:
                    log.info("pruning_waits", topic=path, error=str(error))

    async def _prune(self, path: str) -> None:
        """Prune one topic as far as possible now. Raises the error that stops it."""
        pause_s, waited_s = FIRST_PAUSE_S, 0.0
        while waited_s < PATIENCE_S:
            record = await self._store.get(keys.topic(path))
            if record is None or (topology := read_topology(record)).deleting:
                return
            step = await self._step_of(path, record, topology)
            if step is _Step.NOTHING:
                return
            if step is _Step.WAIT:
                await asyncio.sleep(pause_s)
                waited_s += pause_s
                pause_s *= 1.5

    async def _step_of(self, path: str, record: KeyValue, topology: Topology) -> _Step:
        pruned = find_pruned(topology)
        if len(pruned) < len(topology.record.pruning):
            return await self._take_out(record, topology)
        if pruned:
            return await self._forget_drained(path, record, pruned)
        forgotten = await self._find_forgotten(topology)
        if not forgotten:
            return _Step.NOTHING
        never_used = await self._find_never_used(topology, forgotten)
        held = self._leadership.still_held()
        await self._step(plan_prune(record, forgotten, still_held=held, never_used=never_used))
        return _Step.MADE

    async def _find_never_used(self, topology: Topology, forgotten: list[int]) -> list[int]:
        """The segments of `forgotten` that never trimmed an entry: they never held one."""
        _, found = await self._store.get_many([keys.ledger(topology.paths[one]) for one in forgotten])
        return [
            one
            for one, record in zip(forgotten, found, strict=True)
            if record is not None and decode(LedgerRecord, record.value, key=record.key).trimmed_through is None
        ]

    async def _find_forgotten(self, topology: Topology) -> list[int]:
        """Ask the owners of the roots, then those of the children of each segment that may go, and so on."""
        forgotten: list[int] = []
        asked: dict[int, None] = {}
        while found := [one for one in find_candidates(topology, forgotten) if one not in asked][:SEGMENTS_AT_ONCE]:
            asked.update(dict.fromkeys(found))
            answers = await asyncio.gather(*(self._ask(topology.paths[one]) for one in found))
            forgotten += [one for one, is_forgotten in zip(found, answers, strict=True) if is_forgotten]
        return forgotten

    async def _ask(self, path: str) -> bool:
        if self._directory.owner(path) is None:
            return False
        try:
            return await self._owners.forgotten(path)
        except TxnError as error:
            log.info("pruning_waits", segment=path, error=str(error))
            return False

    async def _take_out(self, record: KeyValue, topology: Topology) -> _Step:
        """Take the first marked root that is erased out of the graph."""
        for segment_id in topology.record.pruning:
            entry = topology.segments.get(segment_id)
            if entry is None or entry.parents or self._directory.owner(topology.paths[segment_id]) is not None:
                continue
            if await self._step(plan_pruned(record, segment_id, still_held=self._leadership.still_held())):
                self.pruned += 1
                log.info("segment_pruned", segment=topology.paths[segment_id])
                return _Step.MADE
        return _Step.WAIT

    async def _forget_drained(self, path: str, record: KeyValue, pruned: list[int]) -> _Step:
        """▲ Only once this process, which assigns segments, has followed the new graph: see `plan_forget_drained`."""
        followed = self._directory.topics().get(path)
        if followed is None or any(one in followed.segments for one in pruned):
            return _Step.WAIT
        prefix = keys.DRAINED + f"{path}/".encode()
        going, drained = {str(one).encode() for one in pruned}, list[bytes]()
        pages = in_pages(self._store, prefix, keys.prefix_end(prefix), at_once=DRAINED_READ_AT_ONCE, keys_only=True)
        async with aclosing(pages):
            async for page in pages:
                drained += [one.key for one in page if one.key.rpartition(b"/")[2] in going]
                if len(drained) > DRAINED_AT_ONCE:
                    break
                await asyncio.sleep(0)
        done = pruned if len(drained) <= DRAINED_AT_ONCE else []
        held = self._leadership.still_held()
        await self._step(plan_forget_drained(record, done, drained[:DRAINED_AT_ONCE], still_held=held))
        return _Step.MADE

    async def _step(self, commit: Commit) -> bool:
        try:
            return read_step(commit, await self._store.commit(commit))
        except NotOwner:
            self._on_deposed()
            raise
