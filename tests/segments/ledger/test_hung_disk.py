"""A disk that answers nothing any more: whoever waits for it is given up, and what was acked outlives that."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from segments.ledger import file_ledger
from tests.segments.brokering import Cluster
from tests.waiting import until
from txnwire.errors import TxnError

LONG_S = 30.0
"""Far more than any of it may take."""


class HungDisk:
    """Every sync waits in its thread, from `hang` to `go_on`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._answers = threading.Event()
        self._answers.set()
        self.waiting = 0
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._held(getattr(os, name)))

    def _held(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def held(fd: int) -> None:
            self.waiting += 1
            self._answers.wait(LONG_S)
            self.waiting -= 1
            real(fd)

        return held

    def hang(self) -> None:
        self._answers.clear()

    def go_on(self) -> None:
        self._answers.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HungDisk]:
    monkeypatch.setattr(file_ledger, "CLOSE_TIMEOUT_S", 0.2)
    hung = HungDisk(monkeypatch)
    yield hung
    hung.go_on()


@pytest.mark.parametrize("graceful", [True, False])
async def test_l5_a_broker_whose_disk_hangs_closes_in_time_and_its_successor_has_what_was_acked(
    memory_cluster: Cluster, disk: HungDisk, graceful: bool
) -> None:
    memory_cluster.settings = replace(memory_cluster.settings, hand_over_s=0.2)
    (segment,) = await memory_cluster.create_topic()
    node = await memory_cluster.start()
    client = await memory_cluster.connect(node)
    producer = await client.producer(segment)
    await producer.send("acked")
    disk.hang()
    sending = asyncio.ensure_future(producer.send("hangs"))
    await until(lambda: disk.waiting)
    async with asyncio.timeout(LONG_S / 2):
        await (node.close() if graceful else node.crash())
        with pytest.raises(TxnError):
            await sending
    assert disk.waiting
    disk.go_on()
    await until(lambda: not disk.waiting)
    successor = await memory_cluster.start()
    reading = await memory_cluster.connect(successor)
    reader = await reading.reader(segment)
    await until(lambda: reader.values)
    assert reader.values[0] == "acked"
