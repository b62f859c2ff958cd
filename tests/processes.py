"""A cluster of real processes that tests can kill: `txnctl dev`'s own cluster with short graces."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import txnclient
from tests.waiting import until
from txnctl.launch.dev import DevCluster, DevSettings

FLAGS = ("--client-grace-s", "2", "--header-retention-s", "2", "--lease-ttl-s", "5")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second: it has ended since the file was opened
        return False


@asynccontextmanager
async def process_cluster(
    data_dir: Path,
    *,
    brokers: int = 1,
    flags: Sequence[str] = (),
    before_start: Callable[[DevCluster], None] = lambda _: None,
) -> AsyncIterator[DevCluster]:
    """`flags`: for every server, besides the usual ones; `before_start` may change the command of each child."""
    settings = DevSettings(
        data_dir=data_dir,
        listen="127.0.0.1:0",
        admin="127.0.0.1:0",
        etcd_port=0,
        brokers=brokers,
        server_flags=(*FLAGS, *flags),
    )
    cluster = DevCluster(settings)
    before_start(cluster)
    async with cluster:
        yield cluster


async def kill(cluster: DevCluster, *names: str) -> None:
    """Sends SIGKILL to all at one moment; returns when each supervisor has started its process again."""
    children = [cluster.children[name] for name in names]
    before = [child.restarts for child in children]
    for child in children:
        child.signal(signal.SIGKILL)
    async with asyncio.timeout(30):
        for child, restarts in zip(children, before, strict=True):
            await until(
                lambda: all(
                    child.restarts != restarts and child.pid is not None
                    for child, restarts in zip(children, before, strict=True)
                ),
                f"{', '.join(names)} to be started again",
                within_s=30,
            )


async def read_all(client: txnclient.Client, topic: str) -> list[bytes]:
    """Every committed value of a topic as of now."""
    async with await client.reader(topic, start="earliest", end="latest") as reader:
        return [message.value async for message in reader]
