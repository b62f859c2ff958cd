"""When each segment of a broker is looked after."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from segments.layout.directory import Directory
from segments.log.housekeeping import Housekeeper
from segments.log.ledgers.retention import Retention
from segments.log.settings import BrokerSettings
from tests.segments.virtual_time import virtual_time
from txnwire.errors import DataCorrupt, InternalError, OutcomeUnknown, StoreUnavailable, TxnError

BUSY, QUIET = "public/nyc/flights/0000-7fff-0", "public/nyc/flights/8000-ffff-1"


class NoTopics:
    def topics(self) -> Mapping[str, Any]:
        return {}


class Kept:
    def __init__(self, path: str) -> None:
        self.path = path
        self.rounds = 0
        self.fails = 0
        self.error: Exception = StoreUnavailable("etcd is away")
        self.given_up: list[TxnError] = []

    async def keep(self, retention: Retention) -> None:
        self.rounds += 1
        if self.fails:
            self.fails -= 1
            raise self.error

    def lost(self, error: TxnError) -> None:
        self.given_up.append(error)


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
    assert not segments[QUIET].given_up
    await housekeeper.close(timeout_s=1.0)


@pytest.mark.parametrize(
    ("error", "given_up"),
    [
        (StoreUnavailable("etcd is away"), []),
        (OutcomeUnknown("the list may have been rewritten"), [OutcomeUnknown]),
        (DataCorrupt("the sidecar is missing"), [DataCorrupt]),
        (ZeroDivisionError("a defect"), [InternalError]),
    ],
    ids=["store", "outcome", "damage", "defect"],
)
@virtual_time
async def test_a_round_that_fails_costs_no_other_segment_its_own(
    error: Exception, given_up: list[type[TxnError]]
) -> None:
    """▲ And after a rewrite that may have landed, or a defect, it is the next owner that goes on."""
    segments = {path: Kept(path) for path in (BUSY, QUIET)}
    segments[BUSY].fails, segments[BUSY].error = 1, error
    housekeeper = Housekeeper(cast(Directory, NoTopics()), BrokerSettings(housekeeping_s=30.0), lambda: segments)
    housekeeper.start()
    await asyncio.sleep(31.0)
    assert [one.rounds for one in segments.values()] == [1, 1]
    assert [type(one) for one in segments[BUSY].given_up] == given_up
    assert not segments[QUIET].given_up
    await housekeeper.close(timeout_s=1.0)
