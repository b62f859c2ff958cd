"""The demo with Spark as a command, small; its judge on what somebody has spoiled since; and Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import msgspec
import pytest

import txnclient
from tests.processes import process_cluster
from tests.txnctl.command_line import start, txnctl
from tests.waiting import until
from txnctl.demo.spark.places import STATISTICS, Places
from txnctl.demo.spark.totals import SparkDemoFindings

FLIGHTS = 3000
TIMEOUT_S = 900.0
"""Many times what it takes alone on two cores: nothing that waits for it measures it."""

pytestmark = [pytest.mark.process, pytest.mark.timeout(2 * TIMEOUT_S)]


async def judge(url: str, folder: Path) -> tuple[int | None, SparkDemoFindings]:
    words = (sys.executable, "-m", "txnctl.demo.spark.verify", url, str(folder), str(FLIGHTS))
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, env={**os.environ, **Places(folder).environment()}
    )
    out, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    return process.returncode, msgspec.json.decode(out, type=SparkDemoFindings)


async def send_one_increment_again(url: str) -> None:
    async with txnclient.connect(url) as client:
        async with await client.reader(STATISTICS, start="earliest") as reader:
            (message,) = await reader.receive_many(1, timeout=60)
        async with await client.producer(STATISTICS) as producer:
            await producer.send(message.value, key=message.key)


def lose_one_parquet_file(folder: Path) -> None:
    """And Spark's list of those that count, or it would say that one is not there."""
    shutil.rmtree(folder / "_spark_metadata")
    max(folder.glob("*.parquet"), key=lambda file: file.stat().st_size).unlink()  # some are of empty batches


async def test_the_demo_ends_well_and_its_judge_would_have_seen_a_row_twice_or_not_at_all(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    demo = await txnctl("demo", "--spark", "--flights", str(FLIGHTS), "--keep", str(kept), timeout_s=TIMEOUT_S)
    assert demo.code == 0, demo
    assert "verdict: exactly once, in the topic and in Parquet" in demo.out
    assert re.search(r"SIGKILL to the Spark driver in micro-batch \d+, its transaction is open", demo.out), demo.out
    assert re.search(r"micro-batch \d+ is committed, once", demo.out), demo.out
    assert "SIGKILL to broker-2" in demo.out
    for what in ("split", "take-over", "merge"):
        assert re.search(rf" s  {what} .* s; ", demo.out), demo.out
    async with process_cluster(kept, brokers=2) as cluster:
        await send_one_increment_again(cluster.url)
        lose_one_parquet_file(Places(kept).parquet)
        code, findings = await judge(cluster.url, kept)
    assert code == 1
    assert [one for one in findings.differences if re.match(r"the topic: .* too many: ", one)], findings
    assert [one for one in findings.differences if re.match(r"the Parquet files: .* missing: ", one)], findings
    assert [one for one in findings.differences if "increments in the topic" in one], findings


async def test_ctrl_c_ends_it_and_leaves_neither_processes_nor_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = await start("demo", "--spark", "--flights", str(FLIGHTS))
    try:
        assert process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            said = ""
            while "Spark runs" not in said:
                line = await process.stdout.readline()
                assert line, said
                said += line.decode()
        assert of_demo(tmp_path)
        process.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 130
    assert "Traceback" not in err.decode()
    await until(lambda: not of_demo(tmp_path), within_s=60)
    assert list(tmp_path.iterdir()) == []


def of_demo(folder: Path) -> list[int]:
    """Processes that were started with something of this folder in their environment, but for the demo itself."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"{folder}/txnstore-demo-".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it is gone, or another's
            continue
    return found
