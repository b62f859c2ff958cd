"""The plugin for pytest, in the pytest of a user's small project: a session of its own, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import InProcessCluster
from tests.project.test_documentation import ROOT
from tests.waiting import wait_until
from txnstore.etcd.embedded_etcd import find_etcd

pytestmark = [pytest.mark.process]

PROJECT = Path(__file__).with_name("a_project.py")
TIMEOUT_S = 240
PLUGIN = ("-p", "no:txnstore", "-p", "pytest_txnstore.plugin")
"""By its module: the environment of these tests has not installed the client's wheel."""


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join((str(find_etcd().parent), os.environ["PATH"]))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TXN_URL"))}
    python_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**kept, "PATH": path, "PYTHONPATH": python_path, **more}


def project(folder: Path, text: str | None = None) -> Path:
    """A folder with one module of tests, which treats warnings as errors, as careful projects do."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    if text is None:
        with (folder / "pytest.ini").open("a") as settings:
            settings.write("asyncio_default_fixture_loop_scope = function\n")
        shutil.copy(PROJECT, folder / "test_shop.py")
    else:
        (folder / "test_shop.py").write_text(text)
    return folder


def command(folder: Path, *arguments: str) -> list[str]:
    kept = f"--basetemp={folder / 'kept'}"
    return [sys.executable, "-P", "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", kept, *arguments, str(folder)]


WITHOUT_ASYNCIO = ("-p", "no:asyncio")


def ran(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, *arguments), cwd=folder, env=environment(**more), capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def running(part: Path) -> list[str]:
    """Processes with `part` in their command line, but for this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(part) in words and int(process.name) != os.getpid():
            found.append(words.replace("\0", " "))
    return found


def test_a_user_s_tests_run_with_a_cluster_of_their_own_and_leave_nothing(tmp_path: Path) -> None:
    done = ran(project(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
    assert running(tmp_path / "kept") == []
    assert [path.name for path in (tmp_path / "kept").rglob("*.log")]
    assert not list((tmp_path / "kept").rglob("data")), "ledgers reserve much room"


def test_workers_of_xdist_have_a_cluster_each(tmp_path: Path) -> None:
    asks = "def test_{}(txn_cluster, txn_sync_client):\n    print('at', txn_cluster.url)\n"
    done = ran(
        project(tmp_path, asks.format("one") + asks.format("other")),
        *WITHOUT_ASYNCIO,
        "-n",
        "2",
        "--dist",
        "each",
        "-rP",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    assert len(set(re.findall(r"^at (\S+)$", done.stdout, re.MULTILINE))) == 2
    assert running(tmp_path / "kept") == []


async def test_a_cluster_that_is_named_is_used_cleaned_and_not_killed(
    cluster: InProcessCluster, tmp_path: Path
) -> None:
    folder = project(tmp_path)
    process = await asyncio.create_subprocess_exec(
        *command(folder, "--txnstore-url", cluster.url),
        cwd=folder,
        env=environment(PYTEST_TXNSTORE_SHARED="1"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    assert process.returncode == 0, output.decode()
    assert b"5 passed, 1 skipped" in output
    async with cluster.connect() as client:
        assert await client.list_topics("pytest/") == []


def test_a_pytest_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    folder = project(tmp_path, "import time\n\ndef test_long(txn_cluster):\n    time.sleep(600)\n")
    with subprocess.Popen(
        command(folder, *WITHOUT_ASYNCIO), cwd=folder, env=environment(), stdout=subprocess.DEVNULL
    ) as process:
        wait_until(lambda: any("--roles broker" in one for one in running(tmp_path / "kept")), "its broker")
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    wait_until(lambda: not running(tmp_path / "kept"), "the end of what it had started")


def test_a_cluster_that_cannot_start_fails_the_tests_with_what_it_said(tmp_path: Path) -> None:
    folder = project(tmp_path, "def test_shop(txn_cluster):\n    pass\n")
    done = ran(folder, *WITHOUT_ASYNCIO, TXN_LEASE_TTL_S="soon")
    assert done.returncode == 1
    assert "the cluster for these tests did not start" in done.stdout
    assert "lease_ttl_s" in done.stdout
    assert running(tmp_path / "kept") == []


def test_without_pytest_asyncio_the_asynchronous_client_says_what_to_install(tmp_path: Path) -> None:
    folder = project(tmp_path, "def test_shop(txn_client):\n    pass\n")
    done = ran(folder, *WITHOUT_ASYNCIO)
    assert "install pytest-asyncio" in done.stdout
    assert done.returncode == 1


def test_a_session_that_does_not_ask_for_it_imports_nothing_of_the_client(tmp_path: Path) -> None:
    text = (
        "import sys\n\ndef test_plain():\n"
        "    ours = ('grpc', 'txnclient', 'txnwire', 'txnctl', 'txnstore', 'pytest_txnstore.cluster')\n"
        "    assert not [name for name in ours if name in sys.modules]\n"
        "    assert 'pytest_txnstore.plugin' in sys.modules\n"
    )
    done = ran(project(tmp_path, text), *WITHOUT_ASYNCIO)
    assert done.returncode == 0, done.stdout
    assert not list((tmp_path / "kept").rglob("dev.log"))
