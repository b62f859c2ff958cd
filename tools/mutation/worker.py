"""Runs tests, one request a line: `{"tree", "tests", "timeout_s"}`; answers with a verdict and the first failing test.

What takes most of the time of a short test file is importing pytest and the libraries. Here that is done once, and
each request gets a fork. ▲ Nothing of the project itself may be imported before the fork: it may be mutated.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time

LIBRARIES = (
    "pytest", "pytest_asyncio", "pytest_timeout", "hypothesis", "hypothesis.strategies", "hypothesis.stateful", "grpc",
    "google.protobuf.message", "google.protobuf.descriptor_pb2", "msgspec", "structlog", "prometheus_client",
    "pydantic_settings", "typer", "rich.console", "xxhash", "zstandard", "lz4.frame", "uvloop", "unittest.mock",
)  # fmt: skip
POLL_S = 0.02


def main() -> None:
    for name in LIBRARIES:
        __import__(name)
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile() as told:
            verdict = _run(request["tree"], request["tests"], request["timeout_s"], told.fileno())
            failed = os.pread(told.fileno(), 1 << 16, 0).decode()
        print(json.dumps({"verdict": verdict, "failed": failed}), flush=True)


def _run(tree: str, tests: list[str], timeout_s: float, told: int) -> str:
    """`passed`, `failed`, `hung`, or `error` where no test ran."""
    pid = os.fork()
    if pid == 0:
        _child(tree, tests, told)
    give_up_at = time.monotonic() + timeout_s
    while time.monotonic() < give_up_at:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return {0: "passed", 4: "error", 5: "error"}.get(code, "failed")
        time.sleep(POLL_S)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hung"


def _child(tree: str, tests: list[str], told: int) -> None:
    """Never returns. In a process group of its own, with what it starts. Writes the first failing test to `told`."""
    try:
        os.setpgid(0, 0)
        os.chdir(tree)
        sys.path.insert(0, tree)
        sys.dont_write_bytecode = True
        silent = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(silent, descriptor)
        import pytest

        class FirstFailure:
            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                if report.failed:
                    os.pwrite(told, report.nodeid.encode(), 0)

        words = ["-x", "-q", "-W", "ignore::pytest.PytestAssertRewriteWarning", "--hypothesis-seed=0"]
        words += ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", *tests]
        os._exit(int(pytest.main(words, plugins=[FirstFailure()])))
    finally:
        os._exit(3)


if __name__ == "__main__":
    main()
