"""`txnctl health`: what a container engine asks, against a real HTTP endpoint."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
from prometheus_client import CollectorRegistry

from tests.txnctl.command_line import txnctl
from txnctl.process.http import HttpEndpoint
from txnstore.etcd.embedded_etcd import free_port


class Process:
    """As the endpoint sees a server."""

    def __init__(self) -> None:
        self.why: str | None = None

    async def statistics(self) -> None:
        """None are asked for here."""

    def families(self, _: None) -> Iterator[object]:
        return iter(())


@pytest.fixture
async def process() -> AsyncIterator[tuple[Process, str]]:
    one = Process()
    endpoint = HttpEndpoint(
        f"0.0.0.0:{free_port()}",
        not_ready=lambda: one.why,
        statistics=one.statistics,
        families=one.families,  # type: ignore[arg-type]
        process=CollectorRegistry(),
    )
    try:
        yield one, endpoint.address
    finally:
        await endpoint.close()


async def test_a_ready_process_is_healthy_at_whatever_address_it_was_told_to_bind(process: tuple[Process, str]) -> None:
    done = await txnctl("health", "--admin-listen", process[1])
    assert (done.code, done.out) == (0, "ready\n")


async def test_a_process_that_is_not_ready_is_alive_and_says_why(process: tuple[Process, str]) -> None:
    one, address = process
    one.why = "its roles are being taken up"
    ready = await txnctl("health", "--admin-listen", address)
    alive = await txnctl("health", "--alive", "--admin-listen", address)
    assert (ready.code, ready.out) == (1, "not ready: its roles are being taken up\n")
    assert (alive.code, alive.out) == (0, "alive\n")


async def test_nobody_there_is_not_healthy() -> None:
    done = await txnctl("health", "--admin-listen", f"127.0.0.1:{free_port()}")
    assert done.code == 1
    assert done.out.startswith("no server answers HTTP at 127.0.0.1:")


@pytest.mark.parametrize("address", ["127.0.0.1:99999999999999999999", "a..b:6660", "nonsense"])
async def test_an_address_that_is_none_is_told(address: str) -> None:
    told = await txnctl("health", "--admin-listen", address)
    assert (told.code, "no server answers HTTP at" in told.out) == (1, True), told


@pytest.mark.parametrize("timeout", ["inf", "1e308"])
async def test_a_timeout_that_no_socket_takes_is_refused(timeout: str) -> None:
    told = await txnctl("health", "--timeout", timeout)
    assert (told.code, "timeout" in told.err) == (2, True), told


async def test_a_proxy_of_the_machine_is_not_asked_for_a_process_of_this_host(
    process: tuple[Process, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker hands its client's proxies on to every container."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    done = await txnctl("health", "--admin-listen", process[1])
    assert (done.code, done.out) == (0, "ready\n")


async def test_a_process_without_http_is_told_from_one_that_does_not_answer() -> None:
    done = await txnctl("health", "--admin-listen", "off")
    assert (done.code, "admin_listen is off" in done.out) == (1, True)


async def test_what_answers_no_http_is_not_healthy() -> None:
    """Such as the port of clients, given by mistake."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\r\n")  # as HTTP/2 begins
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        done = await txnctl("health", "--admin-listen", f"127.0.0.1:{port}")
    assert done.code == 1
    assert done.out.startswith("no server answers HTTP at 127.0.0.1:")


def test_its_answer_does_not_wait_for_the_other_commands() -> None:
    """It runs every few seconds beside each server."""
    program = (
        "import sys; sys.argv = ['txnctl', 'health', '--help']\n"
        "from txnctl.main import main\n"
        "try: main()\n"
        "except SystemExit: sys.exit('txnctl.cli' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0


def test_it_tells_what_is_wrong_as_the_other_commands_do() -> None:
    command = [sys.executable, "-P", "-m", "txnctl", "health", "--timeout", "inf"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1].partition(":")[0]) == (2, "Error"), done.stderr
