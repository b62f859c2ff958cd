"""A cluster whose executors have the wheel and what it declares to need, and nothing of this repository."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pyspark
import pytest
from packaging.requirements import Requirement

import txnclient.sync
from tests.spark.service import REPOSITORY, Service
from tests.spark.test_documentation import GUIDE
from tests.test_documentation import blocks

BUILD_TIMEOUT_S = 120
SUBMIT_TIMEOUT_S = 280

WHERE = """
def where(_):
    import os, pyspark_txnstore, txnclient, txnwire
    files = [module.__file__ for module in (pyspark_txnstore, txnclient, txnwire)]
    return os.environ.get("SPARK_EXECUTOR_DIRS"), *files

for place in spark.sparkContext.range(4, numSlices=4).map(where).distinct().collect():
    print("from", *place)
"""


def wheel(folder: Path) -> Path:
    """Of this repository's packages, built elsewhere, for building leaves files behind."""
    source = folder / "source"
    source.mkdir()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]:
        name = pattern.removesuffix("*")
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "-w", str(folder), str(source)], check=True, timeout=BUILD_TIMEOUT_S)
    (built,) = folder.glob("*.whl")
    return built


def needed(built: Path, extra: str) -> set[str]:
    """Distributions that the wheel and its extra declare to need, and what those need."""
    (described,) = importlib.metadata.distributions(path=[str(built)])
    found: set[str] = set()
    waiting = [(text, extra) for text in described.requires or ()]
    while waiting:
        text, of = waiting.pop()
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": of}):
            continue
        name = requirement.name.lower().replace("_", "-")
        if name not in found:
            found.add(name)
            requires = importlib.metadata.requires(name) or ()
            waiting += [(one, each) for one in requires for each in ("", *requirement.extras)]
    return found


def bare_python(folder: Path, built: Path) -> Path:
    """A venv with the wheel, and with links to what it needs and no other package of this Python's."""
    home = folder / "bare"
    venv.create(home, with_pip=False)
    python, purelib = home / "bin" / "python", Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*command, str(built)], check=True, timeout=BUILD_TIMEOUT_S)
    for name in needed(built, "spark"):
        one = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (purelib / top).exists():
                (purelib / top).symlink_to(Path(str(one.locate_file(top))))
    return python


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
    python = bare_python(tmp_path, wheel(tmp_path))
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
