"""The image of Spark by itself: what is in it, what is not, and what Kubernetes would start in it."""

from __future__ import annotations

import pytest

from tests.containers.engine import SPARK_IMAGE, Container, Engine, why_not

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
TOLD = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:1",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_EXECUTOR_MEMORY": "480m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
    "SPARK_EXECUTOR_POD_NAME": "flights-exec-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_JAVA_OPT_0": "-Dspark.executor.was.told=yes",
    "SPARK_JAVA_OPT_1": "-XX:TieredStopAtLevel=1",
}
"""As Spark sets it in an executor's pod; nobody listens at that address."""


def make(engine: Engine, name: str, words: list[str], **more: dict[str, str]) -> Container:
    if (reason := why_not(SPARK_IMAGE)) is not None:
        pytest.skip(f"{reason}; `make spark-image` builds it")
    one = engine.create(name, SPARK_IMAGE, words, memory="1g", tmp="size=256m,exec", **more)
    one.start()
    return one


def test_it_has_java_spark_and_the_client_and_nothing_of_the_servers(engine: Engine) -> None:
    one = make(engine, "idle", ["sleep", "600"])
    code, said = one.run(
        "python3", "-c", "import txnclient.sync, pyspark_txnstore.jobs.flights, pyspark, pyarrow, pandas"
    )
    assert code == 0, said
    code, said = one.run("java", "-version")
    assert (code, 'openjdk version "17.' in said) == (0, True)
    for absent in ("txnstore", "txnctl", "segments", "coordinator_v5", "pip", "uvloop"):
        code, said = one.run("python3", "-c", f"import {absent}")
        assert (code, "ModuleNotFoundError" in said) == (1, True), absent
    code, said = one.run("sh", "-c", "ls /opt/spark/home/python/lib/*.zip")
    assert code != 0, "what is compiled already is to be loaded"
    code, said = one.run("sh", "-c", "id -u; touch /opt/spark/x; command -v pip gcc cc")
    assert "10001" in said.splitlines()
    assert "Read-only file system" in said
    assert code != 0, "neither pip nor a compiler"


def test_an_executors_pod_starts_sparks_executor_with_what_it_was_told(engine: Engine) -> None:
    one = make(engine, "executor", ["executor"], environment=TOLD)
    assert one.wait(within_s=120) != 0
    said = one.log.decode()
    assert "KubernetesExecutorBackend" in said
    assert "127.0.0.1:1" in said, said[-3000:]


def test_a_pod_that_was_told_nothing_says_what_is_missing(engine: Engine) -> None:
    one = make(engine, "driver", ["driver"])
    assert one.wait(within_s=60) == 1
    assert "SPARK_DRIVER_BIND_ADDRESS is missing" in one.log.decode()
