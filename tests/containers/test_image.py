"""The image by itself: what is in it, what is not, and how it ends."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.containers.engine import IMAGE, Container, Engine
from tests.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
ENDED_WITHIN_S = 20.0
SBOM = "/opt/txnstore/share/sbom/txnstore.cdx.json"


@pytest.fixture
def idle(engine: Engine) -> Container:
    """A command that waits for a server that never comes."""
    one = engine.create("idle", IMAGE, ["brokers", "list"], environment={"TXN_URL": "txn://10.255.255.1:1"})
    one.start()
    return one


def heeds_sigterm(one: Container) -> bool:
    """Whether its first process has a handler for it."""
    _, status = one.run("grep", "SigCgt", "/proc/1/status")
    return bool(int(status.split()[1], 16) & 1 << (signal.SIGTERM - 1))


def test_a_command_that_is_process_1_ends_at_sigterm(idle: Container) -> None:
    begin = time.monotonic()
    wait_until(lambda: heeds_sigterm(idle), "a program that heeds SIGTERM", within_s=ENDED_WITHIN_S)
    begin = time.monotonic()
    assert idle.stop(grace_s=30) == 143
    assert time.monotonic() - begin < ENDED_WITHIN_S


def test_it_tells_what_it_is_made_of(idle: Container) -> None:
    code, text = idle.run("cat", SBOM)
    assert code == 0
    bom = json.loads(text)
    names = {one["purl"].partition("@")[0] for one in bom["components"]}
    assert {"pkg:pypi/grpcio", "pkg:pypi/txnstore-client"} <= names
    assert bom["metadata"]["component"]["name"] == "txnstore"
    labels = idle.made.image.labels
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert len(labels["org.opencontainers.image.revision"]) == 40


def test_the_client_and_spark_side_are_importable_and_pip_is_not(idle: Container) -> None:
    code, said = idle.run("python3", "-c", "import txnclient, txnclient.sync, pyspark_txnstore")
    assert code == 0, said
    code, said = idle.run("python3", "-c", "import pip")
    assert code == 1
    assert "ModuleNotFoundError" in said
