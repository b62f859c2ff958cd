"""What the docs show is run: etcdctl recipes, command lines, the README's example."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cluster import InProcessCluster
from txnctl.cli import app
from txnctl.metrics.catalogue import catalogue
from txnctl.metrics.metric import Kind
from txnctl.settings import ServerSettings, load

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(path: Path, language: str) -> list[str]:
    return [body for found, body in FENCE.findall(path.read_text()) if found == language]


def shell_lines(program: str) -> list[str]:
    lines = [line.strip() for path in DOCS for block in blocks(path, "sh") for line in block.splitlines()]
    return sorted({line.split(" #")[0].strip() for line in lines if line.startswith(program + " ")})


@pytest.mark.skipif(shutil.which("etcdctl") is None, reason="no etcdctl on PATH")
async def test_every_etcdctl_recipe_finds_what_it_says(cluster: InProcessCluster) -> None:
    """On a cluster with the topic and the subscription that the recipes speak of; watches are started and stopped."""
    await run_readme_example(cluster)
    recipes = [line for line in shell_lines("etcdctl") if " get " in line]
    assert len(recipes) >= 12
    may_be_empty = ("/txn-op/", "/idx/", "/txn/0003-")
    for recipe in recipes:
        output = await asyncio.to_thread(run_recipe, cluster, recipe)
        if not any(prefix in recipe for prefix in may_be_empty):
            assert output.strip(), recipe


def run_recipe(cluster: InProcessCluster, recipe: str) -> str:
    words = [cluster.prefix + word if word.startswith("/") else word for word in shlex.split(recipe)]
    environment = {**os.environ, "ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": cluster.etcd}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout


async def run_readme_example(cluster: InProcessCluster) -> str:
    (example,) = blocks(ROOT / "README.md", "python")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        example.replace("txn://127.0.0.1:6650", cluster.url),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return output.decode()


async def test_the_readme_example_runs(cluster: InProcessCluster) -> None:
    assert "100 orders billed exactly once" in await run_readme_example(cluster)


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
    known = {one.name: one.kind for one in catalogue()}
    expressions = re.findall(r"expr: (.*)", rules)
    assert len(expressions) == len(re.findall(r"alert: ", rules)) >= 10
    for expression in expressions:
        used = re.findall(r"(?:txnstore|pulsar_txn)_\w+", expression)
        assert used, expression
        for name in used:
            plain = name.removesuffix("_bucket")
            assert plain in known, name
            assert (name != plain) == (known[plain] is Kind.HISTOGRAM), name
            assert (f"rate({name}" in expression) == name.endswith(("_bucket", "_total")), expression


def test_every_setting_is_in_the_table_and_no_other() -> None:
    table = OPERATIONS[OPERATIONS.index("| setting |") : OPERATIONS.index("## etcd")]
    shown = [
        name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1:2][0] if row else "")
    ]
    assert sorted(shown) == sorted(ServerSettings.model_fields)


def test_the_settings_file_shown_is_one(tmp_path: Path) -> None:
    (shown,) = blocks(ROOT / "docs" / "operations.md", "toml")
    file = tmp_path / "txnstore.toml"
    file.write_text(shown)
    assert load(file).id == "broker-1"
