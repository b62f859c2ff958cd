"""Makes the identity of a cluster in etcd, in the process that starts first, even if etcd is full."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from txnstore.access.store_client import StoreClient
from txnstore.maintenance import Maintenance
from txnwire.errors import StoreFull, TxnError
from txnwire.ports import Clock

PATIENCE_S: Final = 20.0
"""Less than a supervisor waits for a server to be ready."""
PAUSE_S: Final = 1.0
"""Pause between two attempts while etcd is full."""

log = structlog.get_logger(__name__)


async def found_cluster(store: StoreClient, clock: Clock, *, id: str, makes_room: bool) -> None:
    """▲ Runs before any other write: this identity reveals a restored backup (E8). An etcd that reached its quota
    before the cluster existed has no sweeper yet: a process that `makes_room` (coordinators do) defragments it and
    clears its alarm, the others wait. Raises `StoreFull` after `PATIENCE_S` without room, `StoreUnavailable`."""
    maintenance = Maintenance(store, clock, by=id)
    give_up_at = clock.monotonic() + PATIENCE_S
    while True:
        try:
            await store.identity()
            return
        except StoreFull as error:
            if clock.monotonic() >= give_up_at:
                raise
            log.warning("etcd is full, a new cluster waits for room in it", id=id, error=str(error))
        if makes_room:
            await _make_room(maintenance)
        await asyncio.sleep(PAUSE_S)


async def _make_room(maintenance: Maintenance) -> None:
    """A process that may not defragment waits for one that may."""
    try:
        await maintenance.mind_size()
    except TxnError as error:
        log.warning("no room made in etcd", error=str(error))
