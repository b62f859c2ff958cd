"""Values: the schema knows each, each is explained, and the servers take what the chart makes of them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import annotated_types
import pytest
import yaml
from helm_python.chart import lint

from tests.charts.rendering import CASES, CHART, ROOT, Object, chart, of_kind, pod_templates, render
from txnctl.metrics.catalogue import catalogue
from txnctl.metrics.metric import MetricKind
from txnctl.process.settings import ServerSettings, load

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
OF_THE_CHART = {"roles", "id", "listen", "advertise", "admin_listen", "data_dir", "allow_development_etcd"}
"""Settings that the chart sets itself, or keeps from a cluster that is to last."""


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    return schema


def leaves(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Every value down to where the schema lists no names. Raises `KeyError` for one that the schema does not know."""
    for name, value in values.items():
        known = resolved(schema)["properties"][name]
        if isinstance(value, dict) and "properties" in resolved(known) and not is_open(resolved(known)):
            yield from leaves(value, known, f"{path}{name}.")
        else:
            yield f"{path}{name}", value, resolved(known)


def objects_of_schema(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield path, schema
        for name, inner in schema.items():
            yield from objects_of_schema(inner, f"{path}/{name}")


@pytest.mark.parametrize("case", CASES)
def test_every_values_file_is_linted(case: str) -> None:
    report = lint(CHART, CASES[case], strict=True, namespace="prod")
    assert [one for one in report["messages"] if one["severity"] > 1] == []
    assert report["errors"] == []


def test_the_schema_knows_every_value_and_no_other() -> None:
    known = {path for path, _, _ in leaves(VALUES, SCHEMA)}
    assert len(known) > 150
    assert schema_leaves(SCHEMA) - {"global"} - {
        f"settings.{name}" for name in ServerSettings.model_fields
    } == known - {"settings"}


def schema_leaves(schema: dict[str, Any], path: str = "") -> set[str]:
    found: set[str] = set()
    for name, inner in resolved(schema)["properties"].items():
        known = resolved(inner)
        found |= (
            schema_leaves(known, f"{path}{name}.") if "properties" in known and not is_open(known) else {path + name}
        )
    return found


def is_open(schema: dict[str, Any]) -> bool:
    """Kubernetes' own objects, of which the schema states what must hold and leaves the rest to Kubernetes."""
    return "additionalProperties" not in schema


def test_no_object_of_the_schema_takes_names_that_it_does_not_list() -> None:
    open_ones = {path.split("/")[-1] for path, one in objects_of_schema(SCHEMA) if "additionalProperties" not in one}
    assert open_ones == {
        *("affinity", "global", "valueFrom", "podSelector", "namespaceSelector", "ipBlock", "items"),
        *("podSecurityContext", "containerSecurityContext", "seccompProfile", "capabilities"),
    }


def test_settings_are_those_of_the_servers_with_the_same_limits() -> None:
    known = SCHEMA["properties"]["settings"]["properties"]
    own = {name for name in ServerSettings.model_fields if not name.startswith("etcd") and name not in OF_THE_CHART}
    assert set(known) == own
    for name in own:
        limits = {
            {"Ge": "minimum", "Gt": "exclusiveMinimum", "Le": "maximum"}[type(one).__name__]: next(iter(vars_of(one)))
            for one in ServerSettings.model_fields[name].metadata
            if isinstance(one, annotated_types.Ge | annotated_types.Gt | annotated_types.Le)
        }
        assert {key: value for key, value in known[name].items() if "inimum" in key or "aximum" in key} == limits, name


def vars_of(limit: Any) -> Iterator[float]:
    for name in ("ge", "gt", "le"):
        if hasattr(limit, name):
            yield getattr(limit, name)


def server_pods(values: dict[str, Any]) -> Iterator[Object]:
    for _, template in pod_templates(render(values)):
        (container,) = template["spec"]["containers"]
        if container["command"] == ["txnctl", "serve"]:
            yield container


def settings_of(container: Object, monkeypatch: pytest.MonkeyPatch) -> ServerSettings:
    """What `txnctl serve` reads from the container's arguments and variables."""
    known = {"POD_NAME": "pod-1", "POD_IP": "10.0.0.7"}
    flags = {}
    for one in container["env"]:
        if "value" in one:
            monkeypatch.setenv(one["name"], one["value"])
    for word in container["args"]:
        name, _, value = word.removeprefix("--").partition("=")
        for variable, meant in known.items():
            value = value.replace(f"$({variable})", meant)
        flags[name.replace("-", "_")] = value
    return load(None, **flags)


def test_servers_take_every_setting_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "tcids": 32,
        "lease_ttl_s": 7.5,
        "ledger_roll_bytes": 1073741824,
        "min_free_bytes": 0,
        "autoscale": False,
        "max_open_transactions": 100000,
        "log_level": "debug",
    }
    pods = [*server_pods({"settings": settings})]
    assert len(pods) == 4
    for container in pods:
        read = settings_of(container, monkeypatch)
        assert {name: getattr(read, name) for name in settings} == settings
        assert read.id == "pod-1"
        assert read.listen == "0.0.0.0:6650"


