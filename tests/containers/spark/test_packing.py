"""What is pinned for the image of Spark is what the client with Spark asks for; its pods start what Spark has told."""

from __future__ import annotations

import importlib.util
import tomllib
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from tools.build_image import PYTHON, fingerprint
from tools.build_image import inputs as inputs_of_servers
from tools.build_spark_image import CLIENT, SPARK, SPARK_SOURCES, inputs, parted
from tools.build_wheels import described

EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@flights-driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1g",
    "SPARK_APPLICATION_ID": "spark-7",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.3",
    "SPARK_EXECUTOR_POD_NAME": "flights-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_JAVA_OPT_10": "-Dlast=yes",
    "SPARK_JAVA_OPT_2": "-Dtext=two words",
}


@pytest.fixture(scope="module")
def entrypoint() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spark_entrypoint", SPARK_SOURCES / "entrypoint.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def pinned(text: str) -> dict[str, str]:
    lines = [line.removesuffix(" \\") for line in text.splitlines() if not line.startswith(" ")]
    return dict(line.split("==") for line in lines)


def test_what_the_client_needs_with_spark_is_pinned_by_hash_in_a_version_that_it_takes() -> None:
    text = (SPARK_SOURCES / "requirements.txt").read_text()
    project = tomllib.loads(described(CLIENT))["project"]
    for needed in [*project["dependencies"], *project["optional-dependencies"]["spark"]]:
        requirement = Requirement(needed)
        assert requirement.specifier.contains(pinned(text)[requirement.name]), needed
    assert Requirement(f"python{project['requires-python']}").specifier.contains(PYTHON)
    assert "://" not in text
    of_spark, others = parted(text)
    assert pinned(of_spark).keys() == {SPARK}
    assert pinned(others).keys() == pinned(text).keys() - {SPARK}
    assert of_spark.count("--hash=") + others.count("--hash=") == text.count("--hash=")


def test_the_two_images_are_made_of_other_files() -> None:
    assert fingerprint(inputs()) == fingerprint(inputs())
    assert fingerprint(inputs()) != fingerprint()
    assert SPARK_SOURCES / "Dockerfile" in set(inputs()) - set(inputs_of_servers())


def test_a_drivers_pod_submits_what_it_was_told_in_client_mode(entrypoint: ModuleType) -> None:
    words = entrypoint.command(
        ["driver", "--class", "Main", "local:///job.py"], {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.2"}
    )
    assert words[0].endswith("/bin/spark-submit")
    assert words[1:] == [
        "--conf", "spark.driver.bindAddress=10.0.0.2", "--deploy-mode", "client", "--class", "Main", "local:///job.py",
    ]  # fmt: skip


def test_an_executors_pod_is_a_jvm_with_what_it_was_told(entrypoint: ModuleType) -> None:
    words = entrypoint.command(["executor"], EXECUTOR)
    assert words[:5] == ["java", "-Dtext=two words", "-Dlast=yes", "-Xms1g", "-Xmx1g"]
    assert words[6].startswith("/opt/spark/conf:/opt/spark/home/jars/*")
    flags = dict(zip(words[8::2], words[9::2], strict=True))
    assert flags["--driver-url"] == EXECUTOR["SPARK_DRIVER_URL"]
    assert flags["--executor-id"] == "3"
    assert flags["--podName"] == "flights-exec-3"
    with pytest.raises(KeyError, match="SPARK_DRIVER_URL"):
        entrypoint.command(["executor"], {"SPARK_EXECUTOR_MEMORY": "1g"})


def test_anything_else_is_a_command(entrypoint: ModuleType) -> None:
    assert entrypoint.command(["spark-class", "Master"], {}) == ["spark-class", "Master"]
