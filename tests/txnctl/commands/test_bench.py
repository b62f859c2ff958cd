"""`txnctl bench`: what it counts and times, and the three commands against a cluster."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import txnclient
from tests.cluster import InProcessCluster
from tests.processes import read_all
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.txnctl.command_line import done, start, txnctl
from tests.waiting import until_answer
from txnctl.bench import load as loads
from txnctl.bench.latencies import Latencies
from txnctl.bench.load import Call, CallLoad, Measured
from txnctl.commands import bench
from txnctl.commands.bench import _all_failed, _measured, _receiving, _show, _values
from txnctl.commands.shared.output import Format
from txnwire.clock import SystemClock
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


class BlockedClock(LoopClock):
    """The loop's time, and the time for which a call has blocked the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.blocked_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.blocked_s


@virtual_time
async def test_at_a_rate_calls_that_a_blocked_loop_begins_late_are_timed_from_when_they_were_due() -> None:
    """▲ The stall may be the load's own, on a busy machine: what it could not begin has waited all the same."""
    clock = BlockedClock()
    load = CallLoad(clock, seconds=3.0, concurrency=1, per_second=10)

    async def call() -> tuple[int, int]:
        clock.blocked_s = 2.0
        return 1, 100

    await load.run([call])
    measured = load.measured
    assert 29 <= measured.calls <= 31
    assert measured.latencies.quantile(0.5) == pytest.approx(0.6, abs=0.2), "of those due in the stall, half are slower"
    assert measured.latencies.quantile(0.9) == pytest.approx(1.8, abs=0.2)


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
        *("--concurrency", "2"),
        url=cluster.url,
    )
    assert whole.json["messages"] == 3 * whole.json["transactions"] > 0
    consumed = await done("bench", "consume", TOPIC, "--seconds", "2", url=cluster.url)
    assert "messages per s" in consumed.out
    async with cluster.connect() as client:
        outcomes = (await client.admin("transactions.stats"))["coordinators"]
        committed, aborted = (sum(one[what] for one in outcomes) for what in ("committed", "aborted"))
        assert committed + aborted == whole.json["transactions"]
        assert abs(committed - aborted) <= 2 < committed
        sent = row["messages"] + bulk.json["messages"] + 3 * committed
        assert len(await read_all(client, TOPIC)) == sent


async def test_every_consumer_of_a_load_receives_and_acks(cluster: InProcessCluster, client: txnclient.Client) -> None:
    await client.create_topic(TOPIC, segments=2)
    async with await client.producer(TOPIC) as producer:
        await producer.send_many([(str(number), b"x" * 10) for number in range(100)])
    words = ("bench", "consume", TOPIC, "--consumers", "2", "--seconds", "60", "-o", "json")
    process = await start(*words, url=cluster.url)
    await until_answer(
        lambda: client.admin("subscriptions.list", topic=TOPIC),
        lambda told: [(len(one["consumers"]), one["lag_messages"]) for one in told["subscriptions"]] == [(2, 0)],
        "two consumers that have acked all of it",
        within_s=30,
    )
    process.send_signal(signal.SIGINT)
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, msgspec.json.decode(out)["messages"]) == (130, 100)


class Page:
    """A consumer of two messages, and then of none."""

    def __init__(self) -> None:
        self._messages = [SimpleNamespace(data=b"x" * size, publish_time_ms=ms) for size, ms in ((10, 1000), (5, 2500))]
        self.acked: list[Any] = []

    async def receive_many(self, at_most: int, *, timeout: float) -> list[Any]:
        page, self._messages = self._messages[:at_most], []
        return page

    async def ack(self, messages: list[Any]) -> None:
        self.acked.append(messages)


async def test_every_received_message_is_counted_timed_from_its_publishing_and_acked() -> None:
    consumer, clock = Page(), SimpleNamespace(wall_ms=lambda: 2000, monotonic=lambda: 0.0)
    load = CallLoad(cast(Any, clock), seconds=1.0, concurrency=1, per_second=None)
    receive = _receiving(cast(Any, consumer), 10, load, cast(Any, clock))
    for _ in range(2):
        assert await receive() is None, "it counts itself"
    measured = load.measured
    assert (measured.calls, measured.messages, measured.bytes, measured.latencies.count) == (2, 2, 15, 2)
    latencies = [measured.latencies.quantile(q) for q in (0.5, 1.0)]
    assert latencies == [pytest.approx(1e-6, rel=0.03), 1.0], "a message from the future took no time"
    assert [len(one) for one in consumer.acked] == [2], "where nothing came there is nothing to ack"


