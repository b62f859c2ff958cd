"""The two distributions: what is in them, what they need, and the README's program on what they bring."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.bare_python import bare_python, described
from tests.project.test_documentation import ROOT, blocks
from tools.build_wheels import NAMES, build
from txnstore.etcd.embedded_etcd import find_etcd

CLIENT, SERVER = NAMES
PACKAGES = {
    CLIENT: {"txnwire", "txnclient", "pyspark_txnstore", "pytest_txnstore"},
    SERVER: {"txnstore", "watchers", "segments", "coordinator_v5", "txnctl"},
}
HEAVY = {
    "tenacity",
    "typer",
    "rich",
    "pydantic-settings",
    "prometheus-client",
    "uvloop",
    "pyspark",
    "pyarrow",
}
"""What a program that only sends and receives has no use for."""
PLUGIN = [("txnstore", "pytest_txnstore.plugin")]
BESIDE = ROOT / ".venv" / "beside"
TIMEOUT_S = 120

WHERE = """
import sys, importlib.metadata, importlib.util
print("segments", importlib.metadata.version("segments"), importlib.util.find_spec("segments").origin)
ours = ("txnstore", "txnctl", "watchers", "coordinator_v5")
print("servers", [name for name in ours if importlib.util.find_spec(name)], "loaded", "segments" in sys.modules)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    return {name: build(name, folder) for name in NAMES}


def test_each_package_is_in_one_distribution_and_typed(wheels: dict[str, Path]) -> None:
    for name, wheel in wheels.items():
        files = zipfile.ZipFile(wheel).namelist()
        assert {file.partition("/")[0] for file in files if ".dist-info" not in file} == PACKAGES[name]
        assert {file.partition("/")[0] for file in files if file.endswith("/py.typed")} == PACKAGES[name]
        assert any(file.endswith("dist-info/licenses/LICENSE") for file in files)
        sources = [path.relative_to(ROOT).as_posix() for one in PACKAGES[name] for path in (ROOT / one).rglob("*.py")]
        assert set(sources) <= set(files), "a room has no __init__.py"


def test_the_client_needs_little_and_the_servers_need_their_client(wheels: dict[str, Path]) -> None:
    required = {name: described(wheel).requires or [] for name, wheel in wheels.items()}
    plain = {name: {Requirement(one).name for one in found if "extra" not in one} for name, found in required.items()}
    assert not plain[CLIENT] & HEAVY
    version = described(wheels[CLIENT]).version
    assert f"{CLIENT}=={version}" in required[SERVER]
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    both = {Requirement(one) for found in required.values() for one in found if "extra" not in one}
    assert {one for one in both if one.name != CLIENT} == {Requirement(one) for one in declared}


def test_what_an_index_shows(wheels: dict[str, Path]) -> None:
    for wheel in wheels.values():
        shown = described(wheel).metadata
        assert shown["License-Expression"] == "Apache-2.0"
        assert shown["Requires-Python"] == ">=3.11"
        assert "Typing :: Typed" in shown.get_all("Classifier", [])
        assert "# txnstore" in (shown.get_payload() or "")


def test_an_index_shows_the_pages_of_a_repository_that_can_be_seen(tmp_path: Path) -> None:
    shown = described(build(CLIENT, tmp_path, "https://example.org/owner/txnstore")).metadata
    version = shown["Version"]
    pages = dict(line.split(", ", 1) for line in shown.get_all("Project-URL", []))
    assert pages == {
        "Homepage": "https://example.org/owner/txnstore",
        "Documentation": f"https://example.org/owner/txnstore/blob/v{version}/docs/client.md",
        "Changelog": f"https://example.org/owner/txnstore/blob/v{version}/CHANGELOG.md",
        "Source": f"https://example.org/owner/txnstore/tree/v{version}",
        "Issues": "https://example.org/owner/txnstore/issues",
    }
    text = str(shown.get_payload())
    links = re.findall(r"\]\(([^)#]+)", text)
    assert f"https://example.org/owner/txnstore/blob/v{version}/docs/demo.md" in links
    assert [link for link in links if not link.startswith("https://")] == []


