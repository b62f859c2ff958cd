"""Containers as the chart's pods would be: a user without rights, a read-only root, no capabilities, limits. One run
owns all that it makes, and nothing of it outlives the run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException
from docker.types import EndpointConfig, IPAMConfig, IPAMPool

from tests.containers.reaper import LABEL

ROOT = Path(__file__).parents[2]
IMAGE = os.environ.get("TXNSTORE_IMAGE", "txnstore:local")
ETCD_IMAGE = os.environ.get("ETCD_IMAGE", "txnstore-etcd:local")
SPARK_IMAGE = os.environ.get("SPARK_IMAGE", "txnstore-spark:local")
USER = "10001:10001"
CALL_TIMEOUT_S = 60
REAPED_WITHIN_S = 120
HTTP_TIMEOUT_S = 6.0
TOOLS = ("nsenter", "iptables", "ip", "tc")


def why_not(*more: str) -> str | None:
    """Why no containers can be tested here; None if they can. Answers within seconds. `more`: images that it takes."""
    if not os.environ.get("CONTAINERS"):
        return "containers are tested by `make test-containers`"
    try:
        client = docker.from_env(timeout=5)
        for image in (IMAGE, ETCD_IMAGE, *more):
            client.images.get(image)
        client.close()
    except DockerException as error:
        return f"no Docker engine with the images: {error}"
    return None


def why_no_faults() -> str | None:
    """Why the network of a container cannot be disturbed from here; None if it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        return f"disturbing networks takes root and {', '.join(missing or TOOLS)}"
    return None


@dataclass
class Container:
    """One container with an address of its own, which it keeps over restarts."""

    name: str
    address: str
    made: Any

    def start(self) -> None:
        self.made.start()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Nothing where it does not run."""
        try:
            self.made.kill(number)
        except APIError as error:
            if "is not running" not in str(error):
                raise

    def stop(self, *, grace_s: int) -> int:
        """SIGTERM, and SIGKILL after the grace; returns the exit code. 137: it did not end in time."""
        self.made.stop(timeout=grace_s)
        return int(self.made.wait(timeout=CALL_TIMEOUT_S)["StatusCode"])

    def wait(self, *, within_s: float = CALL_TIMEOUT_S) -> int:
        """For its end; returns the exit code."""
        return int(self.made.wait(timeout=within_s)["StatusCode"])

    @property
    def pid(self) -> int:
        """Of its first process, on this machine; 0 while it does not run."""
        self.made.reload()
        return int(self.made.attrs["State"]["Pid"])

    @property
    def log(self) -> bytes:
        return bytes(self.made.logs())

    def ready(self) -> bool:
        """Whether its HTTP endpoint says so."""
        try:
            with urllib.request.urlopen(f"http://{self.address}:6660/readyz", timeout=HTTP_TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def run(self, *words: str) -> tuple[int, str]:
        """Exit code and output of a command inside."""
        done = self.made.exec_run(list(words))
        return int(done.exit_code), done.output.decode(errors="replace")

    def in_network(self, *words: str) -> str:
        """What a program of this machine says in the container's network. Raises `CalledProcessError`."""
        inside = ["nsenter", f"--net=/proc/{self.pid}/ns/net"]
        return subprocess.run(
            [*inside, *words], check=True, capture_output=True, text=True, timeout=CALL_TIMEOUT_S
        ).stdout


@dataclass
class Engine:
    """One run: a network and its containers, all with the run's label."""

    client: Any
    run: str
    network: Any
    subnet: str
    containers: dict[str, Container] = field(default_factory=dict)
    _addresses: int = 9
    """The last byte of the newest address: none is given out twice."""

    @property
    def next_address(self) -> str:
        """That the next container gets."""
        return f"{self.subnet}.{self._addresses + 1}"

    def create(
        self,
        name: str,
        image: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        volumes: Mapping[str, str] | None = None,
        memory: str = "768m",
        entrypoint: Sequence[str] | None = None,
        tmp: str = "size=16m",
        aliases: Sequence[str] | None = None,
        **more: Any,
    ) -> Container:
        """`volumes`: folder of this machine, or volume, → folder inside, with `:ro` behind it or not. `tmp`: options of
        a small disk in memory. `aliases`: its names on the network, by default `name`. `more`: as the engine's client
        has them, in place of what is said here."""
        address = self.next_address
        self._addresses += 1
        confined: dict[str, Any] = {
            "user": USER,
            "read_only": True,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "mem_limit": memory,
            "pids_limit": 512,
            "tmpfs": {"/tmp": tmp},
            "volumes": [f"{source}:{target}" for source, target in (volumes or {}).items()],
        }
        on_network = EndpointConfig("1.41", aliases=[name] if aliases is None else list(aliases), ipv4_address=address)
        made = self.client.containers.create(
            image,
            list(command),
            entrypoint=None if entrypoint is None else list(entrypoint),
            name=f"{self.run}-{name}",
            hostname=name,
            environment=dict(environment or {}),
            labels={LABEL: self.run},
            healthcheck={"test": ["NONE"]},  # asked from here: each would be a Python more on a busy machine
            network=self.network.name,
            networking_config={self.network.name: on_network},
            **(confined | more),
        )
        self.containers[name] = Container(name, address, made)
        return self.containers[name]

    @property
    def gateway(self) -> str:
        """This machine's address on the network."""
        return f"{self.subnet}.1"

    def remove(self, one: Container) -> None:
        """With what it had written into itself; its name is free again, its address is not."""
        one.made.remove(force=True, v=True)
        del self.containers[one.name]

    def volume(self, name: str, options: Mapping[str, str]) -> Any:
        return self.client.volumes.create(f"{self.run}-{name}", labels={LABEL: self.run}, driver_opts=dict(options))

    def disconnect(self, one: Container) -> None:
        self.network.disconnect(one.made)

    def connect(self, one: Container) -> None:
        self.network.connect(one.made, aliases=[one.name], ipv4_address=one.address)


@contextmanager
def running_engine() -> Iterator[Engine]:
    """What ends the block, or this process, removes everything."""
    run = f"txnstore-test-{uuid.uuid4().hex[:8]}"
    reaper = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.containers.reaper", run],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    client = docker.from_env(timeout=CALL_TIMEOUT_S)
    try:
        yield Engine(client, run, *_network(client, run))
    finally:
        client.close()
        _, said = reaper.communicate(timeout=REAPED_WITHIN_S)
        if reaper.returncode:
            raise RuntimeError(f"left behind: {said.decode()}")


def _network(client: Any, run: str) -> tuple[Any, str]:
    """A bridge with a subnet that nobody has; its first three bytes."""
    chance = random.Random(run)
    for _ in range(10):
        subnet = f"10.{chance.randrange(64, 250)}.{chance.randrange(256)}"
        pool = IPAMConfig(pool_configs=[IPAMPool(subnet=f"{subnet}.0/24")])
        try:
            return client.networks.create(run, driver="bridge", ipam=pool, labels={LABEL: run}), subnet
        except APIError as error:
            if "overlap" not in str(error).lower():
                raise
    raise RuntimeError("no free subnet for a network of containers")
