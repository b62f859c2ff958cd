"""The examples of streams and queues, as processes against a cluster; workers are killed."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.cluster import InProcessCluster

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"

pytestmark = [pytest.mark.process]


async def start(name: str, url: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / name),
        "--url",
        url,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def said(process: asyncio.subprocess.Process) -> str:
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_orders_are_billed_exactly_once_by_several_processes_one_of_which_is_killed(
    cluster: InProcessCluster,
) -> None:
    name = "consume_transform_produce.py"
    helper = await start(name, cluster.url, "--bill", "--idle", "60")
    main = await start(
        name, cluster.url, "--orders", "3000", "--idle", "8"
    )  # well above the grace of the one that is killed
    assert main.stdout is not None
    assert await asyncio.wait_for(main.stdout.readline(), 30) == b"3000 orders placed\n"
    async with cluster.connect() as client, client.reader("topic://public/billing/invoices") as invoices:
        await invoices.receive(timeout=30)  # they are at work
    helper.send_signal(signal.SIGKILL)
    output = await said(main)
    assert "3000 orders billed exactly once" in output
    await helper.communicate()


async def test_queue_workers_do_each_job_once_or_give_it_up(cluster: InProcessCluster) -> None:
    name = "queue_workers.py"
    # One more worker, which is killed as soon as it is at work.
    main = await start(name, cluster.url, "--pictures", "60", "--workers", "2")
    assert main.stdout is not None
    while b"is ready" not in await asyncio.wait_for(main.stdout.readline(), 30):
        pass
    victim = await start(name, cluster.url, "--worker")
    assert victim.stdout is not None
    assert b"is ready" in await asyncio.wait_for(victim.stdout.readline(), 30)
    victim.send_signal(signal.SIGKILL)
    output = await said(main)
    assert "60 pictures: each done once or given up" in output
    assert output.count("given up after 4 tries") == 6
    await victim.communicate()


async def test_reminders_come_in_the_order_of_their_times(cluster: InProcessCluster) -> None:
    said_lines = (await said(await start("reminders.py", cluster.url))).splitlines()
    assert [line.partition(" (due at ")[0] for line in said_lines] == ["the earlier one", "the later one"]


async def test_a_reminder_is_kept_for_a_worker_that_is_started_late(cluster: InProcessCluster) -> None:
    await said(await start("reminders.py", cluster.url, "--remind", "0.1", "tea"))
    worker = await start("reminders.py", cluster.url, "--work")
    async with cluster.connect() as client, client.reader("topic://public/reminders/notes") as notes:
        assert (await notes.receive(timeout=30)).value.startswith(b"tea (due at ")
    worker.kill()
    await worker.communicate()
