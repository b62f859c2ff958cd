import os
from pathlib import Path

pytest_plugins = ["tests.cluster", "tests.at_rest", "tests.lagging"]

# Every Spark of a test is over before the better compiler of its JVM would pay: half of its CPU time without it.
# `make test` has written its classes into an archive, which another JVM passes over: half of what is left.
_ARCHIVE = Path(__file__).with_name(".venv") / "spark.jsa"
_OPTIONS = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
if _ARCHIVE.exists():
    _OPTIONS += [f"-XX:SharedArchiveFile={_ARCHIVE}", "-Xlog:disable", "-Xlog:all=error:stderr"]
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(_OPTIONS))
# A machine with less than a gigabyte free still runs them; a full disk has its own tests.
os.environ.setdefault("TXN_MIN_FREE_BYTES", str(64 << 20))
