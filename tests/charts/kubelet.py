"""Runs the pods of a rendered chart as processes of this machine: each has a loopback address of its own, and names
become addresses.

What of Kubernetes is imitated: commands, arguments and variables with `$(NAME)` expanded, claims and ConfigMaps as
folders, a container that ends is started again, HTTP probes. Not: images, users, capabilities, limits.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.charts.rendering import COMPONENT, NAMESPACE, ROOT, Object, of_kind, pod_templates, selects
from tests.waiting import until
from txnstore.etcd.embedded_etcd import find_etcd
from txnstore.etcd.lifetime import tied_to_parent

RESTART_S = 0.5
ESTABLISHED = "01"
PROGRAMS = {
    "txnctl": [sys.executable, "-P", "-m", "txnctl"],
    "python3": [sys.executable],
}


@dataclass
class RenderedPod:
    """One pod with one container, as Kubernetes would see it."""

    name: str
    template: Object
    address: str

    @property
    def component(self) -> str:
        return str(self.template["metadata"]["labels"][COMPONENT])

    @property
    def container(self) -> Object:
        (one,) = self.template["spec"]["containers"]
        found: Object = one
        return found

    def port(self, name: str) -> int:
        (found,) = [port["containerPort"] for port in self.container["ports"] if port["name"] == name]
        return int(found)

    @property
    def variables(self) -> dict[str, str]:
        """Of its environment, as the chart has them."""
        of_pod = {"metadata.name": self.name, "status.podIP": self.address}
        return {
            one["name"]: one["value"] if "value" in one else of_pod[one["valueFrom"]["fieldRef"]["fieldPath"]]
            for one in self.container.get("env", ())
        }

    @property
    def words(self) -> list[str]:
        """Command and arguments, as the chart has them."""
        return [*self.container["command"], *self.container.get("args", ())]

    def probe(self, which: str) -> bool:
        """Asks what the kubelet would ask. Blocks."""
        asked = self.container[which]["httpGet"]
        url = f"http://{self.address}:{self.port(asked['port'])}{asked['path']}"
        try:
            with urllib.request.urlopen(url, timeout=self.container[which]["timeoutSeconds"]) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@dataclass
class RunningPod(RenderedPod):
    """`folder` is where its log and its volumes are."""

    folder: Path
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0
    beside: set[int] = field(default_factory=set)
    """Process ids of commands that run in it."""

    @property
    def pids(self) -> set[int]:
        running = {self.process.pid} if self.process is not None and self.process.returncode is None else set()
        return running | self.beside

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def signal(self, number: int) -> None:
        """Raises `RuntimeError` while it does not run."""
        if self.process is None:
            raise RuntimeError(f"{self.name} does not run")
        self.process.send_signal(number)


def named_pods(objects: list[Object]) -> Iterator[tuple[str, Object, Object]]:
    """Name, template and owner of each pod that Kubernetes would make; of a CronJob one."""
    for owner, template in pod_templates(objects):
        name = owner["metadata"]["name"]
        if owner["kind"] in ("StatefulSet", "Deployment"):
            for number in range(owner["spec"].get("replicas", 2)):
                yield f"{name}-{number}", template, owner
        else:
            yield name, template, owner


def expanded(word: str, variables: Mapping[str, str]) -> str:
    """With `$(NAME)` replaced, as Kubernetes does."""
    return re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], word)


def write_config(objects: list[Object], name: str, place: Path) -> None:
    """The files of a ConfigMap."""
    (config,) = [one for one in of_kind(objects, "ConfigMap") if one["metadata"]["name"] == name]
    for file, text in config["data"].items():
        (place / file).write_text(text)


@dataclass
class Kubelet:
    """All pods of one rendered release. `network` is the first two bytes of their addresses."""

    objects: list[Object]
    folder: Path
    network: str
    pods: list[RunningPod] = field(default_factory=list)
    overrides: dict[str, dict[str, str]] = field(default_factory=dict)
    """By pod: variables that it gets in place of the rendered ones."""
    _keeping: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, template, _ in named_pods(self.objects):
            self._add(name, template)
        self.addresses = {pod.name: pod.address for pod in self.pods}

    def _add(self, name: str, template: Object) -> None:
        address = f"{self.network}.0.{len(self.pods) + 1}"
        self.pods.append(RunningPod(name, template, address, self.folder / name))

    def of(self, component: str) -> list[RunningPod]:
        return [pod for pod in self.pods if pod.component == component]

    @property
    def served(self) -> list[RunningPod]:
        """Pods that are to run for ever."""
        return [pod for pod in self.pods if "readinessProbe" in pod.container]

    def _addressed(self, text: str) -> str:
        """Names of pods, then of Services, become addresses; a Service leads to its first pod."""
        domain = f"{NAMESPACE}.svc.cluster.local"
        for service in of_kind(self.objects, "Service"):
            name, selector = service["metadata"]["name"], {"matchLabels": service["spec"]["selector"]}
            pods = [pod for pod in self.pods if selects(selector, pod.template["metadata"]["labels"])]
            for pod in pods:
                text = text.replace(f"{pod.name}.{name}.{domain}", pod.address)
            text = re.sub(rf"(?<![\w.-]){re.escape(f'{name}.{domain}')}", pods[0].address, text)
        return text

    def _variables(self, pod: RunningPod) -> dict[str, str]:
        found = {
            name: self._addressed(value).replace("127.0.0.1", pod.address) for name, value in pod.variables.items()
        }
        return found | self.overrides.get(pod.name, {})

    def _mounts(self, pod: RunningPod) -> dict[str, Path]:
        """Mount path → folder of this machine."""
        volumes = {one["name"]: one for one in pod.template["spec"].get("volumes", ())}
        found = {}
        for mount in pod.container.get("volumeMounts", ()):
            volume = volumes.get(mount["name"], {})
            place = pod.folder / mount["name"]
            if "persistentVolumeClaim" in volume:
                place = self.folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
            place.mkdir(parents=True, exist_ok=True)
            if "configMap" in volume:
                write_config(self.objects, volume["configMap"]["name"], place)
            found[mount["mountPath"]] = place
        return found

    def command(self, pod: RunningPod, words: Sequence[str] | None = None) -> tuple[list[str], dict[str, str]]:
        """The command line of a pod, or another one in it, and its environment, for this machine."""
        variables = self._variables(pod)
        program, *words = words or pod.words
        mounts = self._mounts(pod)
        mounted = re.compile(rf"(?<![\w/])({'|'.join(map(re.escape, mounts))})(?!\w)")
        found = []
        for word in words:
            here = re.sub(r"\b(?:0\.0\.0\.0|127\.0\.0\.1)\b", pod.address, self._addressed(expanded(word, variables)))
            found.append(mounted.sub(lambda match: str(mounts[match[1]]), here) if mounts else here)
        plain = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPYCACHEPREFIX") if name in os.environ}
        start = PROGRAMS.get(program) or ([str(find_etcd())] if program == "etcd" else [program])
        return [*start, *found], plain | {"PYTHONPATH": str(ROOT)} | variables

    async def start(self, pods: Iterable[RunningPod]) -> None:
        self._keeping += [asyncio.create_task(self._keep(pod), name=pod.name) for pod in pods]

    async def _keep(self, pod: RunningPod) -> None:
        while True:
            pod.process = await self._launch(pod)
            await pod.process.wait()
            pod.restarts += 1
            await asyncio.sleep(RESTART_S)

    async def _launch(self, pod: RunningPod) -> asyncio.subprocess.Process:
        pod.folder.mkdir(parents=True, exist_ok=True)
        command, variables = self.command(pod)
        with (pod.folder / "log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *tied_to_parent(command), env=variables, stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL
            )

    async def run(self, pod: RunningPod, *, timeout_s: float = 120.0) -> int:
        """Runs a pod to its end, as a Job would; returns its exit code."""
        pod.process = await self._launch(pod)
        return await asyncio.wait_for(pod.process.wait(), timeout_s)

    async def execute(self, pod: RunningPod, words: Sequence[str], *, timeout_s: float = 120.0) -> tuple[int, str]:
        """What `kubectl exec` would: exit code, and what it printed. While it runs it counts as a part of the pod."""
        command, variables = self.command(pod, words)
        process = await asyncio.create_subprocess_exec(
            *tied_to_parent(command),
            env=variables,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            stdin=asyncio.subprocess.DEVNULL,
        )
        pod.beside.add(process.pid)
        try:
            printed, _ = await asyncio.wait_for(process.communicate(), timeout_s)
        finally:
            pod.beside.discard(process.pid)
        return process.returncode or 0, printed.decode(errors="replace")

    async def wait_probe(self, pods: Iterable[RunningPod], which: str, *, timeout_s: float = 120.0) -> None:
        """Raises `AssertionError` with the log of the first that does not come up."""
        for pod in pods:
            await until(
                partial(asyncio.to_thread, pod.probe, which),
                partial(_failing, pod, which),
                within_s=timeout_s,
                longest_poll_s=0.05,
            )

    async def stop(self) -> None:
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        for pod in reversed(self.pods):
            if pod.process is not None and pod.process.returncode is None:
                pod.process.terminate()
        for pod in self.pods:
            if pod.process is not None:
                await asyncio.wait_for(pod.process.wait(), 30)


def network_of_this_run() -> str:
    """Two bytes of loopback addresses that no other process of the tests uses."""
    return f"127.{1 + os.getpid() % 250}"


@asynccontextmanager
async def running_release(
    objects: list[Object], folder: Path, *, before_start: Callable[[Kubelet], Awaitable[None]] | None = None
) -> AsyncIterator[Kubelet]:
    """Every pod that is to run for ever is started at once, and ready."""
    kubelet = Kubelet(objects, folder, network_of_this_run())
    try:
        if before_start is not None:
            await before_start(kubelet)
        await kubelet.start(kubelet.served)
        await kubelet.wait_probe(kubelet.served, "startupProbe")
        await kubelet.wait_probe(kubelet.served, "readinessProbe")
        yield kubelet
    finally:
        await kubelet.stop()


def connections(targets: Container[tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """Established TCP connections of this machine to `targets`: inode of the socket → remote address."""
    found = {}
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == ESTABLISHED and (remote := _address(fields[2])) in targets:
                found[fields[9]] = remote
    return found


def sockets(pid: int) -> set[str]:
    """Inodes of the sockets that a process has open; none of one that has ended."""
    found = set()
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(descriptor)
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    except (FileNotFoundError, ProcessLookupError):
        return found
    return found


def _address(text: str) -> tuple[str, int]:
    """`0100007F:1A0A` → ("127.0.0.1", 6666); an IPv6 address ends with the IPv4 one that it stands for."""
    address, port = text.split(":")
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(address[-8:]))), int(port, 16)


def _failing(pod: RunningPod, which: str) -> str:
    return f"{pod.name}: {which} fails: {pod.log[-3000:]}"
