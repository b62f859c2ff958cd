"""A cluster of containers on one network: three etcd, two of each role, in the chart's cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.containers.engine import ETCD_IMAGE, IMAGE, Container, Engine
from tests.waiting import until
from txnctl.launch.probe import wait_cluster_ready
from txnctl.launch.supervisor import Child
from txnstore.etcd.embedded_etcd import wait_etcd_ready

ROLES = ("coordinator", "controller", "broker", "admin")
EACH = 2
MEMBERS = ("etcd-1", "etcd-2", "etcd-3")
SERVERS = tuple(f"{role}-{number}" for role in ROLES for number in range(1, EACH + 1))
NODES = tuple(tuple(f"{what}-{number}" for what in ("etcd", *ROLES)) for number in (1, 2))
"""Containers that would go with one machine; the third has one member of etcd alone."""
TCIDS = 4
READY_WITHIN_S = 120.0
GRACE_S = 30
"""Of the chart, without the time in which a Service forgets the pod."""
FLAGS = ("--client-grace-s", "2", "--header-retention-s", "2", "--lease-ttl-s", "5", "--tcids", str(TCIDS))
DATA = "/var/lib/txnstore"


def etcd_command(name: str) -> list[str]:
    peers = ",".join(f"{one}=http://{one}:2380" for one in MEMBERS)
    return [
        "etcd", f"--name={name}", "--data-dir=/var/lib/etcd/member",
        "--listen-client-urls=http://0.0.0.0:2379", f"--advertise-client-urls=http://{name}:2379",
        "--listen-peer-urls=http://0.0.0.0:2380", f"--initial-advertise-peer-urls=http://{name}:2380",
        f"--initial-cluster={peers}", "--initial-cluster-token=txnstore", "--max-txn-ops=10000",
        "--snapshot-count=2000",
        "--heartbeat-interval=100", "--election-timeout=1000", "--grpc-keepalive-min-time=1s", "--logger=zap",
        "--log-outputs=stderr",
    ]  # fmt: skip


class ContainerCluster:
    """Use as an async context manager. `data`: folder of this machine, or volume, that the brokers share; without it
    one in `folder`. What the chaos of processes asks of its cluster, this one answers too."""

    def __init__(self, engine: Engine, folder: Path, *, data: str | None = None, flags: Sequence[str] = ()) -> None:
        self.engine = engine
        self.folder = folder
        self.flags = (*FLAGS, *flags)
        self.children: dict[str, Child] = {}
        """None is a process of this machine."""
        self._data = data or str(self._open_folder("data"))

    def _open_folder(self, name: str) -> Path:
        """For a user that only the image knows."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        return folder

    def __getitem__(self, name: str) -> Container:
        return self.engine.containers[name]

    @property
    def url(self) -> str:
        names = [name for name in SERVERS if name.startswith(("coordinator", "admin"))]
        return "txn://" + ",".join(f"{self[name].address}:6650" for name in names)

    @property
    def etcd_urls(self) -> tuple[str, ...]:
        return tuple(f"http://{self[name].address}:2379" for name in MEMBERS)

    async def __aenter__(self) -> ContainerCluster:
        for name in MEMBERS:
            volumes = {str(self._open_folder(name)): "/var/lib/etcd"}
            await asyncio.to_thread(self.engine.create, name, ETCD_IMAGE, etcd_command(name), volumes=volumes)
        for name in SERVERS:
            await asyncio.to_thread(self._create, name)
        await self.each(MEMBERS, Container.start)
        await asyncio.gather(*(wait_etcd_ready(url, timeout_s=READY_WITHIN_S) for url in self.etcd_urls))
        return self

    async def start_servers(self) -> None:
        await self.each(SERVERS, Container.start)
        await self.wait_ready()

    def _create(self, name: str) -> None:
        role = name.partition("-")[0]
        made = self.engine.create(
            name,
            IMAGE,
            ["serve", "--id", name, "--roles", role, *self.flags],
            environment={
                "TXN_ETCD": ",".join(f"http://{one}:2379" for one in MEMBERS),
                "TXN_ADVERTISE": f"{self.engine.next_address}:6650",
            },
            volumes={self._data: DATA} if role == "broker" else None,
        )
        assert made.name == name

    async def each(self, names: Sequence[str], do: Callable[[Container], Any]) -> list[Any]:
        return await asyncio.gather(*(asyncio.to_thread(do, self[name]) for name in names))

    async def wait_ready(self) -> None:
        """Until every server says that it is ready, and controllers know all. Raises `Timeout`, `TimeoutError`."""
        for name in SERVERS:
            await self.wait_one(name)
        await asyncio.gather(
            *(
                wait_cluster_ready(
                    f"{self[name].address}:6650", brokers=EACH, coordinators=TCIDS, timeout_s=READY_WITHIN_S
                )
                for name in SERVERS
            )
        )

    async def wait_one(self, name: str) -> None:
        await until(
            lambda: asyncio.to_thread(self[name].ready),
            f"{name} to be ready",
            within_s=READY_WITHIN_S,
            longest_poll_s=0.1,
        )

    async def wait_back(self, name: str) -> None:
        """Until a container that was started again may be followed by the next one."""
        if name in MEMBERS:
            await wait_etcd_ready(f"http://{self[name].address}:2379", timeout_s=READY_WITHIN_S)
        else:
            await self.wait_one(name)

    async def stop(self) -> list[str]:
        """As a cluster that is taken down in order. Returned is who did not end by itself, or not well."""
        codes = await self.each(SERVERS, partial(Container.stop, grace_s=GRACE_S))
        self.keep_logs()
        return [f"{name} ended with {code}" for name, code in zip(SERVERS, codes, strict=True) if code != 0]

    def keep_logs(self) -> None:
        """Where the judge of logs looks."""
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        for name, one in self.engine.containers.items():
            ending = "log" if name in SERVERS else "etcd"  # etcd's own words are not ours to judge
            (logs / f"{name}.{ending}").write_bytes(one.log)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.keep_logs()
