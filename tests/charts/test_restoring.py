"""The example that puts a backup back: valid, confined, and of the very names and flags that the chart gives."""

from __future__ import annotations

import kubernetes_validate
import pytest

from tests.charts.kubelet import named_pods
from tests.charts.network import passes
from tests.charts.rendering import COMPONENT, Object, of_kind, render
from tests.charts.restoring import FULL_NAME, restoring
from tests.charts.test_manifests import NEWEST, OLDEST

OBJECTS = restoring("000001-20261128T022852Z")
RELEASED = render({"backup": {"enabled": True}, "broker": {"persistence": {"accessMode": "ReadWriteMany"}}})
SAME_FLAGS = ("--initial-cluster", "--initial-advertise-peer-urls", "--initial-cluster-token", "--name", "--data-dir")


def pods() -> dict[str, Object]:
    return {one["metadata"]["name"]: one["spec"]["template"] for one in of_kind(OBJECTS, "Job")}


def container(pod: Object) -> Object:
    (found,) = pod["spec"]["containers"]
    return dict(found)


def flags(args: list[str], name: str) -> dict[str, str]:
    return dict(one.replace("$(POD_NAME)", name).split("=", 1) for one in args)


def members() -> dict[str, Object]:
    return {
        name: template
        for name, template, owner in named_pods(RELEASED)
        if owner["kind"] == "StatefulSet" and template["metadata"]["labels"][COMPONENT] == "etcd"
    }


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_valid_strictly(version: str) -> None:
    for one in OBJECTS:
        assert kubernetes_validate.validate(one, version, strict=True) == version, one["metadata"]["name"]


def test_each_member_is_restored_with_the_flags_that_it_is_started_with() -> None:
    found = members()
    assert len(found) == 3
    for number, (name, template) in enumerate(found.items()):
        job = container(pods()[f"restore-etcd-{number}"])
        given, own = flags(job["args"], name), flags(container(template)["args"], name)
        assert given == {flag: own[flag] for flag in SAME_FLAGS}
        assert job["image"] == container(template)["image"]
        claims = [
            one["persistentVolumeClaim"]["claimName"] for one in pods()[f"restore-etcd-{number}"]["spec"]["volumes"]
        ]
        assert claims == [f"{FULL_NAME}-backup", f"data-{name}"]


def test_claims_are_those_of_the_release() -> None:
    theirs = {one["metadata"]["name"] for one in of_kind(RELEASED, "PersistentVolumeClaim")}
    made = {one["metadata"]["name"] for one in of_kind(OBJECTS, "PersistentVolumeClaim")}
    assert made == {f"data-{name}" for name in members()}
    for pod in pods().values():
        claims = {one["persistentVolumeClaim"]["claimName"] for one in pod["spec"]["volumes"] if "emptyDir" not in one}
        assert claims <= theirs | made


def test_the_ledgers_are_restored_where_a_release_with_a_sub_path_finds_them() -> None:
    (of_ledgers,) = [pod for name, pod in pods().items() if name == "restore-ledgers"]
    given, mounts = container(of_ledgers)["args"], container(of_ledgers)["volumeMounts"]
    (claim,) = [one["mountPath"] for one in mounts if one["name"] == "data"]
    (folder,) = [one.partition("=")[2] for one in given if one.startswith("--data-dir=")]
    path = folder.removeprefix(f"{claim}/")
    objects = render({"backup": {"enabled": True}, "broker": {"persistence": {"subPath": path}}})
    mounted = [
        (template["metadata"]["labels"][COMPONENT], one)
        for _, template, _ in named_pods(objects)
        for one in container(template).get("volumeMounts", ())
        if one["mountPath"] == "/var/lib/txnstore"
    ]
    assert {component for component, _ in mounted} == {"broker", "backup"}
    assert {one["subPath"] for _, one in mounted} == {path}


def test_pods_are_confined_and_the_policies_let_the_restore_reach_etcd() -> None:
    for name, pod in pods().items():
        assert pod["spec"]["automountServiceAccountToken"] is False, name
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True, name
        own = container(pod)["securityContext"]
        assert (own["readOnlyRootFilesystem"], own["capabilities"]) == (True, {"drop": ["ALL"]}), name
        assert set(container(pod)["resources"]) == {"requests", "limits"}, name
    (member, *_) = members().values()
    source = pods()["restore-ledgers"]
    assert passes(RELEASED, "Egress", source, member, 2379)
    assert passes(RELEASED, "Ingress", member, source, 2379)
