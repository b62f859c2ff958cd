"""One engine a test, gone with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.containers.engine import Engine, running_engine, why_not


@pytest.fixture
def engine() -> Iterator[Engine]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with running_engine() as running:
        yield running
