"""`txnctl check` on a cluster that works, on one that is stopped, and on one whose disk has lied."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.txnctl.command_line import Done, txnctl

TOPIC = "topic://public/default/checked"


def check(cluster: InProcessCluster, data_dir: Path, *more: str) -> asyncio.Task[Done]:
    words = ("check", "--etcd", cluster.etcd, "--etcd-prefix", cluster.prefix, "--data-dir", str(data_dir), *more)
    return asyncio.create_task(txnctl(*words))


async def work(client: txnclient.Client) -> None:
    """Transactions that write and ack, every third aborted, until cancelled."""
    async with await client.producer(TOPIC) as producer, await client.consumer(TOPIC, "job") as consumer:
        await producer.send_many([(f"k{n}", b"input") for n in range(200)])
        for count in range(1_000_000):
            messages = await consumer.receive_many(20, timeout=1.0)
            txn = await client.begin()
            await producer.send_many([(message.key, b"again") for message in messages], txn=txn)
            await consumer.ack(messages, txn=txn)
            await (txn.abort() if count % 3 == 0 else txn.commit())


async def test_it_is_sound_under_load_and_stopped_and_a_flipped_bit_is_found(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.connect() as client:
        await client.create_topic(TOPIC, segments=2)
        load = asyncio.create_task(work(client))
        changes = 0
        for _ in range(3):
            checked = await check(cluster, cluster.data_dir)
            assert (checked.code, checked.out.startswith("sound at revision")) == (0, True), checked
            assert not load.done()
            if changes < 2:
                await client.split(f"segment://public/default/checked/{'0000-7fff-0' if changes else '8000-ffff-1'}")
                changes += 1
        load.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await load
    whole = cluster.data_dir.parent / "dev"  # as `txnctl dev` has it: etcd beside the ledgers
    (whole / "etcd").mkdir(parents=True)
    (whole / "data").symlink_to(cluster.data_dir)
    checked = await check(cluster, whole)
    assert (checked.code, checked.out.startswith("sound at revision")) == (0, True), checked
    for folder in (whole, whole.parent / "elsewhere"):  # none is named: the `dev` of this folder; what etcd knows
        folder.mkdir(exist_ok=True)
        words = ("check", "--etcd", cluster.etcd, "--etcd-prefix", cluster.prefix)
        monkeypatch.chdir(folder)
        checked = await txnctl(*words)
        assert (checked.code, checked.out.startswith("sound at revision")) == (0, True), checked
    monkeypatch.undo()
    await cluster.restart_server("broker")  # which closes the ledgers of before
    await cluster.stop()
    checked = await check(cluster, cluster.data_dir)
    assert (checked.code, checked.out.startswith("sound at revision")) == (0, True), checked

    files = [
        path for path in (cluster.data_dir / "ledgers").rglob("*") if path.is_file() and path.stat().st_size > 4096
    ]
    damaged = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    text, rows, elsewhere = await asyncio.gather(
        check(cluster, cluster.data_dir),
        check(cluster, cluster.data_dir, "-o", "json"),
        check(cluster, empty(cluster.data_dir / "empty")),
    )
    assert text.code == rows.code == elsewhere.code == 1
    assert str(damaged) in text.out
    assert [one["rule"] for one in rows.json["broken"]] == ["closed_ledgers_are_whole"]
    assert "closed_ledgers_are_whole" in elsewhere.out


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder
