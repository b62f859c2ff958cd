"""Every member of etcd replaced by an empty one under load; then the backup of the CronJob, and a cluster of new
containers that the Jobs of the examples restore from it."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.charts.rendering import Object, of_kind, render
from tests.charts.restoring import FULL_NAME, restoring
from tests.containers.engine import Container, Engine
from tests.containers.release.client import ContainerLoad
from tests.containers.release.controller import pods_of, replace
from tests.containers.release.kubelet import DOMAIN, ContainerKubelet, running_containers
from tests.containers.release.names import why_no_names
from tests.containers.release.test_release import VALUES, passes_helm_test
from tests.waiting import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(900),
    pytest.mark.skipif(why_no_names() is not None, reason=str(why_no_names())),
]
TOPIC = "topic://public/charts/kept"
BACKUP_CLAIM = f"{FULL_NAME}-backup"
RESTORED = "restored"
"""The folder of the example in the brokers' claim."""
IN_TRANSACTION = re.compile(r"(\S+) ([ab])")
WITH_BACKUP: dict[str, Any] = {
    **VALUES,
    "backup": {"enabled": True},
    # What a member that begins anew needs, and one that goes on passes over.
    "etcd": {"extraArgs": ["--initial-cluster-state=existing"]},
}


async def replace_members(kubelet: ContainerKubelet, load: ContainerLoad) -> None:
    """As docs/operations.md says, one after the other."""
    (owner,) = [
        one for one in of_kind(kubelet.objects, "StatefulSet") if one["metadata"]["name"] == f"{FULL_NAME}-etcd"
    ]
    for old in sorted(pods_of(kubelet, owner), key=lambda pod: pod.name):
        (other, *_) = [pod for pod in pods_of(kubelet, owner) if pod is not old]

        def ask(*words: str, member: Any = other.made) -> str:
            code, said = member.run("etcdctl", *words)
            assert code == 0, said
            return str(said)

        members = listed(ask("member", "list", "--write-out=json"))
        (number,) = [one["ID"] for one in members if one["name"] == old.name]
        await until(
            lambda member=other, number=number: is_removed(member.made, number), f"{old.name} as no member any more"
        )
        peer = f"http://{old.name}.{FULL_NAME}-etcd.{DOMAIN}:2380"
        await until(
            lambda member=other, name=old.name, url=peer: is_added(member.made, name, url), f"{peer} as a member"
        )
        folder = kubelet.claim(f"data-{old.name}")
        of_the_old = folder / "member" / "old"  # a mark: a new folder may have the inode of the one it follows
        of_the_old.touch()
        await replace(kubelet, old, claims_gone=lambda gone=folder: shutil.rmtree(gone))
        assert (folder / "member").is_dir()
        assert not of_the_old.exists()
        await load.wait_committed(10)


def listed(said: str) -> list[Object]:
    """The members of an answer, which stands behind warnings."""
    found: list[Object] = json.loads(said.splitlines()[-1])["members"]
    return found


def is_removed(member: Container, number: int) -> bool:
    """Asked again: etcd refuses for some seconds after another member has changed (`unhealthy cluster`)."""
    member.run("etcdctl", "member", "remove", f"{number:x}")
    code, said = member.run("etcdctl", "member", "list", "--write-out=json")
    return code == 0 and all(one["ID"] != number for one in listed(said))


def is_added(member: Container, name: str, peer: str) -> bool:
    """Asked again, for where the leader was removed there is none for a moment, and an answer may be lost."""
    code, said = member.run("etcdctl", "member", "list", "--write-out=json")
    if code == 0 and any(peer in one["peerURLs"] for one in listed(said)):
        return True
    member.run("etcdctl", "member", "add", name, f"--peer-urls={peer}")
    return False


async def backed_up(kubelet: ContainerKubelet) -> str:
    """The name of the backup that the CronJob's pod has made."""
    code, said = await kubelet.run(f"{FULL_NAME}-backup")
    assert code == 0, said
    found = re.search(r"backup (\S+) is whole", said)
    assert found is not None, said
    return found[1]


async def restore(kubelet: ContainerKubelet, backup: str) -> str:
    """In the order of docs/deploy.md; returns what the restore of the ledgers has said."""
    *of_etcd, of_ledgers = of_kind(restoring(backup), "Job")
    for job in of_etcd:
        code, said = await kubelet.run_job(job["metadata"]["name"], job["spec"]["template"], job)
        assert code == 0, said
    await kubelet.start_owned("etcd")
    code, said = await kubelet.run_job(of_ledgers["metadata"]["name"], of_ledgers["spec"]["template"], of_ledgers)
    assert code == 0, said
    await kubelet.start_owned()
    return said


def torn(read: list[str]) -> Iterator[str]:
    """Transactions of which there is a part."""
    parts = Counter(found[1] for one in read if (found := IN_TRANSACTION.fullmatch(one)))
    yield from (name for name, number in parts.items() if number != 2)


def timed() -> Callable[[str], None]:
    begin = time.monotonic()
    return lambda text: print(f"{time.monotonic() - begin:6.1f} s  {text}", flush=True)


async def test_etcd_is_replaced_and_a_backup_makes_a_new_cluster(engine: Engine, tmp_path: Path) -> None:
    say = timed()
    objects = render({**WITH_BACKUP, "etcd": {}})  # it begins as the chart does
    folder, fresh = tmp_path / "release", tmp_path / "restored"
    async with running_containers(engine, objects, folder) as kubelet:
        say("the release is ready")
        async with ContainerLoad(kubelet, TOPIC) as load:
            upgrade(kubelet, render(WITH_BACKUP))
            await replace_members(kubelet, load)
            say("every member of etcd is another one, with an empty volume")
            acknowledged = await load.acknowledged()
            backup = await backed_up(kubelet)
            say(f"{backup} is backed up, with {len(acknowledged)} values acknowledged before")
            await load.wait_committed(10)
        report = load.report
        print(f"{report['committed']} transactions, p99 of {report['sends']} sends {report['p99_ms']:.0f} ms, "
              f"longest {report['longest_ms']:.0f} ms; repeated {report['repeated']}")  # fmt: skip
        assert (report["errors"], report["missing"], report["too many"]) == ([], [], [])
        assert report["committed"] > 0
        await kubelet.lose()
    (fresh / "claims").mkdir(parents=True)
    (folder / "claims" / BACKUP_CLAIM).rename(fresh / "claims" / BACKUP_CLAIM)  # all that is left
    values = {
        **VALUES,
        "broker": VALUES["broker"] | {"persistence": {**VALUES["broker"]["persistence"], "subPath": RESTORED}},
    }
    async with running_containers(engine, render(values), fresh, start=False) as kubelet:
        said = await restore(kubelet, backup)
        say(f"new containers are restored: {said.strip().splitlines()[-2:]}")
        await passes_helm_test(kubelet)
        read = await ContainerLoad(kubelet, TOPIC, name="reader").read()
        say(f"{len(read)} values are read")
    assert sorted(set(acknowledged) - set(read)) == [], "acknowledged before the backup began"
    assert list(torn(read)) == []
    assert [one for one, times in Counter(read).items() if times > 1] == []


def upgrade(kubelet: ContainerKubelet, objects: list[Object]) -> None:
    """Pods that are made from now on are of the new templates."""
    new = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    for one in kubelet.objects:
        if one["kind"] == "StatefulSet":
            one["spec"] = new[one["kind"], one["metadata"]["name"]]["spec"]
    for pod in kubelet.pods.values():
        if pod.owner["kind"] == "StatefulSet":
            pod.template = pod.owner["spec"]["template"]
