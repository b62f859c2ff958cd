"""Every object of the chart: by Kubernetes' own schemas, and by the house's rules for pods, selectors and ports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache

import kubernetes_validate
import pytest

from tests.charts.network import passes
from tests.charts.rendering import CASES, COMPONENT, Object, chart, name_of, of_kind, pod_templates, render, selects

OLDEST, NEWEST = "1.30", "1.37"
OPERATORS_OWN = {"ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator: Kubernetes has no schema of them."""


@pytest.fixture(params=CASES, name="objects")
def _objects(request: pytest.FixtureRequest) -> list[Object]:
    return render(CASES[request.param])


def containers(objects: list[Object]) -> Iterator[tuple[str, Object, Object]]:
    """Where it is, its pod's spec, and the container."""
    for owner, template in pod_templates(objects):
        for one in [*template["spec"]["containers"], *template["spec"].get("initContainers", ())]:
            yield f"{name_of(owner)}, container {one['name']}", template["spec"], one


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_valid_strictly(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each, however many values files give it; the package reads its schemas anew for each, which takes long."""
    monkeypatch.setattr(kubernetes_validate.utils, "schema_contents", cache(kubernetes_validate.utils.schema_contents))
    objects = {json.dumps(one): one for values in CASES.values() for one in render(values)}
    for one in objects.values():
        if one["kind"] not in OPERATORS_OWN:
            assert kubernetes_validate.validate(one, version, strict=True) == version, name_of(one)


def test_the_chart_says_the_oldest_kubernetes_that_is_tested() -> None:
    assert chart().metadata["kubeVersion"] == f">={OLDEST}.0-0"


def test_names_are_unique_and_fit_a_dns_label(objects: list[Object]) -> None:
    names = [name_of(one) for one in objects]
    assert len(names) == len(set(names))
    assert all(len(one["metadata"]["name"]) <= 63 for one in objects)


def test_everything_lies_in_the_namespace_of_the_release_and_carries_its_labels(objects: list[Object]) -> None:
    for one in objects:
        assert one["metadata"]["namespace"] == "prod", name_of(one)
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "demo", name_of(one)
        assert labels["app.kubernetes.io/name"] == "txnstore", name_of(one)


def test_pods_keep_to_the_restricted_standard(objects: list[Object]) -> None:
    for where, pod, container in containers(objects):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), where
        assert not any("hostPath" in volume for volume in pod.get("volumes", ())), where
        of_pod, own = pod["securityContext"], container["securityContext"]
        assert of_pod["runAsNonRoot"] is True, where
        assert of_pod["runAsUser"] > 0, where
        assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert own["allowPrivilegeEscalation"] is False, where
        assert own["capabilities"] == {"drop": ["ALL"]}, where
        assert own["readOnlyRootFilesystem"] is True, where
        assert "privileged" not in own, where


def test_no_pod_has_a_token_of_kubernetes(objects: list[Object]) -> None:
    assert not of_kind(objects, "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    for owner, template in pod_templates(objects):
        assert template["spec"]["automountServiceAccountToken"] is False, name_of(owner)
        assert template["spec"]["enableServiceLinks"] is False, name_of(owner)  # TXN_… of a Service would be read


def test_every_container_has_requests_and_limits(objects: list[Object]) -> None:
    for where, _, container in containers(objects):
        for kind in ("requests", "limits"):
            assert container["resources"][kind].keys() == {"cpu", "memory"}, where


def test_only_folders_that_are_mounted_are_written(objects: list[Object]) -> None:
    """The root is read-only: what a command line names as a folder has a volume."""
    for where, pod, container in containers(objects):
        mounted = [mount["mountPath"] for mount in container.get("volumeMounts", ())]
        named = [word.partition("=")[2] or word for word in container.get("args", ()) if "/var/lib" in word]
        assert all(any(path.startswith(place) for place in mounted) for path in named), where
        volumes = {volume["name"] for volume in pod.get("volumes", ())} | {"data"}
        assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes, where


def test_servers_are_probed_and_drained_within_their_grace(objects: list[Object]) -> None:
    served = [owner for owner in objects if owner["kind"] in ("Deployment", "StatefulSet")]
    for owner in served:
        spec = owner["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys(), name_of(owner)
        if container["command"] == ["txnctl", "serve"]:
            drained = container["lifecycle"]["preStop"]["sleep"]["seconds"]
            assert spec["terminationGracePeriodSeconds"] >= drained + 15, name_of(owner)
            # /healthz answers after 5 s that the loop does not turn: an earlier verdict would be the kubelet's own
            assert container["livenessProbe"]["timeoutSeconds"] > 5, name_of(owner)


def selectors(one: Object) -> Iterator[dict[str, object]]:
    spec = one.get("spec", {})
    match one["kind"]:
        case "Service":
            yield {"matchLabels": spec["selector"]}
        case "PodDisruptionBudget" | "Deployment" | "StatefulSet":
            yield spec["selector"]


def test_every_selector_selects_the_pods_of_one_component_and_no_other(objects: list[Object]) -> None:
    pods = [(owner, template["metadata"]["labels"]) for owner, template in pod_templates(objects)]
    for one in objects:
        for selector in selectors(one):
            selected = [labels[COMPONENT] for _, labels in pods if selects(selector, labels)]
            meant = one["metadata"]["labels"][COMPONENT].removesuffix("-metrics")
            assert selected == [meant], name_of(one)


def test_pods_are_kept_from_those_of_their_own_component(objects: list[Object]) -> None:
    for _, template in pod_templates(objects):
        spec, labels = template["spec"], template["metadata"]["labels"]
        terms = spec.get("affinity", {}).get("podAntiAffinity", {})
        hard = terms.get("requiredDuringSchedulingIgnoredDuringExecution", [])
        soft = [one["podAffinityTerm"] for one in terms.get("preferredDuringSchedulingIgnoredDuringExecution", [])]
        for one in [*hard, *soft, *spec.get("topologySpreadConstraints", [])]:
            assert selects(one["labelSelector"], labels)
            assert one["labelSelector"]["matchLabels"][COMPONENT] == labels[COMPONENT]


def test_every_port_that_is_named_exists(objects: list[Object]) -> None:
    templates = [template for _, template in pod_templates(objects)]
    ports = {name_of(one): {port["name"] for port in one["spec"]["ports"]} for one in of_kind(objects, "Service")}
    for service in of_kind(objects, "Service"):
        for template in templates:
            if selects({"matchLabels": service["spec"]["selector"]}, template["metadata"]["labels"]):
                (container,) = template["spec"]["containers"]
                there = {port["name"] for port in container["ports"]}
                assert {port["targetPort"] for port in service["spec"]["ports"]} <= there, name_of(service)
    for where, _, container in containers(objects):
        there = {port["name"] for port in container.get("ports", ())}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container.get(probe, {"httpGet": {"port": "http"}})["httpGet"]["port"] in there | {"http"}, where
    for ingress in of_kind(objects, "Ingress"):
        for rule in ingress["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                backend = path["backend"]["service"]
                assert backend["port"]["name"] in ports[f"Service/{backend['name']}"]
    for monitor in of_kind(objects, "ServiceMonitor"):
        watched = [
            one
            for one in of_kind(objects, "Service")
            if selects(monitor["spec"]["selector"], one["metadata"]["labels"])
        ]
        assert watched, name_of(monitor)
        for endpoint in monitor["spec"]["endpoints"]:
            assert all(endpoint["port"] in ports[name_of(one)] for one in watched), name_of(monitor)


def test_whatever_is_referred_to_by_name_exists(objects: list[Object]) -> None:
    there = {name_of(one) for one in objects}
    outside = {"Secret/txnstore-etcd-tls", "Secret/txnstore-etcd-user"}
    for owner, template in pod_templates(objects):
        spec = template["spec"]
        needed = {f"ServiceAccount/{spec['serviceAccountName']}"}
        for volume in spec.get("volumes", ()):
            if "persistentVolumeClaim" in volume:
                needed.add(f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}")
            if "configMap" in volume:
                needed.add(f"ConfigMap/{volume['configMap']['name']}")
            if "secret" in volume:
                needed.add(f"Secret/{volume['secret']['secretName']}")
        for container in spec["containers"]:
            for one in container.get("env", ()):
                if "secretKeyRef" in one.get("valueFrom", {}):
                    needed.add(f"Secret/{one['valueFrom']['secretKeyRef']['name']}")
        if owner["kind"] == "StatefulSet":
            needed.add(f"Service/{owner['spec']['serviceName']}")
        assert needed <= there | outside, name_of(owner)
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        (scaled,) = [one for one in objects if name_of(one) == f"{target['kind']}/{target['name']}"]
        assert "replicas" not in scaled["spec"]  # an upgrade would set it back


def test_a_pod_gets_no_connection_that_no_policy_allows(objects: list[Object]) -> None:
    """A stranger in the namespace: no label of the release, and none of a client."""
    stranger: Object = {"metadata": {"labels": {}}, "spec": {"containers": []}}
    for owner, template in pod_templates(objects):
        for port in (2379, 2380, 2381, 6650, 6660):
            assert not passes(objects, "Ingress", template, stranger, port), name_of(owner)
            assert not passes(objects, "Egress", template, stranger, port) or owner_is_outbound(objects), name_of(owner)


def owner_is_outbound(objects: list[Object]) -> bool:
    """With an external etcd nothing is known of where it is, only its port."""
    return not of_kind(objects, "StatefulSet") or not any(
        "etcd" in one["metadata"]["name"] for one in of_kind(objects, "StatefulSet")
    )


def test_dashboards_and_test_programs_arrive_whole(objects: list[Object]) -> None:
    for config in of_kind(objects, "ConfigMap"):
        for file, text in config["data"].items():
            if file.endswith(".json"):
                assert json.loads(text)["panels"]
            else:
                compile(text, file, "exec")
