"""Whoever installs without the extra `spark` has everything but Spark's side."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
for missing in ("pyspark", "py4j", "pyarrow", "pandas", "numpy"):
    sys.modules[missing] = None      # importing it raises
import txnclient.sync
from txnctl.main import main
sys.argv = ["txnctl", *sys.argv[1:]]
main()
"""


def run(*arguments: str) -> str:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_works_without_spark(tmp_path: Path) -> None:
    assert "serve" in run("--help")
    assert "--keep" in run("demo", "--help")
    (tmp_path / "metadata").write_text('{"id":"7d0e2f6a-0d5c-4c39-9f0c-0f6f1c8f9b11"}')
    assert "a restart begins with batch 0" in run("spark", "checkpoint", str(tmp_path))