@pytest.mark.parametrize(
    "url", ["example.org/txnstore", "http://example.org/a", "https://example.org/a/", 'https://a/"b']
)
def test_an_address_where_no_repository_can_be_seen_is_refused(url: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "build_wheels.py"), str(tmp_path), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "https://host/owner/name" in done.stderr


@pytest.mark.process
def test_the_readme_s_program_runs_with_the_client_alone_on_servers_of_the_other_wheel(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    """The program's environment has the `segments` of PyPI as well."""
    (other,) = BESIDE.glob("segments-*.whl")
    program_python = bare_python(tmp_path / "program", wheels[CLIENT])
    command = ["-m", "pip", "--python", str(program_python), "install", "-q", "--no-deps", "--no-index", str(other)]
    subprocess.run([str(ROOT / ".venv" / "bin" / "python"), *command], check=True, timeout=TIMEOUT_S)
    server_python = bare_python(tmp_path / "servers", *wheels.values())
    (program,) = blocks(ROOT / "README.md", "python")
    with running(server_python, tmp_path) as url:
        environment = clean_environment() | {"TXN_URL": url}
        done = subprocess.run(
            [str(program_python), "-c", program + WHERE],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    billed, segments, servers = done.stdout.splitlines()
    assert billed == "100 orders billed exactly once"
    assert segments.startswith("segments 2.")
    assert str(tmp_path / "program") in segments
    assert servers == "servers [] loaded False"


def test_the_client_registers_its_plugin_for_pytest_and_needs_none(wheels: dict[str, Path]) -> None:
    for name, wheel in wheels.items():
        one = described(wheel)
        points = [point for point in one.entry_points if point.group == "pytest11"]
        assert [(point.name, point.value) for point in points] == (PLUGIN if name == CLIENT else [])
        assert "pytest" in (one.metadata.get_all("Provides-Extra") or [])


@pytest.mark.process
def test_the_cookbook_s_test_runs_where_servers_or_a_url_are_and_says_what_is_missing_elsewhere(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (_, program) = blocks(ROOT / "docs" / "cookbook.md", "python")
    (project / "test_shop.py").write_text(program)
    alone = bare_python(tmp_path / "alone", wheels[CLIENT], extra="pytest")
    both = bare_python(tmp_path / "both", *wheels.values(), extra="pytest")
    assert "1 passed" in asked_pytest(both, project)
    nothing = asked_pytest(alone, project)
    assert "1 error" in nothing
    assert "install the distribution `txnstore` and an etcd" in nothing
    with running(both, tmp_path) as url:
        assert "1 passed" in asked_pytest(alone, project, TXN_URL=url)


def asked_pytest(python: Path, project: Path, **more: str) -> str:
    """What the pytest of an environment says of a project. It finds the plugin by its entry point."""
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={project / 'kept'}", "."]
    environment = {**with_etcd(clean_environment()), **more}
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return done.stdout + done.stderr


def with_etcd(environment: dict[str, str]) -> dict[str, str]:
    return {**environment, "PATH": f"{Path(find_etcd()).parent}{os.pathsep}{environment['PATH']}"}


@contextmanager
def running(python: Path, folder: Path) -> Iterator[str]:
    """`txnctl dev` of an environment; its URL."""
    environment = with_etcd(clean_environment())
    command = [str(python.with_name("txnctl")), "dev", "--data-dir", str(folder / "data"), "--etcd-port", "0"]
    command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with (
        (folder / "dev.log").open("w") as log,
        subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ready = process.stdout.readline().split()
            assert ready[:1] == ["ready"], (folder / "dev.log").read_text()
            yield ready[1]
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def clean_environment() -> dict[str, str]:
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "TXN_URL")
    return {name: value for name, value in os.environ.items() if name not in dropped and not name.startswith("PYTEST_")}
