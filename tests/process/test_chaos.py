"""A short run of `chaos`; the long ones are started by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.chaos import run

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


async def test_x4_real_processes_killed_and_paused_lose_double_and_tear_nothing(tmp_path: Path) -> None:
    verdict = await run(tmp_path, seed=1, seconds=20.0)
    assert verdict.findings == []
    assert verdict.operations["txn ok"] > 20
    assert verdict.faults["kill"]
    assert verdict.faults["pause"]
