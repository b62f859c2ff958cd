"""`txnctl dev`: a whole cluster on one machine: etcd, one server for coordinator, controller and admin, N brokers.

Everything is a process of its own, supervised and restarted like in a real cluster; data stays in the data folder.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from txnctl.launch.preflight import FolderLock, expect_free
from txnctl.launch.probe import wait_cluster_ready
from txnctl.launch.supervisor import Child, ChildSpec, Supervisor
from txnctl.process.settings import ENVIRONMENT, host_and_port, load
from txnstore.etcd.embedded_etcd import EtcdCommand, free_port, wait_etcd_ready
from txnwire.errors import InvalidArgument

CONTROL = "server"
ETCD = "etcd"
OF_OTHER_SERVERS = ("advertise", "etcd_ca", "etcd_cert", "etcd_key")
"""▲ Settings of another cluster that the environment may hold: its address would lead clients there to write and
delete, and this etcd has no TLS, so it needs no certificates. A user and a prefix stay: a restored folder may need
them."""


@dataclass(frozen=True, kw_only=True)
class DevSettings:
    """Ports of 0 are chosen when the cluster starts. `server_flags` are passed on to every `txnctl serve`."""

    data_dir: Path
    listen: str = "127.0.0.1:6650"
    admin: str = "127.0.0.1:6660"
    etcd_port: int = 2379
    brokers: int = 1
    server_flags: Sequence[str] = ()


def _chosen(address: str, *, part: str) -> str:
    host, port = host_and_port(address, part=part)
    return f"{host}:{port or free_port()}"


class DevCluster:
    """Use as an async context manager; `wait_ready` before the first call, `stop`ped on exit."""

    def __init__(self, settings: DevSettings) -> None:
        if settings.brokers < 1:
            raise InvalidArgument(f"--brokers {settings.brokers}: expected at least 1")
        self._settings = settings
        self.listen = _chosen(settings.listen, part="--listen")
        self.admin = _chosen(settings.admin, part="--admin")
        self.etcd_port = settings.etcd_port or free_port()
        self._tcids = load(None, without=OF_OTHER_SERVERS, etcd=self.etcd_url).tcids  # as its servers read them
        self._lock = FolderLock(settings.data_dir)
        self._etcd = EtcdCommand(data_dir=settings.data_dir / "etcd", client_port=self.etcd_port)
        self._supervisor = Supervisor([self._etcd_spec(), self._control_spec(), *self._broker_specs()])

    @property
    def url(self) -> str:
        return f"txn://{self.listen}"

    @property
    def etcd_url(self) -> str:
        return f"http://127.0.0.1:{self.etcd_port}"

    @property
    def children(self) -> dict[str, Child]:
        return self._supervisor.children

    async def __aenter__(self) -> DevCluster:
        """Raises `NotAllowed` if another process has the folder or a port, and the error of a child that cannot
        start."""
        self._lock.take()
        try:
            for address, part in self._addresses():
                expect_free(address, part=part)
            await self._supervisor.__aenter__()
            await self._wait_started()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _stop(self) -> None:
        try:
            await self._supervisor.stop()
        finally:
            self._lock.release()

    def _addresses(self) -> list[tuple[str, str]]:
        return [
            (self.listen, "--listen"),
            (self.admin, "--admin"),
            (f"127.0.0.1:{self.etcd_port}", "--etcd-port"),
        ]

    async def _wait_started(self) -> None:
        """Waits until the child serves; stops waiting for one that dies again and again."""
        ready = asyncio.create_task(self.wait_ready(), name="ready")
        failed = asyncio.create_task(self._supervisor.wait_crash_loop(), name="crash loop")
        try:
            done, _ = await asyncio.wait({ready, failed}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (ready, failed):
                task.cancel()
            await asyncio.gather(ready, failed, return_exceptions=True)

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Waits until every coordinator, the controller and all brokers serve. Raises `Timeout` saying what is
        missing."""
        await wait_cluster_ready(
            self.listen, brokers=self._settings.brokers, coordinators=self._tcids, timeout_s=timeout_s
        )

    def _log(self, name: str) -> Path:
        return self._settings.data_dir / "logs" / f"{name}.log"

    def _etcd_spec(self) -> ChildSpec:
        return ChildSpec(
            name=ETCD,
            command=self._etcd.argv(),
            log_path=self._log(ETCD),
            wait_ready=lambda: wait_etcd_ready(self.etcd_url),
        )

    def _serve(self, name: str, roles: str, listen: str, *more: str) -> ChildSpec:
        command = [sys.executable, "-P", "-m", "txnctl", "serve", "--roles", roles, "--id", name, "--listen", listen]
        command += ["--etcd", self.etcd_url, "--data-dir", str(self._settings.data_dir / "data"), *more]
        command += ["--allow-development-etcd", *self._settings.server_flags]
        foreign = {f"{ENVIRONMENT}{setting}".lower() for setting in ("config", *OF_OTHER_SERVERS)}
        without = dict.fromkeys(variable for variable in os.environ if variable.lower() in foreign)
        return ChildSpec(name=name, command=command, log_path=self._log(name), environment=without)

    def _control_spec(self) -> ChildSpec:
        return self._serve(CONTROL, "coordinator,controller,admin", self.listen, "--admin-listen", self.admin)

    def _broker_specs(self) -> list[ChildSpec]:
        return [
            self._serve(f"broker-{number}", "broker", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
            for number in range(1, self._settings.brokers + 1)
        ]


async def run_until_cancelled(settings: DevSettings) -> None:
    """Starts, prints the one `ready` line, and keeps everything running until this task is cancelled."""
    async with DevCluster(settings) as cluster:
        print(f"ready {cluster.url} etcd={cluster.etcd_url} admin=http://{cluster.admin}", flush=True)
        await asyncio.Event().wait()
