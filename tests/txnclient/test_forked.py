"""A process that was forked from one that had connected fails at once, at every call, and says what to do."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import InProcessCluster

PROGRAM = '''
import asyncio, gc, json, os, sys
import txnclient, txnclient.sync
from txnclient.sync.bridge import Sent

url, parent_closes, face = sys.argv[1], sys.argv[2] == "closes", sys.argv[3]

def child(call):
    """Runs `call` in a forked process; its error."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            gc.collect()  # as Python may at any moment: what the parent has closed is not taken by its child
            call()
            told = ["none", ""]
        except BaseException as error:
            told = [type(error).__name__, str(error)]
        os.write(write, json.dumps(told).encode())
        os._exit(0)
    os.close(write)
    told = b""
    while part := os.read(read, 65536):
        told += part
    os.waitpid(pid, 0)
    return json.loads(told)

def connect_async():
    async def work():
        async with txnclient.connect(url, timeout=20):
            pass
    asyncio.run(work())

def connect_sync():
    with txnclient.sync.connect(url, timeout=20):
        pass

calls = {"connect": connect_async, "sync.connect": connect_sync}
if face == "sync":
    client = txnclient.sync.connect(url)
    producer = client.producer("topic://public/default/forked")
    txn = client.begin()
    calls |= {"begin": client.begin, "send": lambda: producer.send(b"x")}
    calls |= {"commit": txn.commit, "list": client.list_topics}
    sent = Sent(lambda function: None, None)  # not answered yet as the parent forks
    calls |= {"result": lambda: sent.result(10), "exception": lambda: sent.exception(10)}
    calls |= {"poll": lambda: sent.result(0)}
    if parent_closes:
        client.close()
    for _ in range(5):  # it depends on chance what another thread does as the process is forked
        print(json.dumps({name: child(call) for name, call in calls.items()}))
    if not parent_closes:
        client.close()
else:
    async def work():
        async with txnclient.connect(url) as client:
            await client.begin()
    asyncio.run(work())
    print(json.dumps({name: child(call) for name, call in calls.items()}))
'''


@pytest.mark.process
@pytest.mark.parametrize(("parent", "face"), [("stays", "sync"), ("closes", "sync"), ("closes", "async")])
async def test_every_call_in_a_forked_child_fails_at_once(
    cluster: InProcessCluster, tmp_path: Path, parent: str, face: str
) -> None:
    async with cluster.connect() as client:
        await client.create_topic("topic://public/default/forked")
    program = tmp_path / "forking.py"
    program.write_text(PROGRAM)
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(program), cluster.url, parent, face],
        capture_output=True,
        text=True,
        timeout=120,
        env={name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"},  # as of a user
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout
    for told in map(json.loads, ran.stdout.splitlines()):
        assert {name: kind for name, (kind, _) in told.items()} == dict.fromkeys(told, "InvalidArgument"), told
        for name, (_, message) in told.items():  # no Timeout: it did not even try
            assert "fork" in message or "closed" in message, (name, message)
        assert "'spawn' or 'forkserver'" in told["connect"][1]
        assert "'spawn' or 'forkserver'" in told["sync.connect"][1]
