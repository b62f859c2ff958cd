"""A Python of Spark's workers that lacks this package is told in words, and nobody waits for it in vain."""

from __future__ import annotations

import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import txnclient.sync
from pyspark_txnstore import DefaultSource
from tests.spark.service import REPOSITORY, Service


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tasks of `txnstore` run in a Python that has all that Spark itself needs, and not this package, while the driver
    has it, as on a cluster."""
    venv.create(tmp_path / "bare", with_pip=False)
    purelib = sysconfig.get_path("purelib", vars={"base": str(tmp_path / "bare")})
    # Found through a .pth, the .pth files in it are not followed: nor is the one that this package is installed by.
    (Path(purelib) / "needs.pth").write_text(sysconfig.get_path("purelib"))
    python = tmp_path / "python"
    without = f"PYTHONPATH=$(printf %s \"$PYTHONPATH\" | tr : '\\n' | grep -vxF {REPOSITORY} | tr '\\n' :)"
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f'*"pyspark.daemon pyspark.worker"*) cd {tmp_path} && {without} exec bare/bin/python "$@" ;;\n'
        f'*) exec {sys.executable} "$@" ;;\n'
        "esac\n"
    )
    python.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(spark.sparkContext, "pythonExec", str(python))
        spark.dataSource.register(DefaultSource)
    yield
    spark.dataSource.register(DefaultSource)


@pytest.mark.usefixtures("elsewhere")
def test_a_worker_python_without_the_package_fails_and_names_it(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    with sync_client.producer(topic) as producer:
        producer.send(b"one")
    options = {"service.url": service.url, "topic": topic}
    with pytest.raises(PySparkException, match="No module named 'pyspark_txnstore'"):
        spark.read.format("txnstore").options(**options).load().collect()
    rows = spark.sql("SELECT CAST('two' AS BINARY) AS value")
    with pytest.raises(PySparkException, match="No module named 'pyspark_txnstore'"):
        rows.write.format("txnstore").options(**options).mode("append").save()
    with sync_client.reader(topic, end="latest") as reader:
        assert [message.value for message in reader] == [b"one"]
