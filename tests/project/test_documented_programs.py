"""Every program and command of the README, docs/demo.md, docs/client.md, docs/commands.md and docs/cookbook.md, as it
is pasted, one after the other on one cluster that `TXN_URL` names."""

from __future__ import annotations

import ast
import asyncio
import re
import shlex
import sys
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tests.cluster import InProcessCluster
from tests.processes import read_all
from tests.project.test_documentation import ROOT, SHOWN_ID, blocks
from tests.txnctl.command_line import done

README, DOCS = ROOT / "README.md", ROOT / "docs"
DEMO, GUIDE, COMMANDS = DOCS / "demo.md", DOCS / "client.md", DOCS / "commands.md"
COOKBOOK = DOCS / "cookbook.md"
ORDERS = "topic://public/cli/orders"


async def test_all_programs_run_one_after_the_other_on_one_cluster(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TXN_URL", cluster.url)
    (billing,) = blocks(README, "python")
    more, spark = blocks(DEMO, "python")
    assert "pyspark" in spark  # tests/spark/test_documentation.py
    assert "100 orders billed exactly once" in await run_alone(billing)
    shown = await run_alone(more)
    assert re.search(r"^100 reminders in [1-9]\d* transactions$", shown, re.MULTILINE), shown
    assert "100 messages since the snapshot" in shown
    await run_commands(cluster, blocks(README, "sh") + blocks(DEMO, "sh"))
    *session, without_await = blocks(GUIDE, "python")
    assert len(session) >= 14
    await run_session(session, cluster, capsys)
    assert await run_alone(without_await) == "[{'page': '/tea'}]\n"
    await run_commands(cluster, blocks(COMMANDS, "sh"))
    by_process, users_test = blocks(COOKBOOK, "python")
    assert await run_alone(by_process) == "2 by process\n2 by hand\n"
    assert "txn_namespace" in users_test  # tests/project/test_wheels.py


async def run_alone(program: str) -> str:
    """What a program of its own prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return output.decode()


async def run_session(programs: list[str], cluster: InProcessCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """As at the prompt of `python -m asyncio`: with `await`, and the names of the programs before."""
    names: dict[str, Any] = {}
    printed: dict[str, str] = {}
    try:
        for program in programs:
            async with asyncio.timeout(120):
                waiting = eval(_compiled(program), names)
                if waiting is not None:
                    await waiting
            printed[program] = capsys.readouterr().out
        assert await read_all(names["client"], "topic://public/guide/invoices") == [
            b'{"purchase":7,"total":12}',
            b'{"purchase":8,"total":4}',
        ]
    finally:
        if "client" in names:
            await names["client"].close()
    fenced = _printed_by("ExpiredTransaction", printed)
    assert "fenced" in fenced  # told by its transaction, or by its key, whichever it heard of first
    assert "newer holder" in fenced
    assert "1 1 1 0" in _printed_by("txnclient.process", printed)
    in_bulk = _printed_by("read_entries", printed).splitlines()
    assert [line for line in in_bulk if line.endswith("[b'three', b'four']")]
    assert [line for line in in_bulk if line.isdigit() and int(line) > 50]


def _compiled(program: str) -> CodeType:
    return compile(program, str(GUIDE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def _printed_by(part: str, printed: dict[str, str]) -> str:
    (found,) = [out for program, out in printed.items() if part in program]
    return found


async def run_commands(cluster: InProcessCluster, shown: list[str]) -> None:
    """Line after line. Only the transaction that is to be aborted has another id here; there are some messages to be
    consumed, and some on standard input."""
    async with cluster.connect() as client:
        txn = await client.begin()
        for line in "\n".join(shown).splitlines():
            if line.startswith("txnctl "):
                words = shlex.split(
                    line.replace(SHOWN_ID, str(txn.id)).replace("--idle 2", "--idle 0.3"), comments=True
                )
                message = '{"customer": "c1", "value": "v"}\n'
                await done(*words[1:], url=cluster.url, stdin=message)


def test_examples_and_pages_keep_to_topics_of_their_own() -> None:
    """So each of them runs on a cluster in which the others have run, whatever shape they make their topics in."""
    pages = [README, *sorted(DOCS.glob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]
    topics = {page.name: _topics(page) for page in pages if page.name != "inspect.md"}  # that looks at the README's
    makers = {page: found for page, found in topics.items() if found}
    assert len(makers) >= 8
    for page, found in makers.items():
        for other, others in makers.items():
            assert page == other or not found & others, f"{page} and {other} both use {found & others}"


def _topics(page: Path) -> set[str]:
    """Where a name is put together, `topic://tenant/namespace/`."""
    text = page.read_text()
    programs = text if page.suffix == ".py" else "\n".join(blocks(page, "python") + blocks(page, "sh"))
    return set(re.findall(r"topic://[\w-]+/[\w-]+/[\w-]*", programs))
