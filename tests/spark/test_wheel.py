"""A cluster whose executors have the client's wheel and what it declares to need, and nothing of this repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark
import pytest

import txnclient.sync
from tests.bare_python import bare_python
from tests.project.test_documentation import blocks
from tests.spark.service import Service
from tests.spark.test_documentation import GUIDE
from tools.build_wheels import build

SUBMIT_TIMEOUT_S = 280

WHERE = """
def where(_):
    import os, pyspark_txnstore, txnclient, txnwire
    files = [module.__file__ for module in (pyspark_txnstore, txnclient, txnwire)]
    return os.environ.get("SPARK_EXECUTOR_DIRS"), *files

for place in spark.sparkContext.range(4, numSlices=4).map(where).distinct().collect():
    print("from", *place)
"""


def spark_home(folder: Path) -> Path:
    """As PyPI's pyspark has it; a cluster on this machine works in its folder `work`."""
    home = folder / "spark"
    home.mkdir()
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


@pytest.mark.timeout(420)
def test_executors_that_have_the_wheel_alone_read_and_write_topics(
    service: Service, sync_client: txnclient.sync.Client, tmp_path: Path
) -> None:
    python = bare_python(tmp_path / "bare", build("txnstore-client", tmp_path), extra="spark")
    program = blocks(GUIDE, "python")[0]
    program = program.replace("txn://127.0.0.1:6650", service.url).replace("checkpoints/", f"{tmp_path}/checkpoints/")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "program.py").write_text(program.replace("public/shop/", "public/wheel/") + WHERE)
    home = spark_home(tmp_path)
    options = os.environ["SPARK_SUBMIT_OPTS"]
    submit = [str(home / "bin" / "spark-submit"), "--master", "local-cluster[2,1,512]", "--driver-memory", "512m"]
    submit += ["--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"]
    submit += ["--conf", f"spark.executor.extraJavaOptions={options}", "program.py"]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    environment |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "127.0.0.1"}
    done = subprocess.run(
        submit, cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True, timeout=SUBMIT_TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "100 orders billed, each exactly once" in done.stdout
    places = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("from ")]
    assert places
    for executor, *files in places:
        assert executor != "None"
        assert all(Path(file).is_relative_to(tmp_path / "bare") for file in files)
