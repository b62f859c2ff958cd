"""`txnctl bench`: what it counts and times, and the three commands against a cluster."""

from __future__ import annotations

import asyncio
import re
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster import InProcessCluster
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.txnctl.command_line import done, start, txnctl
from tests.waiting import until_answer
from txnctl.bench.latencies import Latencies
from txnctl.bench.load import CallLoad
from txnctl.commands.bench import _all_failed
from txnwire.errors import Overloaded

TOPIC = "topic://public/default/measured"


@given(
    st.lists(st.floats(min_value=1e-6, max_value=3600.0), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 1.0])
)
def test_a_quantile_is_at_most_two_percent_above_the_true_one(seconds: list[float], share: float) -> None:
    latencies = Latencies()
    for one in seconds:
        latencies.record(one)
    ordered = sorted(seconds)
    true = ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]
    found = latencies.quantile(share)
    assert found is not None
    assert true * 0.999999 <= found <= true * 1.0201


def test_without_calls_there_are_no_latencies() -> None:
    assert Latencies().in_ms() == {"p50": None, "p90": None, "p99": None, "p99_9": None, "max": None}


def test_memory_is_bounded_by_the_span_of_latencies_not_by_their_number() -> None:
    latencies = Latencies()
    for number in range(200_000):
        latencies.record(1e-6 * (1 + number))
    assert latencies.count == 200_000
    assert len(latencies._counts) < 1200


@virtual_time
async def test_at_a_rate_a_stall_is_charged_to_everything_that_was_due_in_it() -> None:
    """Dies where a call is timed from when it got its turn: then one is slow, and the others were never there."""
    load = CallLoad(LoopClock(), seconds=10.0, concurrency=1, per_second=100)
    loop = asyncio.get_running_loop()
    began, one_at_a_time = loop.time(), asyncio.Lock()

    async def call() -> tuple[int, int]:
        async with one_at_a_time:
            if 4.0 <= loop.time() - began < 4.02:
                await asyncio.sleep(2.0)
            return 1, 100

    await load.run([call])
    measured = load.measured
    assert 995 <= measured.calls <= 1001
    assert 190 <= sum(times for bucket, times in measured.latencies._counts.items() if bucket > 200) <= 205
    assert measured.as_row("messages")["latency_ms"]["max"] == pytest.approx(2000, rel=0.02)
    assert measured.behind == 0


@virtual_time
async def test_loops_go_as_fast_as_they_can_and_pause_when_they_are_refused() -> None:
    load = CallLoad(LoopClock(), seconds=1.0, concurrency=5, per_second=None)
    refusing = [False]

    async def call() -> tuple[int, int]:
        await asyncio.sleep(0.01)
        if refusing[0]:
            raise Overloaded("full")
        return 2, 20

    asyncio.get_running_loop().call_later(0.5, refusing.__setitem__, 0, True)
    await load.run([call])
    row = load.measured.as_row("calls")
    assert 240 <= row["calls"] <= 255
    assert row["messages"] == 2 * row["calls"]
    assert 15 <= row["errors"]["Overloaded"] <= 30


async def test_every_kind_of_load_runs_against_a_cluster(cluster: InProcessCluster) -> None:
    produced = await done(
        *("bench", "produce", TOPIC, "--create", "2", "--seconds", "0.5", "--rate", "50", "-o", "json"), url=cluster.url
    )
    row = produced.json
    assert 20 <= row["messages"] <= 30
    assert row["errors"] == {}
    assert 0 < row["latency_ms"]["p50"] <= row["latency_ms"]["p99"] <= row["latency_ms"]["max"]
    bulk = await done(
        *("bench", "produce", TOPIC, "--batch", "100", "--seconds", "0.3", "--concurrency", "2", "-o", "json"),
        url=cluster.url,
    )
    assert bulk.json["messages"] == 100 * bulk.json["calls"] > 0
    whole = await done(
        *("bench", "transactions", TOPIC, "--seconds", "0.5", "--messages", "3", "--abort", "0.5", "-o", "json"),
        url=cluster.url,
    )
    assert whole.json["messages"] == 3 * whole.json["transactions"] > 0
    consumed = await done("bench", "consume", TOPIC, "--seconds", "2", url=cluster.url)
    assert "messages per s" in consumed.out
    async with cluster.connect() as client:
        outcomes = (await client.admin("transactions.stats"))["coordinators"]
        committed, aborted = (sum(one[what] for one in outcomes) for what in ("committed", "aborted"))
        assert committed + aborted == whole.json["transactions"]
        assert abs(committed - aborted) <= 64


async def test_interrupted_it_shows_what_it_has_measured(cluster: InProcessCluster) -> None:
    process = await start("bench", "transactions", TOPIC, "--create", "1", "--seconds", "60", url=cluster.url)
    async with cluster.connect() as client:
        await until_answer(
            lambda: client.admin("transactions.stats"),
            lambda stats: sum(one["committed"] for one in stats["coordinators"]),
            "a transaction of the benchmark",
            within_s=30,
        )
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130
    assert re.search(rb"^transactions per s  [0-9]", out, re.MULTILINE), "the longest name stands apart too"
    assert b"Traceback" not in err


@pytest.mark.parametrize(
    ("option", "value"),
    [("--rate", "inf"), ("--rate", "1e9"), ("--batch", "9" * 20), ("--concurrency", "9" * 20), ("--size", "9" * 20)],
)
async def test_a_load_without_end_is_refused_at_once(option: str, value: str) -> None:
    """▲ It would never let the loop go on, so that Ctrl-C would not end it either."""
    refused = await txnctl("bench", "produce", TOPIC, option, value, url="txn://127.0.0.1:1")
    assert (refused.code, option in refused.err) == (2, True), refused


async def test_where_nothing_succeeds_the_exit_code_says_so(cluster: InProcessCluster) -> None:
    found = await txnctl("bench", "produce", "topic://public/default/absent", "--seconds", "0.2", url=cluster.url)
    assert found.code == 1
    assert "TopicNotFound" in found.err


async def test_where_every_call_is_refused_the_exit_code_says_so_and_the_row_why(cluster: InProcessCluster) -> None:
    words = ("bench", "produce", TOPIC, "--create", "1", "--seconds", "0.3", "--concurrency", "1", "-o", "json")
    found = await txnctl(*words, "--size", "6MiB", url=cluster.url)
    assert (found.code, found.json["messages"], list(found.json["errors"])) == (1, 0, ["MessageTooLarge"])


@pytest.mark.parametrize(("calls", "failed", "code"), [(0, 0, 0), (0, 2, 1), (3, 2, 0), (3, 0, 0)])
async def test_only_where_calls_failed_and_none_succeeded_the_run_has_failed(
    calls: int, failed: int, code: int
) -> None:
    """▲ A consumer that finds nothing to read has not failed, and a script that goes on after a load with a few
    refusals must."""
    load = CallLoad(LoopClock(), seconds=1.0, concurrency=1, per_second=None)

    async def work() -> None:
        for _ in range(calls):
            load.measured.done(0.1, 1, 100)
        load.measured.errors.update(["Overloaded"] * failed)

    assert await _all_failed(work(), load) == code
