"""When each segment of a broker is looked after."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from segments.layout.directory import Directory
from segments.log.housekeeping import Housekeeper
from segments.log.ledgers.retention import Retention
from segments.log.settings import BrokerSettings
from tests.segments.virtual_time import virtual_time
from txnwire.errors import StoreUnavailable, TxnError

BUSY, QUIET = "public/nyc/flights/0000-7fff-0", "public/nyc/flights/8000-ffff-1"


class NoTopics:
    def topics(self) -> Mapping[str, Any]:
        return {}


class Kept:
    def __init__(self, path: str) -> None:
        self.path = path
        self.rounds = 0
        self.fails = 0

    async def keep(self, retention: Retention) -> None:
        self.rounds += 1
        if self.fails:
            self.fails -= 1
            raise StoreUnavailable("etcd is away")

    def lost(self, error: TxnError) -> None:
        raise AssertionError(error)


@virtual_time
async def test_quiet_segments_and_rounds_that_failed_have_their_turn_however_often_a_busy_one_closes_ledgers() -> None:
    """▲ Or one topic with much to store would keep all others of its broker past their retention, until the disk is
    full."""
    segments = {path: Kept(path) for path in (BUSY, QUIET)}
    segments[QUIET].fails = 1
    settings = BrokerSettings(housekeeping_s=30.0)
    housekeeper = Housekeeper(cast(Directory, NoTopics()), settings, lambda: segments)
    housekeeper.start()
    for _ in range(100):
        await asyncio.sleep(1.0)
        housekeeper.wake(BUSY)
    assert segments[BUSY].rounds >= 100
    assert segments[QUIET].rounds == 3, "one in 30 s"
    await housekeeper.close(timeout_s=1.0)
