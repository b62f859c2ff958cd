"""docs/spark.md and the Spark program of docs/demo.md: what they show is run, what they list is what there is."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession

import txnclient.sync
from pyspark_txnstore.shared.options import OPTIONS
from pyspark_txnstore.source.columns import SCHEMA
from tests.project.test_documentation import blocks
from tests.spark.service import REPOSITORY, Service

GUIDE = REPOSITORY / "docs" / "spark.md"
DEMO = REPOSITORY / "docs" / "demo.md"
SUBMIT_TIMEOUT_S = 240


def test_the_guide_lists_every_option_as_it_is() -> None:
    rows = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `") and line.count("|") == 6]
    assert rows == [
        f"| `{one.name}` | {one.kind} | {one.default} | {', '.join(one.uses)} | {one.meaning} |" for one in OPTIONS
    ]


def test_the_guide_names_every_column_with_its_type() -> None:
    listed: dict[str, str] = {}
    section = GUIDE.read_text().partition("## Columns")[2].partition("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            names, kinds = (cell.strip().replace("\\", "") for cell in line.split("|")[1:3])
            names = names.replace("`", "").split(", ")
            kinds = kinds.split(", ") if len(kinds.split(", ")) == len(names) else [kinds] * len(names)
            listed.update(zip(names, kinds, strict=True))
    assert listed == {field.name: field.dataType.simpleString().replace("bigint", "long") for field in SCHEMA}


def test_the_guides_ten_lines_run(
    spark: SparkSession,
    service: Service,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TXN_URL", service.url)
    program = blocks(GUIDE, "python")[0].replace("checkpoints/", f"{tmp_path}/")
    exec(compile(program, str(GUIDE), "exec"), {})
    assert "100 orders billed, each exactly once" in capsys.readouterr().out


def test_the_guides_sql_runs(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic, segments=2)
    (program,) = blocks(GUIDE, "sql")
    program = program.replace("txn://127.0.0.1:6650", service.url).replace("topic://public/shop/visits", topic)
    try:
        results = [spark.sql(statement).collect() for statement in program.split(";") if statement.strip()]
    finally:
        spark.catalog.dropTempView("visits")
    assert [tuple(row) for row in results[-1]] == [("/milk", 1), ("/tea", 2)]


def test_threads_that_make_the_session_theirs_write(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    topics = topic + "-orders", topic + "-invoices"
    for one in topics:
        sync_client.create_topic(one)
    (program,) = (block for block in blocks(GUIDE, "python") if "ThreadPoolExecutor" in block)
    names = {"spark": spark, "URL": service.url, "ORDERS": topics[0], "INVOICES": topics[1]}
    exec(compile(program, str(GUIDE), "exec"), names)
    for one in topics:
        with sync_client.reader(one, end="latest") as reader:
            assert [message.value for message in reader] == [b"one more"]
    bare = InheritableThread(target=_not_found, args=(names["append"], topics[0]))  # as the guide has it
    bare.start()
    bare.join()


def _not_found(append: Callable[[str], None], topic: str) -> None:
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        append(topic)


def test_the_demo_pages_program_runs_twice_and_writes_once(
    spark: SparkSession,
    service: Service,
    sync_client: txnclient.sync.Client,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TXN_URL", service.url)
    orders, invoices = "topic://public/tour/orders", "topic://public/tour/invoices"
    for topic in (orders, invoices):
        sync_client.create_topic(topic, segments=2)
    with sync_client.producer(orders) as producer:
        producer.send_many([("customer", f"order {n}".encode()) for n in range(7)])
    program = blocks(DEMO, "python")[1].replace('"checkpoints"', repr(str(tmp_path)))
    try:
        for _ in range(2):
            exec(compile(program, str(DEMO), "exec"), {})
            assert "7 rows" in capsys.readouterr().out
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_three_packages_in_a_zip_are_enough_for_py_files(
    service: Service, sync_client: txnclient.sync.Client, topic: str, tmp_path: Path
) -> None:
    """With the Python of a cluster that has everything they need, and none of them."""
    sync_client.create_topic(topic)
    zip_command, _, _ = blocks(GUIDE, "sh")[0].splitlines()
    tool, packages = zip_command.split(" txnstore.zip ")
    assert tool == "python -m zipfile -c"
    zipfile.main(["-c", str(tmp_path / "txnstore.zip"), *(str(REPOSITORY / name) for name in packages.split())])
    program = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
{blocks(GUIDE, "python")[1]}
options = {{"service.url": {service.url!r}, "topic": {topic!r}}}
rows = spark.range(10, numPartitions=2).selectExpr("cast(id as string) as value")
rows.write.format("txnstore").options(**options).mode("append").save()
print("read", spark.read.format("txnstore").options(**options).load().count())
"""
    (tmp_path / "program.py").write_text(program)
    venv.create(tmp_path / "bare", with_pip=False)
    purelib = sysconfig.get_path("purelib", vars={"base": str(tmp_path / "bare")})
    (Path(purelib) / "needs.pth").write_text(sysconfig.get_path("purelib"))
    python = str(tmp_path / "bare" / "bin" / "python")
    submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]", "--driver-memory", "512m"]
    submit += ["--conf", "spark.ui.enabled=false", "--py-files", "txnstore.zip", "program.py"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        submit, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SUBMIT_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "read 10\n" in done.stdout
