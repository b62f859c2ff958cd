"""A child whose process cannot be started again is tried until it runs."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.waiting import until
from txnctl.launch import supervisor
from txnctl.launch.supervisor import ChildSpec, Supervisor

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


async def test_a_child_whose_log_file_cannot_be_opened_comes_back_once_it_can(tmp_path: Path) -> None:
    """▲ As on a full disk: nothing would say that one of the cluster's processes is missing for good."""
    folder, away = tmp_path / "logs", tmp_path / "away"
    with capture_logs() as told:
        spec = ChildSpec(name="sleeper", command=SLEEPER, log_path=folder / "log")
        async with Supervisor([spec]) as running:
            child = running.children["sleeper"]
            folder.rename(away)
            folder.write_text("in the way")
            child.signal(signal.SIGKILL)
            await until(lambda: sum(one["event"] == "child_not_started" for one in told) >= 2, "two failed starts")
            assert (child.pid, child.restarts) == (None, 1), "one death, however often it is tried"
            folder.unlink()
            away.rename(folder)
            await until(lambda: child.pid is not None, "its process")
            assert child.restarts == 1
            child.signal(signal.SIGKILL)  # it is kept as before
            await until(lambda: child.restarts == 2 and child.pid is not None, "its second restart")
    first = next(one for one in told if one["event"] == "child_not_started")
    assert first["child"] == "sleeper"
    assert str(folder) in first["error"]
    assert [one["again_in_s"] for one in told if one["event"] == "child_not_started"][:2] == [0.2, 0.4]
    died = [one for one in told if one["event"] == "child_died_restarting"]
    assert [(one["child"], one["exit_code"], one["restarts"]) for one in died] == [
        ("sleeper", -signal.SIGKILL, 1),
        ("sleeper", -signal.SIGKILL, 2),
    ]


@pytest.mark.parametrize(("steady_after_s", "pause_s"), [(3600.0, 0.4), (0.0, 0.2)], ids=["at once", "after long"])
async def test_a_child_that_dies_soon_after_its_return_is_started_later_than_one_that_ran_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steady_after_s: float, pause_s: float
) -> None:
    monkeypatch.setattr(supervisor, "STEADY_AFTER_S", steady_after_s)
    folder = tmp_path / "logs"
    with capture_logs() as told:
        async with Supervisor([ChildSpec(name="sleeper", command=SLEEPER, log_path=folder / "log")]) as running:
            child = running.children["sleeper"]
            child.signal(signal.SIGKILL)
            await until(lambda: child.restarts == 1 and child.pid is not None, "its restart")
            folder.rename(tmp_path / "away")
            folder.write_text("in the way")
            child.signal(signal.SIGKILL)
            await until(lambda: any(one["event"] == "child_not_started" for one in told), "a failed start")
    assert next(one["again_in_s"] for one in told if one["event"] == "child_not_started") == pause_s


async def test_a_child_that_cannot_be_started_again_is_stopped_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    with capture_logs() as told:
        spec = ChildSpec(name="sleeper", command=SLEEPER, log_path=folder / "log")
        async with asyncio.timeout(20.0), Supervisor([spec]) as running:
            folder.rename(tmp_path / "away")
            folder.write_text("in the way")
            running.children["sleeper"].signal(signal.SIGKILL)
            await until(lambda: any(one["event"] == "child_not_started" for one in told), "a failed start")
        tries = sum(one["event"] == "child_not_started" for one in told)
        folder.unlink()
        await asyncio.sleep(0)
    assert not folder.exists(), "nothing tries any more"
    assert sum(one["event"] == "child_not_started" for one in told) == tries
