"""Stamps the cluster's clock while this coordinator owns coordinator id 0. The purpose of stamps:
`txnstore.cluster_clock`."""

from __future__ import annotations

import asyncio

import structlog

from coordinator_v5.state import CoordinatorState
from coordinator_v5.transactions import OwnedTcid
from txnstore import keys, records
from txnstore.store import Commit, Put, created_at
from txnwire.errors import TxnError

log = structlog.get_logger()

STAMPS = 0
"""The coordinator id whose owner stamps."""


class Stamping:
    def __init__(self, state: CoordinatorState) -> None:
        self._state = state
        self._epoch = 0
        """The epoch of id 0 under which this process stamps."""
        self._due = float("-inf")

    async def run(self) -> None:
        while True:
            tc = self._state.tcids.get(STAMPS)
            if tc is None and self._epoch:
                await self._deposed()
            if tc is not None and (tc.epoch != self._epoch or self._state.clock.monotonic() >= self._due):
                try:
                    await self._stamp(tc)
                except TxnError as error:
                    log.warning("clock not stamped, trying again", error=str(error))
            await asyncio.sleep(self._state.settings.sweep_s)

    async def _stamp(self, tc: OwnedTcid) -> None:
        """▲ Compares the epoch of the id: of two coordinators that believe they own it, only one sets the clock."""
        state = self._state
        if tc.epoch != self._epoch:
            await state.cluster.lead()
            self._epoch = tc.epoch
        self._due = state.clock.monotonic() + state.settings.stamp_every_s
        put = Put(keys.CLOCK, records.encode(state.cluster.stamp()))
        result = await state.store.commit(Commit((created_at(keys.tc(STAMPS), tc.epoch),), (put,)))
        if result.succeeded:
            state.cluster.stamped()
        else:
            await self._deposed()

    async def _deposed(self) -> None:
        self._epoch = 0
        try:
            await self._state.cluster.deposed()
        except TxnError as error:
            log.info("clock not read, the next stamp tells it", error=str(error))
