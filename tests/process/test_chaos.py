"""A short run of chaos; the long ones are `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.chaos.faults import KINDS
from tests.process.chaos.run import Settings, run

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


async def test_x4_real_processes_killed_paused_and_cut_off_lose_double_and_tear_nothing(tmp_path: Path) -> None:
    settings = Settings(seed=1, seconds=20.0, pace_s=2.0, kinds=tuple(KINDS))
    verdict = await run(tmp_path, settings)
    assert verdict.findings == []
    assert verdict.operations["txn ok"] > 20
    assert verdict.reached["acks of a queue"] > 5
    assert verdict.reached["transactions on them"] > 5
    assert verdict.reached["holders of a key that committed"] > 1
    assert verdict.faults.total() == len(settings.faults()) > 5