def test_a_row_has_rates_over_the_time_of_the_run() -> None:
    clock = SimpleNamespace(monotonic=lambda: 999.0)
    measured = Measured(cast(Any, clock), began_s=10.0, ended_s=12.0, behind=3)
    for took_s in (0.5, 1.0):
        measured.done(took_s, 2, 1_500_000)
    measured.errors.update(["Overloaded", "ConnectionLost", "Overloaded"])
    common = {"seconds": 2.0, "megabytes_per_s": 1.5, "not_begun_in_time": 3}
    errors = {"ConnectionLost": 1, "Overloaded": 2}
    row = measured.as_row("transactions")
    assert list(row["errors"]) == list(errors)
    assert row.pop("latency_ms")["max"] == 1000.0
    assert row == {
        **common,
        **{"transactions": 2, "transactions_per_s": 1.0, "messages": 4, "messages_per_s": 2.0, "errors": errors},
    }
    row = measured.as_row("messages")
    assert (row["messages"], row["messages_per_s"], "calls" in row) == (2, 1.0, False)


@virtual_time
async def test_a_run_ends_where_its_last_call_does_and_is_not_measured_on() -> None:
    load = CallLoad(LoopClock(), seconds=1.0, concurrency=2, per_second=None)

    async def call() -> tuple[int, int]:
        await asyncio.sleep(0.75)
        return 1, 100

    await load.run([call])
    await asyncio.sleep(10.0)
    assert load.measured.calls == 4
    assert load.measured.seconds == pytest.approx(1.5, abs=0.01)


@virtual_time
async def test_a_rate_that_is_more_than_can_be_under_way_falls_behind_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loads, "MAX_UNDER_WAY", 5)
    load = CallLoad(LoopClock(), seconds=1.0, concurrency=1, per_second=10)

    async def call() -> None:
        await asyncio.sleep(5.0)

    await load.run([call])
    assert (load.measured.behind, load.measured.calls) == (5, 0)
    assert load.measured.seconds == pytest.approx(5.5, abs=0.1)


@virtual_time
async def test_calls_that_are_due_take_turns() -> None:
    turns = []

    def of(number: int) -> Call:
        async def call() -> None:
            turns.append(number)

        return call

    load = CallLoad(LoopClock(), seconds=0.45, concurrency=1, per_second=10)
    await load.run([of(0), of(1)])
    assert turns == [0, 1, 0, 1, 0]


async def test_an_error_that_is_none_of_ours_ends_the_load() -> None:
    load = CallLoad(SystemClock(), seconds=60.0, concurrency=2, per_second=None)

    async def call() -> None:
        raise KeyError("a bug")

    with pytest.raises(ExceptionGroup):
        await load.run([call])
    assert load.measured.ended_s is not None
    assert not load.measured.errors


def test_several_calls_of_one_duration_count_as_several() -> None:
    latencies = Latencies()
    latencies.record(0.1, 3)
    latencies.record(2.0)
    latencies.record(1e-9)
    assert latencies.count == 5
    assert [latencies.quantile(q) for q in (0.2, 0.8, 0.81, 1.0)] == [
        pytest.approx(1e-6, rel=0.03),
        pytest.approx(0.1, rel=0.03),
        2.0,
        2.0,
    ]


def test_measurements_are_shown_to_people_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    latency = {"p50": 1.5, "p90": None, "max": 1234.5}
    _show({"messages": 2000, "latency_ms": latency, "errors": {"Overloaded": 1000, "Timeout": 1}}, Format.TABLE)
    _show({"errors": {}}, Format.TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "messages    2,000",
        "latency ms  p50 1.50, p90 -, max 1,234.50",
        "errors      Overloaded 1,000, Timeout 1",
        "errors  none",
    ]


@pytest.mark.parametrize(("size", "number"), [(0, 1024), (16, 1024), (4096, 1024), (4097, 16)])
def test_what_is_sent_differs_and_fits_a_cache(size: int, number: int) -> None:
    values = _values(size)
    assert (len(values), {len(value) for value in values}) == (number, {size})
    assert len(set(values)) == (number if size else 1)


@pytest.mark.parametrize("fails", [False, True])
async def test_at_a_terminal_progress_is_told_and_ends_with_the_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(bench, "PROGRESS_EVERY_S", 0.001)
    load = CallLoad(SystemClock(), seconds=60.0 if fails else 0.1, concurrency=1, per_second=None)
    told = ""

    async def call() -> tuple[int, int]:
        nonlocal told
        await asyncio.sleep(0.01)
        told += capsys.readouterr().err
        if fails and "done" in told:
            raise KeyError("a bug")
        return 1, 10

    with pytest.raises(ExceptionGroup) if fails else nullcontext():
        await _measured(load, [call])
    told += capsys.readouterr().err
    assert re.search(r"\r +0 s  [0-9]+ done, [0-9,]+/s ", told)
    assert told.endswith("\n")
    await asyncio.sleep(0.01)
    assert {task.get_coro() for task in asyncio.all_tasks()} == {asyncio.current_task().get_coro()}  # type: ignore[union-attr]


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
