"""`txnctl dev` as a process: ready, restarts what dies, stops in order, leaves nothing, refuses what is taken."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.processes import is_alive
from tests.txnctl.command_line import TIMEOUT_S, done, start, txnctl
from tests.waiting import until
from txnctl.metrics.catalogue import catalogue

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

READY = re.compile(r"ready (txn://127\.0\.0\.1:\d+) etcd=(http://127\.0\.0\.1:\d+) admin=(http://127\.0\.0\.1:\d+)\n")
ANY_PORTS = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--etcd-port", "0")
TOPIC = "topic://public/default/kept"


class Dev:
    """A running `txnctl dev` and what its one line said."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, etcd: str, admin: str) -> None:
        self.process = process
        self.url, self.etcd, self.admin = url, etcd, admin

    def children(self) -> dict[int, str]:
        """Command lines of the living processes below it, by pid."""
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                try:
                    stat, command = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
                except OSError:
                    continue
                state, parent = stat.rpartition(")")[2].split()[:2]
                if int(parent) == self.process.pid and state != "Z":
                    found[int(folder.name)] = command.replace(b"\0", b" ").decode()
        return found

    def pid_of(self, part: str) -> int | None:
        return next((pid for pid, command in self.children().items() if part in command), None)

    async def stop(self, number: signal.Signals) -> int:
        """The exit code, once it and every child has gone."""
        before = list(self.children())
        assert len(before) == 3
        self.process.send_signal(number)
        code = await asyncio.wait_for(self.process.wait(), 30)
        await until(lambda: not any(is_alive(pid) for pid in before), within_s=10)
        return code


@asynccontextmanager
async def dev(data_dir: Path, cwd: Path | None = None) -> AsyncIterator[Dev]:
    process = await start("dev", "--data-dir", str(data_dir), *ANY_PORTS, cwd=None if cwd is None else str(cwd))
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S)).decode()
        ready = READY.fullmatch(line)
        assert ready is not None, line
        yield Dev(process, *ready.groups())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_ctrl_c_sigterm_and_sigkill_leave_nothing_and_the_data_stays(tmp_path: Path) -> None:
    ends = {signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 0}
    for count, (number, code) in enumerate(ends.items()):
        async with dev(tmp_path / "d") as running:
            async with txnclient.connect(running.url) as client:
                await client.create_topic(TOPIC)
                async with await client.reader(TOPIC, start="earliest", end="latest") as reader:
                    kept = [message.value async for message in reader]
                async with await client.producer(TOPIC) as producer:
                    await producer.send(b"%d" % count)
            assert kept == [b"%d" % one for one in range(count)]
            assert await running.stop(number) == code
    assert (tmp_path / "d" / "logs" / "etcd.log").exists()


def is_another(running: Dev, part: str, killed: int) -> bool:
    return running.pid_of(part) not in (None, killed)


async def test_whatever_is_killed_comes_back_and_serves(tmp_path: Path) -> None:
    async with dev(tmp_path / "d") as running, txnclient.connect(running.url) as client:
        await client.create_topic(TOPIC)
        async with await client.producer(TOPIC) as producer:
            await producer.send(b"before")
            for part in ("--id broker-1", "--id server", "etcd --data-dir"):
                killed = running.pid_of(part)
                assert killed is not None
                os.kill(killed, signal.SIGKILL)
                await until(
                    partial(is_another, running, part, killed),
                    f"{part} to be started again",
                    within_s=30,
                    longest_poll_s=0.05,
                )
                async with asyncio.timeout(60):
                    await send_in_a_transaction(client, producer, part.encode())
        async with await client.reader(TOPIC, start="earliest", end="latest") as reader:
            values = [message.value async for message in reader]
    assert values == [b"before", b"--id broker-1", b"--id server", b"etcd --data-dir"]


async def test_every_process_serves_health_and_metrics(tmp_path: Path) -> None:
    """The control process where it was told to, the brokers at any port, which `brokers list` tells."""
    async with dev(tmp_path / "d") as running:
        brokers = (await done("brokers", "list", "-o", "json", url=running.url)).json
        addresses = [running.admin, *(f"http://{one['admin']}" for one in brokers)]
        assert len(addresses) == 2
        for address in addresses:
            assert await fetched(f"{address}/healthz") == "alive\n"
            assert await fetched(f"{address}/readyz") == "ready\n"
            text = await fetched(f"{address}/metrics")
            for metric in catalogue():
                assert f"# HELP {metric.name} " in text
            assert "process_resident_memory_bytes" in text
        told = [await fetched(f"{address}/metrics") for address in addresses]
        assert [("txnstore_coordinator_ids 16.0" in text) for text in told] == [True, False]
        assert [("txnstore_broker_registered 1.0" in text) for text in told] == [False, True]


async def fetched(url: str) -> str:
    def fetch() -> str:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(fetch)


