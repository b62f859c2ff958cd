"""Numbers as numpy has them, of few bits: 200 + 200 is 144 there, and 20 000 001 + 5 is 20 000 004."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import txnclient
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.txnclient.consuming.attached import LEFT, attached
from tests.txnclient.scripted_server import TOPIC, connected
from tests.waiting import until
from txnclient.connection.deadlines import Deadline
from txnclient.processing import Limits
from txnwire.ids import EARLIEST, Position

numpy = pytest.importorskip("numpy")


@pytest.fixture(autouse=True)
def overflows() -> Iterator[None]:
    """Their warnings are no errors here, as they are none for an application."""
    with warnings.catch_warnings(action="ignore"):
        yield


class LateClock(LoopClock):
    def monotonic(self) -> float:
        return 20_000_001.0


@pytest.mark.parametrize("kind", ["stream", "queue"])
@virtual_time
async def test_a_consumer_s_prefetch_of_few_bits_counts_as_any_other(kind: Any) -> None:
    async with connected() as (cluster, client):
        options: dict[str, Any] = {"prefetch": numpy.uint8(200), "prefetch_bytes": numpy.int32(1 << 30)}
        server, consumer = await attached(cluster, client, type=kind, **options)
        for number in range(3):
            server.deliver(LEFT, number, *[b"l"] * 500)
        await asyncio.sleep(0.1)
        before = server.permits.total()
        assert len(await consumer.receive_many(1500)) == 1500
        await until(lambda: server.permits.total() == before + 1500)


@virtual_time
async def test_a_reader_s_prefetch_of_few_bits_counts_as_any_other() -> None:
    async with connected() as (cluster, client):
        server = cluster.servers["broker:1"]
        async with await client.reader(TOPIC, prefetch=numpy.uint8(200), prefetch_bytes=numpy.int32(1 << 30)) as reader:
            await until(lambda: len(server.permits) == 2)
            server.deliver(LEFT, 0, *[b"l"] * 500)
            await asyncio.sleep(0.1)
            assert len(await reader.receive_many(1500)) == 500


@virtual_time
async def test_entries_are_read_with_a_prefetch_of_few_bits() -> None:
    async with connected() as (_, client):
        reading = client.read_entries(
            LEFT, after=EARLIEST, end=Position(1, 5), prefetch_bytes=numpy.uint8(200), timeout=0.5
        )
        with pytest.raises(txnclient.Timeout):
            await anext(reading)


@pytest.mark.parametrize("seconds", ["float16", "float32", "uint8"])
def test_a_timeout_of_few_bits_ends_when_any_other_does(seconds: str) -> None:
    deadline = Deadline(LateClock(), getattr(numpy, seconds)(5))
    assert (deadline.remaining(), deadline.passed) == (5.0, False)
    assert str(deadline.expired("waiting")) == "waiting: not done within 5 s"


def test_a_loop_s_limits_of_few_bits_count_as_any_others() -> None:
    limits = Limits(
        batch_messages=numpy.uint8(200),
        batch_bytes=numpy.int32(1 << 30),
        linger_ms=numpy.uint8(5),
        txn_timeout=60.0,
        commits_under_way=numpy.uint8(4),
        stop=None,
        max_messages=numpy.uint8(250),
        idle_timeout=None,
        patience=120.0,
    )
    assert limits.batch_messages + limits.batch_messages == 400
    assert (limits.batch_bytes - 1) * 500 == ((1 << 30) - 1) * 500
    assert limits.linger_ms / 1000 == 0.005
    assert limits.max_messages is not None
    assert limits.max_messages - 300 == -50
