"""Charts rendered as `helm template` would, and what is asked of the objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from helm_python.chart import Chart

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "txnstore"
RELEASE, NAMESPACE = "demo", "prod"
COMPONENT = "app.kubernetes.io/component"
VALUES_FILES = sorted(path.name for path in CHART.glob("values-*.yaml"))
EVERYTHING: dict[str, Any] = {
    "backup": {"enabled": True},
    "defragmentation": {"enabled": True},
    "broker": {"persistence": {"accessMode": "ReadWriteMany"}, "autoscaling": {"enabled": True}},
    "coordinator": {"autoscaling": {"enabled": True, "podMetrics": {"txnstore_transactions_active": "8000"}}},
    "ingress": {"enabled": True, "hosts": ["txnstore.example.com"]},
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
}
"""Values with which every template gives something."""

Object = dict[str, Any]


@cache
def chart() -> Chart:
    return Chart.load(CHART)


def values_of(name: str) -> dict[str, Any]:
    """A values file of the chart."""
    found: dict[str, Any] = yaml.safe_load((CHART / name).read_text()) or {}
    return found


CASES: dict[str, dict[str, Any]] = {name: values_of(name) for name in VALUES_FILES} | {
    "the defaults": {},
    "everything": EVERYTHING,
    "roles together, everything": EVERYTHING | {"rolesTogether": True, "coordinator": {}},
}
"""What the tests of all objects render."""


def render(values: Mapping[str, Any]) -> list[Object]:
    """All objects. Raises `HelmError` where the values are refused."""
    texts = chart().render(dict(values), name=RELEASE, namespace=NAMESPACE)
    objects = [yaml.load_all(text, yaml.CSafeLoader) for path, text in texts.items() if not path.endswith("NOTES.txt")]
    return [one for documents in objects for one in documents if one]


def notes(values: Mapping[str, Any]) -> str:
    return chart().render(dict(values), name=RELEASE, namespace=NAMESPACE)["txnstore/templates/NOTES.txt"]


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [one for one in objects if one["kind"] in kinds]


def pod_templates(objects: list[Object]) -> Iterator[tuple[Object, Object]]:
    """Each object that makes pods, and the pod: `metadata` and `spec`."""
    for one in objects:
        match one["kind"]:
            case "Pod":
                yield one, one
            case "Deployment" | "StatefulSet":
                yield one, one["spec"]["template"]
            case "CronJob":
                yield one, one["spec"]["jobTemplate"]["spec"]["template"]


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a `LabelSelector` matches; an empty one matches everything. Raises `ValueError` for operators that the
    chart does not use."""
    for one in selector.get("matchExpressions", ()):
        if one["operator"] != "In":
            raise ValueError(f"operator {one['operator']}: expected In")
        if labels.get(one["key"]) not in one["values"]:
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def name_of(one: Object) -> str:
    return f"{one['kind']}/{one['metadata']['name']}"
