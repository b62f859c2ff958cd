"""One client for each service in each process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pyspark_txnstore.shared.process_client import client_of, close_clients
from tests.spark.service import REPOSITORY, Service
from txnwire.errors import InvalidArgument

FORKING = """
import os, sys, traceback
from pyspark_txnstore.shared.process_client import client_of

url = sys.argv[1]
client = client_of(url)
child = os.fork()
if not child:
    try:
        client_of(url)
    except Exception as error:
        os.write(1, f"child: {type(error).__name__}: {error}\\n".encode())
    finally:
        os._exit(0)
os.waitpid(child, 0)
os.write(1, f"parent: {client_of(url) is client} {len(client.list_topics()) >= 0}\\n".encode())
"""


def test_calls_share_a_client_and_it_can_be_opened_anew(service: Service) -> None:
    client = client_of(service.url)
    try:
        assert client_of(service.url) is client
        assert client_of(service.url + "/") is client
        other = client_of(service.url, timeout_s=7.0)
        assert other is not client
        close_clients()
        again = client_of(service.url)
        assert again is not client
        again.list_topics()
        for closed in (client, other):
            with pytest.raises(InvalidArgument, match="closed"):
                closed.list_topics()
    finally:
        close_clients()


def test_a_child_of_a_connected_process_is_told_so_and_its_parent_goes_on(service: Service) -> None:
    """It would wait for gRPC's threads otherwise, which it has not."""
    done = subprocess.run(
        [sys.executable, "-c", FORKING, service.url], cwd=REPOSITORY, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    child, parent = done.stdout.splitlines()
    assert child.startswith("child: InvalidArgument: process ")
    assert "cannot connect any more" in child
    assert parent == "parent: True True"


def test_a_wrong_url_is_told_before_anything_is_opened() -> None:
    with pytest.raises(InvalidArgument, match="txn://"):
        client_of("http://127.0.0.1:1")


AMID = """
import os, signal
from pyspark_txnstore.shared import process_client

with process_client._lock:
    child = os.fork()
    if not child:
        signal.alarm(20)
        process_client.close_clients()
        os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_that_was_forked_amid_an_opening_does_not_wait_for_it() -> None:
    """▲ Another thread of the parent opens a client: in the child that thread does not exist."""
    done = subprocess.run([sys.executable, "-c", AMID], cwd=REPOSITORY, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
