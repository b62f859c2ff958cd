"""The cluster that faults are injected into: three etcd members, two servers with coordinators, controller and admin,
three brokers; each a process of its own behind a tap, kept running by a supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.etcd_members import EtcdMembers, Tap
from txnctl.launch.probe import wait_cluster_ready
from txnctl.launch.supervisor import Child, ChildSpec
from txnstore.etcd.embedded_etcd import free_port

ROOT = Path(__file__).parents[3]
BROKERS = ("broker-1", "broker-2", "broker-3")
CONTROLS = ("control-1", "control-2")
TCIDS = 4
READY_WITHIN_S = 90.0
SLOW_STOP_S = 40.0
"""What a process that is asked to end in a healthy cluster may take for it on a busy machine."""
FLAGS = (
    "--client-grace-s", "2", "--header-retention-s", "2", "--lease-ttl-s", "5", "--tcids", str(TCIDS),
)  # fmt: skip


def child_of(name: str, folder: Path, module: str, *arguments: str) -> Child:
    """A supervised `python -m module` that finds this tree."""
    search = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [sys.executable, "-m", module, *arguments]
    return Child(
        ChildSpec(
            name=name, command=command, log_path=folder / "logs" / f"{name}.log", environment={"PYTHONPATH": search}
        )
    )


async def stop_all(children: Sequence[Child]) -> list[str]:
    """As a machine that is shut down in order: all are asked at once. Returned is who did not end in time."""

    async def stop(child: Child) -> str | None:
        begin = time.monotonic()
        await child.stop(timeout_s=SLOW_STOP_S)
        slow = time.monotonic() - begin >= SLOW_STOP_S
        return f"{child.spec.name} did not end within {SLOW_STOP_S:g} s" if slow else None

    return [text for text in await asyncio.gather(*map(stop, children)) if text is not None]


class ChaosCluster:
    """Use as an async context manager. `children` are the servers, by name; `etcd` the members behind their taps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.etcd = EtcdMembers(folder / "logs" / "etcd")
        self.children: dict[str, Child] = {}
        self.taps: dict[str, Tap] = {}
        """Before each server, by name: through it go its clients, and the other servers."""
        self._ports: dict[str, int] = {}

    @property
    def url(self) -> str:
        return "txn://" + ",".join(f"127.0.0.1:{self.taps[name].port}" for name in CONTROLS)

    @property
    def etcd_urls(self) -> tuple[str, ...]:
        """For whoever judges: not through the taps."""
        return tuple(member.url for member in self.etcd.members)

    async def __aenter__(self) -> ChaosCluster:
        try:
            await self.etcd.start()
            for name in (*CONTROLS, *BROKERS):
                port = self._ports[name] = free_port()
                tap = self.taps[name] = Tap(port)
                await tap.start()
        except BaseException:
            await self.kill()
            raise
        return self

    async def start_servers(self) -> None:
        for name in CONTROLS:
            self._add(name, "coordinator,controller,admin")
        for name in BROKERS:
            self._add(name, "broker")
        for child in self.children.values():
            await child.start()
        await self.wait_ready()

    def _add(self, name: str, roles: str) -> None:
        self.children[name] = child_of(
            name, self.folder, "tests.process.chaos.server",
            "serve", "--roles", roles, "--id", name, "--admin-listen", "off",
            "--listen", f"127.0.0.1:{self._ports[name]}", "--advertise", f"127.0.0.1:{self.taps[name].port}",
            "--etcd", ",".join(self.etcd.urls), "--data-dir", str(self.folder / "data"),
            "--allow-development-etcd", *FLAGS,
        )  # fmt: skip

    async def wait_ready(self) -> None:
        """Until each server with a controller knows all coordinators and brokers. Raises `Timeout` naming what is
        missing."""
        await asyncio.gather(
            *(
                wait_cluster_ready(
                    f"127.0.0.1:{self._ports[name]}",
                    brokers=len(BROKERS),
                    coordinators=TCIDS,
                    timeout_s=READY_WITHIN_S,
                )
                for name in CONTROLS
            )
        )

    async def stop(self) -> list[str]:
        """In order; returned is who did not end in time."""
        slow = await stop_all(list(self.children.values()))
        await self._close()
        return slow

    async def _close(self) -> None:
        for tap in self.taps.values():
            await tap.close()
        await self.etcd.stop()

    async def kill(self) -> None:
        await asyncio.gather(*(child.stop(signal.SIGKILL) for child in self.children.values()))
        for member in self.etcd.members:
            member.kill()
        await self._close()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.kill()
