"""A plugin for pytest: leaves out tests that begin a JVM, and keeps how long each that passed took."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

ELSEWHERE = ("spark", "spark_session", "two_hosts")
"""Fixtures whose tests run our code in other processes only."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seconds-to", help="a JSON file: node id → seconds")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--seconds-to"):
        config.pluginmanager.register(Timing(Path(path)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    elsewhere = [item for item in items if set(ELSEWHERE) & set(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=elsewhere)
    items[:] = [item for item in items if item not in elsewhere]


class Timing:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = defaultdict(float)
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            passed = {name: seconds for name, seconds in self._seconds.items() if name not in self._failed}
            self._path.write_text(json.dumps(passed))
