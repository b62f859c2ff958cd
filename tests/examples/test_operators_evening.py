"""The operator's script, on a cluster of real processes of which one after the other is killed meanwhile."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

import txnclient
from tests.examples.killing import EXAMPLES, TIMEOUT_S
from tests.processes import kill, process_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

ORDERS = "topic://public/evening/orders"


async def test_an_evening_s_commands_do_their_work_while_servers_are_killed(tmp_path: Path) -> None:
    async with process_cluster(tmp_path / "cluster") as cluster, txnclient.connect(cluster.url, timeout=60) as client:
        await client.create_topic(ORDERS)
        async with client.producer(ORDERS) as producer:
            forgotten = await client.begin(timeout=600)
            await producer.send(b"never", txn=forgotten)
        script = await asyncio.create_subprocess_exec(
            str(EXAMPLES / "operators_evening.sh"),
            str(tmp_path),
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "TXN_URL": cluster.url,
                "FORGOTTEN_AFTER": "0.1s",  # the script's first commands take longer, on any machine
                "ETCD": cluster.etcd_url,
                "DATA": str(tmp_path / "cluster" / "data"),
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said = b""
        assert script.stdout is not None
        victims = {b"== the topic is busy": "broker-1", b"== billing has read": "server", b"== a backup": "broker-1"}
        while True:
            try:
                line = await asyncio.wait_for(script.stdout.readline(), 2 * TIMEOUT_S)
            except TimeoutError:
                script.kill()
                read = {
                    name: len({*(tmp_path / name).read_text().splitlines()})
                    for name in ("first", "again")
                    if (tmp_path / name).exists()
                }
                pytest.fail(f"silent for {2 * TIMEOUT_S:g} s, orders read: {read}\n{said.decode()}")
            if not line:
                break
            said += line
            for begin, victim in victims.items():
                if line.startswith(begin):
                    await kill(cluster, victim)
        assert await asyncio.wait_for(script.wait(), TIMEOUT_S) == 0, said.decode()
        assert (await client.outcomes([forgotten.id]))[forgotten.id] == "ABORTED"
        async with client.reader(ORDERS, end="latest") as reader:
            values = [message.value.decode() async for message in reader]
    assert sorted(values) == sorted(f"order {number}" for number in range(1, 81))
    assert said.decode().splitlines()[-2:] == ["80", "80"], said.decode()
    assert "0000-7fff-1" in said.decode()
