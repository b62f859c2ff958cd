"""Wrong values, and what each is told: the schema names the value and what it may be, the templates what to do."""

from __future__ import annotations

from typing import Any

import pytest
from helm_python.errors import HelmError

from tests.charts.rendering import render

EXTERNAL: dict[str, Any] = {"etcd": {"enabled": False}}


def at(path: str, value: Any) -> dict[str, Any]:
    """`at("a.b", 1)` is `{"a": {"b": 1}}`."""
    for name in reversed(path.split(".")):
        value = {name: value}
    found: dict[str, Any] = value
    return found


def external(*endpoints: str, **more: Any) -> dict[str, Any]:
    return {"etcd": {"enabled": False}, "externalEtcd": {"endpoints": list(endpoints), **more}}


BY_THE_SCHEMA = [
    (at("brokers.replicas", 2), "'': additional properties 'brokers' not allowed"),
    (at("broker.replica", 2), "'/broker': additional properties 'replica' not allowed"),
    (at("broker.replicas", 0), "'/broker/replicas': minimum: got 0, want 1"),
    (at("broker.replicas", "2"), "'/broker/replicas': got string, want integer"),
    (at("broker.persistence.accessMode", "ReadOnlyMany"), "'/broker/persistence/accessMode': value must be one of"),
    (at("broker.persistence.size", "20GB"), "'/broker/persistence/size': '20GB' does not match pattern"),
    (at("broker.persistence.subPath", "../other"), "'/broker/persistence/subPath': '../other' does not match pattern"),
    (at("etcd.replicas", 2), "'/etcd/replicas': value must be one of 1, 3, 5"),
    (at("etcd.quotaBytes", 16 * 1024**3), "'/etcd/quotaBytes': maximum: got"),
    (at("etcd.extraArgs", ["max-txn-ops=1"]), "'/etcd/extraArgs/0': 'max-txn-ops=1' does not match pattern"),
    (at("settings.lease_ttl", 5), "'/settings': additional properties 'lease_ttl' not allowed"),
    (at("settings.lease_ttl_s", 0.5), "'/settings/lease_ttl_s': minimum: got 0.5, want 1"),
    (at("settings.autoscale", "no"), "'/settings/autoscale': got string, want boolean"),
    (at("settings.data_dir", "/data"), "'/settings': additional properties 'data_dir' not allowed"),
    (at("settings.allow_development_etcd", True), "'allow_development_etcd' not allowed"),
    (at("settings.log_level", "trace"), "'/settings/log_level': value must be one of"),
    (at("image.tag", "1.0:2"), "'/image/tag': '1.0:2' does not match pattern"),
    (at("image.digest", "sha256:abc"), "'/image/digest': 'sha256:abc' does not match pattern"),
    (at("image.pullPolicy", "Sometimes"), "'/image/pullPolicy': value must be one of"),
    (at("imagePullSecrets", ["registry"]), "'/imagePullSecrets/0': got string, want object"),
    (at("ports.client", 80), "'/ports/client': minimum: got 80, want 1,024"),
    (at("drain.seconds", 0), "'/drain/seconds': minimum: got 0, want 1"),
    (at("podSecurityContext.runAsNonRoot", False), "'/podSecurityContext/runAsNonRoot': value must be true"),
    (at("podSecurityContext.runAsUser", 0), "'/podSecurityContext/runAsUser': minimum: got 0, want 1"),
    (at("containerSecurityContext.privileged", True), "'/containerSecurityContext/privileged': value must be false"),
    (at("containerSecurityContext.capabilities.drop", []), "no items match contains schema"),
    (at("coordinator.antiAffinity", "required"), "'/coordinator/antiAffinity': value must be one of"),
    (at("coordinator.resources.limits.memory", "1GB"), "'/coordinator/resources/limits/memory': '1GB' does not match"),
    (at("coordinator.resources.requests.cpu", 1), "'/coordinator/resources/requests/cpu': got number, want string"),
    (at("coordinator.resources.limits", None), "'/coordinator/resources': missing property 'limits'"),
    (at("coordinator.podLabels", {"tier": 1}), "'/coordinator/podLabels/tier': got number, want string"),
    (at("coordinator.autoscaling.podMetrics", {"cpu": "5"}), "invalid propertyName 'cpu'"),
    (at("coordinator.extraEnv", [{"value": "x"}]), "'/coordinator/extraEnv/0': missing property 'name'"),
    (at("admin.extraVolumeMounts", [{"name": "ca"}]), "'/admin/extraVolumeMounts/0': missing property 'mountPath'"),
    (at("ingress.paths", ["/"]), "'/ingress/paths/0': value must be one of '/healthz', '/readyz', '/metrics'"),
    (at("backup.schedule", "hourly"), "'/backup/schedule': 'hourly' does not match pattern"),
    (external("etcd-1:2379"), "'/externalEtcd/endpoints/0': 'etcd-1:2379' does not match pattern"),
    (external("http://a:1", prefix="shop/"), "'/externalEtcd/prefix': 'shop/' does not match pattern"),
    (at("networkPolicy.clients", [{}]), "'/networkPolicy/clients/0': minProperties: got 0, want 1"),
    (at("networkPolicy.clients", [{"podSelectors": {}}]), "additional properties 'podSelectors' not allowed"),
    (at("serviceMonitor.interval", "fast"), "'/serviceMonitor/interval': 'fast' does not match pattern"),
    (at("fullnameOverride", "Shop"), "'/fullnameOverride': 'Shop' does not match pattern"),
]