async def send_in_a_transaction(client: txnclient.Client, producer: txnclient.Producer, value: bytes) -> None:
    while True:
        try:
            async with client.transaction() as txn:
                await producer.send(value, txn=txn)
            return
        except txnclient.TxnError as error:
            assert error.retriable or error.requires_abort, error


async def test_a_folder_and_ports_that_are_taken_are_refused_and_their_holder_goes_on(tmp_path: Path) -> None:
    async with dev(tmp_path / "d") as running:
        pids = running.children()
        admin, etcd = running.admin.removeprefix("http://"), running.etcd.rpartition(":")[2]
        folder, listen, http, store = await asyncio.gather(
            txnctl("dev", "--data-dir", str(tmp_path / "d"), *ANY_PORTS),
            txnctl(
                "dev", "--data-dir", str(tmp_path / "e"), *ANY_PORTS, "--listen", running.url.removeprefix("txn://")
            ),
            txnctl("dev", "--data-dir", str(tmp_path / "f"), *ANY_PORTS, "--admin", admin),
            txnctl("dev", "--data-dir", str(tmp_path / "g"), *ANY_PORTS, "--etcd-port", etcd),
        )
        assert running.children() == pids
        assert (folder.code, f"is in use by process {running.process.pid}" in folder.err) == (1, True)
        for answer, flag in ((listen, "--listen"), (http, "--admin"), (store, "--etcd-port")):
            assert (answer.code, answer.out) == (1, "")
            assert f"{flag} 127.0.0.1" in answer.err
            assert "Address already in use" in answer.err
            assert len(answer.err.splitlines()) == 1


async def test_what_cannot_be_used_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cases = {
        ("--data-dir", str(tmp_path / "file")): (1, "cannot be used"),
        ("--data-dir", "/proc/none"): (1, "cannot be used"),
        ("--listen", "nonsense"): (2, "expected host:port"),
        ("--admin", ":1"): (2, "expected host:port"),
        ("--listen", "192.0.2.1:0"): (1, "cannot be used"),
        ("--etcd-port", "99999"): (2, "--etcd-port"),
    }
    answers = await asyncio.gather(
        *(txnctl("dev", "--data-dir", str(tmp_path / "d"), *ANY_PORTS, *words) for words in cases)
    )
    for (words, (code, said)), answer in zip(cases.items(), answers, strict=True):
        assert (answer.code, said in answer.err) == (code, True), f"{words}: {answer}"
        assert answer.out == ""


async def test_a_broker_that_is_refused_for_its_folder_leaves_nothing_in_it(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    refused = await txnctl(
        *("serve", "--roles", "broker", "--id", "b2", "--listen", "127.0.0.1:0", "--admin-listen", "off"),
        *("--etcd", cluster.etcd, "--etcd-prefix", cluster.prefix, "--data-dir", str(elsewhere)),
    )
    assert (refused.code != 0, "this cluster's is" in refused.err) == (True, True), refused
    assert [path.name for path in elsewhere.rglob("*") if path.is_file()] == []


async def test_serve_refuses_wrong_settings_before_it_does_anything(tmp_path: Path, etcd: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        in_use = f"127.0.0.1:{taken.getsockname()[1]}"
        cases = {
            ("--roles", "nonsense"): "unknown role nonsense",
            ("--id", "bad id"): "'bad id' is not a legal name",
            ("--listen", "nonsense"): "expected host:port",
            ("--admin-listen", "nonsense"): "expected host:port",
            ("--config", str(tmp_path / "none.toml")): "No such file",
            ("--log-level", "loud"): "expected debug, info, warning or error",
            ("--etcd", etcd, "--listen", in_use): "another program listens there",
            ("--etcd", etcd, "--listen", "127.0.0.1:0", "--admin-listen", in_use): "Address already in use",
        }
        common = ("serve", "--data-dir", str(tmp_path / "d"), "--etcd-prefix", f"/{tmp_path.name}")
        answers = await asyncio.gather(*(txnctl(*common, *words) for words in cases))
    for (words, said), answer in zip(cases.items(), answers, strict=True):
        assert (answer.code, said in answer.err) == (2, True), f"{words}: {answer}"
        assert "serving" not in answer.err


async def test_folders_of_the_current_directory_do_not_take_the_place_of_our_packages(tmp_path: Path) -> None:
    """Dies if a child is started by `python -m` without `-P`."""
    here = tmp_path / "here"
    for package in ("segments", "txnstore", "txnctl", "txnclient", "txnwire"):
        (here / package).mkdir(parents=True)
        (here / package / "__init__.py").write_text(f"raise ImportError('the {package} of the current directory')")
    async with dev(tmp_path / "data", here) as running, txnclient.connect(running.url) as client:
        await client.create_topic(TOPIC)
        assert await client.list_topics() == [TOPIC]
