"""State shared by the parts of one coordinator: its ports, its settings, its TCIDs, its sessions and counters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from coordinator_v5.sessions import Sessions
from coordinator_v5.settings import CoordinatorSettings
from coordinator_v5.statistics import Counters
from coordinator_v5.transactions import OwnedTcid, OwnedTransaction
from txnstore.cluster_clock import ClusterClock
from txnstore.store import Commit, CommitVerdict, MetadataStore
from txnwire.errors import DataCorrupt, InvalidArgument, TxnError
from txnwire.ids import TxnId
from txnwire.ports import Clock, Random

UNREADABLE: Final = (DataCorrupt, InvalidArgument)
"""Errors of a record or key that we did not write."""


class CoordinatorState:
    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        random: Random,
        settings: CoordinatorSettings,
        cluster: ClusterClock | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.cluster = cluster or ClusterClock(store, clock)
        """Its wall clock is the cluster's; used for every time that another process may judge."""
        self.random = random
        self.settings = settings
        self.tcids: dict[int, OwnedTcid] = {}
        self.sessions = Sessions(settings.client_grace_s)
        self.counters = Counters()
        self._awake_s = 0.0
        self._swept_at: float | None = None

    @property
    def awake_s(self) -> float:
        """The sessions' clock, in seconds: it runs only while the sweeper does, so not while this process sleeps."""
        return self._awake_s + self._since_sweep_s(self.clock.monotonic())

    def swept(self, now: float) -> None:
        """The sweeper runs: advance the clock by the time since its last round, but hardly more than one cadence."""
        self._awake_s += self._since_sweep_s(now)
        self._swept_at = now

    def _since_sweep_s(self, now: float) -> float:
        return 0.0 if self._swept_at is None else min(now - self._swept_at, 2 * self.settings.sweep_s)

    def find(self, txn_id: TxnId) -> OwnedTransaction | None:
        """An undecided transaction of a TCID owned here."""
        tc = self.tcids.get(txn_id.tcid)
        return None if tc is None else tc.find(txn_id.counter)

    def drop(self, tc: OwnedTcid) -> None:
        """The TCID is lost. This decides nothing: a successor finds everything in the store."""
        if tc.lost:
            return
        tc.lost = True
        if self.tcids.get(tc.tcid) is tc:
            del self.tcids[tc.tcid]
        for txn in tc.undecided():
            self.sessions.dropped(txn)

    def submit(self, commit: Commit, done: Callable[[asyncio.Future[CommitVerdict]], None]) -> None:
        """Commit without a task; calls `done` with the finished future, always from the event loop, never from here."""
        try:
            future = self.store.commit_nowait(commit)
        except TxnError as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
        future.add_done_callback(done)
