"""What commands print as JSON has the fields that docs/commands.md lists. Of other commands: `test_commands.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.processes import process_cluster
from tests.spark.test_checkpoint import FIRST, QUERY, SECOND, plan
from tests.txnctl.command_line import done, txnctl
from tests.txnctl.test_commands import documented
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand, free_port

TOPIC = "topic://public/default/documented"


def expect(command: str, shown: Mapping[str, Any], *, part: int = 0, also: Collection[str] = ()) -> None:
    """All of one of the lists in its row is there, and nothing that the row, or `also`, does not name."""
    *lists, named = documented(command)
    assert lists[part] <= set(shown), f"{command}: lacks {lists[part] - set(shown)}"
    told = named.union(also) if part == 0 else lists[part].union(also)
    assert set(shown) <= told, f"{command}: not told of {set(shown) - told}"


async def test_messages_names_keys_and_settings(cluster: InProcessCluster) -> None:
    async with cluster.connect() as client, cluster.connect(transaction_key="nightly") as keyed:
        await client.create_topic(TOPIC)
        txn, held = await client.begin(name="job"), await keyed.begin()
        async with await client.producer(TOPIC) as producer:
            await producer.send(b"text", key="k", properties={"a": "b"}, txn=txn)
            await producer.send(b"\xff", key=b"\xff", txn=txn)
        await txn.commit(note="done")
        words = [
            ("consume", TOPIC, "-s", "s", "--count", "2"),
            ("read", TOPIC),
            ("topics", "peek", TOPIC),
            ("names", "list"),
            ("keys", "list"),
            ("settings",),
        ]
        answers = await asyncio.gather(*(done(*one, "-o", "json", url=cluster.url) for one in words))
        await held.abort()
    consumed, read, peeked, names, keys, settings = answers
    lines = {one: [msgspec.json.decode(line) for line in one.out.splitlines()] for one in (consumed, read)}
    for text, binary in lines.values():
        for message in (text, binary):
            expect("consume", message)
        assert set(binary) - set(text) == {"value_base64", "key_base64"}
    for message in peeked.json:
        expect("consume", message, also=["sent"])
        assert "sent" in message
    for command, rows in (("names list", names.json), ("keys list", keys.json), ("settings", settings.json)):
        assert rows, f"{command}: nothing is shown"
        for row in rows:
            expect(command, row)


async def test_loads(cluster: InProcessCluster, client: txnclient.Client) -> None:
    await client.create_topic(TOPIC)
    loads = (
        (("produce",), set[str]()),
        (("produce", "--batch", "2"), {"calls", "calls_per_s"}),
        (("transactions",), {"transactions", "transactions_per_s"}),
        (("consume",), set[str]()),
    )
    common = {"seconds", "messages", "messages_per_s", "megabytes_per_s", "latency_ms", "errors", "not_begun_in_time"}
    assert documented("bench produce")[0] == common
    for (kind, *more), besides in loads:
        words = ("bench", kind, TOPIC, *more, "--seconds", "0.2", "-o", "json")
        row = (await done(*words, url=cluster.url)).json
        expect("bench produce", row)
        assert set(row) == common | besides, kind
        assert set(row["latency_ms"]) == {"p50", "p90", "p99", "p99_9", "max"} <= documented("bench produce")[-1]


@pytest.mark.process
async def test_backups_and_checks(tmp_path: Path) -> None:
    data, to = tmp_path / "cluster", tmp_path / "backups"
    async with process_cluster(data) as cluster, txnclient.connect(cluster.url) as client:
        await client.create_topic(TOPIC)
        async with await client.producer(TOPIC) as producer:
            await producer.send(b"x")
        where = ("--etcd", cluster.etcd_url, "--data-dir", str(data / "data"))
        sound = await txnctl("check", *where, "-o", "json")
        taken = await txnctl("backup", str(to), *where, "-o", "json")
    restored = await txnctl("restore", str(to), "--to", str(tmp_path / "new"), "-o", "json")
    listed = await txnctl("backup", str(to), "--verify", "-o", "json")
    [whole] = (to / "backups").iterdir()
    (whole / "etcd.snapshot").write_bytes(b"")
    damaged = await txnctl("backup", str(to), "--verify", "-o", "json")
    assert (sound.code, taken.code, restored.code, listed.code, damaged.code) == (0, 0, 0, 0, 1)
    expect("check", sound.json)
    expect("backup DIR", taken.json)
    expect("restore DIR", restored.json)
    expect("backup DIR", listed.json[0], part=1)
    expect("backup DIR", damaged.json[0], part=1, also=["error"])
    assert "repaired" not in sound.json
    assert "error" in damaged.json[0]

    for ledger in (data / "data" / "ledgers").rglob("*.ledger"):
        ledger.unlink()
    etcd = EmbeddedEtcd(EtcdCommand(data_dir=data / "etcd", client_port=free_port()))
    await etcd.start()
    where = ("--etcd", etcd.url, "--data-dir", str(data / "data"))
    broken = await txnctl("check", *where, "-o", "json")
    repaired = await txnctl("check", *where, "--repair", "-o", "json")
    await etcd.stop()
    expect("check", broken.json)
    expect("check", repaired.json)
    assert broken.json["broken"], "nothing was found"
    assert repaired.json["repaired"], "nothing was repaired"
    for row in broken.json["broken"]:
        expect("check", row, part=1)
    for row in (*repaired.json["repaired"], *restored.json["repaired"]):
        expect("check", row, part=2)


async def test_checkpoints(cluster: InProcessCluster, tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text(msgspec.json.encode({"id": QUERY}).decode())
    plan(tmp_path, 0, FIRST)
    plan(tmp_path, 1, SECOND, done=False)
    words = ("spark", "checkpoint", str(tmp_path), "-o", "json")
    plain, asked = await asyncio.gather(
        done(*words, url=cluster.url), done(*words, "--sink-name", "sink", url=cluster.url)
    )
    outcome = {"transaction", "outcome"}
    for answer, besides in ((plain.json, set[str]()), (asked.json, outcome)):
        expect("spark checkpoint", answer)
        for batch in answer["batches"]:
            expect("spark checkpoint", batch, part=1, also=besides)
            assert besides <= set(batch)
            assert batch["sources"]
            for source in batch["sources"]:
                expect("spark checkpoint", source, part=2)
            for offset in batch["offsets"]:
                expect("spark checkpoint", offset, part=4)
        expect("spark checkpoint", answer["restart"], part=5, also=besides)
        assert besides <= set(answer["restart"])
