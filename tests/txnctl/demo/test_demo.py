"""The main job as a command, small; and its judge on topics that somebody has written into since."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

import txnclient
from tests.processes import process_cluster
from tests.txnctl.command_line import txnctl
from txnctl.demo.flights import TALLIES, Tally
from txnctl.demo.journal import ABORTED, BEGUN, COMMITTED, read_lines
from txnctl.demo.verify import Findings

pytestmark = pytest.mark.process
FLIGHTS = 5000


async def judge(url: str, folder: Path) -> tuple[int | None, Findings]:
    words = (sys.executable, "-m", "txnctl.demo.verify", url, str(folder / "journals"), str(FLIGHTS))
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, msgspec.json.decode(out, type=Findings)


async def test_the_demo_ends_well_and_its_judge_would_have_seen_one_tally_too_many(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    demo = await txnctl("demo", "--flights", str(FLIGHTS), "--keep", str(kept))
    assert demo.code == 0, demo
    assert "exactly once, nothing torn" in demo.out
    assert demo.out.count("SIGKILL to") == 2
    assert "5,000 in " in demo.out
    told = [(line.txn_id, line.event) for line in read_lines(kept / "journals")]
    assert {txn for txn, event in told if event in (COMMITTED, ABORTED)} <= {
        txn for txn, event in told if event == BEGUN
    }
    refused = await txnctl("demo", "--flights", str(FLIGHTS), "--keep", str(kept))
    assert (refused.code, "new or empty" in refused.err) == (1, True)

    async with process_cluster(kept) as cluster:
        code, findings = await judge(cluster.url, kept)
        assert (code, findings.differences, findings.outcomes) == (0, [], FLIGHTS)
        async with txnclient.connect(cluster.url) as client, await client.producer(TALLIES) as producer:
            await producer.send(msgspec.json.encode(Tally("UA", 1, 7, 42)), key="UA")
        code, findings = await judge(cluster.url, kept)
    assert code == 1
    assert [difference for difference in findings.differences if "carrier UA: tallies add up to" in difference]
