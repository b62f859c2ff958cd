"""What the docs show is run: etcdctl recipes, command lines, settings, alerts. Programs: `test_documented_programs`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import shlex
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

import txnclient
from tests.cluster import InProcessCluster, running_cluster
from tests.waiting import until_answer
from txnctl.cli import app
from txnctl.metrics.catalogue import catalogue
from txnctl.metrics.metric import MetricKind
from txnctl.process.settings import ServerSettings, load
from txnstore.access.soft_limit import FILE_LIMIT_SHARE, SOFT_LIMIT_SHARE
from txnwire.ids import hash_key

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(path: Path, language: str) -> list[str]:
    return [body for found, body in FENCE.findall(path.read_text()) if found == language]


def shell_lines(program: str) -> list[str]:
    lines = [line.strip() for path in DOCS for block in blocks(path, "sh") for line in block.splitlines()]
    return sorted({line.split(" #")[0].strip() for line in lines if line.startswith(program + " ")})


with_etcdctl = pytest.mark.skipif(shutil.which("etcdctl") is None, reason="no etcdctl on PATH")

SHOWN_ID, SHOWN_NAME, SHOWN_KEY = "0003-0000000000000001", "job-7/42", "nightly-job"
ORDERS = "topic://public/default/orders"


@asynccontextmanager
async def inspected(etcd: str, tmp_path: Path) -> AsyncIterator[tuple[InProcessCluster, txnclient.Transaction]]:
    """A cluster that has a record under every key the recipes ask for, and the open transaction they speak of."""
    async with (
        running_cluster(etcd, tmp_path, header_retention_s=0.2) as cluster,
        cluster.connect() as client,
        cluster.connect(transaction_key=SHOWN_KEY),
    ):
        await client.create_topic(ORDERS, segments=4)
        await client.create_topic("topic://public/default/deleted")
        await client.delete_topic("topic://public/default/deleted")
        key = next(str(n) for n in range(1000) if hash_key(str(n).encode()) <= 0x3FFF)
        async with await client.producer(ORDERS) as producer, await client.consumer(ORDERS, "billing") as consumer:
            aborted = await client.begin()
            await producer.send(b"never", key=key, txn=aborted)
            await aborted.abort()
            named = await client.begin(name=SHOWN_NAME)
            await producer.send(b"named", key=key, txn=named)
            await named.commit(writers=[named.writer_id])
            await producer.send(b"plain", key=key)
            shown = await client.begin()
            await producer.send(b"held", key=key, txn=shown)
            await consumer.ack(await consumer.receive(timeout=20))
            await consumer.ack(await consumer.receive(timeout=20), txn=shown)
            await client.split((await client.describe_topic(ORDERS)).active[-1].name)  # nothing is in it: it is drained
            yield cluster, shown


@with_etcdctl
async def test_every_etcdctl_recipe_finds_what_it_says(etcd: str, tmp_path: Path) -> None:
    """Some records come a moment after what they tell of: each recipe is run until it finds something."""
    recipes = [line for line in shell_lines("etcdctl") if not line.startswith("etcdctl watch")]
    assert len(recipes) >= 25
    async with inspected(etcd, tmp_path) as (cluster, shown):
        for recipe in recipes:
            await until_answer(
                partial(recipe_output, cluster, recipe, shown),
                str.strip,
                f"something that is found by: {recipe}",
                longest_poll_s=0.1,
            )
        every = json.loads(await recipe_output(cluster, "etcdctl get --prefix -w json /", shown))["kvs"]
        values = {base64.b64decode(one["key"]): base64.b64decode(one.get("value", "")) for one in every}
    without = {key.removeprefix(cluster.prefix.encode()).split(b"/")[1] for key, value in values.items() if not value}
    assert without == {b"idx", b"sender"}, "docs/inspect.md names the keys that have no value"
    assert all(value.startswith((b'{"v":1', b'[2,"')) for value in values.values() if value)


@with_etcdctl
async def test_the_watch_of_transactions_sees_them_begin_and_end(cluster: InProcessCluster) -> None:
    watches = [line for line in shell_lines("etcdctl") if line.startswith("etcdctl watch")]
    assert "etcdctl watch --prefix /txn/" in watches
    process = await asyncio.create_subprocess_exec(
        *shlex.split("etcdctl watch --prefix /txn/".replace(" /", f" {cluster.prefix}/")),
        env=etcdctl_environment(cluster),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        seen = b""
        async with cluster.connect() as client, asyncio.timeout(30):
            while b'"state":"COMMITTED"' not in seen:  # the watch takes a moment to start
                await (await client.begin()).commit()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        while b'"state":"COMMITTED"' not in seen:
                            seen += await process.stdout.readline()
    finally:
        process.kill()
        await process.wait()


def etcdctl_environment(cluster: InProcessCluster) -> dict[str, str]:
    return {**os.environ, "ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": cluster.etcd}


async def recipe_output(cluster: InProcessCluster, recipe: str, shown: txnclient.Transaction) -> str:
    """What it prints. Its id is that of `shown`, and its keys are those of this cluster."""
    asked, *filters = recipe.replace(SHOWN_ID, str(shown.id)).split(" | ")
    command = " | ".join([asked.replace(" /", f" {cluster.prefix}/").replace(" '/", f" '{cluster.prefix}/"), *filters])
    process = await asyncio.create_subprocess_shell(
        command, env=etcdctl_environment(cluster), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert not err, f"{recipe}: {err.decode()}"
    return out.decode()


@pytest.mark.parametrize("line", shell_lines("txnctl"))
def test_every_command_line_shown_is_one(line: str) -> None:
    """Parsed by the real command line: an unknown command or option exits with 2."""
    words = [word for word in shlex.split(line)[1:] if word != "…"]
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, f"{line}: {result.output}"


OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def test_every_metric_is_in_the_table_with_its_meaning_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)(?:\{([\w,]+)\})?` \| (\w+) \| [\w ]+ \| (.*) \|$", OPERATIONS, re.MULTILINE)
    shown = {name: (kind, labels, meaning) for name, labels, kind, meaning in rows}
    assert shown == {one.name: (str(one.kind), ",".join(one.labels), one.help) for one in catalogue()}


def test_every_alert_asks_for_metrics_that_there_are() -> None:
    (rules,) = blocks(ROOT / "docs" / "operations.md", "yaml")
    known = {one.name: one.kind for one in catalogue()} | {"up": MetricKind.GAUGE}  # of Prometheus itself
    expressions = re.findall(r"expr: (.*)", rules)
    assert len(expressions) == len(re.findall(r"alert: ", rules)) >= 10
    for expression in expressions:
        used = re.findall(r"(?:txnstore|pulsar_txn)_\w+|\bup\b", expression)
        assert used, expression
        for name in used:
            plain = name.removesuffix("_bucket")
            assert plain in known, name
            assert (name != plain) == (known[plain] is MetricKind.HISTOGRAM), name
            assert (f"rate({name}" in expression) == name.endswith(("_bucket", "_total")), expression


def test_what_refuses_new_transactions_is_alarmed_before_it_does() -> None:
    """Both limits of etcd's size, and a process that tells nothing."""
    (rules,) = blocks(ROOT / "docs" / "operations.md", "yaml")
    limits = {"in_use": SOFT_LIMIT_SHARE, "file": FILE_LIMIT_SHARE}
    for what, share in limits.items():
        (alarmed_at,) = re.findall(rf"max\(txnstore_etcd_{what}_bytes / txnstore_etcd_quota_bytes\) > ([\d.]+)", rules)
        assert float(alarmed_at) < share
    assert "75 % of the quota are in use, or etcd's *file* reaches 90 % of it" in OPERATIONS
    assert limits == {"in_use": 0.75, "file": 0.9}
    assert 'up{job="txnstore"} == 0' in rules
    assert "absent(txnstore_ready)" in rules


def test_every_setting_is_in_the_table_and_no_other() -> None:
    table = OPERATIONS[OPERATIONS.index("| setting |") : OPERATIONS.index("## etcd")]
    rows = [row for row in table.splitlines()[2:] if row.startswith("|")]
    shown = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(shown) == sorted(ServerSettings.model_fields)


def test_the_settings_file_shown_is_one(tmp_path: Path) -> None:
    (shown,) = blocks(ROOT / "docs" / "operations.md", "toml")
    file = tmp_path / "txnstore.toml"
    file.write_text(shown)
    assert load(file).id == "broker-1"
