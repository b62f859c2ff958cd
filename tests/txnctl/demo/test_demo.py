"""The main job as a command, small; and its judge on topics that somebody has written into since."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from pathlib import Path

import msgspec
import pytest

import txnclient
from tests.processes import process_cluster
from tests.txnctl.command_line import TIMEOUT_S, done, txnctl
from txnctl.demo.flights import TALLIES, Tally
from txnctl.demo.journal import ABORTED, BEGUN, COMMITTED, read_lines
from txnctl.demo.verify import DemoFindings

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
FLIGHTS = 5000


async def judge(url: str, folder: Path) -> tuple[int | None, DemoFindings]:
    words = (sys.executable, "-m", "txnctl.demo.verify", url, str(folder / "journals"), str(FLIGHTS))
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    return process.returncode, msgspec.json.decode(out, type=DemoFindings)


def to_try(out: str, kept: Path) -> list[list[str]]:
    """What the demo says to try next, behind the `dev` that it begins with: the words of each after `txnctl`."""
    shown = out.partition("Try next")[2].splitlines()[1:]
    words = [shlex.split(line, comments=True) for line in shown]
    assert all(line[:3] == words[0][:3] for line in words), shown
    assert words[0][3:] == ["dev", "--data-dir", str(kept), "--brokers", "2"]
    return [line[3:] for line in words[1:]]


async def test_the_demo_ends_well_and_its_judge_would_have_seen_one_tally_too_many(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    demo = await txnctl("demo", "--flights", str(FLIGHTS), "--keep", str(kept))
    assert demo.code == 0, demo
    assert "verdict: exactly once, nothing torn, in order" in demo.out
    assert demo.out.count("SIGKILL to") == 2
    assert "5,000 of 5,000 flights" in demo.out
    for what in ("split", "take-over", "merge"):
        assert re.search(rf" s  {what} .* s; producers waited [0-9.]+ s at most", demo.out), demo.out
        assert re.search(rf"… through the {what} +[0-9,]+ ms", demo.out), demo.out
    assert ("4 active, 3 sealed" in demo.out, "1 cut off by a kill" in demo.out) == (True, True)
    told = [(line.txn_id, line.event) for line in read_lines(kept / "journals")]
    assert {txn for txn, event in told if event in (COMMITTED, ABORTED)} <= {
        txn for txn, event in told if event == BEGUN
    }
    refused = await txnctl("demo", "--flights", str(FLIGHTS), "--keep", str(kept))
    assert (refused.code, "new or empty" in refused.err) == (1, True)

    async with process_cluster(kept, brokers=2) as cluster:
        shown = [[*words, *["--etcd", cluster.etcd_url] * (words[0] == "check")] for words in to_try(demo.out, kept)]
        judging = asyncio.create_task(judge(cluster.url, kept))
        await asyncio.gather(judging, *(done(*words, url=cluster.url) for words in shown))
        code, findings = judging.result()
        assert (code, findings.differences, findings.outcomes) == (0, [], FLIGHTS)
        async with txnclient.connect(cluster.url) as client, await client.producer(TALLIES) as producer:
            await producer.send(msgspec.json.encode(Tally("UA", 1, 7, 42)), key="UA")
        code, findings = await judge(cluster.url, kept)
    assert code == 1
    assert [difference for difference in findings.differences if "carrier UA: tallies add up to" in difference]
