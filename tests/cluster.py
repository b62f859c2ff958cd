"""A whole cluster in this process: real servers over real etcd, real ledger files and real gRPC, each restartable.

Every server has its own store connection and ledger store, as a process would; `crash` abandons one without a handover.
For kills of real processes see `tests/processes.py`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import txnclient
from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import LedgerStore
from txnctl.launch.probe import wait_cluster_ready
from txnctl.process.server import Server
from txnctl.process.settings import ServerSettings
from txnstore.etcd.embedded_etcd import free_port
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnwire.clock import SystemClock, SystemRandom
from txnwire.transport.grpc_transport import GrpcTransport

_prefixes = itertools.count(1)
TCIDS = 2


@dataclass
class RunningServer:
    """One server with its ports."""

    server: Server
    store: EtcdStore
    ledgers: LedgerStore

    async def stop(self) -> None:
        await self.server.close()
        await self.ledgers.close()
        await self.store.close()


@dataclass
class InProcessCluster:
    """`control` serves coordinator, controller and admin; `broker` the segments. `etcd`: endpoints, comma-separated."""

    etcd: str
    prefix: str
    data_dir: Path
    overrides: dict[str, Any] = field(default_factory=dict)
    servers: dict[str, RunningServer] = field(default_factory=dict)
    listen: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")  # the same after a restart
    make_ledgers: Callable[[Path], LedgerStore] = FileLedgerStore
    etcd_options: dict[str, Any] = field(default_factory=dict)
    wrap_store: Callable[[str, EtcdStore], Any] = lambda _, store: store
    """By a server's name: the store it uses in place of its own."""

    @property
    def url(self) -> str:
        return f"txn://{self.servers['control'].server.address}"

    def connect(self, **options: Any) -> txnclient.connection.opening.Opening[txnclient.Client]:
        return txnclient.connect(self.url, **options)

    async def start(self) -> None:
        await self.start_server("control", "coordinator,controller,admin", listen=self.listen)
        await self.start_server("broker", "broker")
        await self.wait_ready()

    async def wait_ready(self) -> None:
        await wait_cluster_ready(self.listen, brokers=1, coordinators=TCIDS, timeout_s=30.0)

    async def start_server(self, name: str, roles: str, *, listen: str = "127.0.0.1:0") -> RunningServer:
        clock, random = SystemClock(), SystemRandom()
        defaults: dict[str, Any] = {"tcids": TCIDS, "lease_ttl_s": 5.0, "client_grace_s": 2.0}
        settings = ServerSettings(id=name, roles=roles, listen=listen, **(defaults | self.overrides))  # type: ignore[arg-type]
        store = await EtcdStore.connect(
            EtcdSettings(endpoints=tuple(self.etcd.split(",")), prefix=self.prefix, **self.etcd_options),
            clock=clock,
            random=random,
        )
        ledgers = self.make_ledgers(self.data_dir)
        server = Server(
            settings,
            store=self.wrap_store(name, store),
            ledgers=ledgers,
            transport=GrpcTransport(clock),
            clock=clock,
            random=random,
        )
        await server.start()
        self.servers[name] = RunningServer(server, store, ledgers)
        return self.servers[name]

    async def stop_server(self, name: str) -> None:
        await self.servers.pop(name).stop()

    async def restart_server(self, name: str) -> None:
        roles, listen = ("broker", "127.0.0.1:0") if name == "broker" else ("coordinator,controller,admin", self.listen)
        await self.stop_server(name)
        await self.start_server(name, roles, listen=listen)
        await self.wait_ready()

    async def stop(self) -> None:
        for name in reversed(list(self.servers)):
            await self.stop_server(name)


@asynccontextmanager
async def running_cluster(
    etcd: str, data_dir: Path, *, make_ledgers: Callable[[Path], LedgerStore] = FileLedgerStore, **overrides: Any
) -> AsyncIterator[InProcessCluster]:
    """Server settings may be overridden by keyword, e.g. `header_retention_s=1.0`."""
    prefix = f"/cluster-{os.getpid()}-{next(_prefixes)}-{data_dir.name}"
    running = InProcessCluster(etcd, prefix, data_dir, overrides, make_ledgers=make_ledgers)
    try:
        await running.start()
        yield running
    finally:
        await running.stop()


@pytest.fixture
async def cluster(etcd: str, tmp_path: Path) -> AsyncIterator[InProcessCluster]:
    async with running_cluster(etcd, tmp_path) as running:
        yield running


@pytest.fixture
async def client(cluster: InProcessCluster) -> AsyncIterator[txnclient.Client]:
    async with cluster.connect() as connected:
        yield connected
