"""The elected sweeper: it compacts and defragments etcd and lets names expire, in one process (DESIGN §4, §9)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from coordinator_v5.naming.name_expiry import NameExpiry
from coordinator_v5.settings import NameSettings
from txnctl.metrics.statistics import Census, NamesOfNamespace, SweeperStatistics
from txnstore import keys
from txnstore.access.store_client import StoreClient
from txnstore.election import Election, Leadership
from txnstore.maintenance import Maintenance
from txnstore.records import NameCounts
from txnwire.errors import TxnError
from txnwire.ports import Clock, Random
from txnwire.tasks import errand, restarted

log = structlog.get_logger(__name__)

SWEEPER = "sweeper"

CENSUS_EVERY_S = 10.0
"""Etcd counted 200 000 keys in 30 to 200 ms, on a machine busy with other things."""

RELIEF_EVERY_S = (5.0, 10.0)
"""Time between a candidate's checks whether etcd is full and no sweeper is elected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweeperSettings:
    names_first_s: float = 60.0
    """Delay into a term, and after a failure: terms may be shorter than the time between two rounds."""
    names_every_s: float = 600.0
    """Time between two rounds over all names. 200 000 took 37 s on a busy machine, 1.6 s of CPU of this process."""


class Maintainer:
    """Takes part in the election from `start` to `close` in the background, and maintains the store while elected."""

    def __init__(
        self,
        store: StoreClient,
        clock: Clock,
        random: Random,
        settings: SweeperSettings | None = None,
        *,
        names: NameSettings | None = None,
        id: str,
        address: str,
        lease_ttl_s: float,
        cluster_clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._cluster_clock = cluster_clock or clock
        self._random = random
        self._settings = settings or SweeperSettings()
        self._names = names or NameSettings()
        self._id = id
        self._election = Election(store, random, what=SWEEPER, id=id, address=address, lease_ttl_s=lease_ttl_s)
        self._task: asyncio.Task[None] | None = None
        self._elected = False
        self._census: Census | None = None
        self._expiry: NameExpiry | None = None

    def statistics(self) -> SweeperStatistics:
        counts = None if self._expiry is None else self._expiry.counts
        return SweeperStatistics(elected=self._elected, census=self._census, names=_told(counts, self._names))

    def start(self) -> None:
        self._task = restarted(self._run, name="sweeper")

    async def close(self) -> None:
        """Resign. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            leadership = await self._campaign()
            try:
                await self._serve(leadership)
            finally:
                await leadership.resign()

    async def _campaign(self) -> Leadership:
        relief = restarted(self._relieve, name="relief of a full store")
        try:
            return await self._election.campaign()
        finally:
            relief.cancel()
            await asyncio.gather(relief, return_exceptions=True)

    async def _relieve(self) -> None:
        """▲ An etcd at its quota grants no lease and takes no put, so it cannot elect a sweeper to make room in it.
        Meanwhile every candidate does the elected one's work, which is safe to do twice."""
        maintenance = Maintenance(self._store, self._clock, by=self._id)
        while True:
            await asyncio.sleep(self._random.uniform(*RELIEF_EVERY_S))
            try:
                if (await self._store.status()).no_space and await self._store.get(keys.leader(SWEEPER)) is None:
                    log.warning("etcd is full and there is no elected sweeper to make room in it", id=self._id)
                    await maintenance.step()
            except TxnError as error:
                log.warning("relief_failed", error=str(error))

    async def _serve(self, leadership: Leadership) -> None:
        log.info("sweeper_elected", id=self._id)
        maintenance = Maintenance(self._store, self._clock, by=self._id, guard=leadership.still_held())
        self._expiry = names = NameExpiry(
            self._store,
            self._cluster_clock,
            guard=leadership.still_held(),
            first_s=self._settings.names_first_s,
            every_s=self._settings.names_every_s,
            settings=self._names,
        )
        term = errand(maintenance.run(), name="maintenance")
        expiry = restarted(names.run, name="expiry of names")
        census = restarted(self._count, name="census")
        lost = errand(leadership.wait_lost(), name="sweeper leadership")
        self._elected = True
        try:
            # Maintenance ends without error if another process has its key; a defect ends the term and is reported.
            await asyncio.wait([term, lost], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._elected, self._census, self._expiry = False, None, None
            for task in (term, lost, expiry, census):
                task.cancel()
            await asyncio.gather(term, lost, expiry, census, return_exceptions=True)
            log.info("sweeper_deposed", id=self._id)

    async def _count(self) -> None:
        while True:
            try:
                status = await self._store.status()
                self._census = Census(
                    op_records=await self._store.count(keys.TXN_OP, keys.prefix_end(keys.TXN_OP)),
                    headers=await self._store.count(keys.TXN, keys.prefix_end(keys.TXN)),
                    file_bytes=status.db_bytes,
                    in_use_bytes=status.db_bytes_in_use,
                    quota_bytes=status.quota_bytes or self._store.quota_bytes,
                )
            except TxnError as error:
                log.warning("census_failed", error=str(error))
            await asyncio.sleep(CENSUS_EVERY_S)


def _told(counts: NameCounts | None, settings: NameSettings) -> tuple[NamesOfNamespace, ...]:
    if counts is None:
        return ()
    return tuple(
        NamesOfNamespace(namespace, count, settings.bound(namespace)) for namespace, count in counts.namespaces.items()
    )
