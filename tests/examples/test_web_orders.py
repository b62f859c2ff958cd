"""The recipe of a web service: orders sent again and again, to two servers that are killed, are placed once."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.cluster import InProcessCluster
from tests.examples.killing import EXAMPLES, TIMEOUT_S
from tests.waiting import grown, until, until_answer
from txnstore.etcd.embedded_etcd import free_port

pytestmark = [pytest.mark.process]

PROGRAM = str(EXAMPLES / "web_orders.py")
ORDERS = 60
Answer = tuple[int, dict[str, object]]


class WebServers:
    """Processes by port, started again once they have been killed."""

    def __init__(self, url: str) -> None:
        self._environment = {**os.environ, "TXN_URL": url}
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self.ports = [free_port(), free_port()]

    async def start(self, port: int) -> None:
        self._running[port] = await asyncio.create_subprocess_exec(
            sys.executable, PROGRAM, "--port", str(port), env=self._environment
        )

    async def kill(self, port: int) -> None:
        process = self._running[port]
        assert process.returncode is None
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await self.start(port)

    async def check(self) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, PROGRAM, "--check", env=self._environment, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        assert process.returncode == 0
        return output.decode()

    async def stop(self) -> None:
        for process in self._running.values():
            process.terminate()
            await asyncio.wait_for(process.wait(), TIMEOUT_S)


@asynccontextmanager
async def web_servers(url: str) -> AsyncIterator[WebServers]:
    servers = WebServers(url)
    try:
        for port in servers.ports:
            await servers.start(port)
        yield servers
    finally:
        await servers.stop()


def sent(port: int, key: str, order: dict[str, object]) -> Answer | None:
    """One request; None without an answer."""
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/orders", json.dumps(order).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except (OSError, json.JSONDecodeError):
        return None


async def obtained(ports: list[int], key: str, order: dict[str, object]) -> dict[str, object]:
    """As a customer's program does it: the same request until there is an answer, to one server or the other."""
    servers = itertools.cycle(ports)

    async def asked() -> tuple[int, dict[str, object]] | None:
        return await asyncio.to_thread(sent, next(servers), key, order)

    answer = await until_answer(
        asked, lambda found: found is not None and found[0] != 503, f"an answer to {key}", within_s=TIMEOUT_S
    )
    assert answer is not None
    assert answer[0] == 201, answer
    return answer[1]


def an_order(number: int) -> dict[str, object]:
    return {"customer": f"c{number % 5}", "item": "tea", "count": number % 4 + 1}


async def test_orders_are_placed_once_however_often_they_are_sent_to_servers_that_are_killed(
    cluster: InProcessCluster,
) -> None:
    async with web_servers(cluster.url) as servers:
        one, other = servers.ports
        first = await obtained([one], "0", an_order(0))
        assert await obtained([other], "0", an_order(0)) == first, "the other server has the same answer"
        another = await asyncio.to_thread(sent, one, "0", an_order(1))
        assert another is not None
        assert another[0] == 422, "a key belongs to one order"
        answers: dict[int, list[dict[str, object]]] = {}

        async def customer(number: int) -> None:
            """Sends it to both at once, as an impatient one does."""
            ways = ([one, other], [other, one])
            answers[number] = await asyncio.gather(*(obtained(way, str(number), an_order(number)) for way in ways))

        async def customers(numbers: range) -> None:
            for number in numbers:
                await customer(number)

        async def killer() -> None:
            # Counted from the beginning: behind the first kill there may be less than a quarter to come.
            for port, answered in ((one, grown(answers, ORDERS // 4)), (other, grown(answers, ORDERS // 2))):
                await until(answered, "another quarter of the orders")
                await servers.kill(port)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(killer())
            for one_of_four in range(4):
                tasks.create_task(customers(range(1 + one_of_four, ORDERS, 4)))
        assert all(mine == again for mine, again in answers.values())
        assert len({str(mine["order"]) for mine, _ in answers.values()} | {str(first["order"])}) == ORDERS
        total = sum(4 * (number % 4 + 1) for number in range(ORDERS))
        assert await servers.check() == f"{ORDERS} orders placed once, booked {total}\n"
