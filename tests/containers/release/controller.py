"""Replaces pods one by one, as the controllers of Kubernetes do after an upgrade."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from tests.charts.rendering import Object, of_kind
from tests.containers.release.kubelet import ContainerKubelet, ContainerPod

Told = Callable[[ContainerPod, int], Awaitable[None]]
"""The pod that went, and its exit code; the next one waits for the answer."""
_numbers = itertools.count(100)


async def roll(kubelet: ContainerKubelet, told: Told) -> None:
    """Every pod of the release, workload by workload."""
    for owner in of_kind(kubelet.objects, "Deployment"):
        await roll_deployment(kubelet, owner, told)
    for owner in of_kind(kubelet.objects, "StatefulSet"):
        await roll_stateful_set(kubelet, owner, told)


def pods_of(kubelet: ContainerKubelet, owner: Object) -> list[ContainerPod]:
    return [pod for pod in kubelet.pods.values() if pod.owner is owner]


async def roll_deployment(kubelet: ContainerKubelet, owner: Object, told: Told) -> None:
    """With a surge of one and none unavailable: a new pod is ready before an old one goes."""
    surge = owner["spec"]["strategy"]["rollingUpdate"]
    assert (surge["maxSurge"], surge["maxUnavailable"]) == (1, 0)
    for old in pods_of(kubelet, owner):
        new = await asyncio.to_thread(
            kubelet.create, f"{old.workload}-{next(_numbers)}", owner["spec"]["template"], owner
        )
        await kubelet.start(new)
        await kubelet.wait_ready([new])
        await told(old, await kubelet.delete(old))


async def roll_stateful_set(kubelet: ContainerKubelet, owner: Object, told: Told) -> None:
    """From the last to the first, each under its name and with its claims."""
    for old in sorted(pods_of(kubelet, owner), key=lambda pod: int(pod.name.rpartition("-")[2]), reverse=True):
        await told(old, await replace(kubelet, old))


async def replace(
    kubelet: ContainerKubelet, old: ContainerPod, *, claims_gone: Callable[[], None] | None = None
) -> int:
    """Deletes a pod of a StatefulSet, waits until another one of its name has been ready for as long as it is to be;
    returns the exit code of the one that went. `claims_gone`: called while there is none."""
    code = await kubelet.delete(old)
    if claims_gone is not None:
        await asyncio.to_thread(claims_gone)
    new = await asyncio.to_thread(kubelet.create, old.name, old.template, old.owner)
    await kubelet.start(new)
    await kubelet.wait_ready([new])
    await asyncio.sleep(old.owner["spec"]["minReadySeconds"])
    return code
