"""The example of a join over windows: its driver and a broker are killed, then a batch finds the same windows."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from tests.spark.service import REPOSITORY, Service
from tests.waiting import wait_until

PROGRAM = REPOSITORY / "examples" / "spark_windows.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spark_windows", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.process
@pytest.mark.timeout(600)  # two Sparks, on a machine that has much else to do
def test_windows_of_a_join_are_told_once_though_driver_and_broker_are_killed(
    spark: SparkSession, service: Service, tmp_path: Path
) -> None:
    windows, checkpoint = example(), tmp_path / "checkpoint"
    windows.send(service.url, 400)
    kill_driver_in_its_first_batch(service.url, checkpoint)
    service.kill("broker-1")
    windows.run_stream(spark, service.url, str(checkpoint))
    assert windows.run_batch(spark, service.url) == 18  # six windows of three items


def kill_driver_in_its_first_batch(url: str, checkpoint: Path) -> None:
    """SIGKILL to its Python and its JVM once the batch is planned, before it is done."""
    command = [sys.executable, str(PROGRAM), "--url", url, "--stream", "--checkpoint", str(checkpoint)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    planned, log = checkpoint / "offsets" / "0", checkpoint.with_suffix(".log")
    with (
        log.open("w") as said,
        subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=said, start_new_session=True) as driver,
    ):
        try:
            wait_until(lambda: planned.exists() or driver.poll() is not None, "the first batch", within_s=180.0)
            assert driver.poll() is None, log.read_text()
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    assert not (checkpoint / "commits" / "0").exists()
