"""A start that is not done within its time limit says what it was waiting for."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import LedgerPlace
from simulation.world.loop import SimLoop
from simulation.world.servers import server_settings
from simulation.world.sim_disk import SimDisk
from simulation.world.sim_ledger import SimLedgerStore
from simulation.world.world import Ports, World
from txnctl.process import serve
from txnctl.process.server import START_TIMEOUT_S, Server
from txnctl.process.settings import ServerSettings
from txnctl.process.store_mark import FILE
from txnstore.etcd.etcd_store import EtcdStore
from txnwire.clock import SystemClock
from txnwire.errors import Timeout


async def test_a_folder_whose_disk_does_not_answer_is_named(
    tmp_path: Path, store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ Without a limit the process would wait for ever, and its supervisor with it."""
    monkeypatch.setattr(serve, "START_TIMEOUT_S", 0.1)
    os.mkfifo(tmp_path / FILE)
    ledgers = FileLedgerStore(tmp_path)
    settings = ServerSettings(data_dir=tmp_path)
    try:
        async with asyncio.timeout(30):
            with pytest.raises(
                Timeout, match=rf"data folder {tmp_path} was not read and marked within 0\.1 s: does its"
            ):
                await serve._take_folder(settings, store, ledgers, SystemClock(), random.Random())
    finally:
        os.close(os.open(tmp_path / FILE, os.O_RDWR))  # who reads it goes on
        await ledgers.close()


class _HungDisk(SimLedgerStore):
    def __init__(self, loop: SimLoop, disk: SimDisk) -> None:
        super().__init__(disk)
        self._loop = loop

    async def identity(self, mark: str | None) -> LedgerPlace:
        await self._loop.create_future()
        raise AssertionError


def test_a_role_that_does_not_start_is_named() -> None:
    loop = SimLoop(1)  # type: ignore[abstract]
    world = World(loop, 1)

    async def program(ports: Ports) -> None:
        await Server(
            server_settings("late", "admin,broker", "late:6650"),
            store=ports.store,
            ledgers=_HungDisk(loop, world.disk("late")),
            transport=ports.transport,
            clock=ports.clock,
            random=ports.random,
        ).start()

    async def scenario() -> None:
        process = world.add("late", program, restart_s=None)
        process.start()
        assert await process.wait_ended(2 * START_TIMEOUT_S)

    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
    [broken] = world.broken
    assert isinstance(broken.error, Timeout)
    assert str(broken.error).startswith("late has not started within 60 s, as its role broker did not: do etcd and")
