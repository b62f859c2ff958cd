"""`tools/ensure_java.sh`, with other machines' `java`, `apt-get` and `id` on its PATH."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "ensure_java.sh"
NEEDED = ("bash", "env", "sed", "head", "cat", "chmod", "cp")
OPENJDK = 'openjdk version "{}" 2025-04-15\nOpenJDK Runtime Environment (build {}+6)'


class Machine:
    """What is on its PATH is what a test puts there, besides a few of this machine's own tools."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.venv = folder / "bin", folder / "venv"
        self.bin.mkdir()
        self.venv.mkdir()
        for name in NEEDED:
            found = shutil.which(name)
            assert found is not None
            (self.bin / name).symlink_to(found)
        self.has("id", "echo 1000")

    def has(self, name: str, script: str, folder: Path | None = None) -> Path:
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{script}\n")
        path.chmod(0o755)
        return path

    def has_java(self, version: str, folder: Path | None = None) -> Path:
        lines = OPENJDK.format(version, version)
        return self.has("java", f"cat >&2 <<'END'\n{lines}\nEND", folder)

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(SCRIPT), str(self.venv)],
            env={"PATH": str(self.bin), **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.2", "25-ea"])
def test_a_recent_java_on_path_will_do(machine: Machine, version: str) -> None:
    machine.has_java(version)
    done = machine.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("version", "major"), [("11.0.20", "11"), ("1.8.0_392", "8"), ("16", "16")])
def test_an_old_one_is_named_and_what_to_install(machine: Machine, version: str, major: str) -> None:
    machine.has_java(version)
    done = machine.run()
    assert done.returncode == 1
    assert f"Java {major}," in done.stderr
    assert "apt-get install openjdk-17-jre-headless" in done.stderr


def test_without_any_it_says_what_to_install(machine: Machine) -> None:
    done = machine.run()
    assert done.returncode == 1
    assert "none on PATH and no JAVA_HOME" in done.stderr
    assert "apt-get install openjdk-17-jre-headless" in done.stderr


def test_a_java_that_cannot_run_is_none(machine: Machine) -> None:
    machine.has("java", "echo 'The operation could not be completed.' >&2; exit 1")
    done = machine.run()
    assert done.returncode == 1
    assert "Java ?," in done.stderr


def test_java_home_is_what_spark_takes(machine: Machine, tmp_path: Path) -> None:
    home = tmp_path / "jdk"
    machine.has_java("21.0.2", home / "bin")
    machine.has_java("11.0.20")
    assert machine.run(JAVA_HOME=str(home)).returncode == 0
    assert machine.run(JAVA_HOME="").returncode == 1


def test_an_old_java_home_is_not_covered_up_by_path_or_apt(machine: Machine, tmp_path: Path) -> None:
    home = tmp_path / "jdk"
    machine.has_java("11.0.20", home / "bin")
    machine.has_java("17.0.15")
    machine.has("id", "echo 0")
    machine.has("apt-get", "echo never >&2; exit 1")
    done = machine.run(JAVA_HOME=str(home))
    assert done.returncode == 1
    assert f"JAVA_HOME={home} is Java 11" in done.stderr
    assert "unset it" in done.stderr
    assert "has no bin/java" in machine.run(JAVA_HOME=str(machine.venv)).stderr


@pytest.mark.parametrize("package", ["openjdk-17-jre-headless", "openjdk-21-jre-headless"])
def test_root_gets_the_one_that_debian_has(machine: Machine, tmp_path: Path, package: str) -> None:
    installed = machine.has_java("21.0.2", tmp_path / "package")
    machine.has("id", "echo 0")
    machine.has(
        "apt-get",
        f'case "$*" in update*) ;; *{package}) cp {installed} {machine.bin}/java ;; *) echo "no $*"; exit 100 ;; esac',
    )
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert f"installing {package}" in done.stdout


def test_root_whose_apt_fails_is_told_where_to_look(machine: Machine) -> None:
    machine.has("id", "echo 0")
    machine.has("apt-get", "echo 'Could not resolve' >&2; exit 100")
    done = machine.run()
    assert done.returncode == 1
    assert f"see {machine.venv}/apt-java.log" in done.stderr
    assert "Could not resolve" in (machine.venv / "apt-java.log").read_text()
    assert "apt-get install openjdk-17-jre-headless" in done.stderr


def test_a_real_java_is_understood(tmp_path: Path) -> None:
    """The one that the Spark tests run on."""
    asked = subprocess.run([str(SCRIPT), str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert asked.returncode == 0, asked.stderr
