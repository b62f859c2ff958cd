"""The recipes between topics: dead letters, a saga, a program that came from Kafka; their programs are killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.examples.killing import TIMEOUT_S, aborted_in_the_middle, ended, killed, started, stored, told
from tests.processes import kill, process_cluster
from tests.txnclient.test_with_cluster import read_all

pytestmark = [pytest.mark.process]

ANYTHING = {"isolation": "read_uncommitted"}


async def test_dead_letters_are_moved_back_once_though_the_mover_is_killed(cluster: InProcessCluster) -> None:
    name, jobs = "redrive.py", "topic://public/redrive/jobs"
    await told(name, "--jobs", "60", url=cluster.url)
    assert "48 done" in await told(name, "--work", url=cluster.url)
    async with cluster.connect() as client, client.reader(jobs, start="latest", **ANYTHING) as reader:
        for _ in range(2):
            victim = await started(name, "--redrive", "--idle", "60", url=cluster.url)
            await stored(reader, 4)  # in the middle of its second transaction
            await killed(victim)
    await told(name, "--redrive", "--idle", "4", url=cluster.url)
    assert "12 done" in await told(name, "--work", "--mended", url=cluster.url)
    assert await told(name, "--check", url=cluster.url) == "60 jobs done once\n"


async def test_every_trip_of_a_saga_ends_as_it_should_while_everything_is_killed(tmp_path: Path) -> None:
    name, outcomes = "saga.py", "topic://public/saga/outcomes"
    async with process_cluster(tmp_path) as cluster, txnclient.connect(cluster.url, timeout=60) as client:
        for topic in (outcomes, "topic://public/saga/requests"):
            await client.create_topic(topic, segments=2)
        async with client.reader(outcomes) as reader:
            desk, saga = [await started(name, role, url=cluster.url) for role in ("--desk", "--saga")]
            trips = await started(name, "--trips", "150", "--check", url=cluster.url)
            await stored(reader, 30)
            await killed(desk)
            desk = await started(name, "--desk", url=cluster.url)
            await stored(reader, 60)
            await killed(saga)
            await kill(cluster, "broker-1")
            saga = await started(name, "--saga", url=cluster.url)
        said = await ended(trips)
        for role in (desk, saga):
            role.terminate()
            await ended(role)
    assert said == "150 trips: 100 booked, 50 given up and their hotel cancelled\n"


@pytest.mark.parametrize("way", ["--enrich", "--by-hand"])
async def test_a_program_that_came_from_kafka_is_exact_though_it_is_killed(cluster: InProcessCluster, way: str) -> None:
    name, visits = "moved_from_kafka.py", "topic://public/kafka/visits"
    await told(name, "--clicks", "400", url=cluster.url)
    async with cluster.connect() as client, client.reader(visits, **ANYTHING) as reader:
        victim = await started(name, way, "--idle", "60", url=cluster.url)
        await stored(reader, 50)
        await killed(victim)
        fenced = await started(name, way, "--idle", "60", url=cluster.url)
        await stored(reader, 50)
        await told(name, way, "--idle", "1", url=cluster.url)  # beside it, with the same key
        await told(name, "--clicks", "100", url=cluster.url)  # if it waits for some, it has not heard of that yet
        output, _ = await asyncio.wait_for(fenced.communicate(), TIMEOUT_S)
        assert (fenced.returncode, b"ExpiredTransaction" in output) == (1, True), output.decode()
    assert "clicks" in await told(name, way, "--idle", "4", url=cluster.url)
    assert await told(name, "--check", url=cluster.url) == "500 visits, each once and in order for each user\n"


@pytest.mark.parametrize("way", ["--enrich", "--by-hand"])
async def test_a_program_that_came_from_kafka_gives_back_what_an_abort_has_left_and_goes_on(
    cluster: InProcessCluster, way: str
) -> None:
    """It is stopped in the middle of a transaction, which is aborted meanwhile: the same messages come again, once."""
    name, visits = "moved_from_kafka.py", "topic://public/kafka/visits"
    await told(name, "--clicks", "400", url=cluster.url)
    async with cluster.connect() as client, client.reader(visits, **ANYTHING) as reader:
        program = await started(name, way, "--idle", "4", url=cluster.url)
        for _ in range(2):
            await aborted_in_the_middle(client, reader, program)
        said = await ended(program)
    assert said.startswith("400 clicks"), said
    assert await told(name, "--check", url=cluster.url) == "400 visits, each once and in order for each user\n"
    async with cluster.connect() as client:
        clicks = {str(one.id): one.value for one in await read_all(client, "topic://public/kafka/clicks")}
        seen = {one.properties["click"]: one.value.lower() for one in await read_all(client, visits)}
    assert seen == clicks