BY_THE_TEMPLATES = [
    (
        at("broker.replicas", 2),
        "broker: 2 brokers share one data folder, which ReadWriteOnce does not let them mount: set "
        "broker.persistence.accessMode to ReadWriteMany, or run one broker",
    ),
    (at("broker.autoscaling.enabled", True), "broker: 6 brokers share one data folder"),
    ({"rolesTogether": True, "broker": {"replicas": 3}}, "broker: 3 brokers share one data folder"),
    (
        {"backup": {"enabled": True}, "broker": {"persistence": {"accessMode": "ReadWriteOncePod"}}},
        "backup.enabled: a backup reads the brokers' claim, and ReadWriteOncePod is for one pod alone",
    ),
    (
        {"externalEtcd": {"endpoints": ["http://etcd-1:2379"]}},
        "externalEtcd.endpoints: the release has an etcd of its own; set etcd.enabled to false",
    ),
    (EXTERNAL, "externalEtcd.endpoints: name every member of the external etcd, or set etcd.enabled to true"),
    (external("http://a:2379", "https://b:2379"), "some are http and some https"),
    (
        external("http://a:2379", tls={"existingSecret": "etcd-tls"}),
        "externalEtcd.tls.existingSecret: the endpoints are http, so no certificate is looked at",
    ),
    (external("https://a:2379"), "https endpoints need a Secret with ca.crt"),
    (
        external("http://a:2379") | {"defragmentation": {"enabled": True}},
        "defragmentation.enabled: an external etcd is defragmented by who runs it",
    ),
    (at("externalEtcd.auth.existingSecret", "user"), "externalEtcd.auth.existingSecret: it is for an external etcd"),
    (at("externalEtcd.tls.existingSecret", "tls"), "externalEtcd.tls.existingSecret: it is for an external etcd"),
    (at("externalEtcd.prefix", "/shop"), "externalEtcd.prefix: it is for an external etcd"),
    (at("etcd.podDisruptionBudget.maxUnavailable", 2), "2 of 3 members away leave no majority"),
    (at("etcd.electionMs", 400), "etcd.electionMs: 400 is less than five heartbeats of 100 ms"),
    (at("drain.seconds", 50), "60 s would kill a server that hands over; give it drain.seconds and 15 more, 65"),
    (at("ingress.enabled", True), "ingress.hosts: name at least one host, or set ingress.enabled to false"),
    (at("ports.http", 6650), "ports: client and http are both 6650; give each its own"),
    (
        {"rolesTogether": True, "coordinator": {"autoscaling": {"enabled": True}}},
        "coordinator.autoscaling.enabled: with rolesTogether there are no coordinators apart",
    ),
    (at("networkPolicy.clients", []), "networkPolicy.clients: nobody could use the cluster"),
    (at("networkPolicy.dns", []), "networkPolicy.dns: no server would find etcd"),
    (
        {"serviceMonitor": {"enabled": True}, "networkPolicy": {"monitoring": []}},
        "networkPolicy.monitoring: serviceMonitor is enabled, and no Prometheus may reach the pods",
    ),
    (
        at("broker.podLabels", {"app.kubernetes.io/component": "x"}),
        "broker.podLabels: app.kubernetes.io/component is the chart's own; its selectors go by it",
    ),
    (at("commonLabels", {"app.kubernetes.io/name": "x"}), "commonLabels: app.kubernetes.io/name is the chart's own"),
    (at("admin.extraEnv", [{"name": "TXN_ETCD", "value": "x"}]), "admin.extraEnv: the chart sets TXN_ETCD itself"),
    (at("admin.extraVolumes", [{"name": "tmp"}]), "admin.extraVolumes: the chart has a volume tmp itself"),
    (
        at("coordinator.autoscaling", {"enabled": True, "minReplicas": 9}),
        "coordinator.autoscaling: minReplicas 9 is above maxReplicas 6",
    ),
    (
        at("coordinator.autoscaling", {"enabled": True, "cpuPercent": 0}),
        "coordinator.autoscaling: neither cpuPercent nor podMetrics says by what to scale",
    ),
]


@pytest.mark.parametrize(("values", "told"), BY_THE_SCHEMA, ids=lambda one: str(one)[:60])
def test_the_schema_names_the_wrong_value(values: dict[str, Any], told: str) -> None:
    with pytest.raises(HelmError) as caught:
        render(values)
    assert told in str(caught.value)


@pytest.mark.parametrize(("values", "told"), BY_THE_TEMPLATES, ids=lambda one: str(one)[:60])
def test_values_that_do_not_work_together_are_refused_with_a_sentence(values: dict[str, Any], told: str) -> None:
    with pytest.raises(HelmError) as caught:
        render(values)
    assert told in str(caught.value)
    assert "servers.yaml" in str(caught.value)  # by the refusals, not by a template that stumbles


def test_there_are_forty_of_them() -> None:
    assert len(BY_THE_SCHEMA) + len(BY_THE_TEMPLATES) >= 40
