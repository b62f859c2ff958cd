"""The recipes between a database and topics: the outbox's relay and the inbox, killed again and again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cluster import InProcessCluster
from tests.examples.killing import TIMEOUT_S, ended, killed, started, stored, told
from tests.waiting import until

pytestmark = [pytest.mark.process]

ANYTHING = {"isolation": "read_uncommitted"}


async def test_each_row_of_an_outbox_is_told_once_though_its_relays_are_killed(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    name, db, topic = "outbox_relay.py", ("--db", str(tmp_path / "shop.db")), "topic://public/outbox/orders"
    assert "300 orders placed" in await told(name, *db, "--place", "300", url=cluster.url)
    async with cluster.connect() as client:
        await client.create_topic(topic, segments=2)
        async with client.reader(topic, **ANYTHING) as reader:
            for _ in range(3):
                victim = await started(name, *db, "--relay", "--idle", "60", url=cluster.url)
                await stored(reader, 30)  # in the middle of its second batch, or a later one
                await killed(victim)
    two = [await started(name, *db, "--relay", "--idle", "2", url=cluster.url) for _ in range(2)]
    for relay in two:
        await ended(relay)
    said = await told(name, *db, "--check", url=cluster.url)
    assert said == "300 orders told once, in order for each customer\n"


async def test_each_message_is_in_the_database_once_though_its_taker_is_killed(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    name, db, topic = "inbox_sqlite.py", ("--db", str(tmp_path / "stock.db")), "topic://public/inbox/deliveries"
    async with cluster.connect() as client:
        await client.create_topic(topic, segments=2)
        await told(name, *db, "--send", "100", url=cluster.url)
        for wave in (1, 2, 3):
            victim = await started(name, *db, "--take", "--idle", "60", url=cluster.url)
            await taken(tmp_path / "stock.db", 60 * wave)
            await killed(victim)
            await told(name, *db, "--send", "60", url=cluster.url)
    await told(name, *db, "--take", "--idle", "4", url=cluster.url)
    said = await told(name, *db, "--check", url=cluster.url)
    assert said.startswith("280 deliveries are in stock once: "), said


async def taken(database: Path, count: int) -> None:
    """Waits until so many messages are noted."""

    def noted() -> bool:
        with closing(sqlite3.connect(database, timeout=TIMEOUT_S)) as db:
            return int(db.execute("SELECT count(*) FROM inbox").fetchone()[0]) >= count

    await until(noted, f"{count} deliveries in the database")
