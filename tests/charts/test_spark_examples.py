"""The examples of Spark on Kubernetes: valid by Kubernetes' schemas and the operator's fields, and one job in both."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pyspark_txnstore.jobs.flights import parser
from tests.charts.rendering import ROOT, Object, of_kind, render, selects
from tests.charts.test_manifests import NEWEST, OLDEST
from tools.build_spark_image import SPARK_SOURCES, TAG

EXAMPLES = ROOT / "examples" / "kubernetes"
JOB = "local:///opt/spark/jobs/flights.py"
TEXT, NUMBER, TEXTS = str, int, list
OF_APPLICATION: dict[str, Any] = {
    "type": {"Java", "Python", "Scala", "R"},
    "mode": {"cluster", "client"},
    "pythonVersion": {"2", "3"},
    "sparkVersion": TEXT,
    "image": TEXT,
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "mainApplicationFile": TEXT,
    "arguments": TEXTS,
    "sparkConf": dict,
    "restartPolicy": {
        "type": {"Never", "OnFailure", "Always"},
        "onFailureRetries": NUMBER,
        "onFailureRetryInterval": NUMBER,
        "onSubmissionFailureRetries": NUMBER,
        "onSubmissionFailureRetryInterval": NUMBER,
    },
    "volumes": TEXTS,
    "driver": dict,
    "executor": dict,
}
"""Fields of `spec` in sparkoperator.k8s.io/v1beta2: texts of a set, a type, or fields again."""
OF_POD: dict[str, Any] = {
    "cores": NUMBER,
    "coreLimit": TEXT,
    "coreRequest": TEXT,
    "memory": TEXT,
    "memoryOverhead": TEXT,
    "labels": dict,
    "annotations": dict,
    "serviceAccount": TEXT,
    "env": TEXTS,
    "podSecurityContext": dict,
    "securityContext": dict,
    "volumeMounts": TEXTS,
    "instances": NUMBER,
}
REQUIRED = {"type", "sparkVersion", "mainApplicationFile", "driver", "executor"}


def documents(name: str) -> list[Object]:
    return [one for one in yaml.safe_load_all((EXAMPLES / name).read_text()) if one]


def application() -> Object:
    (found,) = documents("spark-application.yaml")
    return found


def submitted() -> list[str]:
    """The words of the command in the script."""
    text = (EXAMPLES / "spark-submit.sh").read_text()
    return shlex.split(text[text.index("exec ") :].replace("\\\n", " "))[1:]


def configured() -> dict[str, str]:
    words = submitted()
    return dict(words[place + 1].split("=", 1) for place, word in enumerate(words) if word == "--conf")


def wrong_fields(found: Object, fields: dict[str, Any], where: str) -> list[str]:
    wrong = []
    for name, value in found.items():
        wanted = fields.get(name)
        if wanted is None:
            wrong.append(f"{where}.{name} does not exist")
        elif isinstance(wanted, dict):
            wrong += wrong_fields(value, wanted, f"{where}.{name}")
        elif value not in wanted if isinstance(wanted, set) else not isinstance(value, wanted):
            wrong.append(f"{where}.{name}: {value!r}, expected {wanted}")
    return wrong


def pod_of(role: str) -> Object:
    """The pod that the operator would make of the application: by the fields that are Kubernetes' own."""
    spec = application()["spec"]
    own = spec[role]
    container = {"name": "spark", "image": spec["image"], "imagePullPolicy": spec["imagePullPolicy"]}
    container |= {name: own[name] for name in ("securityContext", "volumeMounts")}
    inside = {"containers": [container], "volumes": spec["volumes"], "securityContext": own["podSecurityContext"]}
    metadata = {"name": role, "labels": own["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": inside}


def pods() -> dict[str, Object]:
    templates = {f"{role}-pod.yaml": documents(f"{role}-pod.yaml")[0] for role in ("driver", "executor")}
    return templates | {f"the operator's {role}": pod_of(role) for role in ("driver", "executor")}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_valid_strictly(version: str) -> None:
    for one in [*documents("flights.yaml"), *pods().values()]:
        assert kubernetes_validate.validate(one, version, strict=True) == version, one["kind"]


def test_the_application_has_fields_that_the_operator_knows() -> None:
    spec = application()["spec"]
    assert spec.keys() >= REQUIRED
    assert wrong_fields(spec, OF_APPLICATION, "spec") == []
    for role in ("driver", "executor"):
        assert wrong_fields(spec[role], OF_POD, role) == []
    assert wrong_fields({"mode": "cluter", "exekutor": {}}, OF_APPLICATION, "spec") == [
        "spec.mode: 'cluter', expected " + str(OF_APPLICATION["mode"]),
        "spec.exekutor does not exist",
    ]


def test_both_run_the_same_job_with_arguments_that_it_takes() -> None:
    words, spec = submitted(), application()["spec"]
    place = words.index(JOB)
    assert spec["mainApplicationFile"] == JOB
    assert vars(parser().parse_args(words[place + 1 :])) == vars(parser().parse_args(spec["arguments"]))
    assert configured()["spark.kubernetes.container.image"] == spec["image"] == TAG


def test_both_ask_for_the_same_pods() -> None:
    told, spec = configured(), application()["spec"]
    for role in ("driver", "executor"):
        own, mount = spec[role], {one["name"]: one["mountPath"] for one in spec[role]["volumeMounts"]}
        assert told[f"spark.{role}.memory"] == own["memory"]
        assert told[f"spark.kubernetes.{role}.limit.cores"] == own["coreLimit"]
        volume = f"spark.kubernetes.{role}.volumes.persistentVolumeClaim.flights"
        assert told[f"{volume}.options.claimName"] == spec["volumes"][0]["persistentVolumeClaim"]["claimName"]
        assert told[f"{volume}.mount.path"] == mount["flights"]
        template = Path(told[f"spark.kubernetes.{role}.podTemplateFile"])
        assert (ROOT / template).parent == EXAMPLES
        (pod,) = documents(template.name)
        assert pod["spec"]["securityContext"] == own["podSecurityContext"]
        (container,) = pod["spec"]["containers"]
        assert container["name"] == told[f"spark.kubernetes.{role}.podTemplateContainerName"]
        assert container["securityContext"] == own["securityContext"]
        assert pod["metadata"]["labels"] == own["labels"]
    assert told["spark.kubernetes.authenticate.driver.serviceAccountName"] == spec["driver"]["serviceAccount"]
    assert told["spark.executor.instances"] == str(spec["executor"]["instances"])


def test_names_exist_that_one_object_has_of_another() -> None:
    objects = documents("flights.yaml")
    (account,), (role,), (binding,), (claim,) = (
        of_kind(objects, kind) for kind in ("ServiceAccount", "Role", "RoleBinding", "PersistentVolumeClaim")
    )
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [one["name"] for one in binding["subjects"]] == [account["metadata"]["name"]]
    spec = application()["spec"]
    assert spec["driver"]["serviceAccount"] == account["metadata"]["name"]
    assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_pods_are_confined_and_are_clients_that_the_release_lets_through() -> None:
    policies = [one["spec"] for one in of_kind(render({}), "NetworkPolicy")]
    rules = [
        rule
        for one in policies
        for rule in one.get("ingress", ())
        if {"port": 6650, "protocol": "TCP"} in rule["ports"]
    ]
    let_through = [peer["podSelector"] for rule in rules for peer in rule["from"] if "podSelector" in peer]
    for name, pod in pods().items():
        (container,) = pod["spec"]["containers"]
        assert pod["spec"]["securityContext"]["runAsUser"] == 10001, name
        assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
        assert any(selects(peer, pod["metadata"]["labels"]) for peer in let_through), name


def test_the_examples_name_the_version_that_the_image_has() -> None:
    pinned = (SPARK_SOURCES / "requirements.txt").read_text()
    assert f"\npyspark=={application()['spec']['sparkVersion']} " in pinned
