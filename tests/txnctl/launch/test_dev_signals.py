"""`txnctl dev` at a terminal: its first line is true, Ctrl-C reaches it alone, and it leaves folder and ports free."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
from pathlib import Path

import pytest

import txnclient
from tests.process.serving import get
from tests.txnctl.command_line import TIMEOUT_S, start
from txnctl.launch import probe
from txnctl.launch.preflight import LOCK_FILE

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

ANY_PORTS = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--etcd-port", "0")
CHILDREN = ("etcd", "server", "broker-1", "broker-2")


def children_of(parent: int) -> dict[int, int]:
    """Session ids of the living processes below it, by pid."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, above = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(above) == parent and state != "Z":
            pid = int(stat.parent.name)
            found[pid] = os.getsid(pid)
    return found


def is_locked(folder: Path) -> bool:
    with (folder / LOCK_FILE).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


async def test_ctrl_c_at_a_terminal_reaches_dev_alone_which_stops_its_processes_in_order(tmp_path: Path) -> None:
    """▲ Of an etcd that ended first nothing could be handed over: each server would wait for it, and be killed."""
    folder = tmp_path / "d"
    process = await start("dev", "--data-dir", str(folder), *ANY_PORTS, "--brokers", "2")
    try:
        assert process.stdout is not None
        words = (await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S)).decode().split()
        url, etcd, admin = words[1], words[2].removeprefix("etcd=http://"), words[3].removeprefix("admin=http://")

        # The line is true the moment it is there: asked once, where a client would try again.
        assert await probe._ask(url.removeprefix("txn://"), brokers=2, coordinators=16) is None
        async with txnclient.connect(url) as client:
            await client.create_topic("topic://public/default/at-once", segments=4)
            async with await client.producer("topic://public/default/at-once") as producer:
                await producer.send(b"value", key="k")
        assert (await get(f"http://{admin}/readyz")).body == "ready\n"
        assert sorted(path.stem for path in (folder / "logs").iterdir()) == sorted(CHILDREN)
        assert (folder / LOCK_FILE).read_text() == f"{process.pid}\n"
        assert is_locked(folder)

        children = children_of(process.pid)
        assert len(children) == len(CHILDREN)
        assert {pid: pid for pid in children} == children, "each leads a session of its own"
        os.killpg(process.pid, signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 60) == 130
        assert not any(Path(f"/proc/{pid}").exists() for pid in children)
        for name in CHILDREN[1:]:
            assert "stopped" in (folder / "logs" / f"{name}.log").read_text().splitlines()[-1], name
        assert not is_locked(folder)
        assert not any(listens(address) for address in (url.removeprefix("txn://"), etcd, admin))
        assert process.stderr is not None
        assert await process.stderr.read() == b""
        assert await process.stdout.read() == b"", "one line"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
