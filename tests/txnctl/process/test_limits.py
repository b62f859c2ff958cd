"""What a server takes on at most: connections, and the files they need."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import txnclient
from tests.cluster import InProcessCluster, running_cluster
from txnctl.commands.shared.asking import asking
from txnctl.process.serve import OTHER_FILES, allow_open_files

MOST = 3


@pytest.fixture
async def running(etcd: str, tmp_path: Path) -> AsyncIterator[InProcessCluster]:
    async with running_cluster(etcd, tmp_path, max_connections=6) as started:
        yield started


@pytest.fixture
def limit_of_open_files() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_of_open_files_follows_the_bound_of_connections(limit_of_open_files: tuple[int, int]) -> None:
    _, most = limit_of_open_files
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most))
    allow_open_files(500)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (500 + OTHER_FILES, most)
    allow_open_files(100)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 500 + OTHER_FILES, "it is never lowered"


def test_where_the_limit_of_open_files_cannot_be_raised_enough_it_is_said(
    limit_of_open_files: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    _, most = limit_of_open_files
    if most == resource.RLIM_INFINITY:
        pytest.skip("there is no limit on this machine")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most))
    allow_open_files(most)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    assert "ulimit -Hn" in capsys.readouterr().out


async def test_a_connection_too_many_is_refused_and_served_once_there_is_room(running: InProcessCluster) -> None:
    """What is connected does not notice; who was refused is told which bound it was, and gets in by waiting."""
    clients: list[txnclient.Client] = []

    async def connect_too_many() -> None:
        while len(clients) < 20:
            clients.append(await running.connect(timeout=1.0))

    with pytest.raises(txnclient.TxnError, match=r"max_connections"):
        await connect_too_many()
    assert clients
    await clients[0].list_topics()
    waiting = asyncio.ensure_future(_connected(running))
    await clients.pop().close()
    late = await asyncio.wait_for(waiting, 20.0)
    await late.list_topics()
    for client in (*clients, late):
        await client.close()


async def test_as_many_connections_are_served_as_are_allowed_and_no_more(etcd: str, tmp_path: Path) -> None:
    async with running_cluster(etcd, tmp_path) as running, AsyncExitStack() as connected:
        running.overrides = {"max_connections": MOST}
        lone = await running.start_server("lone", "admin")  # which no other server connects to
        url = f"txn://{lone.server.address}"
        for _ in range(MOST):
            server = await connected.enter_async_context(asking(url))
            assert (await server.ask("process.describe"))["id"] == "lone"
        with pytest.raises(
            txnclient.ConnectionLost, match=rf"serves {MOST} connections, its bound \(max_connections\)"
        ):
            await connected.enter_async_context(asking(url))


async def _connected(running: InProcessCluster) -> txnclient.Client:
    return await running.connect(timeout=20.0)
