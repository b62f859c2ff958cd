"""The paths in the Spark demo's folder, and the Spark settings that keep all files in it."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from txnwire.errors import InvalidArgument

STATISTICS = "topic://public/nyc/statistics"

LOGGING = """
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True)
class Places:
    folder: Path

    @property
    def input(self) -> Path:
        """The data files."""
        return self.folder / "input"

    @property
    def parquet(self) -> Path:
        return self.folder / "statistics.parquet"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def spark(self) -> Path:
        """Folder for files that Spark leaves, above all after a SIGKILL."""
        return self.folder / "spark"

    def make(self) -> None:
        for folder in (self.input, self.spark):
            folder.mkdir(parents=True, exist_ok=True)
        (self.spark / "log4j2.properties").write_text(LOGGING)

    def environment(self) -> dict[str, str]:
        """Environment of a process that starts Spark. Its Python workers use this Python: they need this package."""
        java = [
            f"-Djava.io.tmpdir={self.spark}",
            f"-Dlog4j2.configurationFile=file:{self.spark / 'log4j2.properties'}",
            "-XX:-UsePerfData",  # a file in /tmp, which a SIGKILL leaves there
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # three short runs: they end before the better compiler would pay off
        ]
        settings = {
            "spark.driver.extraJavaOptions": " ".join(java),
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.warehouse.dir": str(self.spark / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        submit = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        return {
            "PYTHONSAFEPATH": "1",  # Spark starts workers by `python -m`: the current folder must hold no module
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": shlex.join([*submit, "pyspark-shell"]),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.spark),
            "TMPDIR": str(self.spark),
        }


def expect_spark() -> None:
    """Raises `InvalidArgument` that says what is missing, before it starts anything."""
    if importlib.util.find_spec("pyspark") is None:
        raise InvalidArgument("--spark: PySpark is missing: pip install 'txnstore[spark,demo]'")
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH, and JAVA_HOME is not set"
        raise InvalidArgument(f"--spark: no Java {where}: Spark needs 17 or newer, such as openjdk-17-jre-headless")
