"""Nothing that a run made outlives it, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.containers.engine import ROOT, why_not
from tests.containers.reaper import KINDS, LABEL
from tests.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
GONE_WITHIN_S = 60.0
PROGRAM = """
import time
from tests.containers.engine import IMAGE, running_engine
with running_engine() as engine:
    engine.volume("kept", {})
    engine.create("left", IMAGE, ["--help"]).start()
    print(engine.run, flush=True)
    time.sleep(600)
"""


def left(run: str) -> list[str]:
    found = []
    for listing, _ in KINDS.values():
        words = ["docker", *listing, "--filter", f"label={LABEL}={run}"]
        found += subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "SIGKILL"])
def test_whatever_ends_a_run_removes_what_it_made(number: signal.Signals) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-P", "-c", PROGRAM]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True) as process:
        assert process.stdout is not None
        run = process.stdout.readline().strip()
        assert len(left(run)) == 3
        os.killpg(process.pid, number)
        process.wait(timeout=GONE_WITHIN_S)
    wait_until(lambda: not left(run), "all containers to go", within_s=GONE_WITHIN_S)
    assert left(run) == []
