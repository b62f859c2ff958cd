"""The chart's command lines, run: rendered pods as processes, which serve and pass the program of `helm test`."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.charts.kubelet import Kubelet, RunningPod, connections, running_release, sockets
from tests.charts.network import Flow, allowed_flows
from tests.charts.rendering import notes, render
from tests.waiting import until
from txnctl.cli import app

pytestmark = pytest.mark.process

Answer = TypeVar("Answer")
SEPARATE: dict[str, Any] = {
    "settings": {"min_free_bytes": 1048576, "lease_ttl_s": 5},
    "coordinator": {"replicas": 1},
    "controller": {"replicas": 1},
    "broker": {"replicas": 2, "persistence": {"accessMode": "ReadWriteMany"}},
    "backup": {"enabled": "backup" in {getattr(one.callback, "__name__", "") for one in app.registered_commands}},
    "defragmentation": {"enabled": True},
}
TOPIC = "topic://public/charts/orders"
IN_THE_ADMINS_POD = [
    f"topics create {TOPIC} --segments 2",
    f"produce {TOPIC} --txn 1",
    f"topics describe {TOPIC}",
    "transactions stats",
]
"""Each role answers one of them."""


async def watch_flows(release: Kubelet, seen: set[Flow]) -> None:
    """Adds who is connected to whom, until cancelled. An address and port where a pod listens is the called side."""
    listening = {
        (pod.address, port["containerPort"]): pod.component
        for pod in release.pods
        for port in pod.container.get("ports", ())
    }
    while True:
        opened = connections(listening)
        for pod in release.pods:
            for inode in {one for pid in pod.pids for one in sockets(pid)} & opened.keys():
                remote = opened[inode]
                if remote[0] != pod.address:
                    seen.add(Flow(pod.component, listening[remote], remote[1]))
        await asyncio.sleep(0.005)


def shown_commands(values: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """What the notes say to run in a pod: workload or pod, and the command."""
    lines = re.findall(r"^ +kubectl -n prod exec (\S+) -- (.+)$", notes(values), re.MULTILINE)
    return [(workload.partition("/")[2] or workload, shlex.split(command)) for workload, command in lines]


async def test_pods_of_the_chart_serve_and_open_just_the_flows_that_its_policies_allow(tmp_path: Path) -> None:
    objects = render(SEPARATE)
    seen: set[Flow] = set()
    async with running_release(objects, tmp_path) as release:
        watching = asyncio.create_task(watch_flows(release, seen))
        (test,) = release.of("test")
        assert await release.run(test) == 0, test.log
        assert "is committed and read" in test.log
        for job in (*release.of("defragmentation"), *release.of("backup")):
            await run_seen(release, job, seen)
        await run_in_pods(release, seen)
        watching.cancel()
        assert {pod.name: pod.restarts for pod in release.served if pod.restarts > 2} == {}
    assert seen == allowed_flows(objects)


async def run_seen(release: Kubelet, job: RunningPod, seen: set[Flow]) -> None:
    """A job that asks etcd alone."""
    (member, *_) = release.of("etcd")
    flow = Flow(job.component, "etcd", 2379)
    assert await held_until_seen(release.run(job), member, flow, seen) == 0, job.log


async def held_until_seen(
    asking: Coroutine[Any, Any, Answer], member: RunningPod, flow: Flow, seen: set[Flow]
) -> Answer:
    """The member stands still until the connection was seen, which otherwise lasts for milliseconds."""
    member.signal(signal.SIGSTOP)
    running = asyncio.create_task(asking)
    try:
        await until(lambda: flow in seen, "its connection", within_s=30)
    finally:
        member.signal(signal.SIGCONT)
    return await running


async def run_in_pods(release: Kubelet, seen: set[Flow]) -> None:
    (admin,) = release.of("admin")
    for line in IN_THE_ADMINS_POD:
        code, printed = await release.execute(admin, ["txnctl", *shlex.split(line)])
        assert code == 0, (line, printed)
    shown = shown_commands(SEPARATE)
    assert {command[0] for _, command in shown} == {"txnctl", "etcdctl"}
    for name, command in shown:
        (pod, *_) = [pod for pod in release.pods if pod.name == name or pod.name.startswith(f"{name}-")]
        asking = release.execute(pod, command)
        if command[0] == "etcdctl" and "," in command[1]:  # all members
            (*_, other) = release.of("etcd")
            code, printed = await held_until_seen(asking, other, Flow("etcd", "etcd", 2379), seen)
        else:
            code, printed = await asking
        assert code == 0, (command, printed)


async def test_roles_together_serve_from_one_pod(tmp_path: Path) -> None:
    objects = render({"rolesTogether": True, "etcd": {"replicas": 1}, "settings": {"min_free_bytes": 1048576}})
    async with running_release(objects, tmp_path) as release:
        assert [pod.component for pod in release.served] == ["etcd", "broker"]
        (test,) = release.of("test")
        assert await release.run(test) == 0, test.log
