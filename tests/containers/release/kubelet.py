"""Runs the pods of a rendered chart as containers, each as its spec says: image, command, arguments, variables, user,
read-only root, capabilities, limits, mounts, probes, grace; names resolve as Services make them.

What `tests/charts/kubelet.py` runs as processes of this machine runs here confined, and a pod that is deleted comes
back as another container with another address. Not imitated: a Service's one address (its name leads to its pods),
nodes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.charts.kubelet import RenderedPod, expanded, named_pods, write_config
from tests.charts.rendering import COMPONENT, NAMESPACE, Object, of_kind, selects
from tests.containers.engine import ETCD_IMAGE, IMAGE, Container, Engine
from tests.containers.release.names import name_server

DOMAIN = f"{NAMESPACE}.svc.cluster.local"
SEARCHED = [DOMAIN, "svc.cluster.local", "cluster.local"]
READY_WITHIN_S = 180.0
ENDED_WITHIN_S = 180.0
POLL_S = 0.1
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


@dataclass
class ContainerPod(RenderedPod):
    owner: Object
    """The StatefulSet, Deployment, CronJob or Pod that it comes from."""
    ready: bool = False
    leaving: bool = False
    restarts: int = 0
    """By its liveness probe."""
    container_: Container | None = None

    @property
    def made(self) -> Container:
        assert self.container_ is not None, f"{self.name} was not created"
        return self.container_

    @property
    def workload(self) -> str:
        return str(self.owner["metadata"]["name"])


@dataclass
class ContainerKubelet:
    """All pods of one rendered release. `folder`: claims and other volumes, of this machine."""

    engine: Engine
    objects: list[Object]
    folder: Path
    pods: dict[str, ContainerPod] = field(default_factory=dict)
    _watching: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    # ---- names ------------------------------------------------------------------------------------------------------

    def lookup(self, name: str) -> list[str] | None:
        """As the name server of a Kubernetes cluster: a Service's name leads to its pods that are ready; in a headless
        one each pod of its StatefulSet has a name of its own."""
        for service in of_kind(self.objects, "Service"):
            whole, spec = f"{service['metadata']['name']}.{DOMAIN}", service["spec"]
            if name != whole and not name.endswith(f".{whole}"):
                continue
            pods = [pod for pod in list(self.pods.values()) if self._serves(pod, spec)]
            if name == whole:
                return random.sample([pod.address for pod in pods], len(pods))
            own = [
                pod.address
                for pod in pods
                if f"{pod.name}.{whole}" == name and pod.owner["spec"].get("serviceName") == service["metadata"]["name"]
            ]
            return own or None
        return None

    def _serves(self, pod: ContainerPod, service: Object) -> bool:
        if not selects({"matchLabels": service["selector"]}, pod.template["metadata"]["labels"]):
            return False
        return bool(service.get("publishNotReadyAddresses")) or (pod.ready and not pod.leaving)

    @property
    def resolving(self) -> dict[str, Any]:
        """For a container that is to find what the pods find."""
        return {"dns": [self.engine.gateway], "dns_search": SEARCHED, "dns_opt": ["ndots:5"], "aliases": ()}

    # ---- one pod ----------------------------------------------------------------------------------------------------

    def create(self, name: str, template: Object, owner: Object) -> ContainerPod:
        pod = ContainerPod(name, template, self.engine.next_address, owner)
        spec, container = template["spec"], pod.container
        security = spec["securityContext"] | container["securityContext"]
        variables = pod.variables
        program, *words = [expanded(word, variables) for word in pod.words]
        limits = container["resources"]["limits"]
        forever = spec.get("restartPolicy", "Always") == "Always"
        pod.container_ = self.engine.create(
            name,
            ETCD_IMAGE if "etcd" in container["image"] else IMAGE,
            words,
            entrypoint=[program],
            environment=variables,
            user=f"{security['runAsUser']}:{security['runAsGroup']}",
            read_only=security["readOnlyRootFilesystem"],
            cap_drop=security["capabilities"]["drop"],
            security_opt=[] if security["allowPrivilegeEscalation"] else ["no-new-privileges:true"],
            mem_limit=in_bytes(limits["memory"]),
            nano_cpus=in_nano_cpus(limits["cpu"]),
            volumes=self._mounts(pod),
            tmpfs={},
            restart_policy={"Name": "always" if forever else "no"},
            **self.resolving,
        )
        self.pods[name] = pod
        return pod

    def claim(self, name: str) -> Path:
        """The folder of a claim; gone with `shutil.rmtree` it is as one that was deleted."""
        return self._open(self.folder / "claims" / name)

    def _open(self, folder: Path) -> Path:
        """For the group that `fsGroup` names, whoever that is."""
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        return folder

    def _mounts(self, pod: ContainerPod) -> dict[str, str]:
        volumes = {one["name"]: one for one in pod.template["spec"].get("volumes", ())}
        found = {}
        for mount in pod.container.get("volumeMounts", ()):
            place = self._place(pod, mount["name"], volumes.get(mount["name"], {}))
            if "subPath" in mount:
                place = self._open(place / mount["subPath"])
            found[str(place)] = mount["mountPath"] + (":ro" if mount.get("readOnly") else "")
        return found

    def _place(self, pod: ContainerPod, name: str, volume: Object) -> Path:
        match volume:
            case {"persistentVolumeClaim": {"claimName": claim}}:
                return self.claim(claim)
            case {"configMap": {"name": config}}:
                place = self._open(self.folder / "pods" / f"{pod.name}-{pod.address}" / name)
                write_config(self.objects, config, place)
                return place
            case {"emptyDir": _}:
                return self._open(self.folder / "pods" / f"{pod.name}-{pod.address}" / name)
        templates = [one["metadata"]["name"] for one in pod.owner["spec"].get("volumeClaimTemplates", ())]
        assert name in templates, f"{pod.name} mounts {name}, which it does not have"
        return self.claim(f"{name}-{pod.name}")

    async def start(self, pod: ContainerPod) -> None:
        await asyncio.to_thread(pod.made.start)
        if "readinessProbe" in pod.container:
            self._watching[pod.name] = asyncio.create_task(self._watch(pod), name=pod.name)

    async def run(self, name: str) -> tuple[int, str]:
        """Runs a pod of the chart to its end, as a Job would: exit code, and what it said."""
        (found,) = [one for one in named_pods(self.objects) if one[0] == name]
        return await self.run_job(*found)

    async def run_job(self, name: str, template: Object, owner: Object) -> tuple[int, str]:
        pod = await asyncio.to_thread(self.create, name, template, owner)
        try:
            await asyncio.to_thread(pod.made.start)
            code = await asyncio.to_thread(pod.made.wait, within_s=ENDED_WITHIN_S)
            return code, pod.made.log.decode(errors="replace")
        finally:
            await asyncio.to_thread(self._remove, pod)

    def _remove(self, pod: ContainerPod) -> None:
        self.engine.remove(pod.made)
        del self.pods[pod.name]

    async def delete(self, pod: ContainerPod) -> int:
        """As the kubelet ends a pod: out of its Services, `preStop`, SIGTERM, SIGKILL where its grace is over. Returns
        the exit code."""
        pod.leaving = True
        grace_s = pod.template["spec"]["terminationGracePeriodSeconds"]
        drain_s = pod.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        await asyncio.sleep(drain_s)
        await self._forget(pod)
        code = await asyncio.to_thread(pod.made.stop, grace_s=grace_s - drain_s)
        await asyncio.to_thread(self._remove, pod)
        return code

    async def _forget(self, pod: ContainerPod) -> None:
        watching = self._watching.pop(pod.name, None)
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
            if not watching.cancelled():
                watching.result()

    # ---- probes -----------------------------------------------------------------------------------------------------

    async def _watch(self, pod: ContainerPod) -> None:
        while True:
            if await self._succeeds(pod, "startupProbe"):
                await self._probe_until_dead(pod)
            pod.ready = False
            pod.restarts += 1
            await asyncio.to_thread(pod.made.made.restart, timeout=1)

    async def _succeeds(self, pod: ContainerPod, which: str) -> bool:
        """False once it has failed as often in a row as it may."""
        probe = pod.container[which]
        for _ in range(probe["failureThreshold"]):
            if await asyncio.to_thread(pod.probe, which):
                return True
            await asyncio.sleep(probe["periodSeconds"])
        return False

    async def _probe_until_dead(self, pod: ContainerPod) -> None:
        async with asyncio.TaskGroup() as group:
            readiness = group.create_task(self._follow_readiness(pod))
            while await self._succeeds(pod, "livenessProbe"):
                await asyncio.sleep(pod.container["livenessProbe"]["periodSeconds"])
            readiness.cancel()

    async def _follow_readiness(self, pod: ContainerPod) -> None:
        while True:
            pod.ready = await self._succeeds(pod, "readinessProbe")
            await asyncio.sleep(pod.container["readinessProbe"]["periodSeconds"])

    async def wait_ready(self, pods: Sequence[ContainerPod]) -> None:
        """Raises `AssertionError` with the end of the log of the first that is not."""
        for pod in pods:
            try:
                async with asyncio.timeout(READY_WITHIN_S):
                    while not pod.ready:
                        if (watching := self._watching[pod.name]).done():
                            watching.result()  # nobody would notice that it is ready
                        await asyncio.sleep(POLL_S)
            except TimeoutError:
                said = (await asyncio.to_thread(lambda one=pod: one.made.log))[-3000:].decode(errors="replace")
                raise AssertionError(f"{pod.name} is not ready: {said}") from None

    async def start_owned(self, component: str | None = None) -> None:
        """Starts the pods of Deployments and StatefulSets that do not run, or those of one component; all are ready."""
        for name, template, owner in named_pods(self.objects):
            forever = owner["kind"] in ("StatefulSet", "Deployment")
            if forever and name not in self.pods and component in (None, template["metadata"]["labels"][COMPONENT]):
                await asyncio.to_thread(self.create, name, template, owner)
        pods = [pod for pod in self.pods.values() if pod.name not in self._watching]
        await asyncio.gather(*(self.start(pod) for pod in pods))
        await self.wait_ready(pods)

    async def lose(self) -> None:
        """Every pod is gone, without a word to any of them."""
        await self.close()
        for pod in list(self.pods.values()):
            await asyncio.to_thread(self._remove, pod)

    async def close(self) -> None:
        for pod in list(self.pods.values()):
            await self._forget(pod)


def in_bytes(quantity: str) -> int:
    """Such as `768Mi`."""
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


def in_nano_cpus(quantity: str) -> int:
    """Such as `2` or `250m`."""
    return int(quantity[:-1]) * 1_000_000 if quantity.endswith("m") else int(quantity) * 1_000_000_000


@asynccontextmanager
async def running_containers(
    engine: Engine, objects: list[Object], folder: Path, *, start: bool = True
) -> AsyncIterator[ContainerKubelet]:
    """Every pod that is to run for ever is started at once, and ready; without `start` none is."""
    kubelet = ContainerKubelet(engine, objects, folder)
    with name_server(engine.gateway, kubelet.lookup):
        try:
            if start:
                await kubelet.start_owned()
            yield kubelet
        finally:
            await kubelet.close()
