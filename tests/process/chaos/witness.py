"""Shows the judges of layouts and of transaction keys every change of a real etcd, revision by revision."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import groupby

from simulation.judges.key_judge import KeyJudge
from simulation.workloads.layout_work import LayoutJudge
from tests.process.chaos.moments import Moments
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.store import Event
from txnwire.clock import SystemClock, SystemRandom

EVERYTHING = (b"/", b"0")
CAUGHT_UP_WITHIN_S = 60.0


class Witness:
    """Use as an async context manager, from before anything is written. `findings`: what was wrong at some revision."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._endpoints = tuple(endpoints)
        self.layouts = LayoutJudge()
        self.keys = KeyJudge()
        self.moments = Moments()
        self.revision = 0
        """Everything up to it has been judged."""
        self._missed: list[str] = []
        self._moved = asyncio.Event()

    @property
    def findings(self) -> list[str]:
        return [
            *self._missed,
            *(f"layout: {text}" for text in self.layouts.findings),
            *(f"transaction key: {text}" for text in self.keys.findings),
        ]

    async def __aenter__(self) -> Witness:
        settings = EtcdSettings(endpoints=self._endpoints, development=True)
        self.store = await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())
        self._task = asyncio.create_task(self._follow(), name="witness")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self.store.close()

    async def _follow(self) -> None:
        watch = self.store.watch(*EVERYTHING, from_revision=1)
        async for batch in watch:
            if batch.resync:
                self._missed.append(f"the judges have missed what was compacted before revision {batch.revision}")
            for _, events in groupby(batch.events, key=lambda event: event.record.mod_revision):
                self._show(tuple(events))
            self.revision = batch.revision
            self._moved.set()

    def _show(self, events: tuple[Event, ...]) -> None:
        self.moments.saw(events)
        self.layouts.saw(time.monotonic(), events)
        self.keys.saw(events)

    async def catch_up(self) -> None:
        """Until it has seen what is there now. Raises whatever a judge could not make sense of."""
        wanted = (await self.store.range(*EVERYTHING, limit=1)).revision
        async with asyncio.timeout(CAUGHT_UP_WITHIN_S):
            while self.revision < wanted and not self._task.done():
                self._moved.clear()
                moved = asyncio.ensure_future(self._moved.wait())
                await asyncio.wait({moved, self._task}, return_when=asyncio.FIRST_COMPLETED)
                moved.cancel()
        if self._task.done():
            self._task.result()