def test_servers_tell_others_an_address_that_is_theirs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {pod["name"]: settings_of(pod, monkeypatch).advertise for pod in server_pods({})}
    assert told == {
        "coordinator": "10.0.0.7:6650",
        "controller": "10.0.0.7:6650",
        "admin": "10.0.0.7:6650",
        "broker": "pod-1.demo-txnstore-broker.prod.svc.cluster.local:6650",
    }


def test_servers_know_the_quota_of_their_etcd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 3.6 etcd does not tell it, and the limits that refuse new transactions go by it."""
    quota = 512 * 1024**2
    own, *_ = server_pods({"etcd": {"quotaBytes": quota}})
    assert settings_of(own, monkeypatch).etcd_quota_bytes == quota
    other, *_ = server_pods(
        {"etcd": {"enabled": False}, "externalEtcd": {"endpoints": ["http://a:2379"], "quotaBytes": quota}}
    )
    assert settings_of(other, monkeypatch).etcd_quota_bytes == quota


def test_an_address_of_ipv6_is_told_in_brackets() -> None:
    coordinator, *_ = [one for one in server_pods({"listenHost": "[::]"}) if one["name"] == "coordinator"]
    assert {"--listen=[::]:6650", "--advertise=[$(POD_IP)]:6650"} <= set(coordinator["args"])


def test_an_external_etcd_is_reached_over_tls_as_a_user() -> None:
    for container in server_pods(CASES["values-external-etcd.yaml"]):
        found = {one["name"]: one.get("value") or one["valueFrom"] for one in container["env"]}
        assert found["TXN_ETCD"].count("https://") == 3
        assert found["TXN_ETCD_CA"] == "/etc/txnstore/etcd-tls/ca.crt"
        assert found["TXN_ETCD_CERT"] == "/etc/txnstore/etcd-tls/tls.crt"
        assert found["TXN_ETCD_KEY"] == "/etc/txnstore/etcd-tls/tls.key"
        assert found["TXN_ETCD_PASSWORD"]["secretKeyRef"] == {"name": "txnstore-etcd-user", "key": "password"}


def test_a_backup_has_time_for_all_its_data_and_one_that_fails_is_not_made_again() -> None:
    """It fails also where it names a damaged ledger, and is whole: its repetitions would push older ones out."""
    (job,) = of_kind(render({"backup": {"enabled": True}}), "CronJob")
    once = job["spec"]["jobTemplate"]["spec"]
    assert once["activeDeadlineSeconds"] >= 24 * 3600
    assert once["backoffLimit"] == 0
    (ignored,) = once["podFailurePolicy"]["rules"]
    assert (ignored["action"], ignored["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")


@pytest.mark.parametrize(
    ("persistence", "gone"),
    [({}, False), ({"keep": False}, True), ({"keep": False, "existingClaim": "shared"}, False)],
    ids=["kept", "not kept", "of somebody else"],
)
def test_claims_of_etcd_stay_behind_the_release_where_those_of_brokers_do(
    persistence: dict[str, Any], gone: bool
) -> None:
    """Servers refuse an etcd whose data folder is not there: a release that is installed again would not start."""
    objects = render({"broker": {"persistence": persistence}})
    (etcd,) = [one for one in of_kind(objects, "StatefulSet") if one["metadata"]["name"].endswith("-etcd")]
    policy = etcd["spec"].get("persistentVolumeClaimRetentionPolicy")
    assert policy == ({"whenDeleted": "Delete", "whenScaled": "Retain"} if gone else None)
    claims = [one for one in of_kind(objects, "PersistentVolumeClaim") if one["metadata"]["name"].endswith("-broker")]
    kept = [one["metadata"].get("annotations", {}).get("helm.sh/resource-policy") for one in claims]
    assert kept == ([] if "existingClaim" in persistence else [None] if gone else ["keep"])


def test_alerts_of_the_chart_are_those_of_the_operations_page() -> None:
    shown = (ROOT / "docs" / "operations.md").read_text().partition("```yaml\ngroups:")[2].partition("```")[0]
    assert (CHART / "files" / "alerts.yaml").read_text() == f"groups:{shown}"


def test_the_versions_are_those_of_the_distribution() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart().metadata["version"] == chart().metadata["appVersion"] == version


def test_metrics_that_pods_are_scaled_by_are_gauges_of_theirs() -> None:
    shown = re.findall(r"`(\w+): \"\d+\"`", (CHART / "values.yaml").read_text())
    gauges = {one.name for one in catalogue() if one.kind is MetricKind.GAUGE}
    assert shown
    assert set(shown) <= gauges
